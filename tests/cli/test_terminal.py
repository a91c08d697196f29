"""What a person reads in a terminal of 80 columns: short tables that name unit and adjacency, verdicts, notes."""

from __future__ import annotations

import json

import pytest

from fedveil.cli.ledger import LINES

OPTIONS = ["-s", "model.name=logistic", "-s", "train.rounds=2", "-s", "train.local_steps=1", "-s", "train.batch=1"]
DEFENSES = ("none", "fed-cdp", "fed-sdp", "2dp-fl", "nbafl", "dpfl", "lip", "gradient-noise")


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="module")
def run(fedveil_cli, tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminal")
    assert fedveil_cli("train", *OPTIONS, "--out", "run", cwd=folder).code == 0
    return folder / "run"


@pytest.mark.parametrize("name", DEFENSES)
def test_the_account_fits_on_a_page(name, terminal, fedveil_cli, tmp_path):
    answer = fedveil_cli("ledger", "-s", f"defense.name={name}", *OPTIONS, cwd=tmp_path)
    lines = (answer.out + answer.err).splitlines()
    assert answer.code == 0 and 15 < len(lines) <= LINES == 40 and max(map(len, lines)) <= 80
    for tap in ("example", "client", "server", "broadcast", "release"):
        assert sum(line.startswith(f"│ {tap} ") for line in lines) == 3
    assert "adjacency" in lines[2] and "unit" in lines[2]


def test_the_short_account_has_the_best_row_of_each_tap_and_unit(fedveil_cli, tmp_path):
    given = ["ledger", "-s", "defense.name=fed-cdp", *OPTIONS, "--json"]
    short, every = (json.loads(fedveil_cli(*given, *more, cwd=tmp_path).out) for more in ([], ["--all"]))
    places = [(row["tap"], row["unit"]) for row in short]
    assert len(short) == len(set(places)) == 15 < len(every) and all(row in every for row in short)
    for row in short:
        same = [r for r in every if (r["tap"], r["unit"]) == (row["tap"], row["unit"])]
        certified = [r["epsilon"] for r in same if r["certified"] and r["adjacency"] != "replace"]
        assert row["certified"] == bool(certified) and row["epsilon"] == (min(certified) if certified else None)


def test_all_rows_can_be_asked_for(terminal, fedveil_cli, tmp_path):
    given = ["ledger", "-s", "defense.name=fed-cdp", *OPTIONS]
    short, whole = fedveil_cli(*given, cwd=tmp_path), fedveil_cli(*given, "--all", cwd=tmp_path)
    assert "--all prints them" in short.out and "rdp" in whole.out and "rdp" not in short.out
    assert "certified rows assume: " in whole.err and short.err == ""


def test_an_attack_begins_with_its_verdict_and_has_a_short_table(terminal, run, fedveil_cli):
    answer = fedveil_cli("attack", "--run", "run", "-s", "attack.images=2", "-s", "attack.round=0", cwd=run.parent)
    lines = answer.out.splitlines()
    assert answer.code == 0 and "rebuilt" in lines[0] and len(lines) <= 24 and max(map(len, lines)) <= 80
    assert any("a constant guess" in line for line in lines) and any("rate, 95 % interval" in line for line in lines)


def test_resuming_says_where_and_that_a_finished_run_is_finished(run, fedveil_cli):
    answer = fedveil_cli("train", "--resume", "run", cwd=run.parent)
    assert answer.code == 0 and "run is finished: nothing is trained, its 2 rounds are shown again" in answer.err
