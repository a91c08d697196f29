"""Chance beside the accuracies of a recipe: how often naming the most common class is right, and what that makes of a run.

A result says it itself since trainings record it. Of older results the held-out part is known by dataset and split:
`HELD_OUT` has the size of its most common class and its number of records, as counted in the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ACCURACIES = ("accuracy", "test", "half", "fifth", "baseline_accuracy", "pogz", "inverse", "even")
KINDS = ("train", "curve", "calibrated", "search", "noised-epoch")  # whose accuracies are those of held-out records
AT_CHANCE, DIVERGED = "no better than chance", "the loss of at least one seed diverged"

# (data.name, and data.min_images where it was set; data.split; part): records of the most common class, all records.
HELD_OUT: dict[tuple[str, str, str], tuple[int, int]] = {
    ("digits", "fed-cdp", "validation"): (54, 450),
    ("cancer", "fed-cdp", "validation"): (94, 143),
    ("cancer", "cpl", "test"): (94, 143),
    ("mnist", "fed-cdp", "validation"): (1090, 10000),
    ("mnist", "fed-cdp", "test"): (1135, 10000),
    ("mnist", "cpl", "test"): (1135, 10000),
    ("mnist", "dpfl", "test"): (1005, 9000),
    ("fashion-mnist", "fed-cdp", "validation"): (1050, 10000),
    ("fashion-mnist", "fed-cdp", "test"): (1000, 10000),
    ("fashion-mnist", "dpfl", "test"): (911, 9000),
    ("cifar10", "fed-cdp", "validation"): (1025, 10000),
    ("cifar10", "fed-cdp", "test"): (1000, 10000),
    ("cifar10", "dpfl", "test"): (732, 7000),
    ("adult", "fed-cdp", "validation"): (9292, 12211),
    ("adult", "cpl", "test"): (9292, 12211),
    ("lfw", "fed-cdp", "validation"): (138, 756),
    ("lfw", "fed-cdp", "test"): (138, 756),  # results of an earlier version call this part so
    ("lfw, data.min_images=14", "cpl", "test"): (141, 934),
}


@dataclass(frozen=True)
class Chance:
    """The accuracy of naming the most common class of one held-out part."""

    data: str
    value: float
    records: int


def chance_of(row: Mapping[str, Any], key: str) -> Chance | None:
    """Chance for a measure of a stored row; None where the measure is no accuracy, or chance is not known."""
    if key not in ACCURACIES or row["kind"] not in KINDS:
        return None
    given = dict(one.split("=", 1) for one in row["settings"])
    name, split = given.get("data.name", "digits"), given.get("data.split", "fed-cdp")
    result = row["result"]
    if key != "test" and isinstance(result.get("held_out"), int):
        return Chance(name, float(result["chance"]), result["held_out"])
    part = "test" if key == "test" or split != "fed-cdp" else str(result.get("split") or "validation")
    fewer = f", data.min_images={given['data.min_images']}" if "data.min_images" in given else ""
    known = HELD_OUT.get((name + fewer, split, part))
    return None if known is None else Chance(name, known[0] / known[1], known[1])


def states_of(accuracies: list[float], known: Chance, losses: list[float | None]) -> tuple[str, ...]:
    """What is wrong with trainings of these accuracies and final losses: `AT_CHANCE`, `DIVERGED`, both or nothing.

    At chance if the mean is not clearly above chance, by the test that a training makes of its own accuracy. Diverged if
    the loss of any of them did.
    """
    from fedveil.data.registry import DATASETS
    from fedveil.simulation.learning import diverged, learned

    above = learned(sum(accuracies) / len(accuracies), known.value, known.records)
    blown = any(diverged(loss, DATASETS[known.data].classes) for loss in losses)
    return (*(() if above else (AT_CHANCE,)), *((DIVERGED,) if blown else ()))
