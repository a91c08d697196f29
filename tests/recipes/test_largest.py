"""Largest runs: which stored results count as smaller runs of a cell, how they are shown, and how they are measured."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from fedveil.cli.reproduce import Limits, run_reproduce
from fedveil.config import load
from fedveil.core.errors import ConfigError
from fedveil.recipes import largest
from fedveil.recipes.cache import Cache
from fedveil.recipes.catalog import recipes
from fedveil.recipes.cell import FULL, QUICK, Cell, Chart, Job, Measure, Recipe
from fedveil.recipes.largest import ladder, run_largest, smaller_run, split
from fedveil.recipes.page import section
from fedveil.recipes.run import Measured
from fedveil.recipes.table import chart, entries

TRAINED = ("data.name=digits", "train.rounds=100", "train.per_round=20")
ATTACKED = ("data.name=mnist", "attack.images=100", "attack.seeds=10")


def recipe_of(*cells, quick=()):
    measures = (Measure("accuracy", "accuracy"),)
    drawn = Chart("accuracy", "x", "y")
    return Recipe(
        "fed-cdp/table-2", "t", lambda size: list(cells if size.full else quick), measures, "small", chart=drawn
    )


def store(cache, kind, settings, accuracy, seed=0, options=None):
    job = Job(kind, (*settings, f"train.seed={seed}", f"train.noise_seed={seed}"), options or {})
    return cache.put(job, {"accuracy": accuracy}, 1.0, {"device": "cpu"})


# --- which results count


def test_a_smaller_run_is_found_by_its_settings_and_names_what_was_reduced(tmp_path):
    cell, cache = Cell("r", "1", "attack", ATTACKED), Cache(tmp_path)
    store(cache, "attack", (*ATTACKED, "attack.images=4", "attack.seeds=1"), 0.5)
    found = smaller_run(cell, cache)
    assert found.reduced == ("images 4 of 100", "starts 1 of 10") and found.share == pytest.approx(0.004)
    store(cache, "attack", (*ATTACKED, "attack.images=20", "attack.seeds=1", "attack.iterations=200"), 0.6)
    assert smaller_run(cell, cache).reduced == ("images 20 of 100", "starts 1 of 10", "iterations 200 of 300")
    store(cache, "attack", (*ATTACKED, "attack.images=50", "attack.seeds=10"), 0.7)
    assert smaller_run(cell, cache).reduced == ("images 50 of 100",)


@pytest.mark.parametrize(
    "other",
    ["train.rounds=200", "train.batch=7", "train.lr=0.5", "data.name=mnist", "defense.name=fed-sdp"],
)
def test_a_larger_run_or_another_experiment_is_no_smaller_run(tmp_path, other):
    cell, cache = Cell("r", "1", "train", TRAINED), Cache(tmp_path)
    store(cache, "train", (*TRAINED, "train.rounds=50", other), 0.5)
    store(cache, "search", (*TRAINED, "train.rounds=50"), 0.5)
    assert smaller_run(cell, cache) is None
    store(cache, "train", (*TRAINED, "train.rounds=50"), 0.5)
    assert smaller_run(cell, cache).reduced == ("rounds 50 of 100",)


def test_a_result_of_older_code_is_no_smaller_run(tmp_path):
    cell, cache = Cell("r", "1", "train", TRAINED), Cache(tmp_path)
    store(cache, "train", (*TRAINED, "train.rounds=50"), 0.5)["digest"] = "of another version"
    assert smaller_run(cell, cache) is None


# --- what is shown


def test_smaller_runs_and_single_seeds_never_enter_a_full_average(tmp_path):
    recipe, cache = recipe_of(Cell("Fed-CDP", "K=1000 10%", "train", TRAINED, seeds=3)), Cache(tmp_path)

    def shown():
        (entry,) = entries(recipe, FULL, cache)
        return entry.measured, entry.reduced, entry.full, entry.gap is not None

    assert shown() == (None, (), False, False)
    store(cache, "train", (*TRAINED, "train.rounds=10"), 0.1)
    assert shown() == (0.1, ("rounds 10 of 100", "seeds 1 of 3"), False, False)
    store(cache, "train", TRAINED, 0.5)
    assert shown() == (0.5, ("seeds 1 of 3",), False, False)
    store(cache, "train", TRAINED, 0.7, seed=1)
    assert shown() == (pytest.approx(0.6), ("seeds 2 of 3",), False, False)
    store(cache, "train", TRAINED, 0.9, seed=2)
    assert shown() == (pytest.approx(0.7), (), True, True)


def test_the_page_marks_a_smaller_run_and_says_what_was_reduced(tmp_path):
    short = (*TRAINED, "train.rounds=10")
    cells = [Cell("Fed-CDP", "1", "train", TRAINED), Cell("Fed-SDP", "1", "train", (*TRAINED, "train.lr=0.5"))]
    other = Cell("Fed-SDP", "1", "train", (*TRAINED, "train.lr=0.5", "train.batch=7"))
    cache = Cache(tmp_path)
    recipe = recipe_of(*cells, quick=[Cell("Fed-CDP", "1", "train", short)])
    store(cache, "train", short, 0.25)
    text = "\n".join(section(recipe, cache))
    assert "| Fed-CDP | *0.250*ᵃ |" in text and "| Fed-SDP | not run |" in text
    assert "Smaller runs: ᵃ rounds 10 of 100." in text and "0 of 2 runs" in text
    assert "No cell at the paper's size yet" in text
    assert "Quick size" not in text and chart(recipe, FULL, cache) is None
    store(cache, "train", other.settings, 0.75)  # another experiment: only the quick table may show it
    text = "\n".join(section(recipe_of(*cells, quick=[other]), cache))
    assert "| Fed-SDP | not run |" in text and "Quick size" in text and "| Fed-SDP | 0.750 |" in text
    store(cache, "train", TRAINED, 0.5)
    text = "\n".join(section(recipe, cache))
    assert "| Fed-CDP | 0.500 |" in text and "Smaller runs" not in text and "1 of 2 runs" in text
    assert [point for line in chart(recipe, FULL, cache).content[0] for point in line.y] == [0.5]


def test_the_measured_pages_have_no_smaller_run_without_its_note():
    pages = Path(__file__).parents[2] / "docs" / "reproduction"
    for paper in ("fed-cdp", "cpl", "2dp-fl", "dpfl"):
        for part in (pages / f"{paper}.md").read_text(encoding="utf-8").split("\n## ")[1:]:
            marks = largest_marks(part)
            notes = part.split("Smaller runs: ")[1].split(".\n")[0] if marks else ""
            assert all(f"{mark} " in notes for mark in marks), part[:60]


def largest_marks(text):
    """The superscripts behind italics in tables."""
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return {cell.rpartition("*")[2].split()[0] for row in rows for cell in row.split(" | ") if cell.startswith("*")}


# --- measuring

ONE_OF_EACH = {(recipe.paper, cell.kind): cell for recipe in recipes().values() for cell in recipe.cells(FULL)}


@pytest.mark.parametrize("cell", ONE_OF_EACH.values(), ids=[f"{paper}-{kind}" for paper, kind in ONE_OF_EACH])
def test_a_ladder_has_runs_of_the_same_experiment_that_grow(cell):
    job = cell.jobs()[0]
    steps = [split(step) for step in (*ladder(job), job)]
    assert {experiment for experiment, _ in steps} == {split(job)[0]}
    work = [sizes for _, sizes in steps]
    for small, large in pairwise(work):
        assert all(small[name] <= large[name] for name in large) and small != large
    if cell.kind not in ("dataset", "ledger"):
        assert len(steps) > 1, "no smaller run is known for this kind"


@pytest.fixture
def slow_machine(monkeypatch):
    """Jobs that are not run: each takes a second for every round."""
    made = []

    def measured(job):
        rounds = load(None, list(job.settings)).train.rounds
        made.append(rounds)
        return Measured({"accuracy": rounds / 100}, float(rounds), {"device": "cpu"})

    monkeypatch.setattr(largest, "measured", measured)
    return made


@pytest.mark.parametrize(("limit", "rounds"), [(0.5, [1]), (4.0, [1]), (7.0, [1, 5]), (40.0, [1, 20]), (1e3, [1, 100])])
def test_the_largest_run_that_fits_is_measured_and_not_again(tmp_path, slow_machine, limit, rounds):
    recipe, cache = recipe_of(Cell("Fed-CDP", "1", "train", TRAINED, seeds=3)), Cache(tmp_path)
    done = run_largest([recipe], cache, limit)
    assert slow_machine == rounds and done.spent == sum(rounds) and (done.done, done.total) == (1, 1)
    run_largest([recipe], cache, limit)
    assert slow_machine == rounds
    reduced = entries(recipe, FULL, cache)[0].reduced
    assert reduced == ((f"rounds {rounds[-1]} of 100",) if rounds[-1] < 100 else ()) + ("seeds 1 of 3",)


def test_no_largest_run_begins_after_the_time_is_over(tmp_path, slow_machine):
    cell = Cell("Fed-CDP", "1", "train", TRAINED)
    done = run_largest([recipe_of(cell)], Cache(tmp_path), 10.0, seconds=-1.0)
    assert slow_machine == [] and done.done == 0


def test_the_command_measures_largest_runs_and_marks_them(tmp_path, capsys, monkeypatch):
    """A real, small recipe: account and sizes of datasets take no training."""
    cell = Cell("Fed-CDP", "1", "train", (*TRAINED, "data.clients=20", "train.local_steps=1", "train.rounds=3"))
    monkeypatch.setattr("fedveil.cli.reproduce.choose", lambda name: [recipe_of(cell)])
    run_reproduce("any", False, str(tmp_path), Limits(largest=0.0), None, True)
    (entry,) = json.loads(capsys.readouterr().out)[0]["entries"]
    assert entry["reduced"] == ["rounds 1 of 3"] and 0 <= entry["measured"] <= 1 and entry["gap"] is None
    run_reproduce("any", False, str(tmp_path), Limits(minutes=0.0, largest=0.0), None, False)
    printed = capsys.readouterr().out
    assert "* rounds 1 of 3: Fed-CDP, 1" in printed and "not run" not in printed


def test_largest_runs_in_parallel_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match="--workers: got 2; takes 1 with --largest"):
        run_reproduce("cpl/fig-7", False, str(tmp_path / "new"), Limits(largest=1.0, workers=2), None, False)
    assert not (tmp_path / "new").exists()


def test_quick_tables_show_full_quick_cells_only(tmp_path):
    """A smaller run of a quick cell is shown nowhere: the quick size is not the paper's."""
    cell, cache = Cell("Fed-CDP", "1", "train", TRAINED), Cache(tmp_path)
    store(cache, "train", (*TRAINED, "train.rounds=10"), 0.1)
    (entry,) = entries(recipe_of(quick=[cell]), QUICK, cache)
    assert entry.seeds == 0 and entry.measured is None
