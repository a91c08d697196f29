"""Calibration keeps what the ledger prints; a budget stops a run at the right round, killed and resumed or not."""

import json
import math
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fedveil.accounting import calibrate, ledger, transcript
from fedveil.accounting.calibrate import Goal
from fedveil.config import load
from fedveil.core.errors import ConfigError
from fedveil.federation import plan, prepare

SMALL = ["data.clients=20", "model.name=logistic", "train.per_round=4", "train.local_steps=2"]


def planned(*settings):
    return plan(load(None, [*SMALL, *settings]))


@pytest.mark.parametrize(
    ("settings", "tap", "unit", "adjacency", "epsilon"),
    [
        (["defense.name=fed-cdp"], "release", "example", None, 2.0),
        (["defense.name=fed-cdp", "defense.placement=batch"], "client", "example", "replace", 8.0),
        (["defense.name=fed-cdp", "defense.noise_end=9", "train.rounds=3"], "client", "example", None, 1.0),
        (["defense.name=fed-cdp", "train.batching=shuffle"], "example", "example", None, 10.0),
        (["defense.name=fed-sdp"], "release", "client", None, 0.5),
        (["defense.name=fed-sdp", "train.sampling=fixed"], "release", "client", "replace", 3.0),
        (["defense.name=fed-sdp", "defense.placement=client"], "server", "client", None, 5.0),
        (["defense.name=2dp-fl"], "client", "example", None, 4.0),
        (["defense.name=nbafl"], "server", "client", "replace", 10.0),
        (["defense.name=dpfl", "defense.allocation=even", "defense.selection=uniform"], "server", "client", None, 3.0),
    ],
)
def test_noise_for_an_epsilon(settings, tap, unit, adjacency, epsilon, fedveil_cli, tmp_path):
    """The command's noise, put into the config, gives the asked ε in the ledger: within 1 %, never above."""
    given = [part for item in [*SMALL, "train.rounds=12", *settings] for part in ("-s", item)]
    asked = ["--epsilon", epsilon, "--tap", tap, "--unit", unit, "--delta", 1e-5]
    answer = json.loads(
        fedveil_cli(
            "calibrate", *given, *asked, *(["--adjacency", adjacency] if adjacency else []), "--json", cwd=tmp_path
        ).out
    )
    (key,) = (name for name in answer if name.startswith("defense."))
    changed = [f"{key}={answer[key]!r}"]
    if "defense.noise_end=9" in settings:
        changed.append(f"defense.noise_end={9 * answer[key] / 6!r}")
    made = planned("train.rounds=12", *settings, *changed)
    row = ledger.certified(
        transcript.planned(made.defenses, made.setting, made.setting.rounds),
        tap,
        unit,
        1e-5,
        adjacency or answer["row"]["adjacency"],
    )
    assert row.certified and 0.99 * epsilon <= row.epsilon <= epsilon
    assert row.epsilon == pytest.approx(answer["epsilon"], rel=1e-9)


def test_rounds_for_a_noise(fedveil_cli, tmp_path):
    given = [part for item in [*SMALL, "defense.name=fed-cdp"] for part in ("-s", item)]
    answer = json.loads(fedveil_cli("calibrate", *given, "--epsilon", 2, "--noise", 9, "--json", cwd=tmp_path).out)
    made = planned("defense.name=fed-cdp", "defense.noise=9.0")

    def after(rounds):
        return ledger.certified(
            transcript.planned(made.defenses, made.setting, rounds), "release", "example", 1e-5
        ).epsilon

    assert after(answer["rounds"]) <= 2 < after(answer["rounds"] + 1)
    table = fedveil_cli("calibrate", *given, "--epsilon", 2, "--noise", 9, cwd=tmp_path)
    assert table.code == 0 and str(answer["rounds"]) in table.out and "release, example, add-remove" in table.out


@pytest.mark.parametrize(
    ("settings", "tap", "unit", "word"),
    [
        (["defense.name=none"], "release", "example", "no privacy account"),
        (["defense.name=fed-cdp"], "release", "client", "does not extend to all examples"),
        (["defense.name=fed-sdp"], "server", "client", "open"),
        (["defense.name=lip"], "server", "client", "no privacy account"),
    ],
)
def test_what_no_noise_can_reach(settings, tap, unit, word):
    made = planned("train.rounds=5", *settings)
    with pytest.raises(ConfigError, match=word):
        calibrate.noise_for(made.defenses, made.setting, Goal(1.0, 1e-5, tap, unit))


def test_a_noise_that_affords_no_round():
    made = planned("defense.name=fed-cdp")
    with pytest.raises(ConfigError, match="one round alone costs"):
        calibrate.rounds_with(made.defenses, made.setting, Goal(0.1, 1e-5, "release", "example"), 0.5)


# --- budgets

BUDGET = ["defense.name=fed-cdp", "train.rounds=40", "train.eval_every=5"]


def budget(epsilon, tap="release", unit="example"):
    return f'train.budget={{epsilon = {epsilon}, delta = 1e-5, tap = "{tap}", unit = "{unit}"}}'


def test_a_budget_stops_before_it_is_exceeded_killed_and_resumed_or_not(fedveil_cli, tmp_path):
    made = planned(*BUDGET)
    wanted = [
        ledger.certified(transcript.planned(made.defenses, made.setting, t), "release", "example", 1e-5).epsilon
        for t in (15, 16)
    ]
    assert wanted[0] < wanted[1]
    settings = [*SMALL, *BUDGET, budget(sum(wanted) / 2), "preset=paper"]  # processes have the default of users
    given = [part for item in settings for part in ("-s", item)]
    whole = json.loads(fedveil_cli("train", *given, "--out", "whole", "--json", cwd=tmp_path).out)
    assert whole["rounds"] == 15 and "round 16 of 40 would exceed" in whole["stopped"]
    assert max(r["rounds"] for r in whole["ledger"]) == 15
    slowly = (
        "import sys, time\nfrom fedveil.cli.main import main\nfrom fedveil.simulation.simulator import Simulator\n"
        "quick = Simulator.round\n"
        "def slow(self, state, number):\n    time.sleep(0.1)\n    return quick(self, state, number)\n"
        "Simulator.round = slow\nsys.exit(main(sys.argv[1:]))\n"
    )
    run = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", slowly, "train", *given, "--out", str(run)], cwd=tmp_path)
    while not (run / "checkpoint.npz").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = json.loads(fedveil_cli("ledger", run, "--json", "--all", "--accountant", "pld", cwd=tmp_path).out)
    with np.load(run / "checkpoint.npz") as stored:  # run.json still says 0
        assert killed[0]["rounds"] >= int(stored["#round"]) >= 1
    resumed = json.loads(fedveil_cli("train", "--resume", run, "--json", cwd=tmp_path).out)
    assert resumed["rounds"] == 15 and resumed["stopped"] == whole["stopped"]
    account = json.loads(fedveil_cli("ledger", run, "--json", "--all", "--accountant", "pld", cwd=tmp_path).out)
    assert {r["rounds"] for r in account} == {15}
    again = json.loads(fedveil_cli("train", "--resume", run, "--json", cwd=tmp_path).out)
    assert again["rounds"] == 15


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (budget(0.001), "one round alone exceeds"),
        (budget(5.0, unit="client"), "nothing can be certified"),
        (budget(5.0, tap="servr"), "takes"),
    ],
)
def test_budgets_that_cannot_be_kept_are_refused(line, word, fedveil_cli, tmp_path):
    given = [part for item in [*SMALL, *BUDGET, line] for part in ("-s", item)]
    answer = fedveil_cli("train", *given, cwd=tmp_path)
    assert answer.code == 2 and word in answer.err and not list(tmp_path.iterdir())


def test_a_budget_that_is_not_reached_changes_nothing():
    whole = prepare(load(None, [*SMALL, *BUDGET, budget(1000.0)]))
    assert (whole.rounds, whole.stops) == (40, "")


# --- the command


@pytest.mark.parametrize(
    ("arguments", "key", "word"),
    [
        (["ledger", "--delta", "1.0"], "--delta", "above 0 and below 1"),
        (["ledger", "--delta", "0"], "--delta", "above 0 and below 1"),
        (["ledger", "--rounds", "0"], "--rounds", "whole numbers from 1"),
        (["ledger", "--rounds", "5,x"], "--rounds", "whole numbers from 1"),
        (["ledger", "--accountant", "pdl"], "--accountant", "did you mean 'pld'?"),
        (["ledger", "-s", "defense.name=fed-cdp", "-s", "defense.noise=-1"], "defense.noise", "0.0 or more"),
        (["ledger", "-s", "train.local_steps=0"], "train.local_steps", "1 or more"),
        (["ledger", "-s", "train.per_round=200"], "train.per_round", "at most data.clients"),
        (["ledger", "-s", "defense.name=fed-cdp", "-s", "defense.delta=1.5"], "defense.delta", "less than 1"),
        (["calibrate", "--epsilon", "0"], "--epsilon", "above 0"),
        (["calibrate", "--epsilon", "nan"], "--epsilon", "above 0"),
        (["calibrate", "--epsilon", "1", "--delta", "2"], "--delta", "below 1"),
        (["calibrate", "--epsilon", "1", "--noise", "-3"], "--noise", "above 0"),
        (["calibrate", "--epsilon", "1", "--tap", "serve"], "--tap", "did you mean 'server'?"),
        (["calibrate", "--epsilon", "1", "--unit", "exemple"], "--unit", "did you mean 'example'?"),
        (["calibrate", "--epsilon", "1", "--adjacency", "replac"], "--adjacency", "did you mean 'replace'?"),
    ],
)
def test_nonsense_is_refused_in_one_line(arguments, key, word, fedveil_cli, tmp_path):
    answer = fedveil_cli(*arguments, cwd=tmp_path)
    assert answer.code == 2 and answer.out == "" and answer.err.count("\n") == 1
    assert key in answer.err and word in answer.err and not list(tmp_path.iterdir())


def test_the_table_never_shows_epsilon_without_delta(fedveil_cli, tmp_path):
    given = [part for item in [*SMALL, "defense.name=fed-cdp", "train.rounds=3"] for part in ("-s", item)]
    answer = fedveil_cli("ledger", *given, cwd=tmp_path)
    assert answer.code == 0 and "δ = 1e-05" in answer.out and "As published, not certified" in answer.out
    assert "Certified rows assume" in answer.out
    told = fedveil_cli("ledger", *given, "--all", cwd=tmp_path)
    assert "certified rows assume" in told.err and "Poisson coins" in told.err
    rows = json.loads(fedveil_cli("ledger", *given, "--json", "--all", cwd=tmp_path).out)
    fields = {"tap", "unit", "accountant", "rule", "certified", "adjacency", "epsilon", "delta", "reason"}
    assert all(fields | {"assumptions", "rounds"} == set(row) for row in rows)
    assert all(row["delta"] is not None or row["epsilon"] is None for row in rows)
    assert all(math.isfinite(row["epsilon"]) for row in rows if row["epsilon"] is not None)


def test_accounts_need_no_data_where_sizes_are_known(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    setting = plan(load(None, ["data.name=mnist", "data.clients=1000", "defense.name=fed-cdp"])).setting
    assert (setting.copies, setting.examples, setting.smallest, setting.layers) == (10, 50_000, 500, 3)


@pytest.mark.parametrize("name", ["digits", "cancer"])
def test_known_sizes_are_those_of_the_data(name):
    config = load(None, [f"data.name={name}", "data.clients=30", "model.name=logistic", "train.batch=2"])
    assert plan(config).setting == prepare(config).simulator.task.setting
