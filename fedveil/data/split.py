"""Splits of a published dataset into train, held-out, test and public parts.

`fed-cdp` keeps part of the training set for validation. `cpl` trains on all of it and measures on the test part. `dpfl`
measures on the test part without a public set, which the server has. A dataset that is published without a test part is
cut 3:1. All cuts have fixed seeds: they belong to the dataset and not to a run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedveil.core.errors import ConfigError, unknown_name
from fedveil.data.dataset import Dataset, Part

SPLITS: dict[str, str] = {
    "fed-cdp": "part of the training set is kept for validation",
    "cpl": "all of the training set, accuracy on the test part",
    "dpfl": "accuracy on the test part, less the server's public set",
}

_SPLIT_SEED = 20_200_811  # arbitrary constants; other values would change every split
_PUBLIC_SEED = 20_230_417


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
    return Dataset(
        name=raw.name,
        train=train,
        held_out=held_out,
        held_out_name=held_out_name,
        classes=raw.classes,
        test=test,
        public=drawn,
        groups=raw.groups,
        feature_names=raw.feature_names,
        class_names=raw.class_names,
        note=raw.note,
    )


def _cut(raw: Raw, split: str) -> tuple[Part, Part, str, Part | None]:
    """Train, held-out, the held-out part's name, and the test part if it is not the held-out part."""
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
    """A fixed random cut, share : 1 - share. The first size is rounded down; both have at least one example."""
    first = min(max(1, int(len(part) * share)), len(part) - 1)
    order = generator(_SPLIT_SEED).permutation(len(part))
    return part.take(np.sort(order[:first])), part.take(np.sort(order[first:]))


def _draw(part: Part, share: float) -> tuple[Part, Part]:
    """A public set of about this share of a part, and the rest."""
    size = round(len(part) * share)
    if not 0 < size < len(part):
        raise ConfigError("defense.public", share, f"takes a share that cuts {len(part)} examples in two")
    order = generator(_PUBLIC_SEED).permutation(len(part))
    return part.take(np.sort(order[:size])), part.take(np.sort(order[size:]))


def _range(part: Part, first: int, last: int) -> Part:
    return Part(part.x[first:last], part.y[first:last])


def generator(seed: int) -> np.random.Generator:
    """The random generator of a fixed cut."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed])))
