"""A user's own data: arrays in memory, or an .npz file that holds them."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedveil.core.archives import load_npz
from fedveil.core.errors import DataError, FedveilError
from fedveil.data.dataset import Dataset, Part, Raw, check_arrays, split_dataset


def from_arrays(
    x: np.ndarray,
    y: np.ndarray,
    x_test: np.ndarray | None = None,
    y_test: np.ndarray | None = None,
    classes: int | None = None,
    name: str = "arrays",
    *,
    client: np.ndarray | None = None,
) -> Dataset:
    """A dataset from arrays. Without a test part, a quarter is held out by a fixed seed.

    `client`: which client holds each example, as numbers or names; without it a partition distributes them.
    """
    raw = raw_arrays(x, y, x_test, y_test, classes, name)
    return split_dataset(raw if client is None else with_clients(raw, client, name))


def with_clients(raw: Raw, client: np.ndarray, where: str) -> Raw:
    """The dataset with the client of each training example; ids are numbered in their order."""
    ids = np.asarray(client)
    if ids.shape != raw.train.y.shape or ids.dtype.kind not in "iuSU":
        takes = f"give one whole number or name for each of the {len(raw.train)} examples of x"
        raise DataError(f"{where}: client has shape {ids.shape} and type {ids.dtype}; {takes}")
    numbered = np.unique(ids, return_inverse=True)[1].reshape(-1)
    return replace(raw, train=replace(raw.train, client=numbered.astype(np.int64)))


def read_folder(path: Path, key: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The arrays of a folder with one .npz per client, in the order of their names, and the client of each example.

    `test.npz`, if it is there, holds the test part.
    """
    files = sorted(file for file in path.glob("*.npz") if file.name != "test.npz")
    if not files:
        raise DataError(f"{key}: {path} holds no .npz files; it takes one for each client, with x and y")
    parts = [read_arrays(file, ("x", "y"), key) for file in files]
    for file, part in zip(files, parts, strict=True):
        if part["x"].shape[1:] != parts[0]["x"].shape[1:] or part["x"].dtype != parts[0]["x"].dtype:
            given = f"{part['x'].dtype} {list(part['x'].shape[1:])}"
            first = f"{parts[0]['x'].dtype} {list(parts[0]['x'].shape[1:])}"
            raise DataError(f"{key}: {file} holds examples of {given} and {files[0].name} of {first}; give all alike")
        if part["y"].shape != part["x"].shape[:1] or not len(part["y"]):
            raise DataError(f"{key}: {file} holds {len(part['x'])} examples and labels {list(part['y'].shape)}")
    found = {name: np.concatenate([part[name] for part in parts]) for name in ("x", "y")}
    if (path / "test.npz").is_file():
        test = read_arrays(path / "test.npz", ("x", "y"), key)
        found |= {"x_test": test["x"], "y_test": test["y"]}
    return found, np.repeat(np.arange(len(parts)), [len(part["y"]) for part in parts])


def raw_arrays(
    x: np.ndarray,
    y: np.ndarray,
    x_test: np.ndarray | None = None,
    y_test: np.ndarray | None = None,
    classes: int | None = None,
    name: str = "arrays",
    where: str | None = None,
) -> Raw:
    """A dataset from arrays, checked but not split. Errors begin with `where`, by default with the name."""
    where = where or name
    train = check_arrays(x, y, where)
    test = None
    if (x_test is None) != (y_test is None):
        raise DataError(f"{where}: of x_test and y_test only one is given; give both or neither")
    if x_test is not None and y_test is not None:
        test = check_arrays(x_test, y_test, f"{where} (test part)")
        if test.x.shape[1:] != train.x.shape[1:] or test.x.dtype != train.x.dtype:
            raise DataError(f"{where}: x_test holds {_describe(test)} and x {_describe(train)}; give both alike")
    elif len(train) < 2:
        raise DataError(f"{where}: x has one example, which leaves none to hold out; give x_test and y_test too")
    return Raw(name, train, classes=_classes(train, test, classes, where), test=test)


def _describe(part: Part) -> str:
    return f"{part.x.dtype} {list(part.x.shape[1:])}"


def _classes(train: Part, test: Part | None, classes: int | None, where: str) -> int:
    """The number of classes: as given, or the largest label and one."""
    seen = 1 + max(int(train.y.max()), int(test.y.max()) if test is not None else 0)
    if classes is None:
        return max(2, seen)
    if classes < seen:
        raise DataError(f"{where}: there is a label {seen - 1} but classes is {classes}; labels count from 0")
    return classes


def read_arrays(path: Path, wanted: tuple[str, ...], key: str) -> dict[str, np.ndarray]:
    """The wanted arrays that an .npz file holds, at least x and y. `key` is the config key or option that gave the path."""
    if not path.is_file():
        raise DataError(f"{key}: there is no file {path}; give the path of an .npz file with arrays x and y")
    try:
        found, names = _read(path, wanted, key)
    except FedveilError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise many kinds of errors for a damaged archive
        raise _unreadable(path, _reason(error), key) from error
    if "x" not in found or "y" not in found:
        held = ", ".join(names) or "none"
        takes = "x, y (and x_test, y_test)" if "x_test" in wanted else "x and y"
        raise DataError(f"{key}: {path} holds the arrays {held}; it takes {takes}")
    return found


def _read(path: Path, wanted: tuple[str, ...], key: str) -> tuple[dict[str, np.ndarray], list[str]]:
    """The wanted arrays of an .npz file, and the names of all its arrays."""
    with path.open("rb") as file:
        if file.read(6) == b"\x93NUMPY":
            raise DataError(f"{key}: {path} holds one array; save it as .npz with x and y")
        if not zipfile.is_zipfile(file):
            raise _unreadable(path, "not a zip archive, or cut short", key)
        names = [name.removesuffix(".npy") for name in zipfile.ZipFile(file).namelist()]
    return load_npz(path, wanted), names


def _reason(error: Exception) -> str:
    """Why a file cannot be read, without numpy's advice to allow pickles, which could run code."""
    if "allow_pickle" in str(error):
        return "it holds Python objects"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _unreadable(path: Path, reason: str, key: str) -> DataError:
    return DataError(f"{key}: {path} is no .npz of plain arrays ({reason}); save it with numpy.savez")
