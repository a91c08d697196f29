"""A dataset: arrays in memory with the names of classes and features, and its splits.

The splits cut a published dataset into train, held-out, test and public parts. `fed-cdp` keeps part of the training set for
validation. `cpl` trains on all of it and measures on the test part. `dpfl` measures on the test part without a public set,
which the server has. A dataset that is published without a test part is cut 3:1. All cuts have fixed seeds: they belong to
the dataset and not to a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.core.errors import ConfigError, DataError, unknown_name
from fedveil.core.keys import generator

MOST_CLASSES = 100_000  # a larger label is probably an id or a time, and a model of that width would fill the memory

SPLITS: dict[str, str] = {
    "fed-cdp": "part of the training set is kept for validation",
    "cpl": "all of the training set, accuracy on the test part",
    "dpfl": "accuracy on the test part, less the server's public set",
}

_SPLIT_SEED = 20_200_811  # arbitrary constants; other values would change every split
_PUBLIC_SEED = 20_230_417


@dataclass(frozen=True)
class Part:
    """Examples and their labels."""

    x: np.ndarray  # [n, ...] uint8 images (NHWC) or float32
    y: np.ndarray  # [n] int32
    client: np.ndarray | None = None  # [n] int64, the client that holds each example, 0, 1, ...; None: any may

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: np.ndarray) -> Part:
        return Part(self.x[index], self.y[index], None if self.client is None else self.client[index])


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


def scale_of(stored: np.ndarray) -> float:
    """The factor from stored values to a model's scale: 1/255 for bytes, 1 for other numbers."""
    return 1.0 / 255.0 if stored.dtype == np.uint8 else 1.0


# --- splits


@dataclass(frozen=True)
class Raw:
    """A dataset before it is split, and how the papers split it."""

    name: str
    train: Part
    classes: int
    test: Part | None = None  # the published test part
    share: float = 0.75  # of the examples that is trained on, where there is no test part
    fed_cdp_train: int = 0  # training examples of `fed-cdp`; the others are for validation
    dpfl_train: int = 0  # training examples of `dpfl`; the others are unused
    dpfl_public: float = 0.1
    indivisible: bool = False  # too few examples to hold any out; for attacks only
    groups: tuple[tuple[int, int], ...] = ()
    feature_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    note: str = ""


def split_dataset(raw: Raw, split: str = "fed-cdp", public: float = 0.0) -> Dataset:
    """Splits a dataset the way a paper does. `public` is the server's share of the test part."""
    if split not in SPLITS:
        raise unknown_name("data.split", split, SPLITS)
    if not 0.0 <= public < 1.0:
        raise ConfigError("defense.public", public, "takes a share of the test part, from 0 to below 1")
    if split == "dpfl" and public == 0.0:
        public = raw.dpfl_public
    train, held_out, held_out_name, test = _cut(raw, split)
    drawn = None
    if public > 0.0 and not raw.indivisible:
        # Drawn from the test part, so that the public set never overlaps with the clients' data or the validation part.
        if test is not None:
            drawn, test = _draw(test, public)
        else:
            drawn, held_out = _draw(held_out, public)
    names: dict[str, Any] = {key: getattr(raw, key) for key in ("groups", "feature_names", "class_names", "note")}
    return Dataset(raw.name, train, held_out, held_out_name, raw.classes, test, drawn, **names)


def _cut(raw: Raw, split: str) -> tuple[Part, Part, str, Part | None]:
    """The training part, the held-out part and its name, and the test part unless it is the held-out part."""
    name = "validation" if split == "fed-cdp" else "test"
    if raw.indivisible:
        return raw.train, raw.train, name, None
    if raw.test is None:
        return *cut_share(raw.train, raw.share), name, None
    if split == "cpl":
        return raw.train, raw.test, name, None
    if split == "dpfl":
        return _range(raw.train, 0, raw.dpfl_train or len(raw.train)), raw.test, name, None
    if raw.fed_cdp_train:
        cut = raw.fed_cdp_train
        return _range(raw.train, 0, cut), _range(raw.train, cut, len(raw.train)), name, raw.test
    # A user's own test part. No paper says what to hold out of the training part, so measure on the test part.
    return raw.train, raw.test, "test", None


def cut_share(part: Part, share: float) -> tuple[Part, Part]:
    """Splits a part into two, of `share` and 1 - `share` of its examples, always the same way.

    The first size is rounded down; both have at least one example.
    """
    if part.client is not None:
        return _cut_clients(part, part.client, share)
    first = min(max(1, int(len(part) * share)), len(part) - 1)
    order = generator(_SPLIT_SEED).permutation(len(part))
    return part.take(np.sort(order[:first])), part.take(np.sort(order[first:]))


def _cut_clients(part: Part, client: np.ndarray, share: float) -> tuple[Part, Part]:
    """The same cut within each client, which keeps at least one example."""
    shuffled = generator(_SPLIT_SEED).permutation(len(part))
    order = shuffled[np.argsort(client[shuffled], kind="stable")]
    counts = np.bincount(client)
    rank = np.arange(len(part)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = rank < np.maximum(1, (counts * share).astype(np.int64))[client[order]]
    if first.all():
        raise DataError(
            "client: every client has one example, which leaves none to hold out; give x_test and y_test too"
        )
    return part.take(np.sort(order[first])), part.take(np.sort(order[~first]))


def _draw(part: Part, share: float) -> tuple[Part, Part]:
    """Splits a part at random: a public set of about `share` of its examples, and the rest."""
    size = round(len(part) * share)
    if not 0 < size < len(part):
        raise ConfigError("defense.public", share, f"takes a share that cuts {len(part)} examples in two")
    order = generator(_PUBLIC_SEED).permutation(len(part))
    return part.take(np.sort(order[:size])), part.take(np.sort(order[size:]))


def _range(part: Part, first: int, last: int) -> Part:
    held = None if part.client is None else part.client[first:last]
    return Part(part.x[first:last], part.y[first:last], held)
