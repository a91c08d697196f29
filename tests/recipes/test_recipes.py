"""Recipes: what is cached, what is shared, what a table shows; and every recipe's cells make configs that can be run."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import recipe_checks

from fedveil.config import for_attack, load, resolve
from fedveil.core.errors import ConfigError
from fedveil.recipes import cell, kinds, run
from fedveil.recipes.cache import Cache
from fedveil.recipes.catalog import choose, recipes
from fedveil.recipes.cell import FULL, QUICK, Cell, Job, Measure, Recipe
from fedveil.recipes.page import section
from fedveil.recipes.published import PAPERS, published
from fedveil.recipes.table import entries, reach

WANTED = {
    "fed-cdp": [f"table-{n}" for n in range(1, 8)] + ["fig-1", "fig-3", "fig-4", "fig-5"],
    "cpl": [f"table-{n}" for n in range(1, 10)] + [f"fig-{n}" for n in range(2, 14)],
    "2dp-fl": [f"fig-{n}" for n in range(3, 8)],
    "dpfl": ["fig-1", *(f"fig-{n}" for n in range(4, 12)), "table-2", "table-3", "table-4"],
}
NAMES = sorted(recipes())


def test_every_table_and_figure_is_a_recipe():
    assert {f"{paper}/{key}" for paper, keys in WANTED.items() for key in keys} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_makes_a_config_that_can_be_run(name):
    recipe = recipes()[name]
    for size in (QUICK, FULL):
        for job in {job.digest: job for made in recipe.cells(size) for job in made.jobs()}.values():
            assert job.kind in kinds.KINDS
            config = load(None, list(job.settings))
            resolve(for_attack(config) if job.kind == "attack" else config, trainable=False)


@pytest.mark.parametrize("name", NAMES)
def test_published_figures_meet_cells_of_the_papers_size(name):
    recipe = recipes()[name]
    places = {(made.row, made.column) for made in recipe.cells(FULL)}
    keys = {measure.key for measure in recipe.measures}
    for figure in published(recipe.paper).get(recipe.key, {}).get("cells", []):
        assert (figure["row"], figure["column"]) in places, figure
        assert set(figure["values"]) <= keys, figure
        for key, value in figure["values"].items():
            if "rate" in key or key in ("accuracy", "ssim"):
                assert 0 <= value <= 1, figure


@pytest.mark.parametrize("paper", PAPERS)
def test_nothing_published_is_without_a_recipe(paper):
    assert set(published(paper)) <= {name.split("/")[1] for name in NAMES if name.startswith(f"{paper}/")}


def test_names_that_there_are_not_are_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'fed-cdp/table-2'"):
        choose("fed-cdp/table2")
    assert len(choose("cpl")) == 21 and len(choose("all")) == len(NAMES)


# --- running


@pytest.fixture
def counted(monkeypatch):
    """A kind of cell that counts how often it is measured, and fails where it is told to."""
    made = []

    def measure(job):
        made.append(job)
        if job.options.get("fail"):
            raise ConfigError("x", 1, "cannot be")
        return {"value": float(job.options["value"]), "ledger": {"release": 0.5}}

    monkeypatch.setitem(kinds.KINDS, "counted", measure)
    monkeypatch.setitem(cell.KIND_VERSIONS, "counted", 1)
    return made


def recipe_of(*values, name="fed-cdp/table-2", **more):
    cells = [Cell(f"row {v}", "only", "counted", options={"value": v, **more}) for v in values]
    return Recipe(name, "a title", lambda size: cells, (Measure("value", "value"),), "nothing")


def test_a_stopped_run_goes_on_and_a_changed_cell_alone_is_redone(counted, tmp_path, monkeypatch):
    run.run([recipe_of(1, 2)], QUICK, Cache(tmp_path), seconds=-1.0)
    assert not counted
    run.run([recipe_of(1, 2)], QUICK, Cache(tmp_path))
    done = run.run([recipe_of(1, 3)], QUICK, Cache(tmp_path))
    assert [job.options["value"] for job in counted] == [1, 2, 3] and done.cached == 1
    monkeypatch.setitem(cell.KIND_VERSIONS, "counted", 2)
    run.run([recipe_of(1)], QUICK, Cache(tmp_path))
    assert len(counted) == 4


def test_two_tables_share_a_cell_whatever_the_order_of_its_settings(counted, tmp_path):
    one = Job("counted", ("train.rounds=3", "train.batch=2"), {"value": 1})
    other = Job("counted", ("train.batch=2", "train.rounds=3"), {"value": 1})
    assert one.digest == other.digest != replace(one, settings=("train.rounds=4", "train.batch=2")).digest
    run.run([recipe_of(5), recipe_of(5, name="cpl/table-1")], QUICK, Cache(tmp_path))
    assert len(counted) == 1


def test_a_cell_that_fails_is_named_and_the_others_go_on(counted, tmp_path):
    done = run.run([recipe_of(1, fail=True), recipe_of(2)], QUICK, Cache(tmp_path))
    assert len(done.failed) == 1 and "fed-cdp/table-2" in next(iter(done.failed.values())) and len(counted) == 2
    assert len(Cache(tmp_path).rows) == 1


def test_a_line_cut_off_by_a_crash_is_measured_again(counted, tmp_path):
    run.run([recipe_of(1, 2)], QUICK, Cache(tmp_path))
    whole = (tmp_path / "cells.jsonl").read_text()
    (tmp_path / "cells.jsonl").write_text(whole[:-20])
    assert len(Cache(tmp_path).rows) == 1
    run.run([recipe_of(1, 2)], QUICK, Cache(tmp_path))
    assert [job.options["value"] for job in counted] == [1, 2, 2]


def test_a_table_shows_published_measured_gap_and_what_was_not_run(counted, tmp_path):
    cells = [
        Cell("Fed-CDP", "K=1000 10%", "counted", options={"value": 0.9}, note="half the clients"),
        Cell("Fed-SDP", "K=1000 10%", "counted", options={"value": 0.1}),
    ]
    recipe = Recipe(
        "fed-cdp/table-2", "t", lambda size: cells[: 2 if size.full else 1], (Measure("value", "accuracy"),), "-"
    )
    recipe = replace(recipe, measures=(Measure("value", "v"), Measure("accuracy", "accuracy")))
    cache = Cache(tmp_path)
    run.run([recipe], QUICK, cache)
    known = {(e.row, e.measure.key): e for e in entries(recipe, FULL, cache)}
    assert known["Fed-CDP", "value"].measured == 0.9 and known["Fed-CDP", "accuracy"].published == 0.956
    assert known["Fed-SDP", "value"].measured is None and known["Fed-SDP", "value"].seeds == 0
    text = "\n".join(section(recipe, cache))
    assert "not run (0.928)" in text and "0.900" in text
    assert re.search(r"1 of 2 runs, \d+ seconds in all\. half the clients: Fed-CDP, K=1000 10%\.", text)


def test_numbers_are_reached_by_dots_and_what_is_no_number_is_none():
    result = {"a": {"b": 1.5, "t": True, "n": None, "inf": float("inf")}}
    assert reach(result, "a.b") == 1.5
    assert [reach(result, f"a.{key}") for key in ("t", "n", "inf", "x")] == [None] * 4


def test_a_result_is_stored_with_all_that_made_it(counted, tmp_path):
    run.run([recipe_of(1)], QUICK, Cache(tmp_path))
    row = json.loads((tmp_path / "cells.jsonl").read_text())
    assert {"digest", "kind", "settings", "options", "result", "seconds", "device", "versions"} <= set(row)
    assert "train.seed=0" in row["settings"] and row["versions"]["jax"]


def accounts(count):
    """Cells that cost little: accounts of some noises."""
    settings = ("data.name=digits", "defense.name=fed-cdp", "train.rounds=2", "train.local_steps=1")
    made = [Cell("ε", f"{z}", "ledger", (*settings, f"defense.noise={z}.0")) for z in range(4, 4 + count)]
    return Recipe("fed-cdp/table-6", "t", lambda size: made, (Measure("rounds", "rounds"),), "q")


def test_several_processes_find_what_one_finds(tmp_path):
    alone, together = Cache(tmp_path / "a"), Cache(tmp_path / "b")
    assert run.run([accounts(3)], QUICK, alone).done == 3
    told = []
    done = run.run([accounts(3)], QUICK, together, workers=2, tell=lambda p: told.append(p.done))
    assert done.done == 3 and not done.failed and told[-1] == 3
    assert {d: r["result"] for d, r in together.rows.items()} == {d: r["result"] for d, r in alone.rows.items()}
    assert {r["workers"] for r in together.rows.values()} == {2} and {r["workers"] for r in alone.rows.values()} == {1}
    again = run.run([accounts(3)], QUICK, together, workers=2)
    assert again.cached == 3 and again.spent == 0


def test_a_process_that_dies_fails_its_cell_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "measured", recipe_checks.dies_at_five)
    done = run.run([accounts(3)], QUICK, Cache(tmp_path), workers=2)
    assert done.done == 3 and len(done.failed) == 1
    assert "the process that measured it ended" in next(iter(done.failed.values()))
