"""One module for each dataset, with its description, loader and sources in `DATASET`. `data.registry` finds them."""
