"""A worker for tests of the pool: the main loop of the lab's workers, with tasks that need no JAX."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from fedveil.core.errors import ConfigError, Interrupted
from fedveil.lab import worker

Tell = Callable[[dict[str, Any]], None]


def echo(payload: dict[str, Any], tell: Tell) -> Any:
    tell({"seen": payload})
    return payload["value"]


def wait(payload: dict[str, Any], tell: Tell) -> str:
    tell({"stage": "waiting"})
    time.sleep(payload["seconds"])
    return "waited"


def stubborn(payload: dict[str, Any], tell: Tell) -> str:
    """Ignores cancelling, as a compilation does."""
    end = time.monotonic() + payload["seconds"]
    tell({"stage": "deaf"})
    while time.monotonic() < end:
        try:
            time.sleep(0.5)
        except worker.Cancelled:
            continue
    return "ended by itself"


def soft(payload: dict[str, Any], tell: Tell) -> str:
    """Ends with its own message when cancelled, as a training does."""
    tell({"stage": "soft"})
    try:
        time.sleep(payload["seconds"])
    except worker.Cancelled:
        raise Interrupted("stopped after round 3; resume with --resume") from None
    return "ended by itself"


def greedy(payload: dict[str, Any], tell: Tell) -> int:
    held = bytearray(payload["bytes"])
    held[::4096] = b"x" * len(held[::4096])  # touched, so that it is really held
    tell({"stage": "holds"})
    time.sleep(30)
    return len(held)


def refuse(payload: dict[str, Any], tell: Tell) -> None:
    raise ConfigError("data.name", "nope", "takes one of: digits")


def crash(payload: dict[str, Any], tell: Tell) -> None:
    raise ZeroDivisionError("by zero")


TASKS = {f.__name__: f for f in (echo, wait, stubborn, soft, greedy, refuse, crash)}


def main(pipe: Connection, folder: str, parent: int) -> None:
    worker.serve(pipe, parent, lambda: TASKS)
