"""A worker process: takes one task at a time from its pipe, tells how it goes, and stays to keep what is compiled.

A SIGTERM cancels the task in progress (a training ends after its round and can be resumed) and leaves the worker alive.
A worker whose parent is gone ends itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

Send = Callable[[dict[str, Any]], None]
Task = Callable[..., Any]  # (payload, tell) -> result


class Cancelled(BaseException):
    """The task in progress is not wanted any more."""


class _Signals:
    """SIGTERM raises `Cancelled` while a task runs, and does nothing between tasks."""

    def __init__(self) -> None:
        self.busy = False
        signal.signal(signal.SIGTERM, self._cancel)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C on the terminal is for the server, which ends us

    def _cancel(self, number: int, frame: FrameType | None) -> None:
        if self.busy:
            self.busy = False
            raise Cancelled


def main(pipe: Connection, folder: str, parent: int) -> None:
    """A worker of the lab: the process's whole life."""
    where = Path(folder)

    def tasks() -> Mapping[str, Task]:
        _warm(where)
        from fedveil.lab.tasks import TASKS

        return {name: partial(task, folder=where) for name, task in TASKS.items()}

    live(pipe, parent, tasks)


def live(pipe: Connection, parent: int, tasks: Callable[[], Mapping[str, Task]]) -> None:
    """Takes `{id, kind, payload}` from the pipe and gives `{id, event}`, then `{id, done | failed | cancelled}`."""
    signals = _Signals()
    threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()
    lock = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        with lock:
            pipe.send(message)

    try:
        known = tasks()
        send({"id": None, "ready": True})
        while True:
            _serve_one(pipe.recv(), known, send, signals)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(0)


def _serve_one(message: dict[str, Any], tasks: Mapping[str, Task], send: Send, signals: _Signals) -> None:
    from fedveil.core.errors import FedveilError, Interrupted

    name = message["id"]
    answer: dict[str, Any]
    try:
        try:
            signals.busy = True
            done = tasks[message["kind"]](message["payload"], tell=lambda event: send({"id": name, "event": event}))
            answer = {"done": done}
        finally:
            signals.busy = False
    except (Cancelled, Interrupted) as stop:
        answer = {"cancelled": str(stop)}
    except FedveilError as error:
        answer = {"failed": str(error), "wrong_usage": error.exit_code == 2}
    except MemoryError:
        answer = {"failed": "out of memory: choose smaller settings"}
    except Exception as error:
        answer = {"failed": f"{type(error).__name__}: {error}"}
    send({"id": name, **answer})


def _warm(folder: Path) -> None:
    """What every task needs: JAX, which keeps compiled programs below the lab's folder."""
    import jax

    settings: Any = jax.config
    settings.update("jax_compilation_cache_dir", str(folder / "compiled"))
    settings.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
