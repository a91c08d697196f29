"""Load a dataset by name, split the way a paper does."""

from __future__ import annotations

from functools import partial

from fedveil.core.errors import ConfigError
from fedveil.data import files, originals
from fedveil.data.dataset import Dataset, split_dataset
from fedveil.data.info import LoadRequest
from fedveil.data.registry import dataset_named

SMALLEST_SCATTERED = 16  # pixels: smaller images have hardly any windows of four


def load(
    name: str,
    *,
    dir: str | None = None,
    split: str = "fed-cdp",
    min_images: int = 20,
    size: int = 32,
    file: str | None = None,
    public: float = 0.0,
    features: str = "raw",
) -> Dataset:
    """The dataset of this name, from the folders that `files.search_folders(dir)` lists.

    Arrays that were converted from the publisher's archive are preferred to prepared files.

    `min_images` and `size` are for `lfw`, `file` is for the dataset `file`. `public` is the server's share of the test
    part. With `features` = `scatter`, images are replaced by the features of `scatter.py`.
    """
    info = dataset_named(name)
    read, converted = partial(files.read, info, dir=dir), partial(originals.read, info, dir)
    request = LoadRequest(info, read, converted, min_images, size, file)
    dataset = split_dataset(info.load(request), split, public)
    if features == "raw":
        return dataset
    if len(dataset.shape) != 3 or min(dataset.shape[:2]) < SMALLEST_SCATTERED:
        takes = (
            f"takes images of at least {SMALLEST_SCATTERED} pixels, and records have the shape {dataset.shape}: use raw"
        )
        raise ConfigError("data.features", features, takes)
    from fedveil.data.scatter import scattered

    return scattered(dataset)
