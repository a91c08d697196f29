"""`fedveil sweep --workers 2` in a process of its own: killed in the middle, resumed, and run to its end."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_sweep import FILE as SHORT

FILE = SHORT.replace("rounds = 3", "rounds = 40")  # long enough to be killed in the middle
CELLS = 6


def children(process: int) -> list[int]:
    """The processes that a process started."""
    listed = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8")
    return [int(one) for one in listed.split()]


def alive(process: int) -> bool:
    """Whether a process runs; one that ended and that nobody waits for does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def until(reached: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture
def started(tmp_path: Path) -> Callable[[], subprocess.Popen[str]]:
    """Starts the sweep; all calls share their compiled programs."""
    (tmp_path / "sweep.toml").write_text(FILE, encoding="utf-8")
    command = [sys.executable, "-m", "fedveil", "sweep", "sweep.toml", "--workers", "2", "--out", "done", "--json"]

    def start() -> subprocess.Popen[str]:
        environment = {**os.environ, "FEDVEIL_COMPILED": str(tmp_path / "compiled")}
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status"),
    [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)],
    ids=["kill", "term", "ctrl-c"],
)
def test_a_killed_sweep_resumes_and_ends_with_every_cell_once(
    how: signal.Signals, status: int, tmp_path: Path, started: Callable[[], subprocess.Popen[str]]
) -> None:
    """No worker outlives a sweep, finished cells are kept to the byte, and the second call trains only the others."""
    cells = tmp_path / "done" / "cells.jsonl"
    process = started()
    assert until(lambda: cells.exists() and cells.read_text(encoding="utf-8").count("\n") >= 2, 180)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode == status
    assert until(lambda: not any(map(alive, workers)), 30), "a worker outlives its sweep"
    before = cells.read_text(encoding="utf-8").splitlines()
    assert 2 <= len(before) < CELLS

    again = started()
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    after = cells.read_text(encoding="utf-8").splitlines()
    assert after[: len(before)] == before and len(after) == CELLS
    assert f"({len(before)} from before)" in err
    document = json.loads(out)
    assert len({cell["digest"] for cell in document}) == CELLS
    assert all(cell["error"] is None and cell["accuracy"] is not None and cell["attacks"] for cell in document)
    with (tmp_path / "done" / "cells.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == CELLS
    assert (tmp_path / "done" / "report.html").exists() and not list((tmp_path / "done").glob("*.lock"))
