"""Load a dataset by name, split the way a paper does."""

from __future__ import annotations

from fedveil.core.errors import unknown_name
from fedveil.data.catalog import DATASETS
from fedveil.data.dataset import Dataset
from fedveil.data.split import Raw, split_dataset


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
    """The dataset of this name, from the folders that `sources.search_folders(dir)` lists.

    `min_images` and `size` are for `lfw`, `file` is for `file`; `public` is the server's share of the test part;
    `features` `scatter` puts the features of `scatter.py` in the place of pixels.
    """
    if name not in DATASETS:
        raise unknown_name("data.name", name, DATASETS)
    dataset = split_dataset(_raw(name, dir, min_images, size, file), split, public)
    if features == "raw":
        return dataset
    from fedveil.data.scatter import scattered

    return scattered(dataset)


def _raw(name: str, dir: str | None, min_images: int, size: int, file: str | None) -> Raw:
    """Each family's loader is imported only when it is asked for: scikit-learn alone takes a second."""
    if name in ("digits", "cancer"):
        from fedveil.data import embedded

        return embedded.load_digits() if name == "digits" else embedded.load_cancer()
    if name in ("mnist", "fashion-mnist"):
        from fedveil.data.idx import load_idx

        return load_idx(name, dir)
    if name in ("cifar10", "cifar100"):
        from fedveil.data import cifar

        return cifar.load_cifar10(dir) if name == "cifar10" else cifar.load_cifar100(dir)
    if name == "lfw":
        from fedveil.data.lfw import load_lfw

        return load_lfw(dir, min_images, size)
    if name == "adult":
        from fedveil.data.adult import load_adult

        return load_adult(dir)
    if name == "xray":
        from fedveil.data.xray import load_xray

        return load_xray(dir)
    from fedveil.data.arrays import load_file

    return load_file(file)
