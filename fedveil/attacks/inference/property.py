"""Properties that an attacker looks for in the examples behind an update: `class:N`, or `column:NAME` of attribute data.

Examples have the property `class:N` if at least one of them is of the class. They have the property `column:NAME` if at
least three quarters of them have the column set, and lack it if at most a quarter has. Updates in between are not used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedveil.core.errors import ConfigError, did_you_mean
from fedveil.data.dataset import Dataset

MOST = 0.75  # a column counts as had from this share on, and as not had up to one minus it
TAKES = "takes class:N, or column:NAME of attribute data, the property to look for"


@dataclass(frozen=True)
class Property:
    """A property that a record may have: a true attribute, or membership in a class."""

    name: str
    column: int | None = None  # of attribute data
    label: int | None = None  # else the class

    def of_records(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """[n] bool: the records that have it; x as the model sees them."""
        return y == self.label if self.column is None else x[:, self.column] > 0.5

    def of_examples(self, have: np.ndarray) -> bool | None:
        """Whether the examples as a whole have the property, given which single ones [n] `have` it. None: unclear."""
        if not len(have):
            return None
        if self.column is None:
            return bool(have.any())
        share = float(have.mean())
        return True if share >= MOST else False if share <= 1 - MOST else None

    def drawn(self, rng: np.random.Generator, have: np.ndarray, size: int, wanted: bool) -> np.ndarray:
        """Indices of `size` records that as a whole have the property, or lack it, as `wanted`; [n] `have` it alone.

        A class: one example of it and the others at random, or none. A column: each share that counts is equally likely.
        """
        inside, outside = np.flatnonzero(have), np.flatnonzero(~have)
        if self.column is None:
            count = 1 + int(rng.binomial(size - 1, len(inside) / len(have))) if wanted else 0
        else:
            away = int(rng.integers(0, int((1 - MOST) * size) + 1))
            count = size - away if wanted else away
        return rng.permutation(np.concatenate([_some(rng, inside, count), _some(rng, outside, size - count)]))


def _some(rng: np.random.Generator, rows: np.ndarray, count: int) -> np.ndarray:
    """`count` of the rows; none twice unless there are too few."""
    return rng.choice(rows, count, replace=count > len(rows)) if count else rows[:0]


def parse(text: str | None, dataset: Dataset) -> Property:
    """The property that `attack.property` names."""
    kind, colon, value = (text or "").partition(":")
    if text is None or not colon or kind not in ("class", "column"):
        raise ConfigError("attack.property", text, TAKES)
    if kind == "class":
        if not value.isdecimal() or int(value) >= dataset.classes:
            raise ConfigError("attack.property", text, f"takes class:0 to class:{dataset.classes - 1} here")
        return Property(text, label=int(value))
    known = [dataset.feature_names[column] for start, stop in dataset.groups for column in range(start, stop)]
    if not known:
        raise ConfigError("attack.property", text, f"{dataset.name} has no yes-or-no columns with names: takes class:N")
    if value not in known:
        raise ConfigError("attack.property", text, "names no yes-or-no column; " + did_you_mean(value, known))
    return Property(text, column=dataset.feature_names.index(value))
