"""What holds of the recipes of every paper."""

from __future__ import annotations

import os
from collections import Counter

from fedveil.config import load
from fedveil.recipes import kinds
from fedveil.recipes.cell import FULL, KIND_VERSIONS, QUICK
from fedveil.recipes.published import published
from fedveil.recipes.run import Measured


def config_of(cell):
    return load(None, list(cell.settings))


def check_cells(cells):
    """Every place is taken once, by a kind that there is."""
    places = Counter((cell.row, cell.column) for cell in cells)
    assert places and max(places.values()) == 1
    for cell in cells:
        assert cell.kind in kinds.KINDS and cell.kind in KIND_VERSIONS


def check_places(recipe):
    """Quick cells and published figures are places of the full size; returns what was published."""
    full = {(cell.row, cell.column) for cell in recipe.cells(FULL)}
    assert {(cell.row, cell.column) for cell in recipe.cells(QUICK)} <= full
    entry = published(recipe.paper)[recipe.key]
    assert entry["source"] and entry["claims"] and all(entry["claims"])
    assert {(cell["row"], cell["column"]) for cell in entry["cells"]} <= full
    return entry


def dies_at_five(job):
    """Stands in for `run.measured`: ends its process at one cell."""
    if "defense.noise=5.0" in job.settings:
        os._exit(1)
    return Measured({"rounds": 2}, 0.1, {})
