"""Shortfalls beside their readings, and the figures of the summaries, which come from the cells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedveil.recipes.cache import Cache
from fedveil.recipes.catalog import recipes
from fedveil.recipes.cell import FULL, QUICK, Cell, Measure, Recipe
from fedveil.recipes.page import section
from fedveil.recipes.published import value_of
from fedveil.recipes.readings import SHORT, shortfalls
from fedveil.recipes.summary import filled

COLUMN = "K=100 10%"
ROWS = {"Fed-CDP": {}, "Fed-CDP, noise as printed": {"as_printed": True}, "Fed-CDP, searched": {}}


def recipe_of(values, **more):
    """Cells of Fed-CDP, published 0.831, with these accuracies in a cache."""
    made = [
        Cell(row, COLUMN, "dataset", ("data.name=digits", f"train.lr=0.{n}"), like="Fed-CDP" if n > 4 else "", **how)
        for n, (row, how) in enumerate(list(ROWS.items())[: len(values)], start=4)
    ]
    return Recipe("fed-cdp/table-2", "t", lambda size: made, (Measure("accuracy", "accuracy"),), "q", **more)


def stored(recipe, values, tmp_path):
    cache = Cache(tmp_path)
    for cell, value in zip(recipe.cells(FULL), values, strict=True):
        cache.put(cell.jobs()[0], {"accuracy": value, "chosen": ["train.lr=0.002"]}, 1.0, {})
    return cache


def test_as_printed_stands_beside_the_best_reading_and_the_published_value(tmp_path):
    values = (0.5, 0.3, 0.78)
    recipe = recipe_of(values)
    cache = stored(recipe, values, tmp_path)
    (found,) = shortfalls(recipe, FULL, cache)
    assert (found.printed.row, found.best.row) == ("Fed-CDP, noise as printed", "Fed-CDP, searched")
    assert not found.resolved and found.how == "Fed-CDP, searched; lr 0.002"
    text = "\n".join(section(recipe, cache))
    row = "| Fed-CDP, K=100 10% | 0.300 (Fed-CDP, noise as printed) | 0.780 (Fed-CDP, searched; lr 0.002) | 0.831 |"
    assert row in text and "| more than 2 points below | as printed | best reading found | published |" in text


@pytest.mark.parametrize(("value", "short"), [(0.812, False), (0.808, True)])
def test_two_points_are_the_limit(value, short, tmp_path):
    recipe = recipe_of((value,))
    cache = stored(recipe, (value,), tmp_path)
    assert value_of(recipe.name, "Fed-CDP", COLUMN, "accuracy") == 0.831
    found = shortfalls(recipe, FULL, cache)
    assert [one.how for one in found] == (["the same; no other reading was run"] if short else [])
    assert ("best reading found" in "\n".join(section(recipe, cache))) == short


def test_a_rate_may_be_counted_by_the_papers_rule(tmp_path):
    """The published rate is compared with both rules, so the laxer one is a reading too."""
    made = [Cell("batch size", "2", "dataset", ("data.name=digits", "data.clients=4"))]
    measures = (Measure("success_rate", "content"), Measure("believed_rate", "paper's rule"))
    recipe = Recipe("cpl/table-6", "t", lambda size: made, measures, "q")
    cache = Cache(tmp_path)
    cache.put(made[0].jobs()[0], {"success_rate": 0.0, "believed_rate": 0.95}, 1.0, {})
    (found,) = shortfalls(recipe, FULL, cache)
    assert found.printed.measured == 0.0 and found.best.measured == 0.95 and found.how == "by the paper's rule"


def test_every_reading_is_compared_with_a_row_of_its_paper():
    """A reading of a row that is not there would be compared with nothing."""
    for recipe in recipes().values():
        for size in (FULL, QUICK):
            cells = recipe.cells(size)
            rows = {(cell.row, cell.column) for cell in recipe.cells(FULL)}
            assert all((cell.like, cell.column) in rows for cell in cells if cell.like), recipe.name
            marked = [(cell.like or cell.row, cell.column) for cell in cells if cell.as_printed]
            assert len(set(marked)) == len(marked), recipe.name


def test_a_reading_without_any_run_is_named_and_is_no_row(tmp_path):
    recipe = recipe_of((0.5, 0.3))
    cache = Cache(tmp_path)
    cache.put(recipe.cells(FULL)[0].jobs()[0], {"accuracy": 0.5}, 1.0, {})
    text = "\n".join(section(recipe, cache))
    assert "Readings of ours that are not measured yet: Fed-CDP, noise as printed." in text
    assert "| Fed-CDP, noise as printed |" not in text and "not run" not in text


def test_figures_of_a_summary_come_from_the_cells(tmp_path):
    values = (0.5, 0.3)
    recipe = recipe_of(values)
    cache, known = stored(recipe, values, tmp_path), {"fed-cdp/table-2": recipe}
    text = "a {table-2; Fed-CDP; K=100 10%}, b {=table-2; Fed-CDP; K=100 10% & K=100 10%; accuracy:1}."
    assert filled("fed-cdp", text, known, cache) == "a 0.500 (0.831), b 0.5, 0.5."
    for wrong in ("{table-2; Fed-CDP; K=1}", "{table-2; Fed-SDP; K=100 10%}", "{table-2; Fed-CDP; K=100 10%; loss}"):
        with pytest.raises(ValueError, match="no measured cell"):
            filled("fed-cdp", wrong, known, cache)


def test_a_smaller_run_is_in_italics_in_a_summary(tmp_path):
    recipe = recipe_of((0.5,))
    cell = Cell("Fed-CDP", COLUMN, "train", ("data.name=digits", "train.rounds=4"))
    recipe = replace(recipe, cells=lambda size: [cell])
    cache = Cache(tmp_path)
    smaller = replace(cell, settings=("data.name=digits", "train.rounds=2")).jobs()[0]
    cache.put(smaller, {"accuracy": 0.25}, 1.0, {})
    text = filled("fed-cdp", "{table-2; Fed-CDP; K=100 10%}", {"fed-cdp/table-2": recipe}, cache)
    assert text == "*0.250* (0.831)" and SHORT["accuracy"] == 0.02 and shortfalls(recipe, FULL, cache) == []
