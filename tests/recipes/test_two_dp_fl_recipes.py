"""The recipes of 2dp-fl: the paper's size, adversaries and victims, shared jobs, and noise that the ledger certifies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recipe_checks import config_of

from fedveil.accounting import ledger
from fedveil.config import load, resolve
from fedveil.federation import plan
from fedveil.recipes import kinds, two_dp_fl
from fedveil.recipes.cell import FULL, QUICK, Job
from fedveil.recipes.kinds_two_dp_fl import after
from fedveil.recipes.run import jobs_of

DATA = Path(__file__).parents[2] / "docs" / "data"
BY_NAME = {recipe.name: recipe for recipe in two_dp_fl.RECIPES}


@pytest.mark.parametrize("name", BY_NAME)
def test_cells_average_models_on_mnist(name):
    for cell in (*BY_NAME[name].cells(QUICK), *BY_NAME[name].cells(FULL)):
        made = resolve(config_of(cell))
        assert made.data.name == "mnist" and made.train.aggregation == "fedavg"


def test_the_paper_s_size():
    """K = 50, U = 10, T = 50, δ = 0.001; NbAFL over the 31 rounds that its budget lasts."""
    for cell in two_dp_fl.fig_5(FULL):
        made = config_of(cell)
        assert (made.data.clients, made.train.per_round, made.train.rounds) == (50, 10, 50)
    cells = {cell.row: cell for cell in two_dp_fl.fig_6(FULL) if cell.column == "ε = 20"}
    assert cells["2dp-fl"].options == {"epsilon": 20.0, "delta": 1e-3}
    published = cells["nbafl"]
    assert config_of(published).train.rounds == 31 and config_of(cells["nbafl, 50 rounds"]).train.rounds == 50
    for row, cell in cells.items():
        if row.startswith("nbafl"):
            defense = config_of(cell).defense[0]
            assert defense.clip == (1.0 if "C = 1" in row else 10.0) and defense.epsilon == 20.0
            assert defense.exposures == (None if "every upload" in row or "certified" in row else 1)


def test_delta_of_the_sweep_is_that_of_the_account():
    """The noise is calibrated to the δ that the run's own ledger prints."""
    for cell in two_dp_fl.fig_5(FULL):
        if cell.options:
            assert config_of(cell).defense[0].delta == cell.options["delta"]


def test_attacker_and_victim_differ_by_as_many_classes_as_the_column_says():
    for cell in two_dp_fl.fig_4(FULL):
        attacker, victim = config_of(cell).data.label_sets
        assert len(set(victim) - set(attacker)) == int(cell.column)


def test_adversaries_observe_the_tap_of_their_model():
    for cell in two_dp_fl.fig_3(FULL):
        asked = config_of(cell).attack
        assert asked.make().adversary == cell.column
        assert asked.tap == ("server" if cell.column == "active" else "broadcast")


def test_figures_share_their_cells():
    """Fig 3 without a defence and at σ = 1 is part of Fig 6(a); what is not defended is measured once for all σ."""
    for size in (QUICK, FULL):
        inverted = jobs_of([BY_NAME["2dp-fl/fig-6"]], size)
        ascents = [cell for cell in two_dp_fl.fig_3(size) if "solved" not in cell.row and "smoothed" not in cell.row]
        assert all(job.digest in inverted for cell in ascents for job in cell.jobs())
    rows = [cell for cell in two_dp_fl.fig_6(FULL) if cell.row == "active, none"]
    assert len(rows) == 7 and len({job.digest for cell in rows for job in cell.jobs()}) == 1


def test_measured_inversions_are_the_rows_of_the_figures():
    """Cells without a defence of Figs 3, 4 and 6(a), measured before as rows of another file."""
    rows, cells = (
        [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]
        for name in ("2dp-fl-inversion.jsonl", "cells.jsonl")
    )
    taken = [cell for cell in cells if cell["result"].get("source") == "2dp-fl-inversion.jsonl"]
    assert len(taken) == 45
    for cell in taken:
        config, result = load(None, cell["settings"]), cell["result"]
        assert config.defense[0].name == "none"  # the draws of noise have changed since
        same = [
            row
            for row in rows
            if (row.get("seat"), row.get("ssim"), row.get("mse"), row.get("accuracy"))
            == (result["adversary"], result["ssim"], result["mse"], result["accuracy"])
        ]
        assert any(
            (row["setting"]["clients"], row["setting"]["rounds"], len(row["seeds"]))
            == (config.data.clients, config.train.rounds, config.attack.seeds)
            for row in same
        ), cell["settings"]


# --- the kind `curve`

SMALL = (
    "data.name=digits", "data.partition=iid", "data.clients=10", "data.per_client=100", "model.name=logistic",
    "train.rounds=5", "train.local_steps=2", "train.batch=10", "defense.name=2dp-fl", "defense.delta=0.001",
)  # fmt: skip


@pytest.fixture
def trained(monkeypatch):
    """Replaces the training of `curve` and records its jobs."""
    asked = []

    def train(job):
        asked.append(job)
        return {"history": [(1, 0.1), (2, 0.2), (3, 0.3), (5, 0.5)], "rounds": 5, "accuracy": 0.5}

    monkeypatch.setattr(kinds, "train", train)
    return asked


def test_noise_keeps_the_epsilon_that_is_asked_for(trained):
    found = kinds.KINDS["curve"](Job("curve", SMALL, {"epsilon": 2.0, "delta": 1e-3}))
    made = load(None, list(trained[0].settings)).defense[0]
    assert made.noise == made.server_noise == found["noise"]
    assert 0.99 * 2.0 <= found["epsilon"] <= 2.0
    assert (found["fifth"], found["half"], found["accuracy"]) == (0.1, 0.2, 0.5)


def test_without_an_epsilon_the_noise_is_the_config_s(trained):
    found = kinds.KINDS["curve"](Job("curve", (*SMALL, "defense.noise=4.0"), {}))
    assert found["noise"] == 4.0 and trained[0].settings == (*SMALL, "defense.noise=4.0", "preset=paper")
    account = plan(load(None, [*SMALL, "defense.noise=4.0"])).transcript()
    assert found["epsilon"] == pytest.approx(ledger.certified(account, "server", "example", 1e-3).epsilon)
    assert found["client_epsilon"] is None  # distinct noise has no certificate


def test_accuracy_along_the_way_is_of_the_last_evaluation():
    scored = [(2, 0.2), (4, 0.4)]
    assert [after(scored, rounds) for rounds in (1, 2, 3.9, 9)] == [None, 0.2, 0.2, 0.4]
