"""The results of a recipe: published value, measured value, interval and gap; as a printed table and as a chart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedveil.recipes.cache import Cache
from fedveil.recipes.cell import Cell, Measure, Recipe, Size
from fedveil.recipes.chance import Chance, chance_of, states_of
from fedveil.recipes.largest import smaller_run
from fedveil.recipes.published import value_of

if TYPE_CHECKING:
    from fedveil.report.charts import Chart

Row = dict[str, Any]  # a line of cells.jsonl
RATES = frozenset({"accuracy", "test", "success_rate", "believed_rate", "label_success_rate", "auc"})


@dataclass(frozen=True)
class Entry:
    """One number of a table."""

    row: str
    column: str
    measure: Measure
    published: float | str | None
    measured: float | None
    low: float | None
    high: float | None
    seeds: int  # number of measured seeds
    device: str | None
    note: str
    reduced: tuple[str, ...] = ()  # what is smaller than the paper's size; empty: nothing
    chance: Chance | None = None  # of an accuracy, where it is known
    states: tuple[str, ...] = ()  # of `chance.py`: at chance, diverged

    @property
    def full(self) -> bool:
        """Whether the number comes from runs of the size asked for, with every seed."""
        return self.seeds > 0 and not self.reduced

    @property
    def gap(self) -> float | None:
        """Measured minus published value; None for a smaller run, which is not comparable."""
        if self.measured is None or self.reduced or not isinstance(self.published, int | float):
            return None
        return self.measured - self.published

    def as_dict(self) -> dict[str, Any]:
        return {
            "row": self.row,
            "column": self.column,
            "measure": self.measure.label,
            "published": self.published,
            "measured": self.measured,
            "interval": None if self.low is None else [self.low, self.high],
            "gap": self.gap,
            "seeds": self.seeds,
            "device": self.device,
            "note": self.note,
            "reduced": list(self.reduced),
            "chance": None if self.chance is None else self.chance.value,
            "states": list(self.states),
        }


def entries(recipe: Recipe, size: Size, cache: Cache) -> list[Entry]:
    """All numbers of a recipe. A cell that was not run has no measured value.

    At full size a cell that lacks a seed shows its largest run instead (`largest.py`): the two are never averaged.
    """
    made = []
    for cell in recipe.cells(size):
        rows, reduced = rows_of(cell, size, cache)
        made += [_entry(recipe, cell, measure, rows, reduced) for measure in recipe.measures]
    return made


def rows_of(cell: Cell, size: Size, cache: Cache) -> tuple[list[Row], tuple[str, ...]]:
    """The stored results that a cell shows, and what was reduced in them."""
    rows = [row for row in (cache.get(job) for job in cell.jobs()) if row is not None]
    if not size.full or len(rows) == cell.seeds:
        return rows, ()
    smaller = smaller_run(cell, cache)
    return ([], ()) if smaller is None else (list(smaller.rows), smaller.reduced)


def _entry(recipe: Recipe, cell: Cell, measure: Measure, rows: list[Row], reduced: tuple[str, ...]) -> Entry:
    results = [_part(row["result"], cell.part) for row in rows]
    values = [v for v in (reach(result, measure.key) for result in results) if v is not None]
    mean = sum(values) / len(values) if values else None
    low, high = interval(values, measure.key in RATES) if len(values) > 1 else _own_interval(results, measure)
    chance = chance_of(rows[0], measure.key) if values and not cell.part else None
    ends = [row["result"]["loss"] for row in rows if measure.key in ("accuracy", "test") and "loss" in row["result"]]
    return Entry(
        cell.row,
        cell.column,
        measure,
        value_of(recipe.name, cell.like or cell.row, cell.column, measure.published or measure.key),
        mean,
        low,
        high,
        len(rows),
        rows[0]["device"] if rows else None,
        cell.note,
        reduced,
        chance,
        () if chance is None else states_of(values, chance, ends),
    )


def _part(result: dict[str, Any], part: str) -> dict[str, Any]:
    """The part of a result at a dotted key; empty if a smaller run has no such part."""
    for key in part.split(".") if part else ():
        result = result.get(key, {})
    return result


def reach(result: dict[str, Any], key: str) -> float | None:
    """The number at a dotted key of a result, or its root if the key begins with √; None if there is no finite number."""
    if key.startswith("√"):
        square = reach(result, key[1:])
        return None if square is None else math.sqrt(square)
    value: Any = result
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def interval(values: list[float], rate: bool) -> tuple[float | None, float | None]:
    """Student's 95 % interval of the mean over seeds; that of a rate is cut at 0 and 1."""
    from scipy.stats import t as student

    count, mean = len(values), sum(values) / len(values)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (count - 1))
    half = float(student.ppf(0.975, count - 1)) * spread / math.sqrt(count)
    return (max(0.0, mean - half), min(1.0, mean + half)) if rate else (mean - half, mean + half)


def _own_interval(results: list[dict[str, Any]], measure: Measure) -> tuple[float | None, float | None]:
    """The interval that a single study reports for this measure; its `interval` is that of the first rate it has."""
    if len(results) != 1:
        return None, None
    result = results[0]
    first = next((key for key in ("success_rate", "auc", "ssim", "accuracy") if result.get(key) is not None), None)
    span = result.get(f"{measure.key}_interval") or (result.get("interval") if measure.key == first else None)
    return (span[0], span[1]) if span else (None, None)


def chart(recipe: Recipe, size: Size, cache: Cache) -> Chart | None:
    """The figure, where the recipe is one and something was measured. Smaller runs are not drawn beside full ones."""
    if recipe.chart is None:
        return None
    from fedveil.report.charts import Frame, Series, line_chart

    asked = recipe.chart
    found = [e for e in entries(recipe, size, cache) if e.full and e.measure.key == asked.measure]
    found = [e for e in found if e.measured is not None]
    lines: dict[str, list[Entry]] = {}
    for entry in found:
        lines.setdefault(entry.row, []).append(entry)
    if not lines:
        return None
    series = [
        Series(
            name,
            [float(e.column) for e in line],
            [e.measured for e in line],
            low=[e.low for e in line],
            high=[e.high for e in line],
        )
        for name, line in lines.items()
    ]
    title = f"{recipe.title} ({size.name})"
    return line_chart(series, Frame(title, asked.x_label, asked.y_label, x_log=asked.x_log))


def number(value: float | str | None, digits: int) -> str:
    """A number as tables print it."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    tiny = 1e-12 < abs(value) < 10 ** (-digits)  # smaller values are rounding errors, printed as 0
    return f"{value:.{digits}g}" if tiny else f"{value:.{digits}f}"


def cells_of(entry: Entry) -> tuple[str, ...]:
    """One line of the printed table."""
    digits = entry.measure.digits
    measured = "not run" if not entry.seeds else number(entry.measured, digits) + ("*" if entry.reduced else "")
    measured += "".join(f" ({state})" for state in entry.states)
    span = "–" if entry.low is None else f"{number(entry.low, digits)} to {number(entry.high, digits)}"
    return (
        entry.row,
        entry.column,
        entry.measure.label,
        number(entry.published, digits),
        measured,
        "–" if entry.chance is None else number(entry.chance.value, digits),
        span,
        number(entry.gap, digits),
        str(entry.seeds or "–"),
    )


HEADER = ("row", "column", "measure", "published", "measured", "chance", "interval", "gap", "seeds")
