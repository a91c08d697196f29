"""Cells below the published figure: as printed, the best reading that was found, and published, side by side.

A reading of a row is a row that is compared with the same published values (`Cell.like`). As printed is the one that a
recipe marks so (`Cell.as_printed`), otherwise the row that has the name of the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fedveil.recipes.cache import Cache
from fedveil.recipes.cell import Cell, Recipe, Size
from fedveil.recipes.table import Entry, entries, number, rows_of
from fedveil.report.tables import table_markdown

SHORT = {"accuracy": 0.02, "success_rate": 0.05}  # a cell that is lower than published by more than this needs a search
ALSO = {"success_rate": ("believed_rate", "by the paper's rule")}  # another rule that the same published rate may mean
HEAD = ["more than {} below", "as printed", "best reading found", "published"]


@dataclass(frozen=True)
class Shortfall:
    """A published value that the row as printed does not reach."""

    name: str
    printed: Entry
    best: Entry
    how: str  # what the best reading changes

    @property
    def resolved(self) -> bool:
        """Whether the best reading comes as near as the limit."""
        return self.best.gap is not None and self.best.gap >= -SHORT[self.printed.measure.key]


def shortfalls(recipe: Recipe, size: Size, cache: Cache) -> list[Shortfall]:
    """Every full cell as printed that is too far below the published value, in the order of the recipe."""
    made = {(cell.row, cell.column): cell for cell in recipe.cells(size)}
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries(recipe, size, cache):
        if entry.gap is not None and entry.measure.key in {*SHORT, *(key for key, _ in ALSO.values())}:
            groups.setdefault((made[entry.row, entry.column].like or entry.row, entry.column), []).append(entry)
    found = []
    for (row, column), group in groups.items():
        for key, limit in SHORT.items():
            printed = _printed(row, made, (entry for entry in group if entry.measure.key == key))
            if printed is not None and printed.gap is not None and printed.gap < -limit:
                rules = (key, *ALSO.get(key, ())[:1])
                best = max((e for e in group if e.measure.key in rules), key=lambda e: e.measured or 0.0)
                others = len({entry.row for entry in group}) > 1
                how = _how(printed, best, made[best.row, best.column], size, cache) or _same(others)
                found.append(Shortfall(f"{row}, {column}", printed, best, how))
    return found


def _printed(row: str, made: dict[tuple[str, str], Cell], group: Iterable[Entry]) -> Entry | None:
    """The row as printed among the readings of one measure."""
    by_row = {entry.row: entry for entry in group}
    marked = [name for name, entry in by_row.items() if made[name, entry.column].as_printed]
    return by_row.get(marked[0] if marked else row)


def _how(printed: Entry, best: Entry, cell: Cell, size: Size, cache: Cache) -> str:
    """What distinguishes the best reading from the row as printed; empty where they are the same."""
    rule = ALSO[printed.measure.key][1] if best.measure.key != printed.measure.key else ""
    if best.row == printed.row:
        return rule
    chosen = [row["result"].get("chosen", ()) for row in rows_of(cell, size, cache)[0]]
    settings = [setting.partition(".")[2].replace("=", " ") for setting in (chosen[0] if chosen else ())]
    return "; ".join(part for part in (best.row, ", ".join(settings), rule) if part)


def _same(others: bool) -> str:
    return "the same; no other reading is better" if others else "the same; no other reading was run"


def shortfall_table(recipe: Recipe, size: Size, cache: Cache, shown: Callable[[Entry], str]) -> list[str]:
    """The table of a recipe's shortfalls, or nothing. `shown` prints an entry's measured value."""
    found = shortfalls(recipe, size, cache)
    lines = []
    for key, limit in SHORT.items():
        body = [
            [
                one.name,
                f"{shown(one.printed)}{_named(one)}",
                f"{shown(one.best)} ({one.how})",
                number(one.printed.published, one.printed.measure.digits),
            ]
            for one in found
            if one.printed.measure.key == key
        ]
        head = [HEAD[0].format(f"{100 * limit:g} points" if key == "accuracy" else f"{limit:g} of success"), *HEAD[1:]]
        lines += [*table_markdown(head, body).rstrip().splitlines(), ""] if body else []
    return lines


def _named(one: Shortfall) -> str:
    """The name of the row as printed, where it is not that of the cell."""
    return "" if one.name.startswith(f"{one.printed.row}, ") else f" ({one.printed.row})"
