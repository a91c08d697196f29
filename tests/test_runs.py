"""Runs that break off: killed, interrupted or damaged, a run goes on to the very same end or says why it cannot."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedveil import runs
from fedveil.assemble import prepare
from fedveil.config import load
from fedveil.errors import ConfigError, RunError
from fedveil.runs import RunFolder, write_atomic
from fedveil.training import Stopped, train

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
]
OPTIONS = [part for setting in SETTINGS for part in ("-s", setting)]

# The command with a pause in every round, so that there is time to interrupt it.
SLOWLY = """
import sys, time
from fedveil.cli.main import main
from fedveil.rounds.simulate import Simulator
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
    monkeypatch.setattr("fedveil.assemble.prepare", lambda config: federation)


def arrays(path: Path):
    with np.load(path / "checkpoint.npz") as stored:
        return dict(stored)


def metrics(path: Path):
    """The rows of a run without what a clock measured."""
    rows = RunFolder(path).read_metrics()
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in rows]


def assert_same_run(path: Path, other: Path):
    ours, theirs = arrays(path), arrays(other)
    assert set(ours) == set(theirs)
    for name in ours:
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
    assert status == 130 and "Traceback" not in err
    assert_resumable(path)
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
        patch.setattr(simulator, "round", Signal(simulator.round, at=7, number=signal.SIGTERM))
        assert fedveil_cli("train", *OPTIONS, "--out", path, cwd=tmp_path).code == 130
    assert_resumable(path)
    assert fedveil_cli("train", "--resume", path, cwd=tmp_path).code == 0
    assert_same_run(path, undisturbed)


class Signal:
    """Lets a function work, and before its nth call sends this process a signal."""

    def __init__(self, function, at, number):
        self.function, self.left, self.number = function, at, number

    def __call__(self, *args):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)
        return self.function(*args)


@pytest.mark.xfail(strict=True, reason="Typer swallows the KeyboardInterrupt: exit status 130, and not a word")
@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("fedveil.assemble.prepare", "interrupted"),
        (
            "fedveil.rounds.simulate.Simulator.round",
            "stopped after 0 of 24 rounds; go on with: fedveil train --resume run",
        ),
    ],
    ids=["while preparing", "while training"],
)
def test_an_interrupt_says_how_to_go_on(where, says, prepared, tmp_path, fedveil_cli, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupt)
    answer = fedveil_cli("train", *OPTIONS, "--out", "run", cwd=tmp_path)
    assert answer.code == 130 and answer.out == ""
    assert answer.err.startswith("fedveil: ") and len(answer.err.splitlines()) == 1
    assert says in answer.err


# --- an interrupt at every place where one can fall --------------------------------------------------------------


class Interrupt:
    """Lets a function work, and at its nth call raises what Ctrl-C would, before or after the work."""

    def __init__(self, function, at, after):
        self.function, self.left, self.after = function, at, after

    def __call__(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0 and not self.after:
            raise KeyboardInterrupt
        value = self.function(*args, **kwargs)
        if self.left == 0:
            raise KeyboardInterrupt
        return value


PLACES = [
    pytest.param("simulator", "round", 1, False, id="before the first round"),
    pytest.param("simulator", "round", 7, False, id="before a round"),
    pytest.param("simulator", "_chunk", 7, True, id="inside a round"),
    pytest.param(
        "simulator",
        "_advance",
        7,
        True,
        marks=pytest.mark.xfail(strict=True, reason="the old state's buffers are donated: 'Array has been deleted'"),
        id="after the server's step",
    ),
    pytest.param(
        "simulator",
        "evaluate",
        2,
        False,
        marks=pytest.mark.xfail(strict=True, reason="the round counts as done but its accuracy is never measured"),
        id="before an evaluation",
    ),
    pytest.param(
        "folder",
        "append",
        1,
        False,
        marks=pytest.mark.xfail(strict=True, reason="rows taken off the waiting list are lost"),
        id="before metrics are written",
    ),
    pytest.param("folder", "append", 1, True, id="after metrics are written"),
    pytest.param("folder", "save", 1, False, id="before a checkpoint"),
    pytest.param("folder", "save", 1, True, id="after a checkpoint"),
]


@pytest.mark.parametrize(("where", "name", "at", "after"), PLACES)
def test_an_interrupt_anywhere_leaves_a_run_that_goes_on(
    where, name, at, after, federation, undisturbed, tmp_path, monkeypatch
):
    path = tmp_path / "run"
    owner = federation.simulator if where == "simulator" else RunFolder
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, _interrupting(owner, name, at, after))
        with pytest.raises(Stopped) as stopped:
            train(federation, RunFolder.create(path))
    assert stopped.value.run == path
    assert RunFolder(path).read_info()["status"] == "stopped"
    assert [p.name for p in path.iterdir() if p.name.startswith(".")] == []  # no temporary file is left
    train(federation, RunFolder.open(path))
    assert_same_run(path, undisturbed)


def _interrupting(owner, name, at, after):
    interrupt = Interrupt(getattr(owner, name), at, after)
    if isinstance(owner, type):  # a method: it has to be a function to be bound
        return lambda self, *args, **kwargs: interrupt(self, *args, **kwargs)
    return interrupt


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
        pytest.param(
            damage_no_round,
            "#round",
            marks=pytest.mark.xfail(strict=True, reason="ends in a KeyError with a traceback"),
            id="no round",
        ),
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


@pytest.mark.xfail(strict=True, reason="what a killed process was writing stays in the folder for ever")
def test_what_a_killed_process_was_writing_is_cleared_away(federation, undisturbed, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(undisturbed, path)
    (path / ".checkpoint.npz.a1b2c3d4").write_bytes(b"PK half of a checkpoint")
    train(federation, RunFolder.open(path))
    assert sorted(p.name for p in path.iterdir()) == ["checkpoint.npz", "config.toml", "metrics.jsonl", "run.json"]


# --- the folder itself -------------------------------------------------------------------------------------------


def test_a_checkpoint_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path / "run")
    folder.save({"w": np.arange(3.0)}, 1)
    before = folder.checkpoint.read_bytes()
    for error in (OSError("no space left on device"), KeyboardInterrupt()):

        def half(file, error=error, **_):
            file.write(b"PK half of a checkpoint")
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(np, "savez", half)
            with pytest.raises(type(error)):
                folder.save({"w": np.zeros(3)}, 2)
        assert folder.checkpoint.read_bytes() == before
        assert [p.name for p in folder.path.iterdir()] == ["checkpoint.npz"]
    folder.save({"w": np.zeros(3)}, 2)
    state, round_ = folder.restore({"w": np.ones(3)})
    assert round_ == 2 and np.array_equal(state["w"], np.zeros(3))


def test_a_file_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    steps = []
    sync, replace = runs.os.fsync, runs.os.replace
    monkeypatch.setattr(runs.os, "fsync", lambda handle: (steps.append("sync"), sync(handle)))
    monkeypatch.setattr(runs.os, "replace", lambda old, new: (steps.append("replace"), replace(old, new)))
    write_atomic(tmp_path / "file", lambda file: file.write(b"content"))
    assert steps == ["sync", "replace"] and (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.xfail(strict=True, reason="a full disk while training ends in a traceback")
def test_a_full_disk_is_one_clear_line(prepared, tmp_path, fedveil_cli, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    answer = fedveil_cli("train", *OPTIONS, "--out", "run", cwd=tmp_path)
    assert answer.code == 1 and len(answer.err.splitlines()) == 1
    assert "No space left on device" in answer.err and "run" in answer.err


def test_restore_refuses_another_type(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    assert folder.restore({"w": np.zeros(3)}) is None
    folder.save({"w": np.zeros(3, np.float32)}, 1)
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
