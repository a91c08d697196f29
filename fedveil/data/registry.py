"""The table of datasets: the modules of `fedveil.data.datasets`, and what `register_dataset` adds.

A module of that package defines `DATASET`, a `DatasetInfo`. To add a dataset, add one such module.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from fedveil.core.errors import ConfigError, unknown_name
from fedveil.data import datasets
from fedveil.data.info import DatasetInfo


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
