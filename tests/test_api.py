"""The Python face: own arrays, own models, runs that go on, and what each tap shows."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedveil
from fedveil.config import load
from fedveil.core.errors import ConfigError, DataError, Interrupted, RunError
from fedveil.core.stage import Effect
from fedveil.core.taps import TAPS
from fedveil.defenses.base import Defense
from fedveil.defenses.fed_cdp import FedCDP

RNG = np.random.default_rng(0)
Y = RNG.integers(3, size=240)
X = (np.eye(3, 6)[Y] + 0.2 * RNG.normal(size=(240, 6))).astype(np.float32)
SETTINGS = {
    "data": {"clients": 8, "per_client": 20},
    "model": {"name": "logistic"},
    "train": {"rounds": 6, "per_round": 4, "local_steps": 5, "lr": 0.5, "eval_every": 2, "noise_seed": 0},
}


class Linear:
    """A model of one's own: two plain functions."""

    def init(self, key):
        return {"only": {"w": 0.1 * jax.random.normal(key, (6, 3)), "b": jnp.zeros(3)}}

    def apply(self, params, x):
        return x @ params["only"]["w"] + params["only"]["b"]


# --- training ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result():
    return fedveil.train(SETTINGS, data=(X, Y))


def test_own_arrays(result):
    assert result.accuracy > 0.9 and result.rounds == 6 and result.run is None
    assert result.split == "validation" and len(result.history) == 6
    assert result.params["dense"]["w"].shape == (6, 3)
    assert all(row.epsilon is None for row in result.ledger)
    assert result.as_dict()["run"] is None


def test_own_test_part_and_own_model(tmp_path, fedveil_cli):
    """The held-out part is the one given; the model is any object with the two functions."""
    seen = []
    data = (X[:200], Y[:200], X[200:], Y[200:])
    result = fedveil.train(SETTINGS, data=data, model=Linear(), progress=seen.append, out=tmp_path / "run")
    assert result.split == "test" and result.accuracy > 0.9
    assert set(result.params) == {"only"}
    logits = X[200:] @ np.asarray(result.params["only"]["w"]) + np.asarray(result.params["only"]["b"])
    assert result.accuracy == pytest.approx(np.mean(logits.argmax(axis=1) == Y[200:]))
    assert [row["round"] for row in seen] == list(range(6)) and seen == result.history
    with np.load(tmp_path / "run" / "checkpoint.npz") as stored:
        assert np.array_equal(stored["params/only/w"], result.params["only"]["w"])
    # The config cannot describe the model, so only a caller who has it can go on.
    answer = fedveil_cli("train", "--resume", "run", cwd=tmp_path)
    assert answer.code == 2 and "--resume: got 'run'; was trained with a model of Python code" in answer.err
    with pytest.raises(ConfigError, match="model of Python code"):
        fedveil.train(data=data, out=tmp_path / "run", resume=True)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that was interrupted in its fourth round."""

    def stop(row):
        if row["round"] == 3:
            signal.raise_signal(signal.SIGINT)

    out = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Interrupted, match="stopped after 4 of 6 rounds; go on with: .* --resume"):
        fedveil.train(SETTINGS, data=(X, Y), out=out, progress=stop)
    return out


def test_resume_gives_what_an_undisturbed_run_gives(result, stopped, tmp_path):
    out = shutil.copytree(stopped, tmp_path / "run")
    resumed = fedveil.train(data=(X, Y), out=out, resume=True)  # the settings are those of the run
    assert resumed.run == out and resumed.accuracy == result.accuracy
    for ours, theirs in zip(jax.tree.leaves(resumed.params), jax.tree.leaves(result.params), strict=True):
        assert np.array_equal(ours, theirs)


def test_a_run_on_arrays_says_that_it_needs_them_again(stopped, tmp_path, fedveil_cli):
    with pytest.raises(DataError, match="arrays in memory"):
        fedveil.train(out=stopped, resume=True)
    answer = fedveil_cli("train", "--resume", stopped, cwd=tmp_path)
    assert answer.code == 2 and "arrays in memory" in answer.err and len(answer.err.splitlines()) == 1


def test_resume_with_other_settings_is_refused(stopped, tmp_path):
    """Settings given beside `resume` must not change a run half way without a word."""
    out = shutil.copytree(stopped, tmp_path / "run")
    other = {**SETTINGS, "train": {**SETTINGS["train"], "lr": 0.001}}
    with pytest.raises(ConfigError, match=r"train.lr: got 0.001; the run to go on with has 0.5"):
        fedveil.train(other, data=(X, Y), out=out, resume=True)
    assert fedveil.train(SETTINGS, data=(X, Y), out=out, resume=True).rounds == 6  # its own may be repeated


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(ConfigError, match="needs out"):
        fedveil.train(SETTINGS, resume=True)
    with pytest.raises(ConfigError, match="holds no run"):
        fedveil.train(out=tmp_path, resume=True)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(ConfigError, match="holds a run already"):
        fedveil.train(SETTINGS, data=(X, Y), out=tmp_path)


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param((np.where(X > 1.4, np.nan, X), Y), "hold NaN or infinity", id="NaN"),
        pytest.param((np.where(X > 1.4, np.inf, X), Y), "hold NaN or infinity", id="infinity"),
        pytest.param((X, Y, np.full_like(X, np.nan), Y), "test part.*240 examples hold NaN", id="NaN in the test part"),
        pytest.param((X, Y[:-1]), "one label for each of the 240 examples", id="labels too short"),
        pytest.param((X, Y - 1), "labels count from 0", id="negative labels"),
        pytest.param((X, Y + 0.5), "fractions", id="fractional labels"),
        pytest.param((X[:0], Y[:0]), "at least one example", id="nothing"),
    ],
)
def test_unfit_arrays_are_refused(data, says):
    with pytest.raises(DataError, match=says):
        fedveil.train(SETTINGS, data=data)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"train": {"roundz": 3}}, "train.roundz: got 3; unknown key; did you mean 'rounds'"),
        ({"train": {"rounds": "3"}}, "train.rounds: got '3'; takes a whole number"),
        ({"data": {"name": "digit"}}, "did you mean 'digits'"),
        ("no-such.toml", "FILE: got 'no-such.toml'; no such file"),
    ],
)
def test_unfit_settings_are_refused_in_the_words_of_the_command_line(settings, says):
    with pytest.raises(ConfigError, match=says):
        fedveil.train(settings)


@pytest.mark.parametrize("data", [(X,), (X, Y, X), ()], ids=["no labels", "half a test part", "nothing"])
def test_arrays_come_in_twos_or_fours(data):
    with pytest.raises(ConfigError, match=rf"data: got '{len(data)} arrays'; takes \(x, y\)"):
        fedveil.train(SETTINGS, data=data)


@pytest.mark.parametrize("model", ["logistic", Linear], ids=["a name", "a class"])
def test_a_model_that_is_none_is_refused(model, tmp_path):
    with pytest.raises(ConfigError, match=r"model: got .*; takes an object with init\(key\) and apply"):
        fedveil.train(SETTINGS, data=(X, Y), model=model, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_model_with_too_few_outputs_is_refused():
    class Narrow(Linear):
        def apply(self, params, x):
            return super().apply(params, x)[:, :2]

    with pytest.raises(ConfigError, match=r"model: got \(1, 2\); .* \(1, 3\), one for each class"):
        fedveil.federation(SETTINGS, data=(X, Y), model=Narrow())


# --- observing ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def watched():
    """A federation, its first state, and all that the taps show of client 2 in round 0."""
    federation = fedveil.federation({**SETTINGS, "train": {**SETTINGS["train"], "batch": 7}}, data=(X, Y))
    state = federation.simulator.start()
    return federation, state, federation.simulator.observe(state, 0, 2, frozenset(TAPS), steps=(0, 3))


def shapes(tree):
    return {name: value.shape for name, value in tree["dense"].items()}


def test_each_tap_has_its_shape(watched):
    _, _, seen = watched
    assert set(seen) == set(TAPS)
    for tap in ("client", "server", "broadcast", "release"):
        assert shapes(seen[tap]) == {"w": (6, 3), "b": (3,)}
    assert set(seen["example"]) == set(seen["batch"]) == {0, 3}
    for step in (0, 3):
        size = 7 if step == 0 else seen["example"][step]["dense"]["b"].shape[0]  # the last of an epoch is smaller
        assert shapes(seen["batch"][step]) == {"w": (6, 3), "b": (3,)}
        assert shapes(seen["example"][step]) == {"w": (size, 6, 3), "b": (size, 3)}


def test_the_taps_agree_with_each_other(watched):
    _, state, seen = watched
    for step in (0, 3):
        mean = jax.tree.map(lambda g: g.mean(axis=0), seen["example"][step])
        for ours, theirs in zip(jax.tree.leaves(mean), jax.tree.leaves(seen["batch"][step]), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    for tap in ("broadcast", "release"):  # without a defence a client receives the model as it is
        assert all(
            np.array_equal(a, b) for a, b in zip(jax.tree.leaves(seen[tap]), jax.tree.leaves(state.params), strict=True)
        )
    assert all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(seen["client"]), jax.tree.leaves(seen["server"]), strict=True)
    )
    assert max(float(jnp.abs(a).max()) for a in jax.tree.leaves(seen["client"])) > 0


def test_only_the_taps_asked_for_are_open(watched):
    federation, state, seen = watched
    alone = federation.simulator.observe(state, 0, 2, frozenset({"server"}))
    assert set(alone) == {"server"}
    for ours, theirs in zip(jax.tree.leaves(alone), jax.tree.leaves(seen["server"]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_observing_what_is_not_there(watched):
    federation, state, _ = watched
    with pytest.raises(RunError, match="no tap is called 'sever'"):
        federation.simulator.observe(state, 0, 2, frozenset({"sever"}))
    for client in (8, -1):
        with pytest.raises(RunError, match="clients count from 0 to 7"):
            federation.simulator.observe(state, 0, client, frozenset({"client"}))


def test_secure_aggregation_closes_the_server_tap():
    closed = {**SETTINGS, "train": {**SETTINGS["train"], "secure_aggregation": True}}
    federation = fedveil.federation(closed, data=(X, Y))
    state = federation.simulator.start()
    with pytest.raises(RunError, match="secure_aggregation"):
        federation.simulator.observe(state, 0, 0, frozenset({"server"}))


# --- settings and names ------------------------------------------------------------------------------------------


def test_settings_come_as_dicts_files_or_configs(tmp_path):
    (tmp_path / "own.toml").write_text("[data]\nclients = 12\n")
    for settings in ({"data": {"clients": 12}}, load(None, ["data.clients=12"]), tmp_path / "own.toml"):
        assert fedveil.federation(settings).config.data.clients == 12
    assert fedveil.federation(str(tmp_path / "own.toml")).partition.clients == 12
    assert fedveil.federation().config.data.clients == 100


def test_a_dataset_may_be_given_whole():
    dataset = fedveil.from_arrays(X, Y, classes=5, name="mine")
    federation = fedveil.federation(SETTINGS, data=dataset)
    assert federation.dataset.name == "mine" and federation.dataset.classes == 5
    assert shapes(federation.simulator.start().params)["w"] == (6, 5)


def test_settings_are_not_changed_by_a_call():
    settings = {"data": {"clients": 12}, "defense": {"name": "none"}}
    fedveil.federation(settings)
    assert settings == {"data": {"clients": 12}, "defense": {"name": "none"}}


def test_importing_the_package_costs_nothing():
    script = (
        "import sys, fedveil\n"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert set(fedveil.__all__) == set(fedveil.FUNCTIONS)\n"
        "try:\n    fedveil.no_such_name\nexcept AttributeError as error:\n    assert 'no_such_name' in str(error)\n"
        "else:\n    raise AssertionError\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_also_a_module_can_be_called_in_any_order_of_imports():
    """Importing a submodule sets it on its package, where it must not hide the function of the same name.

    For each order, one process imports the package anew; what the package imports from elsewhere stays.
    """
    wrong = {"audit": "dict(train=dict(rounds=0))", "federation": "dict(train=dict(rounds=0))", "report": "[]"}
    script = "import sys\n"
    for first in ("import fedveil.{name}", "fedveil.{name}", "from fedveil import {name}"):
        script += "for name in [m for m in sys.modules if m.split('.')[0] == 'fedveil']:\n    del sys.modules[name]\n"
        script += "import fedveil, types\nfrom fedveil.core.errors import ConfigError\n"
        script += "".join(f"{first.format(name=name)}\n" for name in wrong)
        script += "import fedveil.audit.run, fedveil.report.page, fedveil.federation\n"
        for name, argument in wrong.items():
            script += (
                f"assert callable(fedveil.{name}) and isinstance(fedveil.{name}, types.ModuleType)\n"
                f"try:\n    fedveil.{name}({argument})\n"
                f"except (ConfigError, FileNotFoundError) as error:\n    print('{name}', error)\n"
            )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == 3 * list(wrong)


# --- the other functions -------------------------------------------------------------------------------------------

CDP = {**SETTINGS, "defense": {"name": "fed-cdp", "noise": 2.0}}


def as_json(answer):
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def said(settings):
    """The settings as `-s` arguments."""
    pairs = [(f"{s}.{k}", v) for s, keys in settings.items() for k, v in keys.items()]
    return [word for key, value in pairs for word in ("-s", f"{key}={value}")]


def test_account_gives_the_rows_that_the_ledger_prints(tmp_path, fedveil_cli):
    found = fedveil.account(CDP, rounds=[2, 3], accountant="pld")
    assert {row.rounds for row in found} == {2, 3} and len(found) == len(found.as_dict())
    assert found[0].as_dict() == found.as_dict()[0]
    for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert again == found and again.as_dict() == found.as_dict()
    told = as_json(
        fedveil_cli("ledger", *said(CDP), "--rounds", "2,3", "--accountant", "pld", "--json", "--all", cwd=tmp_path)
    )
    assert told == json.loads(json.dumps(found.as_dict()))
    with_curves = fedveil.account({**CDP, "train": {**CDP["train"], "noise_seed": None}}, curves=True, accountant="pld")
    assert any("trade_off" in row for row in with_curves.as_dict())


def test_account_of_a_run_reads_its_transcript(tmp_path):
    result = fedveil.train(CDP, data=(X, Y), out=tmp_path / "run")
    found = fedveil.account(tmp_path / "run")
    assert [row for row in found if row.accountant != "rdp"] == result.ledger
    with pytest.raises(ConfigError, match="rounds: got 0"):
        fedveil.account(CDP, rounds=0)


def test_calibrate_gives_what_the_command_prints(tmp_path, fedveil_cli):
    found = fedveil.calibrate(CDP, epsilon=3.0, delta=1e-4)
    told = as_json(fedveil_cli("calibrate", *said(CDP), "--epsilon", 3, "--delta", 1e-4, "--json", cwd=tmp_path))
    assert told == found.as_dict() | {"row": told["row"]} and told["epsilon"] <= 3.0
    with pytest.raises(ConfigError, match="^epsilon: got -1"):
        fedveil.calibrate(CDP, epsilon=-1)


def test_a_report_of_a_run(tmp_path):
    fedveil.train(CDP, data=(X, Y), out=tmp_path / "run")
    made = fedveil.report(tmp_path / "run")
    assert made.path == tmp_path / "run" / "report.html" and made.path.is_file()
    assert made.as_dict()["runs"][0]["defense"] == ["fed-cdp"]


def test_an_audit_takes_settings_and_options():
    rows = fedveil.audit(CDP, data=(X, Y), methods=("noise",), tap="client", rounds=1, steps=1)
    assert rows and {row.method for row in rows} == {"noise"} and len(rows.as_dict()) == len(rows)
    with pytest.raises(ConfigError, match="trails: got 3; unknown option; did you mean 'trials'"):
        fedveil.audit(CDP, trails=3)


# --- defence objects -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Halved(Defense):
    """Sends half of each update. Nobody has registered it."""

    factor: float = 0.5
    name: ClassVar[str] = "halved"

    def fills(self, stage):
        return stage == "update"

    def effect(self, stage):
        return Effect.CONTRACTION

    def update(self, update, at):
        return jax.tree.map(lambda a: self.factor * a, update)


def test_a_defence_object_is_trained_with(tmp_path):
    whole = fedveil.train(SETTINGS, data=(X, Y))
    halved = fedveil.train(SETTINGS, data=(X, Y), defense=Halved(), out=tmp_path / "run")
    assert halved.loss != whole.loss
    assert fedveil.train(SETTINGS, data=(X, Y), defense=[Halved(1.0)]).loss == pytest.approx(whole.loss)
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert written["defense"] == [{"name": "halved", "factor": 0.5}]


def test_several_defence_objects_are_combined():
    one = fedveil.train(SETTINGS, data=(X, Y), defense=[Halved(0.5), Halved(0.5)])
    assert one.loss == pytest.approx(fedveil.train(SETTINGS, data=(X, Y), defense=Halved(0.25)).loss)
    with pytest.raises(ConfigError, match="both add their noise"):
        fedveil.train(SETTINGS, data=(X, Y), defense=[FedCDP(), FedCDP()])


def test_a_run_with_a_defence_object_is_resumed_with_that_object(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        fedveil.train(SETTINGS, data=(X, Y), defense=Halved(), out=out, progress=lambda row: stop_in(row, 2))
    with pytest.raises(ConfigError, match=r"defense.*'factor': 0.25.*the run to go on with has"):
        fedveil.train(data=(X, Y), defense=Halved(0.25), out=out, resume=True)
    config = out / "config.toml"
    began = config.read_text()
    config.write_text(began.replace("\nseed = 0", "\nseed = 1", 1))  # other clients would hold the examples
    with pytest.raises(RunError, match="was changed after the run began"):
        fedveil.train(data=(X, Y), defense=Halved(), out=out, resume=True)
    config.write_text(began)
    resumed = fedveil.train(data=(X, Y), defense=Halved(), out=out, resume=True)
    assert resumed.loss == fedveil.train(SETTINGS, data=(X, Y), defense=Halved()).loss


def stop_in(row, number):
    if row["round"] == number:
        signal.raise_signal(signal.SIGINT)


def test_what_is_no_defence_object_is_refused():
    @dataclass
    class Mutable(Halved.__bases__[0]):
        name: ClassVar[str] = "mutable"

    for defense in (Halved, "fed-cdp", Mutable()):
        with pytest.raises(ConfigError, match="defense"):
            fedveil.train(SETTINGS, data=(X, Y), defense=defense)
