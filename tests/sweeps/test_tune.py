"""Tuning: the best of a secret number of private trainings, with the choice counted in ε."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedveil
from fedveil.accounting.ledger import tuned
from fedveil.config import load
from fedveil.core.errors import ConfigError
from fedveil.federation import plan
from fedveil.run_account import account
from fedveil.sweeps import tune as module

BASE = {
    "data": {"name": "digits", "partition": "iid", "clients": 10, "per_client": 60},
    "model": {"name": "logistic"},
    "train": {"rounds": 4, "per_round": 10, "local_steps": 1, "batch": 5},
    "defense": {"name": "fed-cdp", "placement": "batch", "clip": 0.5, "clip_scope": "flat", "noise": 1.0},
}
SWEEP = {"train": {"lr": [0.001, 2.0]}}


def test_the_best_is_released_with_the_price_of_the_choice(monkeypatch, tmp_path, fedveil_cli):
    monkeypatch.setattr(module, "_drawn", lambda mean: 2)
    (tmp_path / "tune.toml").write_text(
        '[data]\nname = "digits"\npartition = "iid"\nclients = 10\nper_client = 60\n[model]\nname = "logistic"\n[train]\n'
        "rounds = 4\nper_round = 10\nlocal_steps = 1\nbatch = 5\n[defense]\n"
        'name = "fed-cdp"\nplacement = "batch"\nclip = 0.5\nclip_scope = "flat"\nnoise = 1.0\n'
        "[sweep]\ntrain.lr = [0.001, 2.0]\n"
    )
    answer = fedveil_cli("tune", "tune.toml", "--trials", 5, "--out", "best", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["values"] in ({"train.lr": 0.001}, {"train.lr": 2.0}) and 0 <= found["accuracy"] <= 1
    assert (found["mean_trials"], found["candidates"]) == (5.0, 2)
    for row in found["epsilon"]:
        assert row["tap"] == "release" and row["epsilon"] > row["epsilon_of_one_training"] > 0
    assert {(row["unit"], row["adjacency"]) for row in found["epsilon"]} >= {("example", "add-remove")}
    assert json.loads((tmp_path / "best" / "tune.json").read_text()) == found
    assert load(tmp_path / "best" / "config.toml").train.lr == found["values"]["train.lr"]
    assert not (tmp_path / "best" / "transcript.jsonl").exists()
    again = fedveil_cli("tune", "tune.toml", "--out", "best", cwd=tmp_path)
    assert again.code == 2 and "--out: got 'best'; takes a folder that holds no tuning yet" in again.err


def test_one_training_costs_what_the_ledger_says():
    made = plan(load(None, list(_settings()))).transcript()
    rows = account(list(_settings()), accountant="rdp")
    for unit, adjacency in (("example", "add-remove"), ("example", "zero-out"), ("image", "replace")):
        here = [r.epsilon for r in rows if (r.tap, r.unit, r.adjacency) == ("release", unit, adjacency)]
        once, assumed = tuned([made], unit, adjacency, made.delta, 1.0)
        assert ([once] == here and assumed) or (once is None and here in ([], [None]))
    assert tuned([made], "example", "add-remove", made.delta, 10.0)[0] > once_of(made)


def once_of(made):
    return tuned([made], "example", "add-remove", made.delta, 1.0)[0]


def _settings():
    return [f"{section}.{key}={value}" for section, table in BASE.items() for key, value in table.items()]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"defense": [{"name": "fed-cdp", "placement": "batch", "noise": [1.0, 2.0]}]}, "must all cost the same ε"),
        ({"defense": [{"name": "none"}]}, "must all cost the same ε"),
        ({"train": {"lr": [0.1], "rounds": [2, 3]}}, "must all cost the same ε"),
        ({"train": {"noise_seed": [1]}}, "train.noise_seed: got 1; makes all draws known"),
        ({"seeds": 3}, "sweep.seeds: got 3; is not for tuning"),
        ({"taps": ["server"]}, "is not for tuning"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_trained(change, told, monkeypatch):
    monkeypatch.setattr(module, "_best", lambda *_: pytest.fail("something was trained"))
    with pytest.raises(ConfigError, match=told):
        fedveil.tune({**BASE, "sweep": change})
    with pytest.raises(ConfigError, match="trials: got 0.5; takes the mean number"):
        fedveil.tune({**BASE, "sweep": SWEEP}, trials=0.5)


def test_the_best_of_the_trainings_is_chosen(monkeypatch):
    from types import SimpleNamespace

    results = iter([(0.3, 1.0), (0.9, float("nan")), (0.7, 1.0), (0.6, 1.0)])
    made = [SimpleNamespace(accuracy=a, loss=loss) for a, loss in results]
    monkeypatch.setattr(module, "prepare", lambda config: None)
    left = iter(made)
    monkeypatch.setattr("fedveil.training.train", lambda federation: next(left))
    _, done, _ = module._best(module._candidates({**BASE, "sweep": SWEEP}), 4)
    assert done is made[2]


def test_the_number_of_trainings_is_geometric():
    drawn = np.array([module._drawn(5.0) for _ in range(20_000)])
    assert drawn.min() == 1 and abs(drawn.mean() - 5.0) < 0.2 and abs((drawn == 1).mean() - 0.2) < 0.02
    assert {module._drawn(1.0) for _ in range(100)} == {1}
