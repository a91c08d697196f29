"""Sweeps: the cells of a document, resuming, results, the page, and errors before anything is written."""

from __future__ import annotations

import csv
import io
import json
import tomllib

import pytest

import fedveil
from fedveil.config import load, resolve
from fedveil.core.errors import ConfigError
from fedveil.recipes import run as runner
from fedveil.run_account import account
from fedveil.sweeps.grid import cells_of
from fedveil.sweeps.page import page, write_files
from fedveil.sweeps.results import epsilon_at, leak_of

FILE = """
[data]
name = "digits"
partition = "iid"
clients = 10
per_client = 60

[model]
name = "logistic"

[train]
rounds = 3
per_round = 5
local_steps = 1
batch = 2
lr = 0.5

[attack]
images = 2
iterations = 5

[sweep]
seeds = 2
taps = ["example"]

[[sweep.defense]]
name = "none"

[[sweep.defense]]
name = "fed-cdp"
placement = "batch"
clip = 1.0
noise = [0.8, 4.0]
"""


def test_cells_are_all_combinations():
    document = tomllib.loads(FILE)
    document["sweep"]["train"] = {"lr": [0.1, 0.2]}
    made = cells_of(document)
    assert len(made) == 2 * 2 * 3  # seeds, learning rates, defences with their strengths
    assert len({cell.job.digest for cell in made}) == len(made)
    assert [cell.label for cell in made[:3]] == ["none, train.lr 0.1", "none, train.lr 0.1", "none, train.lr 0.2"]
    assert made[-1].label == "fed-cdp, noise 4, train.lr 0.2" and made[-1].seed == 1
    config = resolve(load(None, list(made[-1].job.settings)))
    assert (config.train.lr, config.train.seed, config.train.noise_seed) == (0.2, 1, None)
    assert (config.defense[0].noise, config.defense[0].placement) == (4.0, "batch")


def test_a_stack_of_defences_is_one_entry():
    stack = [{"name": "prune", "share": [0.3, 0.9]}, {"name": "gradient-noise", "scale": 0.1}]
    made = cells_of({"sweep": {"defense": [stack, {"name": "none"}]}})
    assert [cell.label for cell in made] == [
        "prune+gradient-noise, share 0.3",
        "prune+gradient-noise, share 0.9",
        "none",
    ]
    assert [d.name for d in load(None, list(made[0].job.settings)).defense] == ["prune", "gradient-noise"]


def test_calibrated_cells_keep_their_epsilon():
    """The ledger of each cell's own config has the ε that was asked for; a defence without noise has one cell."""
    goal = {"epsilon": [1, 4], "tap": "server", "unit": "example"}
    document = {key: value for key, value in tomllib.loads(FILE).items() if key != "sweep"}
    defenses = [{"name": "none"}, {"name": "fed-cdp", "placement": "batch"}]
    made = cells_of({**document, "sweep": {"calibrate": goal, "defense": defenses}})
    assert [cell.label for cell in made] == ["none", "fed-cdp, ε 1", "fed-cdp, ε 4"]
    for cell, asked in zip(made[1:], (1, 4), strict=True):
        rows = account(list(cell.job.settings)).as_dict()
        assert 0.99 * asked < epsilon_at(rows, "server") <= asked


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("sweep.sedes=2", "sweep.sedes: got 2; did you mean 'seeds'?"),
        ("sweep.seeds=0", "sweep.seeds: got 0; takes the number of seeds"),
        ("sweep.seeds=[1,1]", "sweep.seeds: got [1, 1]"),
        ('sweep.taps=["serve"]', "sweep.taps: got 'serve'; did you mean 'server'?"),
        ("sweep.train.lr=0.1", "sweep.train.lr: got 0.1; takes a list of values"),
        ("sweep.train.lrr=[0.1]", "sweep.train.lrr: got [0.1]; did you mean 'lr'?"),
        ("sweep.train.lr=[-1]", "train.lr: got -1"),
        ("sweep.train.per_round=[5, 11]", "train.per_round: got 11; takes at most data.clients = 10"),
        ('sweep.defense=["none"]', "sweep.defense: got 'none'; takes tables of keys"),
        ('sweep.defense=[{name="nome"}]', "defense.name: got 'nome'; did you mean 'none'?"),
        ("sweep.calibrate.epsilon=[0]", "sweep.calibrate.epsilon: got 0; takes numbers above 0"),
        ("sweep.calibrate={}", "sweep.calibrate: got {}; takes {epsilon"),
        ("attack.image=2", "attack.image: got 2"),
    ],
)
def test_a_wrong_sweep_writes_nothing(change, told, tmp_path, fedveil_cli):
    (tmp_path / "sweep.toml").write_text(FILE)
    answer = fedveil_cli("sweep", "sweep.toml", "-s", change, "--out", "done", cwd=tmp_path)
    assert answer.code == 2 and told in answer.err, answer.err
    assert len(answer.err.splitlines()) == 1
    assert not (tmp_path / "done").exists()


def test_a_config_object_has_no_lists():
    with pytest.raises(ConfigError, match="a Config has no lists"):
        fedveil.sweep(load(None, []))


@pytest.fixture(scope="module")
def swept(tmp_path_factory, fedveil_cli):
    """A sweep by the command line, stopped after its first cell and then resumed: its folder and its JSON."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "sweep.toml").write_text(FILE)
    first = fedveil_cli("sweep", "sweep.toml", "--out", "done", "--minutes", 0.0001, cwd=folder)
    assert first.code == 0, first.err
    begun = (folder / "done" / "cells.jsonl").read_text().splitlines()
    answer = fedveil_cli("sweep", "sweep.toml", "--out", "done", "--json", cwd=folder)
    assert answer.code == 0, answer.err
    return folder / "done", begun, first, json.loads(answer.out)


def test_a_stopped_sweep_is_resumed(swept, monkeypatch):
    folder, begun, first, cells = swept
    assert 1 <= len(begun) < 6 and "cells are left: run the same command again to resume" in first.err
    lines = (folder / "cells.jsonl").read_text().splitlines()
    assert lines[: len(begun)] == begun and len(lines) == 6
    assert [cell["status"] for cell in cells] == ["done"] * 6

    def refuse(job):
        raise AssertionError(f"{job.settings} is measured again")

    monkeypatch.setattr(runner, "measured", refuse)
    again = fedveil.sweep(folder.parent / "sweep.toml", folder)
    assert again.as_dict() == cells


def test_cells_have_settings_accuracy_ledger_and_attacks(swept):
    _, _, _, cells = swept
    for cell in cells:
        assert {"name", "values", "seed", "accuracy", "chance", "learned", "ledger", "attacks"} <= cell.keys()
        assert cell["split"] == "validation" and cell["rounds"] == 3 and cell["error"] is None
        assert [attack["tap"] for attack in cell["attacks"]] == ["example"]
        assert leak_of(cell["attacks"][0]) is not None
    none, strong = cells[0], cells[-1]
    assert none["values"] == {"defense.name": "none"} and epsilon_at(none["ledger"], "server") is None
    expected = account(strong["settings"], accountant=("paper", "pld")).as_dict()
    assert epsilon_at(strong["ledger"], "server") == epsilon_at(expected, "server") > 0


def test_csv_chart_and_page(swept):
    folder, _, _, cells = swept
    rows = list(csv.DictReader(io.StringIO((folder / "cells.csv").read_text())))
    assert [float(row["accuracy"]) for row in rows] == [cell["accuracy"] for cell in cells]
    assert rows[0]["defense.name"] == "none" and rows[0]["epsilon server example"] == ""
    assert float(rows[-1]["epsilon server example"]) == epsilon_at(cells[-1]["ledger"], "server")
    assert (folder / "chart.svg").read_text().startswith("<svg")
    text = (folder / "report.html").read_text()
    for expected in ("fed-cdp, noise 0.8", "fed-cdp, noise 4", "<svg", "at ε =", "chance"):
        assert expected in text
    assert "http" not in text.replace("http://www.w3.org", "")


def test_an_attack_that_cannot_be_made_spoils_no_cell(tmp_path):
    document = tomllib.loads(FILE)
    document["sweep"] = {"attack": {"name": ["cpl"]}, "taps": ["release", "client"]}
    document["attack"] = {"images": 50}
    done = fedveil.sweep(document)
    assert len(done.cells) == 1 and done.cells[0]["status"] == "done"
    member, rebuilt = done.cells[0]["attacks"]
    assert member["tap"] == "release" and member["auc"] is not None
    assert rebuilt["tap"] == "client" and "takes at most" in rebuilt["error"]
    assert done.lines[0].leaks["client"] is None and "not made" in page(done)
    assert set(write_files(done, tmp_path)) == {"csv", "report"}  # without an ε there is no chart


def test_failures_are_reported(monkeypatch, tmp_path, fedveil_cli):
    from fedveil.recipes.run import Measured

    monkeypatch.setattr(runner, "measured", lambda job: Measured(error="out of luck"))
    (tmp_path / "sweep.toml").write_text(FILE)
    answer = fedveil_cli("sweep", "sweep.toml", "--out", "done", cwd=tmp_path)
    assert answer.code == 1 and "6 cells failed; the first: none: out of luck" in answer.err
    assert "failed" in answer.out and (tmp_path / "done" / "report.html").exists()


@pytest.mark.slow
def test_workers_find_the_same_cells(tmp_path):
    document = tomllib.loads(FILE)
    document["train"]["noise_seed"] = 7
    document["sweep"]["taps"] = []
    alone, together = fedveil.sweep(document), fedveil.sweep(document, workers=2)
    keys = ("name", "seed", "accuracy", "loss", "digest")
    assert [[cell[key] for key in keys] for cell in alone.cells] == [
        [cell[key] for key in keys] for cell in together.cells
    ]
