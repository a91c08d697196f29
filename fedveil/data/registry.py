"""The table of datasets, and loading one by name, split the way a paper does.

The table holds the modules of `fedveil.data.datasets` and what `register_dataset` adds.

A module of that package defines `DATASET`, a `DatasetInfo`. To add a dataset, add one such module.
"""

from __future__ import annotations

import pkgutil
from functools import partial
from importlib import import_module

from fedveil.core.errors import ConfigError, unknown_name
from fedveil.data import datasets, files, originals
from fedveil.data.dataset import Dataset, split_dataset
from fedveil.data.info import DatasetInfo, LoadRequest

SMALLEST_SCATTERED = 16  # pixels: smaller images have hardly any windows of four


def _built_in() -> dict[str, DatasetInfo]:
    """The datasets of the package, in the order of listings."""
    modules = [import_module(f"{datasets.__name__}.{found.name}") for found in pkgutil.iter_modules(datasets.__path__)]
    infos: list[DatasetInfo] = [module.DATASET for module in modules]
    return {info.name: info for info in sorted(infos, key=lambda info: (info.position, info.name))}


DATASETS: dict[str, DatasetInfo] = _built_in()


def register_dataset(info: DatasetInfo, *, replace: bool = False) -> DatasetInfo:
    """Adds a dataset from outside the package, so that `data.name` accepts it. A known name needs `replace`."""
    if not isinstance(info, DatasetInfo):
        raise ConfigError("register_dataset", info, "takes a fedveil.data.info.DatasetInfo")
    if info.name in DATASETS and not replace:
        raise ConfigError("register_dataset", info.name, "is the name of another dataset: choose one that is free")
    DATASETS[info.name] = info
    return info


def dataset_named(name: str) -> DatasetInfo:
    """The dataset that `data.name` names."""
    if name not in DATASETS:
        raise unknown_name("data.name", name, DATASETS)
    return DATASETS[name]


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
