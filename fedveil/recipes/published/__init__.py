"""The numbers that the papers published, copied from their tables and text: one JSON file per paper, read on first use.

A file maps a table or figure to `{"source", "cells": [{"row", "column", "values": {measure: number}}], "claims": [text]}`.
Rows and columns have the names that the recipe uses; a cell without a column is that of every column of its row. A figure
has only claims: what the paper's text says about it.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

PAPERS = ("fed-cdp", "cpl", "2dp-fl", "dpfl")


@cache
def published(paper: str) -> dict[str, Any]:
    """Everything that a paper published, by table and figure; empty for the studies that are ours."""
    if paper not in PAPERS:
        return {}
    return json.loads((resources.files(__name__) / f"{paper}.json").read_text(encoding="utf-8"))


def value_of(recipe: str, row: str, column: str, measure: str) -> float | str | None:
    """A published number, or None where the paper gives none."""
    paper, key = recipe.split("/")
    for cell in published(paper).get(key, {}).get("cells", []):
        if cell["row"] == row and cell.get("column", column) == column:
            return cell["values"].get(measure)
    return None


def claims_of(recipe: str) -> list[str]:
    """What the paper's text says about a table or figure."""
    paper, key = recipe.split("/")
    return list(published(paper).get(key, {}).get("claims", []))
