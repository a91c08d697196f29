"""Properties that an attacker looks for in the examples behind an update: `class:N`, or `column:NAME` of attribute data.

A class is there or not: the examples have the trait where at least one is of the class. A column is a matter of shares:
they have the trait where at least three quarters of them have the column set, they have it not where at most a quarter
has, and in between nobody is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedveil.core.errors import ConfigError, did_you_mean
from fedveil.data.dataset import Dataset

MOST = 0.75  # the share from which on a column counts as had; one minus it, up to which it counts as not had
TAKES = "takes class:N, or column:NAME of attribute data, the property to look for"


@dataclass(frozen=True)
class Property:
    """One property."""

    name: str
    column: int | None = None  # of attribute data
    label: int | None = None  # else the class

    def of_records(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """[n] bool: which records have it; x as the model sees them."""
        return y == self.label if self.column is None else x[:, self.column] > 0.5

    def of_examples(self, have: np.ndarray) -> bool | None:
        """Whether examples of which these [n] `have` it have it together; None: neither."""
        if not len(have):
            return None
        if self.column is None:
            return bool(have.any())
        share = float(have.mean())
        return True if share >= MOST else False if share <= 1 - MOST else None

    def drawn(self, rng: np.random.Generator, have: np.ndarray, size: int, wanted: bool) -> np.ndarray:
        """`size` places of records, of those of which these [n] `have` it, that together have it or not, as wanted.

        A class: one example of it and the others as they come, or none. A column: each share that counts is as likely.
        """
        inside, outside = np.flatnonzero(have), np.flatnonzero(~have)
        if self.column is None:
            count = 1 + int(rng.binomial(size - 1, len(inside) / len(have))) if wanted else 0
        else:
            away = int(rng.integers(0, int((1 - MOST) * size) + 1))
            count = size - away if wanted else away
        return rng.permutation(np.concatenate([_some(rng, inside, count), _some(rng, outside, size - count)]))


def _some(rng: np.random.Generator, places: np.ndarray, count: int) -> np.ndarray:
    """So many of some places, none twice while they last."""
    return rng.choice(places, count, replace=count > len(places)) if count else places[:0]


def parse(text: str | None, dataset: Dataset) -> Property:
    """The trait that `attack.trait` names."""
    kind, colon, value = (text or "").partition(":")
    if text is None or not colon or kind not in ("class", "column"):
        raise ConfigError("attack.trait", text, TAKES)
    if kind == "class":
        if not value.isdecimal() or int(value) >= dataset.classes:
            raise ConfigError("attack.trait", text, f"takes class:0 to class:{dataset.classes - 1} here")
        return Property(text, label=int(value))
    known = [dataset.feature_names[place] for start, stop in dataset.groups for place in range(start, stop)]
    if not known:
        raise ConfigError("attack.trait", text, f"{dataset.name} has no yes-or-no columns with names: takes class:N")
    if value not in known:
        raise ConfigError("attack.trait", text, "names no yes-or-no column; " + did_you_mean(value, known))
    return Property(text, column=dataset.feature_names.index(value))
