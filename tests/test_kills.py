"""kill -9 at random moments, full disks, read-only folders, links and second writers: nothing lost, no leftover lock."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fedveil.accounting import ledger
from fedveil.config import load
from fedveil.core import files
from fedveil.core.errors import RunError
from fedveil.federation import prepare
from fedveil.recipes.cache import Cache
from fedveil.report.write import LOCK
from fedveil.run_account import transcript_of
from fedveil.runs import RunFolder
from fedveil.training import train

SETTINGS = [
    *("data.clients=8", "data.per_client=12", "model.name=mlp", "model.hidden=[4]"),
    *("train.rounds=20", "train.per_round=4", "train.local_steps=1", "train.batch=2", "train.server_momentum=0.5"),
    *("train.noise_seed=0", "defense.name=fed-cdp", "defense.clip=1", "defense.noise=2", "train.eval_every=5"),
]
OPTIONS = [part for setting in SETTINGS for part in ("-s", setting)]
ATTACK = ("-s", "attack.iterations=3", "-s", "attack.images=2")

# The command with pauses, so that there is time to kill it; it says on stderr when its work begins.
SLOWLY = """
import sys, time
from fedveil import compilation
from fedveil.cli.main import main
from fedveil.core import files
from fedveil.simulation.simulator import Simulator
compilation.use_cache()
def paused(function, seconds):
    def call(*arguments, **named):
        print("at work", file=sys.stderr, flush=True)
        time.sleep(seconds)
        return function(*arguments, **named)
    return call
if sys.argv[1] == "train":
    Simulator.round = paused(Simulator.round, 0.02)
files.os.replace = paused(files.os.replace, 0.05)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Processes of this module share compiled programs: they start sooner, and round alike."""
    return {**os.environ, "FEDVEIL_COMPILED": str(tmp_path_factory.mktemp("compiled"))}


@dataclass
class Command:
    """A command that is killed until it ends by itself."""

    first: list[str]
    again: list[str]  # how to go on
    cwd: Path
    environment: dict[str, str]
    seconds: float = 3.0  # that its work takes
    kills: int = 0
    statuses: list[int] = field(default_factory=list)

    def start(self, arguments: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", SLOWLY, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.cwd,
            env=self.environment,
        )

    def killed(self, drawn: random.Random, check: Callable[[], None]) -> None:
        """Kills it once, at a random moment of its work, or in one of four cases before."""
        process = self.start(self.again if self.statuses else self.first)
        assert process.stderr is not None
        early = drawn.random() < 0.25
        said = "" if early else process.stderr.readline()
        time.sleep(drawn.uniform(0, self.seconds))
        process.kill()
        status = process.wait(60)
        said += process.stderr.read()
        assert status in (0, -signal.SIGKILL), said
        self.kills += status != 0
        self.statuses.append(status)
        check()

    def finish(self) -> None:
        process = self.start(self.again if self.statuses else self.first)
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said


def left_over(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob(".*") if path.is_file()]


def arrays(run: Path) -> dict[str, bytes]:
    with np.load(run / "checkpoint.npz") as stored:
        return {name: stored[name].tobytes() for name in stored.files if name not in ("#seconds", "#digest")}


def rows_of(run: Path) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in RunFolder(run).read_metrics()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    Command(["train", *OPTIONS, "--out", "run"], [], folder, environment).finish()
    assert not left_over(folder)
    return folder / "run"


def kill_training(kills: int, drawn: random.Random, folder: Path, whole: Path, environment: dict[str, str]) -> int:
    """Runs that are killed up to eight times each and then end: bit by bit the undisturbed run."""
    done = number = 0
    while done < kills:
        run, number = folder / f"run{number}", number + 1
        again = ["train", "--resume", run.name]
        command = Command(["train", *OPTIONS, "--out", run.name], again, folder, environment, 1.5)

        def check(run: Path = run, command: Command = command) -> None:
            if not (run / "config.toml").exists():  # killed before the run began: it is started again
                command.statuses.clear()
                return
            held = RunFolder(run)
            rounds = held.checkpoint_round()
            held.read_info(), held.read_metrics(), load(held.config)
            if (run / "transcript.jsonl").exists() and (run / "transcript.jsonl").stat().st_size:
                assert transcript_of(run).rounds >= rounds

        for _ in range(min(8, kills - done)):
            command.killed(drawn, check)
            if 0 in command.statuses:
                break
        command.finish()
        done += max(1, command.kills)
        assert arrays(run) == arrays(whole) and rows_of(run) == rows_of(whole)
        assert transcript_of(run) == transcript_of(whole)
        assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
        assert not left_over(run)
    return done


def kill_attacks(kills: int, drawn: random.Random, folder: Path, whole: Path, environment: dict[str, str]) -> int:
    """The run is as it was, and the attack that ends at last finds what an undisturbed one finds."""
    run, other = folder / "attacked", folder / "undisturbed"
    for path in (run, other):
        shutil.copytree(whole, path)
    Command(["attack", "--run", "undisturbed", *ATTACK], [], folder, environment).finish()
    before = {path.name: path.read_bytes() for path in whole.iterdir() if path.is_file()}
    again = ["attack", "--run", "attacked", *ATTACK]
    command = Command(again, again, folder, environment, 0.3)

    def check() -> None:
        assert {name: (run / name).read_bytes() for name in before} == before
        for path in (run / "attacks").glob("*.json"):
            json.loads(path.read_text())

    while command.kills < kills:
        command.killed(drawn, check)
    command.finish()
    found, expected = (
        {k: v for k, v in json.loads(file.read_text()).items() if "seconds" not in k and k != "digest"}
        for path in (run, other)
        for file in (path / "attacks").glob("*.json")
    )
    assert found == expected and not left_over(run)
    return command.kills


def kill_reports(kills: int, drawn: random.Random, folder: Path, whole: Path, environment: dict[str, str]) -> int:
    """The page is whole at every moment: the one from before, or the new one."""
    run = folder / "reported"
    shutil.copytree(whole, run)
    Command(["report", "reported"], [], folder, environment).finish()
    page = (run / "report.html").read_bytes()
    (run / "report.html").write_bytes(b"the page from before")
    before = {path.name: path.read_bytes() for path in whole.iterdir() if path.is_file()}
    again = ["report", "reported", "--svg", "charts", "--tables", "tables"]
    command = Command(again, again, folder, environment, 1.0)

    def check() -> None:
        assert (run / "report.html").read_bytes() in (b"the page from before", page)
        assert {name: (run / name).read_bytes() for name in before} == before

    while command.kills < kills:
        command.killed(drawn, check)
    command.finish()
    assert (run / "report.html").read_bytes() == page and not left_over(run)
    return command.kills


def kill_reproductions(kills: int, drawn: random.Random, folder: Path, environment: dict[str, str]) -> int:
    """No measured cell is lost, and the last ones are those of an undisturbed reproduction."""
    Command(["reproduce", "fed-cdp/table-6", "--cells", "other"], [], folder, environment).finish()
    again = ["reproduce", "fed-cdp/table-6", "--cells", "cells"]
    command = Command(again, again, folder, environment, 2.5)
    known: dict[str, object] = {}

    def check() -> None:
        rows = Cache(folder / "cells").rows
        assert all(rows[digest]["result"] == result for digest, result in known.items()), "a result was lost"
        known.update({digest: row["result"] for digest, row in rows.items()})

    while command.kills < kills:
        command.killed(drawn, check)
        if 0 in command.statuses:  # all cells are there: again from half of them, the last one cut
            command.statuses.clear()
            file = folder / "cells" / "cells.jsonl"
            lines = file.read_bytes().splitlines(keepends=True)
            file.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:40])
            known = {digest: row["result"] for digest, row in Cache(folder / "cells").rows.items()}
    command.finish()
    ours, theirs = (Cache(folder / name).rows for name in ("cells", "other"))
    assert {d: row["result"] for d, row in ours.items()} == {d: row["result"] for d, row in theirs.items()}
    assert not left_over(folder / "cells")
    return command.kills


@pytest.mark.slow
def test_a_few_kills_of_a_training(whole, environment, tmp_path):
    assert kill_training(2, random.Random(1), tmp_path, whole, environment) >= 1


@pytest.mark.slow
def test_sixty_kills(whole, environment, tmp_path):
    drawn = random.Random(int(os.environ.get("KILL_SEED", "0")))
    share = int(os.environ.get("KILLS", "60")) // 4
    made = {
        "train": kill_training(share, drawn, tmp_path, whole, environment),
        "attack": kill_attacks(share, drawn, tmp_path, whole, environment),
        "report": kill_reports(share, drawn, tmp_path, whole, environment),
        "reproduce": kill_reproductions(share, drawn, tmp_path, environment),
    }
    print(f"kills: {made}")
    assert sum(made.values()) >= 4 * share


# --- full disks, in this process


@pytest.fixture(scope="module")
def federation():
    return prepare(load(None, SETTINGS))


@pytest.fixture
def prepared(federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedveil.federation.prepare", lambda config, **_: federation)
    monkeypatch.setattr("fedveil.attacks.orchestrate.prepare", lambda config, **_: federation)


@pytest.fixture(scope="module")
def ended(federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ended") / "run"
    train(federation, RunFolder.create(path))
    return path


@contextlib.contextmanager
def full_disk(at: int, error: int = errno.ENOSPC) -> Iterator[None]:
    """From the n-th time on that something is brought to the disk, it does not fit."""
    left = at

    def limited(function: Callable) -> Callable:
        def call(*arguments: object, **named: object) -> object:
            nonlocal left
            left -= 1
            if left <= 0:
                raise OSError(error, os.strerror(error))
            return function(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files.os, "fsync", limited(os.fsync))
        patch.setattr(files.os, "replace", limited(os.replace))
        yield


def one_sentence(answer, *says: str) -> None:
    assert answer.code in (1, 2) and answer.out == "" and answer.err.count("\n") == 1, answer
    assert answer.err.startswith("fedveil: ") and all(part in answer.err for part in says), answer.err


@pytest.mark.parametrize("at", [1, 2, 3, 5, 7, 9, 11, 13, 15, 17])
def test_a_full_disk_while_training(at, federation, ended, prepared, tmp_path, fedveil_cli):
    run = tmp_path / "run"
    with full_disk(at):
        answer = fedveil_cli("train", *OPTIONS, "--out", run, cwd=tmp_path)
    one_sentence(answer, "cannot be written (No space left on device): free some space, then")
    assert not left_over(run)
    if (run / "config.toml").exists():
        assert fedveil_cli("train", "--resume", run, cwd=tmp_path).code == 0
    else:
        train(federation, RunFolder.create(run))
    assert arrays(run) == arrays(ended) and rows_of(run) == rows_of(ended)
    assert transcript_of(run) == transcript_of(ended)


@pytest.mark.slow
@pytest.mark.parametrize("at", range(1, 5))
def test_a_full_disk_while_an_attack_is_stored(at, ended, prepared, tmp_path, fedveil_cli):
    run = tmp_path / "run"
    shutil.copytree(ended, run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with full_disk(at):
        answer = fedveil_cli("attack", "--run", run, *ATTACK, cwd=tmp_path)
    one_sentence(answer, "No space left on device")
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    assert not list((run / "attacks").glob("*.json")) and not left_over(run)


@pytest.mark.parametrize("at", range(1, 5))
def test_a_full_disk_while_a_report_is_written(at, ended, tmp_path, fedveil_cli):
    run = tmp_path / "run"
    shutil.copytree(ended, run)
    (run / "report.html").write_text("the page from before")
    with full_disk(at):
        answer = fedveil_cli("report", run, "--svg", tmp_path / "svg", cwd=tmp_path)
    one_sentence(answer, "No space left on device")
    page = (run / "report.html").read_text()
    assert page == "the page from before" or page.rstrip().endswith("</html>")
    assert not left_over(tmp_path)


def test_a_full_disk_while_reproducing(tmp_path, fedveil_cli):
    with full_disk(1):
        answer = fedveil_cli("reproduce", "fed-cdp/table-6", "--cells", tmp_path / "cells", cwd=tmp_path)
    assert answer.code == 1 and "Traceback" not in answer.err
    said = [line for line in answer.err.splitlines() if line.startswith("fedveil: ")]
    assert len(said) == 1 and "cells.jsonl cannot be used (No space left on device)" in said[0]
    assert not left_over(tmp_path)


def test_a_cut_line_does_not_swallow_the_next(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": 1}\n{"a": 2, "b"')
    files.append_lines(file, '{"a": 3}\n')
    assert file.read_text() == '{"a": 1}\n{"a": 3}\n'
    file.write_bytes(b"x" * 200_000)
    files.append_lines(file, "y\n")
    assert file.read_text() == "y\n"
    file.write_bytes(b"x\n" + b"y" * 200_000)
    files.append_lines(file, "z\n")
    assert file.read_text() == "x\nz\n"


# --- folders that cannot be written, links


READ_ONLY = {
    "train": ("train", "--resume", "RUN"),
    "attack": ("attack", "--run", "RUN", *ATTACK),
    "report": ("report", "RUN"),
    "new": ("train", *OPTIONS, "--out", "RUN/new"),
    "reproduce": ("reproduce", "fed-cdp/table-6", "--cells", "RUN"),
}


@pytest.mark.parametrize("command", READ_ONLY)
def test_a_read_only_folder(command, ended, prepared, tmp_path, fedveil_cli, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(ended, run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    really, make = os.open, os.mkdir

    def refused(path: object) -> None:  # root may write everywhere, so the modes of the folder are no test
        if str(path).startswith(str(run)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def opened(path, flags, *more, **named):
        refused(path if flags & os.O_CREAT else "")
        return really(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "mkdir", lambda path, *more, **named: refused(path) or make(path, *more, **named))
    answer = fedveil_cli(*(part.replace("RUN", str(run)) for part in READ_ONLY[command]), cwd=tmp_path)
    one_sentence(answer, "Read-only file system")
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_links_are_replaced_and_not_followed(federation, ended, prepared, tmp_path, fedveil_cli):
    run, good = tmp_path / "run", tmp_path / "good"
    shutil.copytree(ended, run)
    for name in ("report.html", "run.json", "metrics.jsonl", "model.safetensors", "checkpoint.npz"):
        (good / name).parent.mkdir(exist_ok=True)
        if (run / name).exists():
            (run / name).rename(good / name)
        else:
            (good / name).write_text("something good")
        (run / name).symlink_to(good / name)
    before = {path.name: path.read_bytes() for path in good.iterdir()}
    assert fedveil_cli("report", run, cwd=tmp_path).code == 0
    assert fedveil_cli("train", "--resume", run, cwd=tmp_path).code == 0
    assert {path.name: path.read_bytes() for path in good.iterdir()} == before
    (run / files.LOCK).symlink_to(good / "report.html")
    one_sentence(fedveil_cli("train", "--resume", run, cwd=tmp_path), "cannot be written")
    assert {path.name: path.read_bytes() for path in good.iterdir()} == before


# --- two writers


def test_a_second_training_or_attack_is_refused(ended, tmp_path, fedveil_cli):
    run = tmp_path / "run"
    shutil.copytree(ended, run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with files.locked(run):
        for arguments in (("train", "--resume", run), ("attack", "--run", run, *ATTACK)):
            answer = fedveil_cli(*arguments, cwd=tmp_path)
            told = f"{run} is in use by process {os.getpid()}: wait until it has ended, or stop it"
            one_sentence(answer, told)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.slow  # two processes; the same refusals by a lock of this process are above
def test_a_second_writer_is_refused_with_the_first_ones_id(whole, environment, tmp_path, fedveil_cli):
    """Two trainings in one folder once showed an ε that none of them had."""
    run = tmp_path / "run"
    first = Command(["train", *OPTIONS, "--out", "run"], [], tmp_path, environment).start(
        ["train", *OPTIONS, "--out", "run"]
    )
    limit = time.monotonic() + 120
    while not (run / "transcript.jsonl").exists():
        assert first.poll() is None and time.monotonic() < limit
        time.sleep(0.01)
    for arguments in (("train", "--resume", run), ("attack", "--run", run, *ATTACK)):
        first.send_signal(signal.SIGSTOP)
        answer = fedveil_cli(*arguments, cwd=tmp_path)
        first.send_signal(signal.SIGCONT)
        one_sentence(answer, f"{run} is in use by process {first.pid}: wait until it has ended, or stop it")
    assert first.wait(120) == 0
    assert arrays(run) == arrays(whole) and transcript_of(run) == transcript_of(whole) and not left_over(run)
    rows = {(r.tap, r.unit, r.adjacency, r.rule): r.epsilon for r in ledger.rows(transcript_of(run))}
    assert rows == {(r.tap, r.unit, r.adjacency, r.rule): r.epsilon for r in ledger.rows(transcript_of(whole))}


def test_second_reports_and_reproductions_are_refused(ended, tmp_path, fedveil_cli):
    run = tmp_path / "run"
    shutil.copytree(ended, run)
    with files.locked(run, LOCK.format("report.html")):
        one_sentence(fedveil_cli("report", run, cwd=tmp_path), f"is in use by process {os.getpid()}")
    with files.locked(run):  # a run in progress can be reported on
        assert fedveil_cli("report", run, cwd=tmp_path).code == 0
    with files.locked(tmp_path / "cells"):
        answer = fedveil_cli("reproduce", "fed-cdp/table-6", "--cells", tmp_path / "cells", cwd=tmp_path)
        one_sentence(answer, f"is in use by process {os.getpid()}")
    assert not (tmp_path / "cells").exists()


def test_a_lock_ends_with_its_holder(tmp_path):
    code = "import sys, os, signal; from pathlib import Path; from fedveil.core.files import locked\n"
    code += "with locked(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "a" / files.LOCK).exists()  # the file is there, and locks nothing
    with files.locked(tmp_path / "a"), pytest.raises(RunError, match=f"in use by process {os.getpid()}"):
        files.locked(tmp_path / "a").__enter__()
    assert not (tmp_path / "a" / files.LOCK).exists()
    with files.locked(tmp_path / "b" / "c"):
        assert (tmp_path / "b" / "c").is_dir()
    assert not (tmp_path / "b").exists()  # it was made for the lock, and nothing was written
