"""A worker process: runs one task at a time from its pipe, sends events, and keeps compiled programs for the next task.

SIGTERM cancels the current task and leaves the worker alive; a training ends after its round and can be resumed. A worker
whose parent has died ends itself.
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
    """The current task was cancelled."""


class _Signals:
    """SIGTERM raises `Cancelled` while a task runs, and does nothing between tasks."""

    def __init__(self) -> None:
        self.busy = False
        signal.signal(signal.SIGTERM, self._cancel)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C and ends its workers

    def _cancel(self, number: int, frame: FrameType | None) -> None:
        if self.busy:
            self.busy = False
            raise Cancelled


def main(pipe: Connection, folder: str, parent: int) -> None:
    """The main function of a worker process of the lab."""
    path = Path(folder)

    def tasks() -> Mapping[str, Task]:
        _configure_jax(path)
        from fedveil.lab.tasks import TASKS

        return {name: partial(task, folder=path) for name, task in TASKS.items()}

    serve(pipe, parent, tasks)


def serve(pipe: Connection, parent: int, tasks: Callable[[], Mapping[str, Task]]) -> None:
    """Receives `{id, kind, payload}` from the pipe; sends `{id, event}`, then `{id, done | failed | cancelled}`."""
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
            _run_task(pipe.recv(), known, send, signals)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(0)


def _run_task(message: dict[str, Any], tasks: Mapping[str, Task], send: Send, signals: _Signals) -> None:
    from fedveil.core.errors import FedveilError, Interrupted

    name = message["id"]
    outcome: dict[str, Any]
    try:
        try:
            signals.busy = True
            done = tasks[message["kind"]](message["payload"], tell=lambda event: send({"id": name, "event": event}))
            outcome = {"done": done}
        finally:
            signals.busy = False
    except (Cancelled, Interrupted) as stop:
        outcome = {"cancelled": str(stop)}
    except FedveilError as error:
        outcome = {"failed": str(error), "wrong_usage": error.exit_code == 2}
    except MemoryError:
        outcome = {"failed": "out of memory: choose smaller settings", "wrong_usage": True}
    except (OverflowError, FloatingPointError) as error:
        text = f"these values are too extreme to compute with ({error}): choose others"
        outcome = {"failed": text, "wrong_usage": True}
    except Exception as error:
        outcome = {"failed": f"{type(error).__name__}: {error}"}
    send({"id": name, **outcome})


def _configure_jax(folder: Path) -> None:
    """Imports JAX and makes it cache compiled programs in the lab's folder."""
    import jax

    from fedveil.compilation import distrust

    settings: Any = jax.config
    own = folder / "compiled"
    settings.update("jax_compilation_cache_dir", None if distrust(own) else str(own.resolve()))
    settings.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
