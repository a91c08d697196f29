"""Advice: a setting for a federation of a given size that keeps its ε and learns, or from where on there is one."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest

import fedveil
from fedveil.advice import trial
from fedveil.advice.candidates import Candidate, Kind, kinds, lengths
from fedveil.advice.question import question
from fedveil.advice.quick import Recipe, Records, accuracy
from fedveil.advice.search import Search
from fedveil.advice.standin import stand_in
from fedveil.advice.trial import IN_MEMORY
from fedveil.config import from_dict, resolve
from fedveil.core.errors import ConfigError
from fedveil.data import files
from fedveil.federation import prepare
from fedveil.run_account import account
from fedveil.training import train

ASKED = {"clients": 20, "records": 60, "shape": (8, 8, 1), "classes": 10, "epsilon": 6.0, "seconds": 20.0}
FIELDS = {"config", "epsilon", "accuracy", "interval", "chance", "non_private", "stand_in", "leak", "alternatives"}


@pytest.fixture
def embedded(monkeypatch):
    """Only the embedded datasets are here."""

    def missing(info, name, dir=None):
        from fedveil.core.errors import DataError

        raise DataError(f"{info.name}: {name} is not here")

    monkeypatch.setattr(files, "read", missing)


# --- the question


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"clients": None}, "clients: got None; is needed"),
        ({"clients": 0}, "clients: got 0; takes a whole number from 1"),
        ({"classes": 1}, "classes: got 1; takes a whole number from 2"),
        ({"shape": (8, 8)}, "shape: got .8, 8.; takes rows,columns,colours"),
        ({"epsilon": -1.0}, "epsilon: got -1.0; takes a number above 0"),
        ({"delta": 1.0}, "delta: got 1.0; takes a number above 0 and below 1"),
        ({"unit": "client"}, "unit: got 'client'; takes example or image"),
        ({"tap": "serve"}, "tap: got 'serve'; did you mean 'server'?"),
        ({"withstand": "serve"}, "withstand: got 'serve'; did you mean 'server'?"),
        ({"withstand": "server", "tap": "release"}, "withstand: got 'server'; and tap = 'release' say the same"),
        ({"data": "mnsit", "shape": None, "classes": None}, "data: got 'mnsit'; did you mean 'mnist'?"),
        ({"data": "mnist"}, "data: got 'mnist'; says shape and classes itself"),
        ({"seconds": 1.0}, "seconds: got 1.0; takes at least 5"),
        ({"epsilom": 1.0}, "epsilom: got 1.0; did you mean 'epsilon'?"),
    ],
)
def test_a_wrong_question(change, told):
    with pytest.raises(ConfigError, match=told):
        question({**ASKED, **change})


def test_whom_to_withstand_is_the_earliest_tap():
    assert question({**ASKED, "withstand": "release,clients"}).tap == "release"
    assert question({**ASKED, "withstand": ["clients"]}).tap == "broadcast"
    assert question({**ASKED, "withstand": "release,server,clients"}).tap == "server"


def test_a_dataset_or_a_file_says_its_shape(tmp_path):
    named = question({"clients": 5, "records": 9, "epsilon": 1.0, "data": "mnist"})
    assert (named.shape, named.classes, named.source) == ((28, 28, 1), 10, {"name": "mnist"})
    np.savez(tmp_path / "own.npz", x=np.zeros((8, 5), np.float32), y=np.arange(8) % 4)
    own = question({"clients": 5, "records": 9, "epsilon": 1.0, "data": str(tmp_path / "own.npz")})
    assert (own.shape, own.classes, own.source["name"]) == ((5,), 4, "file")


# --- the stand-in


def test_a_stand_in_has_the_asked_form(embedded):
    found = stand_in(question({**ASKED, "shape": (20, 16, 3), "classes": 4, "clients": 100}))
    assert found.name == "digits" and found.dataset.shape == (20, 16, 3) and found.dataset.classes == 4
    assert found.dataset.train.y.max() == 3
    assert "the first 4 of its 10 classes" in found.says and "resized to 20 x 16 x 3" in found.says
    assert found.copies == -(-6000 // len(found.dataset.train)) and f"up to {found.copies} clients" in found.says
    few = stand_in(question(ASKED)).dataset
    assert len(few.train) == 1200 and len(few.held_out) <= 5000
    table = stand_in(question({**ASKED, "shape": (40,), "classes": 3}))
    assert table.name == "cancer" and table.dataset.shape == (40,) and "only 2 classes" in table.says


# --- candidates


def test_the_kinds_fit_who_is_withstood():
    image = question({**ASKED, "shape": (28, 28, 1)})
    assert [kind.name for kind in kinds(image)] == ["batch, scatter", "batch, raw", "example, scatter", "example, raw"]
    assert kinds(replace(image, secure_aggregation=True))[0].name == "cohort, scatter"
    assert kinds(replace(image, tap="release"))[0].name == "cohort, scatter"
    assert {kind.placement for kind in kinds(replace(image, tap="example"))} == {"example"}
    assert {kind.features for kind in kinds(question(ASKED))} == {"raw"}  # too small to scatter


@pytest.mark.parametrize("kind", [Kind("batch", "raw"), Kind("cohort", "raw"), Kind("example", "raw")], ids=str)
def test_the_noise_of_a_candidate_keeps_the_asked_epsilon(kind):
    asked = question({**ASKED, "secure_aggregation": kind.placement == "cohort"})
    rounds, batch = lengths(asked, kind)[1]
    made = Candidate(kind, rounds, batch, 0.5, 1.0).calibrated(asked)
    here = [r for r in made.ledger(asked) if (r.tap, r.unit, r.adjacency) == ("server", "example", "add-remove")]
    assert [r.certified for r in here] == [True] and 0.98 * 6.0 < here[0].epsilon <= 6.0
    less = replace(made, noise=0.9 * made.noise).ledger(asked)
    assert min(r.epsilon for r in less if (r.tap, r.unit) == ("server", "example") and r.epsilon) > 6.0


def test_cohort_noise_has_no_certificate_at_a_server_that_sees_messages():
    asked = question(ASKED)
    weak = Candidate(Kind("cohort", "raw"), 10, 10, 0.5, 1.0).calibrated(asked)
    summed = Candidate(Kind("cohort", "raw"), 10, 10, 0.5, 1.0).calibrated(replace(asked, secure_aggregation=True))
    assert weak is None or weak.noise > 3 * summed.noise  # a client's share alone must hide its records


# --- the quick training


def test_the_quick_training_learns_what_the_engine_learns(embedded):
    """The same distribution: the mean of a few trainings agrees, with noise that costs accuracy."""
    asked = question(ASKED)
    public = stand_in(asked)
    search = Search(asked, public.dataset, lambda line: None, float("inf"))
    made = Candidate(Kind("batch", "raw"), 10, 20, 0.5, 0.8, noise=4.0)
    quick = np.mean([search.score(made, seed=seed) for seed in range(8)])
    tables = made.tables(asked)
    tables["data"] |= {"name": "file", "file": IN_MEMORY}
    engine = []
    for seed in range(4):
        tables["train"] |= {"seed": seed, "noise_seed": seed}
        engine.append(train(prepare(from_dict(tables), dataset=public.dataset)).accuracy)
    assert 0.3 < quick < 0.95 and abs(quick - np.mean(engine)) < 0.1


def test_noise_costs_accuracy_and_clients_buy_it():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=600)
    x = (np.eye(3, 12)[y] + 0.2 * rng.standard_normal((600, 12))).astype(np.float32)
    data = Records(x[:400], y[:400], x[400:], y[400:], 3)
    few, many, none = (accuracy(data, Recipe(15, 1.0, 0.5, noise, 100.0)) for noise in (1.0, 0.05, 0.0))
    assert few < many <= none + 0.02 and none > 0.9


# --- the advice


@pytest.fixture(scope="module")
def advice(fedveil_cli, tmp_path_factory):
    folder = tmp_path_factory.mktemp("advice")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDVEIL_DATA", str(folder))
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setattr("fedveil.advice.standin.IMAGES", ("digits",))
        patch.setattr("fedveil.advice.trial.SEEDS", 2)
        patch.setattr("fedveil.advice.advise.OPTIONS", 2)
        patch.setitem(trial.ATTACK, "images", 4)
        options = [
            "--clients",
            20,
            "--records",
            60,
            "--shape",
            "8,8,1",
            "--classes",
            10,
            "--epsilon",
            6,
            "--seconds",
            300,
        ]
        answer = fedveil_cli("advise", *options, "--out", "advice.toml", "--json", cwd=folder)
    assert answer.code == 0, answer.err
    return answer, json.loads(answer.out), (folder / "advice.toml").read_text()


def test_the_document(advice):
    answer, document, toml = advice
    assert document.keys() >= FIELDS and document["impossible"] is None
    assert document["config"] == toml and document["stand_in"]["name"] == "digits"
    assert document["accuracy"] > (document["chance"] + document["non_private"]) / 2
    if document["interval"] is not None:  # there was time for a second training
        low, high = document["interval"]
        assert low <= document["accuracy"] <= high
    assert set(document["leak"]) == {"example", "client", "server", "release"}
    assert len(document["alternatives"]) == 1
    for option in document["alternatives"]:
        assert option.keys() >= FIELDS - {"stand_in", "alternatives"}
        assert option["name"] != document["name"] and option["leak"].keys() == document["leak"].keys()
    assert document["leak"]["example"]["success"] == 1.0  # open there: a linear model's gradient is the record
    assert document["leak"]["server"]["success"] < 0.5
    assert answer.err.startswith("    0 s  stand-in")
    assert "costs no ε" in document["tuning"] and document["next"].startswith("fedveil train advice.toml")


def test_the_toml_is_a_config_whose_ledger_is_the_printed_one(advice):
    """The same rows for any 1,200 distinct records of this form: here those of a file."""
    _, document, toml = advice
    tables = tomllib.loads(toml)
    config = resolve(from_dict(tables))
    assert config.defense[0].clip_scope == "flat" and config.train.sampling == "poisson"
    tables["data"] |= {"name": "digits", "file": None}  # its 1,347 records hold 20 × 60 distinct ones
    rows = account(from_dict(tables), accountant="pld").as_dict()
    assert rows == document["epsilon"]
    kept = [r["epsilon"] for r in rows if (r["tap"], r["unit"], r["adjacency"]) == ("server", "example", "add-remove")]
    assert len(kept) == 1 and kept[0] <= 6.0


def test_nothing_useful_says_from_where_on_there_is(monkeypatch):
    monkeypatch.setattr("fedveil.advice.standin.IMAGES", ("digits",))
    found = fedveil.advise(**{**ASKED, "epsilon": 0.01})
    document = found.as_dict()
    assert document["config"] is None and document["alternatives"] == []
    why = document["impossible"]
    assert why["accuracy"] < why["midpoint"] and why["from_epsilon"] > 0.1 and why["from_clients"] > 100
    assert "bisection on quick trainings" in why["how"]
