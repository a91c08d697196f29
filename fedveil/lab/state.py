"""What a running lab holds: its folders, its workers, and answers that need not be worked out twice."""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError, RunError
from fedveil.lab import requests
from fedveil.lab.jobs import Job
from fedveil.lab.pool import Limits, Pool

KEPT_ANSWERS = 1000
NICE = 10  # jobs stand back for the page, for answers and for the rest of the machine
KEPT_COMPILED = 1 << 29  # bytes of compiled programs that are kept from one lab to the next


@dataclass(frozen=True)
class Options:
    """How a lab is set up."""

    folder: Path
    runs: Path
    workers: int = 1
    seconds: float = 1800.0  # a job
    memory: float = 6e9  # a worker
    start: tuple[tuple[str, Any], ...] = ()  # settings that the pages open with, as sections of a config


class Lab:
    """The workers come up with it and end with it."""

    def __init__(self, options: Options):
        self.options = options
        self.folder, self.runs = options.folder.resolve(), options.runs.resolve()
        _make(self.folder)
        _trim(self.folder / "compiled", KEPT_COMPILED)
        # Jobs take minutes and queue; answers take seconds and have a worker of their own, so that ε never waits for a job.
        self.work = Pool("work", self.folder, options.workers, Limits(options.seconds, options.memory, nice=NICE))
        self.quick = Pool("quick", self.folder, 1, Limits(seconds=120.0, memory=options.memory, waiting=64))
        self.stopping: Callable[[], bool] = lambda: False  # whether the server is on its way down
        self._answers: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        ending = [threading.Thread(target=pool.close) for pool in (self.work, self.quick)]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()

    def job(self, name: str) -> Job:
        if name not in self.work.jobs:
            raise ConfigError("job", name, "is not known (any more): start it again")
        return self.work.jobs[name]

    def known(self, key: str) -> Any:
        """An earlier answer, or None."""
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        return None

    def remember(self, key: str, answer: Any) -> None:
        with self._lock:
            self._answers[key] = answer
            while len(self._answers) > KEPT_ANSWERS:
                self._answers.popitem(last=False)

    def start(self) -> dict[str, dict[str, Any]]:
        """What the pages open with: the lab's defaults, changed by the settings it was started with."""
        given: dict[str, Any] = dict(self.options.start)
        data, train = given.get("data", {}), given.get("train", {})
        sizes = {key: train[key] for key in ("rounds", "per_round") if key in train}
        sizes |= {"clients": data["clients"]} if "clients" in data else {}
        steps = {key: train[key] for key in ("batch", "local_steps", "seed") if key in train}
        shared = {"defense": given["defense"]} if "defense" in given else {}
        trade = {**shared, **sizes, **steps}
        leak: dict[str, Any] = {**shared, **steps, "federation": sizes}
        if "name" in data:
            trade["dataset"] = data["name"]
            leak["picture"] = {"dataset": data["name"]}
        if "name" in given.get("model", {}):
            trade["model"] = leak["model"] = given["model"]["name"]
        attack = given.get("attack", {})
        leak |= {"attack": attack["name"]} if "name" in attack else {}
        leak |= {key: attack[key] for key in ("tap", "iterations") if key in attack}
        return {"leak": _usable(requests.LeakAsk, leak), "trade": _usable(requests.TradeAsk, trade)}


def _usable(kind: type[requests.Ask], given: dict[str, Any]) -> dict[str, Any]:
    """The request with these settings; with the lab's own where they are none of its choices."""
    try:
        return requests.read(kind, given).model_dump()
    except ConfigError:
        return requests.read(kind, {}).model_dump()


def key_of(kind: str, value: object) -> str:
    return kind + json.dumps(value, sort_keys=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable")
    except OSError as error:
        raise RunError(
            f"the lab's folder {folder} cannot be used ({error.strerror}): give another by --folder"
        ) from None


def _trim(folder: Path, most: int) -> None:
    """Lets the oldest files go until the rest takes no more than `most` bytes."""
    files = sorted((p for p in folder.glob("*") if p.is_file()), key=lambda p: p.stat().st_mtime, reverse=True)
    total = 0
    for path in files:
        total += path.stat().st_size
        if total > most:
            path.unlink(missing_ok=True)
