"""A loaded dataset: arrays in memory, split for federated training, with the names of classes and features."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedveil.core.errors import DataError
from fedveil.data.pixels import scale_of

MOST_CLASSES = 100_000  # a larger label is probably an id or a time, and a model of that width would fill the memory


@dataclass(frozen=True)
class Part:
    """Examples and their labels."""

    x: np.ndarray  # [n, ...] uint8 images (NHWC) or float32
    y: np.ndarray  # [n] int32

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: np.ndarray) -> Part:
        return Part(self.x[index], self.y[index])


@dataclass(frozen=True)
class Dataset:
    """A dataset split for federated training.

    Clients hold `train`. Accuracy is measured on `held_out`, which `held_out_name` calls `validation` or `test`. `test` is
    the publisher's test part, if it exists and is not already `held_out`. The server's public set is drawn from the test
    part.
    """

    name: str
    train: Part
    held_out: Part
    held_out_name: str
    classes: int
    test: Part | None = None
    public: Part | None = None  # the server's public set, disjoint from `held_out`
    groups: tuple[tuple[int, int], ...] = ()  # one-hot columns of attribute data, [start, stop)
    feature_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    note: str = ""  # caveats for readers of results: a re-split, assumed scaling constants
    extras: dict[str, object] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.train.x.shape[1:])

    @property
    def scale(self) -> float:
        """The factor from stored values to the model's scale: uint8 pixels to [0, 1]."""
        return scale_of(self.train.x)


def check_arrays(x: np.ndarray, y: np.ndarray, where: str) -> Part:
    """A user's arrays after checks: shapes agree, labels are 0, 1, ..., values are finite."""
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim < 2 or x.size == 0:
        takes = "give at least one example with at least one feature, shape [n, ...features]"
        raise DataError(f"{where}: x has shape {x.shape}; {takes}")
    if y.shape != (len(x),):
        raise DataError(f"{where}: y has shape {y.shape}; give one label for each of the {len(x)} examples of x")
    if y.dtype.kind not in "iufb":
        raise DataError(f"{where}: labels are {y.dtype}; give whole numbers 0, 1, 2, ...")
    if not np.isfinite(y).all():
        raise DataError(f"{where}: labels hold NaN or infinity; give whole numbers 0, 1, 2, ...")
    if y.dtype.kind == "f" and not np.all(y == np.floor(y)):
        raise DataError(f"{where}: labels are {y.dtype} with fractions; give whole numbers 0, 1, 2, ...")
    if y.max() >= MOST_CLASSES:
        raise DataError(f"{where}: the largest label is {y.max()}; give whole numbers below {MOST_CLASSES:,}")
    if y.min() < 0:
        raise DataError(f"{where}: the smallest label is {y.min()}; labels count from 0")
    if x.dtype != np.uint8:
        if x.dtype.kind not in "fiub":
            raise DataError(f"{where}: x has dtype {x.dtype}; give numbers (float32, or uint8 pixels)")
        x = _as_float32(x, where)
    return Part(x, y.astype(np.int32))


def _as_float32(x: np.ndarray, where: str) -> np.ndarray:
    with np.errstate(over="ignore"):  # an overflow gives infinity, which is refused below
        cast = x.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(cast).reshape(len(cast), -1).all(axis=1))
    if len(bad):
        hold = "1 example holds" if len(bad) == 1 else f"{len(bad)} examples hold"
        what = "numbers too large for float32" if np.isfinite(x[bad]).all() else "NaN or infinity"
        remedy = "scale, clean or drop" if what.startswith("numbers") else "clean or drop"
        them = "it" if len(bad) == 1 else "them"
        raise DataError(f"{where}: {hold} {what} (first: {bad[0]}); {remedy} {them}")
    return cast
