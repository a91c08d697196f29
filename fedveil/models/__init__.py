"""Models: layers, the networks of the papers, adapters for models from elsewhere."""
