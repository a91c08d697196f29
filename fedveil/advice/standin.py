"""The public stand-in: records of the asked shape, on which settings are chosen and tried. The user's data is not used.

Images are Fashion-MNIST where it was fetched (MNIST if the question is about Fashion-MNIST itself), else the embedded
digits; tables are Adult where it was fetched, else the embedded cancer records. They are resized to the asked shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedveil.advice.question import Question
from fedveil.core.errors import DataError
from fedveil.data.dataset import Dataset, Part
from fedveil.data.registry import load

HELD = 5_000  # held-out records, and as many of a test part, on which accuracies are measured
IMAGES, TABLES = ("fashion-mnist", "mnist", "digits"), ("adult", "cancer")


@dataclass(frozen=True)
class StandIn:
    """A public dataset in the form of the user's records."""

    dataset: Dataset
    name: str
    says: str  # what was done to it, in one sentence
    copies: int  # clients at which each record is held, at least


def stand_in(asked: Question) -> StandIn:
    """A public dataset in the shape that is asked about, with the changes that this took."""
    found = _first([name for name in (IMAGES if asked.image else TABLES) if name != asked.data])
    changed, notes = found, []
    if found.classes > asked.classes:
        changed = _each(changed, lambda part: part.take(np.flatnonzero(part.y < asked.classes)), asked.classes)
        notes.append(f"the first {asked.classes} of its {found.classes} classes")
    if found.classes < asked.classes:
        notes.append(f"it has only {found.classes} classes, so that accuracy on {asked.classes} classes will be lower")
    if found.shape != asked.shape:
        form = _resized if asked.image else _columns
        changed = _each(changed, lambda part: Part(form(part.x, asked.shape), part.y), changed.classes)
        what = "resized to" if asked.image else "columns repeated or cut to"
        notes.append(f"{what} {' x '.join(map(str, asked.shape))}")
    needed, there = asked.clients * asked.records, len(changed.train)
    copies = -(-needed // there)
    changed = _enough(changed, needed)
    if copies > 1:
        notes.append(f"{there:,} records for {needed:,}: each is held by up to {copies} clients")
    says = f"{found.name} (public)" + "".join(f"; {note}" for note in notes)
    return StandIn(changed, found.name, says, copies)


def _enough(dataset: Dataset, needed: int) -> Dataset:
    """At most the needed training records, and few held-out ones: features cost time."""
    most = {"train": needed, "held_out": HELD, "test": HELD}
    parts = {name: getattr(dataset, name) for name in most}
    rng = np.random.default_rng(0)
    kept = {
        name: part.take(np.sort(rng.permutation(len(part))[: most[name]]))
        for name, part in parts.items()
        if part is not None and len(part) > most[name]
    }
    return replace(dataset, **kept)


def _first(names: list[str]) -> Dataset:
    """The first of these datasets whose files are here; the last one is embedded."""
    for name in names[:-1]:
        try:
            return load(name)
        except DataError:
            continue
    return load(names[-1])


def _each(dataset: Dataset, change: object, classes: int) -> Dataset:
    assert callable(change)
    parts = {name: getattr(dataset, name) for name in ("train", "held_out", "test")}
    made = {name: change(part) for name, part in parts.items() if part is not None}
    return replace(dataset, classes=classes, groups=(), feature_names=(), **made)


def _resized(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Images [n, rows, columns, colours] at the nearest pixels of another size; colours are averaged or repeated."""
    rows, columns, colours = shape
    down = np.arange(rows) * images.shape[1] // rows
    across = np.arange(columns) * images.shape[2] // columns
    made = images[:, down][:, :, across]
    if made.shape[3] == colours:
        return made
    return np.repeat(made.mean(axis=3, keepdims=True).astype(images.dtype), colours, axis=3)


def _columns(table: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Rows with the asked number of columns: repeated in order, or cut."""
    return np.take(table, np.arange(shape[0]) % table.shape[1], axis=1)
