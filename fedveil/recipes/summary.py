"""Numbers in the summaries of the reproduction pages, read from the measured cells.

A summary says `{table-2; Fed-CDP; K=1000 10%}` where the page shows the measured value of this cell, with the published
one in brackets. Several columns are joined by ` & `. A fourth part names another measure than the recipe's first, by its
key, and `:` with a number after it the digits. `{=...}` leaves the published value out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fedveil.recipes.cache import Cache
from fedveil.recipes.cell import FULL, Recipe
from fedveil.recipes.table import Entry, entries, number

FIGURE = re.compile(r"\{(=?)((?:table|fig)-\d+); ([^;{}]+); ([^;{}]+)(?:; ([^;{}:]*)(?::(\d))?)?\}")


def filled(paper: str, summary: str, recipes: Mapping[str, Recipe], cache: Cache) -> str:
    """A summary with its figures. A name that no cell has, or a cell that was not measured, is a ValueError."""
    known: dict[str, dict[tuple[str, str, str], Entry]] = {}

    def figure(found: re.Match[str]) -> str:
        ours_only, key, row, columns, measure, digits = found.groups()
        recipe = recipes[f"{paper}/{key}"]
        if key not in known:
            known[key] = {(e.row, e.column, e.measure.key): e for e in entries(recipe, FULL, cache)}
        shown = []
        for column in columns.split(" & "):
            entry = known[key].get((row, column, measure or recipe.measures[0].key))
            if entry is None or entry.measured is None:
                raise ValueError(f"no measured cell for {found.group()} in the summary of {paper}")
            shown.append(_text(entry, int(digits) if digits else entry.measure.digits, published=not ours_only))
        return ", ".join(shown)

    return FIGURE.sub(figure, summary)


def _text(entry: Entry, digits: int, *, published: bool) -> str:
    """The measured value, in italics if it is a smaller run; and the published one."""
    text = number(entry.measured, digits)
    text = f"*{text}*" if entry.reduced else text
    return text if entry.published is None or not published else f"{text} ({number(entry.published, digits)})"
