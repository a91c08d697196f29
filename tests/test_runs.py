"""Runs that break off: killed, interrupted or damaged, a run goes on to the very same end or says why it cannot."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from fedveil import runs
from fedveil.config import from_dict, load
from fedveil.core.errors import ConfigError, Interrupted, RunError
from fedveil.core.files import write_atomic
from fedveil.federation import prepare
from fedveil.run_account import account, calibrate
from fedveil.runs import RunFolder
from fedveil.training import resume, train

# Everything that travels from round to round is on: momentum at the server, late answers, lost clients.
SETTINGS = [
    "data.clients=20",
    "model.name=mlp",
    "model.hidden=[8]",
    "train.rounds=24",
    "train.per_round=5",
    "train.local_steps=2",
    "train.optimizer=momentum",
    "train.server_momentum=0.5",
    "train.late=0.2",
    "train.dropout=0.1",
    "train.lr_end=0.01",
    "train.eval_every=4",
    "train.noise_seed=0",
]
OPTIONS = [part for setting in SETTINGS for part in ("-s", setting)]

# The command with a pause in every round, so that there is time to interrupt it.
SLOWLY = """
import sys, time
from fedveil.cli.main import main
from fedveil.simulation.simulator import Simulator
quick = Simulator.round
def slow(self, state, number):
    time.sleep(0.05)
    return quick(self, state, number)
Simulator.round = slow
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def federation():
    """One federation for all tests: it keeps nothing from a run but its compiled programs."""
    jax.clear_caches()  # other tests compile in a hurry, with other roundings; here single bits count
    return prepare(load(None, SETTINGS))


@pytest.fixture(scope="module")
def undisturbed(federation, tmp_path_factory):
    """The run as it comes out when nothing happens to it."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    train(federation, RunFolder.create(path))
    return path


@pytest.fixture
def prepared(federation, monkeypatch):
    """Commands take the federation of this module instead of building and compiling their own."""
    monkeypatch.setattr("fedveil.federation.prepare", lambda config, **_: federation)


def arrays(path: Path):
    """A checkpoint without its digest, which covers the seconds too: as it was written before there were digests."""
    with np.load(path / "checkpoint.npz") as stored:
        return {name: stored[name] for name in stored.files if name != "#digest"}


def metrics(path: Path):
    """The rows of a run without what a clock measured."""
    rows = RunFolder(path).read_metrics()
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in rows]


def assert_same_run(path: Path, other: Path):
    ours, theirs = arrays(path), arrays(other)
    assert set(ours) == set(theirs)
    for name in set(ours) - {"#seconds"}:
        assert ours[name].dtype == theirs[name].dtype and ours[name].tobytes() == theirs[name].tobytes(), name
    assert metrics(path) == metrics(other)
    info = RunFolder(path).read_info()
    assert info["status"] == "done" and info["rounds_done"] == 24


# --- a process that ends ----------------------------------------------------------------------------------------


def interrupted(path: Path, number: signal.Signals, arguments: list[str]):
    """Starts the command, sends it a signal once some rounds are done; gives its exit status and stderr."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY, "train", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    rounds = len(metrics(path))
    limit = time.monotonic() + 60
    while len(metrics(path)) < rounds + 6 or not (path / "checkpoint.npz").exists():
        assert process.poll() is None and time.monotonic() < limit, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert out == ""
    assert 6 <= len(metrics(path)) < 24  # it really was in the middle
    return process.returncode, err


@pytest.mark.slow  # the same with secret draws is in test_secret_draws.py
def test_killed_and_resumed_ends_the_same(undisturbed, tmp_path, fedveil_cli):
    path = tmp_path / "run"
    status, _ = interrupted(path, signal.SIGKILL, [*OPTIONS, "--out", str(path)])
    assert status == -signal.SIGKILL and RunFolder(path).read_info()["status"] == "running"
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 23, "trai')  # a line cut by the crash
    answer = fedveil_cli("train", "--resume", path, "--json", cwd=tmp_path)  # built anew from its own config.toml
    assert answer.code == 0, answer.err
    assert_same_run(path, undisturbed)
    whole = RunFolder(undisturbed).read_info()["result"]
    assert json.loads(answer.out)["accuracy"] == whole["accuracy"]
    assert json.loads(answer.out)["clients_lost"] == whole["clients_lost"]


def test_interrupted_and_resumed_ends_the_same(federation, undisturbed, tmp_path):
    path = tmp_path / "run"
    status, err = interrupted(path, signal.SIGINT, [*OPTIONS, "--out", str(path)])
    assert status == 130
    assert_resumable(path)
    done = len(metrics(path))
    assert err == f"fedveil: stopped after {done} of 24 rounds; go on with: fedveil train --resume {path}\n"
    train(federation, RunFolder.open(path))
    assert_same_run(path, undisturbed)


def assert_resumable(path: Path):
    info = RunFolder(path).read_info()
    assert info["status"] == "stopped"
    assert info["rounds_done"] == int(arrays(path)["#round"]) == len(metrics(path))


def test_a_terminated_run_stops_like_an_interrupted_one(federation, undisturbed, prepared, tmp_path, fedveil_cli):
    """SIGTERM is what schedulers send."""
    path, simulator = tmp_path / "run", federation.simulator
    with pytest.MonkeyPatch.context() as patch:
        send = partial(signal.raise_signal, signal.SIGTERM)
        patch.setattr(simulator, "round", Disturbed(simulator.round, send, at=7))
        answer = fedveil_cli("train", *OPTIONS, "--out", path, cwd=tmp_path)
    assert answer.code == 130 and answer.out == ""
    assert answer.err == f"fedveil: stopped after 7 of 24 rounds; go on with: fedveil train --resume {path}\n"
    assert_resumable(path)
    assert fedveil_cli("train", "--resume", path, cwd=tmp_path).code == 0
    assert_same_run(path, undisturbed)


@pytest.mark.parametrize(
    "where",
    ["fedveil.federation.prepare", "fedveil.simulation.simulator.Simulator.round"],
    ids=["while preparing", "a second time while training"],
)
def test_an_interrupt_at_once_says_so(where, prepared, tmp_path, fedveil_cli, monkeypatch):
    monkeypatch.setattr(where, lambda *_, **__: interrupt())
    answer = fedveil_cli("train", *OPTIONS, "--out", "run", cwd=tmp_path)
    assert answer.code == 130 and answer.out == ""
    hint = "; go on with: fedveil train --resume run" if (tmp_path / "run").exists() else ""
    assert answer.err == f"fedveil: interrupted{hint}\n"


def test_signals_are_handled_as_before_once_training_is_over(federation, tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    train(federation)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_training_outside_the_main_thread(federation):
    """Signals belong to the main thread; elsewhere training goes on without them."""
    results = []
    thread = threading.Thread(target=lambda: results.append(train(federation)))
    thread.start()
    thread.join(60)
    assert [result.rounds for result in results] == [24]


# --- an interrupt at every place where one can fall --------------------------------------------------------------


def interrupt():
    raise KeyboardInterrupt


class Disturbed:
    """Lets a function work, and at its nth call does something more, before or after the work."""

    def __init__(self, function, disturb, at, after=False):
        self.function, self.disturb, self.left, self.after = function, disturb, at, after

    def __call__(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0 and not self.after:
            self.disturb()
        value = self.function(*args, **kwargs)
        if self.left == 0 and self.after:
            self.disturb()
        return value


PLACES = {
    "before the first round": ("simulator", "round", 1, False),
    "before a round": ("simulator", "round", 7, False),
    "inside a round": ("rounds", "chunk", 7, True),
    "after the server's step": ("rounds", "advance", 7, True),
    "before an evaluation": ("simulator", "evaluate", 2, False),
    "before metrics are written": ("folder", "append", 1, False),
    "after metrics are written": ("folder", "append", 1, True),
    "before a checkpoint": ("folder", "save", 1, False),
    "after a checkpoint": ("folder", "save", 1, True),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_ctrl_c_anywhere_leaves_a_run_that_goes_on(times, place, federation, undisturbed, tmp_path, monkeypatch):
    """Once: the round is ended and saved. Twice: training ends on the spot, and its last checkpoint counts."""
    path, (where, name, at, after) = tmp_path / "run", PLACES[place]
    owner = {"simulator": federation.simulator, "rounds": federation.simulator._rounds, "folder": RunFolder}[where]

    def press():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)

    disturbed = Disturbed(getattr(owner, name), press, at, after)
    with monkeypatch.context() as patch:
        # As a function, so that it is bound to a folder like the method it stands for.
        patch.setattr(owner, name, lambda *args, **kwargs: disturbed(*args, **kwargs))
        with pytest.raises(Interrupted if times == 1 else KeyboardInterrupt):
            train(federation, RunFolder.create(path))
    if times == 1:
        assert_resumable(path)
    assert [p.name for p in path.iterdir() if p.name.startswith(".")] == []  # no temporary file is left
    train(federation, RunFolder.open(path))
    assert_same_run(path, undisturbed)


# --- damaged and odd runs ----------------------------------------------------------------------------------------


def damage_cut(path):
    path.write_bytes(path.read_bytes()[:300])


def damage_scratched(path):
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)


def damage_empty(path):
    path.write_bytes(b"")


def damage_words(path):
    path.write_text("a few words")


def damage_other_model(path):
    stored = arrays(path.parent)
    stored["params/hidden1/w"] = stored["params/hidden1/w"][:, :4]
    np.savez(path, **stored)


def damage_no_params(path):
    np.savez(path, **{"#round": np.asarray(3)})


def damage_no_round(path):
    stored = arrays(path.parent)
    del stored["#round"]
    np.savez(path, **stored)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        pytest.param(damage_cut, "is damaged", id="cut"),
        pytest.param(damage_scratched, "is damaged", id="scratched"),
        pytest.param(damage_empty, "is damaged", id="empty"),
        pytest.param(damage_words, "is damaged", id="words"),
        pytest.param(damage_other_model, "'params/hidden1/w' differs", id="another model"),
        pytest.param(damage_no_params, "does not fit the config", id="no parameters"),
        pytest.param(damage_no_round, "'#round' differs", id="no round"),
    ],
)
def test_a_damaged_checkpoint_is_one_clear_line(damage, says, undisturbed, tmp_path, fedveil_cli):
    path = tmp_path / "run"
    shutil.copytree(undisturbed, path)
    damage(path / "checkpoint.npz")
    before = {p.name: p.read_bytes() for p in path.iterdir()}
    answer = fedveil_cli("train", "--resume", path, cwd=tmp_path)
    assert answer.code == 1 and answer.out == ""
    assert answer.err.startswith("fedveil: ") and len(answer.err.splitlines()) == 1
    assert str(path / "checkpoint.npz") in answer.err and says in answer.err
    assert {p.name: p.read_bytes() for p in path.iterdir()} == before


def test_a_damaged_run_json_is_one_clear_line(undisturbed, tmp_path, fedveil_cli):
    path = tmp_path / "runs" / "run"
    shutil.copytree(undisturbed, path)
    (path / "run.json").write_text("{")
    for arguments in (["--resume", path], ["--resume"]):
        answer = fedveil_cli("train", *arguments, cwd=tmp_path)
        assert answer.code == 1 and len(answer.err.splitlines()) == 1
        assert "run.json is damaged: delete it" in answer.err


def test_an_edited_config_is_checked_like_any_other(undisturbed, tmp_path, fedveil_cli):
    path = tmp_path / "run"
    shutil.copytree(undisturbed, path)
    config = path / "config.toml"
    config.write_text(config.read_text().replace("rounds = 24", "rounds = -24"))
    answer = fedveil_cli("train", "--resume", path, cwd=tmp_path)
    assert answer.code == 2 and "train.rounds: got -24" in answer.err


def test_a_run_without_a_checkpoint_starts_anew(federation, undisturbed, tmp_path):
    """Killed before the first checkpoint: the rows that were written are dropped, not written twice."""
    path = tmp_path / "run"
    shutil.copytree(undisturbed, path)
    (path / "checkpoint.npz").unlink()
    (path / "run.json").unlink()
    train(federation, RunFolder.open(path))
    assert_same_run(path, undisturbed)


def test_what_a_killed_process_was_writing_is_cleared_away(federation, undisturbed, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(undisturbed, path)
    (path / ".checkpoint.npz.a1b2c3d4").write_bytes(b"PK half of a checkpoint")
    (path / ".model.safetensors.a1b2c3d4").write_bytes(b"half of a model")
    train(federation, RunFolder.open(path))
    names = ["checkpoint.npz", "config.toml", "metrics.jsonl", "model.safetensors", "run.json", "transcript.jsonl"]
    assert sorted(p.name for p in path.iterdir()) == names


# --- the folder itself -------------------------------------------------------------------------------------------


def test_a_checkpoint_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path / "run")
    folder.save({"w": np.arange(3.0)}, 1, 0.5)
    before = folder.checkpoint.read_bytes()
    for error in (OSError("no space left on device"), KeyboardInterrupt()):

        def half(file, error=error, **_):
            file.write(b"PK half of a checkpoint")
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(np, "savez", half)
            with pytest.raises(type(error)):
                folder.save({"w": np.zeros(3)}, 2, 1.5)
        assert folder.checkpoint.read_bytes() == before
        assert [p.name for p in folder.path.iterdir()] == ["checkpoint.npz"]
    folder.save({"w": np.zeros(3)}, 2, 1.5)
    restored = folder.restore({"w": np.ones(3)})
    assert (restored.round, restored.seconds) == (2, 1.5) and np.array_equal(restored.state["w"], np.zeros(3))


def test_a_file_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    steps = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append("sync"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda old, new: (steps.append("replace"), replace(old, new)))
    write_atomic(tmp_path / "file", lambda file: file.write(b"content"))
    assert steps == ["sync", "replace"] and (tmp_path / "file").read_bytes() == b"content"


def test_a_full_disk_is_one_clear_line(prepared, tmp_path, fedveil_cli, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    answer = fedveil_cli("train", *OPTIONS, "--out", "run", cwd=tmp_path)
    assert answer.code == 1 and len(answer.err.splitlines()) == 1
    says = "run cannot be written (No space left on device): free some space, then go on with"
    assert answer.err == f"fedveil: {says}: fedveil train --resume run\n"


def test_restore_refuses_another_type(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    assert folder.restore({"w": np.zeros(3)}) is None
    folder.save({"w": np.zeros(3, np.float32)}, 1, 0.5)
    with pytest.raises(RunError, match="'w' differs"):
        folder.restore({"w": np.zeros(3, np.float64)})


def test_metrics_are_read_up_to_a_cut_line_and_rewound(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    assert folder.read_metrics() == []
    folder.append([{"round": n, "loss": float("nan") if n == 1 else 0.5} for n in range(4)])
    with folder.metrics.open("a") as file:
        file.write('{"round": 4, "lo')
    assert [row["round"] for row in folder.read_metrics()] == [0, 1, 2, 3]
    folder.rewind(2)
    assert folder.metrics.read_text() == '{"round": 0, "loss": 0.5}\n{"round": 1, "loss": null}\n'


def test_default_paths_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs.time, "strftime", lambda form: "20240102-030405")
    first = runs.default_path("digits-none")
    assert first == Path("runs/digits-none-20240102-030405")
    first.mkdir(parents=True)
    assert runs.default_path("digits-none") == Path("runs/digits-none-20240102-030405-2")


def test_an_existing_run_is_never_overwritten(undisturbed):
    with pytest.raises(ConfigError, match="holds a run already"):
        RunFolder.create(undisturbed)


# --- a training that ends by itself

STILL = {
    "data": {"clients": 4, "per_client": 20},
    "model": {"name": "logistic"},
    "train": {"rounds": 9, "per_round": 4, "local_steps": 1, "lr": 1e-12, "eval_every": 2, "stop": 1},
}


def test_a_training_ends_when_its_loss_falls_no_more_and_all_rounds_are_charged(tmp_path):
    """With a learning rate of 1e-12 nothing changes: the evaluation after round 4 is no better than that after round 2."""
    private = {**STILL, "defense": [{"name": "fed-cdp"}]}
    ended = train(from_dict(private), out=tmp_path / "run")
    assert ended.rounds == 4 and ended.stopped == "no smaller loss in 1 evaluations" and len(ended.history) == 4
    again = resume(tmp_path / "run")
    assert again.rounds == 4 and again.stopped == ended.stopped
    planned = list(account({**private, "train": {**private["train"], "stop": None}}))
    for rows in (ended.ledger, list(account(tmp_path / "run"))):
        charged = {(r.tap, r.unit, r.rule, r.adjacency): r.epsilon for r in rows if r.accountant == "pld"}
        whole = {(r.tap, r.unit, r.rule, r.adjacency): r.epsilon for r in planned if r.accountant == "pld"}
        assert charged == whole and any(epsilon for epsilon in whole.values())


def test_calibration_counts_the_rounds_that_it_tries():
    """Of a config with `train.stop` too: its account of one round is not that of all that are planned."""
    goal = {"epsilon": 1.0, "noise": 0.5}
    private = {**STILL, "defense": [{"name": "fed-cdp"}]}
    plain = {**private, "train": {**private["train"], "stop": None}}
    expected = calibrate(plain, **goal)
    assert 1 <= expected.found.rounds < 9
    assert calibrate(private, **goal).as_dict() == expected.as_dict()


def test_a_training_whose_loss_falls_goes_on():
    data = {**STILL["data"], "partition": "iid"}
    falling = {**STILL, "data": data, "train": {**STILL["train"], "lr": 0.2, "batch": 20, "noise_seed": 0}}
    ended = train(from_dict(falling))
    assert ended.rounds == 9 and not ended.stopped
    losses = [row["loss"] for row in ended.history if "loss" in row]
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))


def test_an_end_by_results_and_one_by_budget_exclude_each_other():
    budget = {"epsilon": 5.0, "delta": 1e-5}
    both = {**STILL, "train": {**STILL["train"], "budget": budget}, "defense": [{"name": "fed-cdp"}]}
    with pytest.raises(ConfigError, match=r"train\.stop.*leave one of the two out"):
        prepare(from_dict(both))
