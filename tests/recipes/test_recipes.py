"""Recipes: the declarations of all papers, the published values, running, caching, and what a table shows."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
import recipe_checks
from recipe_checks import config_of

from fedveil.config import for_attack, load, resolve
from fedveil.core.errors import ConfigError
from fedveil.recipes import cell, kinds, run
from fedveil.recipes.cache import RECONSTRUCTIONS, Cache
from fedveil.recipes.catalog import choose, recipes
from fedveil.recipes.cell import FULL, QUICK, Cell, Job, Measure, Recipe
from fedveil.recipes.page import VERDICTS, claims, overview, section
from fedveil.recipes.published import PAPERS, published, value_of
from fedveil.recipes.table import entries, reach

KEYS = {
    "fed-cdp": [f"table-{n}" for n in range(1, 8)] + ["fig-1", "fig-3", "fig-4", "fig-5"],
    "cpl": [f"table-{n}" for n in range(1, 10)] + [f"fig-{n}" for n in range(1, 14)],
    "2dp-fl": [f"fig-{n}" for n in range(3, 8)],
    "dpfl": ["table-2", "table-3", "table-4", "fig-1", *(f"fig-{n}" for n in range(4, 12))],
    "beyond": ["fig-1", "table-1"],
}
EACH = pytest.mark.parametrize("recipe", recipes().values(), ids=lambda recipe: recipe.name)

# --- declarations


def test_every_table_and_figure_is_a_recipe():
    assert list(recipes()) == [f"{paper}/{key}" for paper, keys in KEYS.items() for key in keys]
    for paper in PAPERS:
        assert set(published(paper)) <= set(KEYS[paper])


@pytest.mark.parametrize("size", (QUICK, FULL), ids=lambda size: size.name)
@EACH
def test_cells_have_valid_configs_and_distinct_positions(recipe, size):
    cells = recipe.cells(size)
    assert max(Counter((made.row, made.column) for made in cells).values()) == 1
    for made in cells:
        assert made.kind in kinds.KINDS
        config, attacked = config_of(made), made.kind in RECONSTRUCTIONS
        resolve(for_attack(config) if attacked else config, trainable=config.data.name != "xray")
        if attacked and config.data.name != "xray":
            assert config.attack.images <= config.data.clients


@EACH
def test_quick_cells_and_published_values_are_cells_of_the_full_size(recipe):
    """So every published value has a measured one beside it, also in the quick size."""
    full = {(made.row, made.column) for made in recipe.cells(FULL)}
    assert {(made.row, made.column) for made in recipe.cells(QUICK)} <= full
    entry = published(recipe.paper).get(recipe.key, {"cells": []})
    rows = {row for row, _ in full}
    given = [(figure["row"], figure.get("column")) for figure in entry["cells"]]
    assert all(row in rows if column is None else (row, column) in full for row, column in given)
    assert len(set(given)) == len(given)
    assert {key for figure in entry["cells"] for key in figure["values"]} <= {m.key for m in recipe.measures}
    for figure in entry["cells"]:
        for key, value in figure["values"].items():
            assert 0 <= value <= 1 or not ("rate" in key or key in ("accuracy", "ssim")), figure


@EACH
def test_charts_have_numbers_on_their_axis(recipe):
    if recipe.chart is None:
        return
    assert recipe.chart.measure in {measure.key for measure in recipe.measures}
    cells = recipe.cells(FULL)
    # A figure of two parts draws its first part.
    columns = [float(made.column) for made in cells if made.kind == cells[0].kind]
    assert not recipe.chart.x_log or min(columns) > 0


@pytest.mark.parametrize(("paper", "most"), [("cpl", 90), ("2dp-fl", 25), ("dpfl", 45)])
def test_the_quick_size_is_small(paper, most):
    work = run.jobs_of(choose(paper), QUICK)
    assert len(work) <= most
    for _, job in work.values():
        config = load(None, list(job.settings))
        assert config.data.clients <= 100 and (config.train.rounds or 1) <= 10
        if job.kind in RECONSTRUCTIONS:
            assert config.attack.images * config.attack.seeds <= 8
            own = config.attack.own()
            limit = {"cpl": 2000 if own.get("optimizer") == "adam" else 500, "dpfl": 400}[paper]
            assert own.get("iterations", 300) <= limit


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'fed-cdp/table-2'"):
        choose("fed-cdp/table2")
    assert len(choose("cpl")) == 22 and choose("all") == list(recipes().values())


# --- published values


@pytest.mark.parametrize("paper", PAPERS)
def test_a_data_file_has_unique_keys(paper):
    """A key that is typed twice would hide the first one."""

    def unique(pairs):
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys)), keys
        return dict(pairs)

    text = (resources.files("fedveil.recipes.published") / f"{paper}.json").read_text(encoding="utf-8")
    for entry in json.loads(text, object_pairs_hook=unique).values():
        assert entry["source"] and all(entry["claims"])
        assert entry["claims"] or paper == "fed-cdp"


@pytest.mark.parametrize(
    ("position", "measure", "number"),
    [
        (("cpl/table-1", "cifar100, random", "100"), "believed_rate", 0.23),
        (("cpl/table-2", "inverting", "lfw"), "iterations", 4527),
        (("cpl/table-3", "dlg", "cancer"), "label_success_rate", 0.56),
        (("cpl/table-4", "lfw", "optimal-any"), "iterations", 13.3),
        (("cpl/table-5", "random", "cifar10"), "iterations_max", 272),
        (("cpl/table-6", "batch size", "16"), "ssim", 0.401),
        (("cpl/table-6", "local iterations", "9"), "mse", 5.5e-3),
        (("cpl/table-7", "mnist accuracy", "0.9"), "accuracy", 0.9556),
        (("cpl/table-7", "cifar10 attack", "0.4"), "ssim", 0.87),
        (("cpl/table-8", "lfw attack", "laplace 0.001"), "ssim", 0.803),
        (("cpl/table-8", "cifar100 accuracy", "gaussian 0.01"), "accuracy", 0.612),
        (("cpl/table-9", "mnist", "6"), "believed_rate", 0.06),
        (("cpl/table-9", "cifar10", "10"), "mse", 5.0e-3),
        (("2dp-fl/fig-6", "2dp-fl", "ε = 20"), "accuracy", 0.85),
        (("2dp-fl/fig-6", "nbafl", "ε = 20"), "accuracy", 0.74),
        (("dpfl/table-2", "ε = 0.5", "clip 1"), "pogz", 0.117),
        (("dpfl/table-2", "ε = 1", "clip 1"), "even", 0.161),
        (("dpfl/table-2", "ε = 5", "clamp 3"), "promotion", 1.235),
        (("dpfl/table-2", "ε = 10", "clip 1"), "baseline_accuracy", 0.983),
        (("dpfl/table-3", "baseline", "fashion-mnist"), "accuracy", 0.849),
        (("dpfl/table-3", "dpfl, ε = 0.5", "mnist"), "accuracy", 0.888),
        (("dpfl/table-3", "dpfl, ε = 1", "cifar10"), "accuracy", 0.1),
        (("dpfl/table-3", "dpfl, ε = 5", "cifar10"), "accuracy", 0.452),
        (("dpfl/table-3", "dpfl, ε = 10", "mnist"), "accuracy", 0.953),
        (("dpfl/table-4", "lip", "cifar10 model"), "milliseconds", 2070.39),
        (("dpfl/table-4", "dpfl", "mnist model"), "milliseconds", 4.08),
    ],
)
def test_numbers_as_the_paper_prints_them(position, measure, number):
    """A few of each table, typed a second time."""
    assert value_of(*position, measure) == number


def test_tables_have_all_their_cells():
    counted = {paper: {k: len(e["cells"]) for k, e in published(paper).items() if e["cells"]} for paper in PAPERS}
    first = {"table-1": 36, "table-2": 12, "table-3": 8, "table-4": 27, "table-5": 8, "table-6": 10}
    assert counted["cpl"] == {**first, "table-7": 80, "table-8": 28, "table-9": 40}
    assert counted["dpfl"] == {"table-2": 4, "table-3": 15, "table-4": 4}


# --- running


@pytest.fixture
def counted(monkeypatch):
    """A kind of cell that counts how often it is measured, and fails on request."""
    made = []

    def measure(job):
        made.append(job)
        if job.options.get("fail"):
            raise ConfigError("x", 1, "cannot be")
        return {"value": float(job.options["value"]), "ledger": {"release": 0.5}}

    monkeypatch.setitem(kinds.KINDS, "counted", measure)
    monkeypatch.setattr(run.gc, "collect", lambda: 0)  # takes longer than these tests
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


def test_a_time_that_was_not_kept_is_not_made_up(counted, tmp_path):
    recipe, cache = recipe_of(1, 2), Cache(tmp_path)
    run.run([recipe], FULL, cache)
    first, second = cache.rows.values()
    first["seconds"] = None
    assert "2 runs, 0 seconds in all, without the time of 1 of them." in "\n".join(section(recipe, cache))
    second["seconds"] = None
    assert "2 runs; their time was not recorded." in "\n".join(section(recipe, cache))


def test_numbers_are_reached_by_dots_and_what_is_no_number_is_none():
    result = {"a": {"b": 1.5, "t": True, "n": None, "inf": float("inf")}}
    assert reach(result, "a.b") == 1.5
    assert [reach(result, f"a.{key}") for key in ("t", "n", "inf", "x")] == [None] * 4


def test_a_root_is_shown_and_another_row_s_published_value(counted, tmp_path):
    cells = [Cell("a reading", "mnist type 2: example", "counted", options={"value": 0.49}, like="non-private")]
    measures = (Measure("√value", "root", published="mse"),)
    recipe = Recipe("fed-cdp/table-7", "t", lambda size: cells, measures, "-")
    cache = Cache(tmp_path)
    run.run([recipe], QUICK, cache)
    (entry,) = entries(recipe, QUICK, cache)
    assert entry.measured == pytest.approx(0.7) and entry.published == 0.0008 and entry.row == "a reading"


def test_a_search_tries_what_is_stated_and_measures_the_best_with_other_seeds(monkeypatch):
    """Accuracy here is the learning rate, if it is below 0.05, plus a thousandth of the seed."""
    trained = []

    def train(job):
        config = load(None, list(job.settings))
        trained.append((config.train.lr, config.train.seed, config.train.noise_seed))
        return {"accuracy": config.train.lr * (config.train.lr < 0.05) + config.train.seed / 1000}

    monkeypatch.setattr(kinds, "train", train)
    tries = [["train.lr=0.01"], ["train.lr=0.03"], ["train.lr=0.09"]]
    found = kinds.search(Job("search", ("data.name=digits", "train.seed=0"), {"tries": tries, "seeds": 3}))
    assert trained == [(rate, 100, 100) for rate in (0.01, 0.03, 0.09)] + [(0.03, seed, seed) for seed in range(3)]
    assert found["chosen"] == ["train.lr=0.03"] and found["accuracies"] == pytest.approx([0.03, 0.031, 0.032])
    assert [accuracy for _, accuracy in found["tried"]] == pytest.approx([0.11, 0.13, 0.1])
    assert found["accuracy"] == pytest.approx(0.031) and found["interval"][0] < 0.031 < found["interval"][1]


def test_the_page_says_what_a_search_tried_and_chose(tmp_path):
    options = {"tries": [["train.lr=0.01", "train.per_round=4"], ["train.lr=0.03"]], "seeds": 2}
    made = Cell("Fed-CDP, searched", "K=100 5%", "search", ("data.name=digits",), options, like="Fed-CDP")
    recipe = Recipe("fed-cdp/table-2", "t", lambda size: [made], (Measure("accuracy", "accuracy"),), "-")
    cache = Cache(tmp_path)
    tried = [[options["tries"][0], 0.25], [options["tries"][1], 0.5]]
    result = {"accuracy": 0.75, "interval": [0.5, 1.0], "chosen": ["train.lr=0.03"], "tried": tried}
    cache.put(made.jobs()[0], result, 1.0, {})
    text = "\n".join(section(recipe, cache))
    assert "0.750 \\[0.500, 1.000\\] (0.815; −0.065)" in text
    assert "| Fed-CDP, searched | K=100 5% | lr 0.03 | lr 0.01, per_round 4: 0.250; lr 0.03: 0.500 |" in text


def test_the_interval_of_an_inversion_stands_beside_its_ssim(tmp_path):
    made = Cell("none", "active", "infer", ("data.name=digits", "attack.name=inversion"), seeds=1)
    recipe = Recipe(
        "2dp-fl/fig-6", "t", lambda size: [made], (Measure("ssim", "SSIM"), Measure("accuracy", "accuracy")), "-"
    )
    cache = Cache(tmp_path)
    result = {"success_rate": None, "ssim": 0.25, "interval": [0.125, 0.375], "accuracy": 0.5}
    cache.put(made.jobs()[0], result, 1.0, {})
    ssim, accuracy = entries(recipe, FULL, cache)
    assert (ssim.low, ssim.high) == (0.125, 0.375) and accuracy.low is None


def test_the_searches_of_fed_cdp_keep_to_the_paper_s_sampling():
    """q = B·Kt/N = 0.01 with N distinct records, or with N all copies that the clients hold."""
    for made in choose("fed-cdp/table-4")[0].cells(FULL):
        if made.kind != "search" or made.row.startswith(("lfw", "cancer")):
            continue
        for tried in made.options["tries"]:
            config = resolve(load(None, [*made.settings, *tried]))
            distinct = {"mnist": 50_000, "cifar10": 40_000, "adult": 36_631}[config.data.name]
            assert config.train.batch * config.train.per_round / distinct == pytest.approx(0.01, abs=1e-4)
            assert made.like == config.data.name


def test_a_result_is_stored_with_all_that_made_it(counted, tmp_path):
    run.run([recipe_of(1)], QUICK, Cache(tmp_path))
    row = json.loads((tmp_path / "cells.jsonl").read_text())
    assert {"digest", "kind", "settings", "options", "result", "seconds", "device", "versions"} <= set(row)
    assert "train.seed=0" in row["settings"] and row["versions"]["jax"]


def sizes(*clients):
    """Cells that cost little: sizes of federations."""
    made = [Cell("size", f"{c}", "dataset", ("data.name=digits", f"data.clients={c}")) for c in clients]
    return Recipe("fed-cdp/table-1", "t", lambda size: made, (Measure("per_client", "per client"),), "q")


def test_several_processes_find_what_one_finds_and_one_that_dies_fails_its_own_cell_only(tmp_path, monkeypatch):
    alone, together = Cache(tmp_path / "a"), Cache(tmp_path / "b")
    assert run.run([sizes(4, 6)], QUICK, alone).done == 2
    monkeypatch.setattr(run, "measured", recipe_checks.dies_at_five)
    told = []
    done = run.run([sizes(4, 5, 6)], QUICK, together, workers=2, tell=lambda p: told.append(p.done))
    assert done.done == 3 and told[-1] == 3
    assert len(done.failed) == 1 and "its worker process died" in next(iter(done.failed.values()))
    assert {d: r["result"] for d, r in together.rows.items()} == {d: r["result"] for d, r in alone.rows.items()}
    assert {r["workers"] for r in together.rows.values()} == {2} and {r["workers"] for r in alone.rows.values()} == {1}
    again = run.run([sizes(4, 6)], QUICK, together, workers=2)
    assert again.cached == 2 and again.spent == 0


@pytest.mark.parametrize("paper", ["fed-cdp", "cpl", "2dp-fl", "dpfl"])
def test_a_claim_that_does_not_hold_names_the_search_for_a_reading_that_does(paper):
    summary = (Path(__file__).parents[2] / "docs" / "data" / "summaries" / f"{paper}.txt").read_text(encoding="utf-8")
    found = claims(summary)
    assert len(found) > 8
    for claim, verdict in found:
        assert verdict.lower().startswith(VERDICTS), claim
        assert "does not hold" not in verdict or "search" in verdict.lower(), claim


def test_the_overview_counts_verdicts_and_names_what_does_not_hold():
    verdicts = ("holds", "does not hold. Search: x", "holds under another reading", "holds here; does not hold there")
    rows = [f"| {claim} | {verdict} | T | 1 |" for claim, verdict in zip("abcd", verdicts, strict=True)]
    summary = "\n".join(
        ["| claim | verdict | where | measured |", "|---|---|---|---|", *rows, "", "Prose | with a bar."]
    )
    text = overview({"one": summary, "none": "No claims.\n"})
    assert "| [one](reproduction/one.md) | 2 | 1 | 1 | 0 |" in text
    assert "| one | b |" in text and "| one | d |" in text and "| one | c |" not in text and "none" not in text
