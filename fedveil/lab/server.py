"""A running lab: its folders, its two worker pools, its cache of answers, and the web server."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError, RunError
from fedveil.lab import requests
from fedveil.lab.guard import is_loopback
from fedveil.lab.pool import Job, Limits, Pool

CACHED_ANSWERS = 1000
NICE = 10  # jobs leave the processor to the page, to quick answers and to the rest of the machine
COMPILATION_CACHE = 1 << 29  # bytes of compiled programs that are kept from one lab to the next
TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,128}")
TOKEN_TAKES = "takes 16 to 128 letters, digits and . _ ~ -, or 'auto' for a random token"


FACES = "lfw"  # the dataset that the Leak page opens with, where it is installed
# The training that the Trade-off page opens with: noise on the sum of a batch, of half of all clients, in many rounds.
LEARNS: dict[str, Any] = {
    "defense": {"name": "fed-cdp", "placement": "batch", "clip_scope": "flat", "clip": 1.0, "noise": 0.8},
    "per_round": 50,
    "rounds": 100,
    "local_steps": 1,
    "batch": 10,
    "lr": 1.0,
}


@dataclass(frozen=True)
class Options:
    """The options of a lab."""

    folder: Path
    runs: Path
    workers: int = 1
    seconds: float = 1800.0  # per job
    memory: float = 6e9  # bytes per worker
    start: tuple[tuple[str, Any], ...] = ()  # settings with which the pages open, by config section


class Lab:
    """A lab with its workers, which start with it and end when it is closed."""

    def __init__(self, options: Options):
        self.options = options
        self.folder, self.runs = options.folder.resolve(), options.runs.resolve()
        _create(self.folder)
        _trim(self.folder / "compiled", COMPILATION_CACHE)
        # Jobs take minutes. Quick answers take seconds and have a separate worker, so that ε never waits for a job.
        self.work = Pool("work", self.folder, options.workers, Limits(options.seconds, options.memory, nice=NICE))
        self.quick = Pool("quick", self.folder, 1, Limits(seconds=120.0, memory=options.memory, waiting=64))
        self.stopping: Callable[[], bool] = lambda: False  # whether the server is shutting down
        self.streams = 0  # pages that follow a job
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
            raise ConfigError("job", name, "is not known, or not any more: start it again")
        return self.work.jobs[name]

    def cached(self, key: str) -> Any:
        """A cached answer, or None."""
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        return None

    def cache(self, key: str, answer: Any) -> None:
        with self._lock:
            self._answers[key] = answer
            while len(self._answers) > CACHED_ANSWERS:
                self._answers.popitem(last=False)

    def start(self) -> dict[str, dict[str, Any]]:
        """The initial settings of the pages: defaults, overridden by the settings of the command line."""
        given: dict[str, Any] = dict(self.options.start)
        data, train = given.get("data", {}), given.get("train", {})
        sizes = {key: train[key] for key in ("rounds", "per_round") if key in train}
        sizes |= {"clients": data["clients"]} if "clients" in data else {}
        steps = {key: train[key] for key in ("batch", "local_steps", "seed") if key in train}
        shared = {"defense": given["defense"]} if "defense" in given else {}
        trade = {**({} if given else LEARNS), **shared, **sizes, **steps}
        leak: dict[str, Any] = {**shared, **steps, "federation": sizes}
        if "name" in data:
            trade["dataset"] = data["name"]
            leak["picture"] = {"dataset": data["name"]}
        elif requests.is_installed(FACES):
            leak["picture"] = {"dataset": FACES}
        if "name" in given.get("model", {}):
            trade["model"] = leak["model"] = given["model"]["name"]
        attack = given.get("attack", {})
        leak |= {"attack": attack["name"]} if "name" in attack else {}
        leak |= {key: attack[key] for key in ("tap", "iterations") if key in attack}
        return {"leak": _usable(requests.LeakRequest, leak), "trade": _usable(requests.TradeRequest, trade)}


def _usable(kind: type[requests.LabRequest], given: dict[str, Any]) -> dict[str, Any]:
    """The request with these settings, or the default request if the pages do not offer them."""
    try:
        return requests.read(kind, given).model_dump()
    except ConfigError:
        return requests.read(kind, {}).model_dump()


def cache_key(kind: str, value: object) -> str:
    return kind + json.dumps(value, sort_keys=True)


def _create(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable")
    except OSError as error:
        takes = "choose another with --folder"
        raise RunError(f"the lab's folder {folder} cannot be used ({error.strerror}): {takes}") from None


def _trim(folder: Path, most: int) -> None:
    """Deletes the oldest files until the rest takes at most `most` bytes."""
    files = sorted((p for p in folder.glob("*") if p.is_file()), key=lambda p: p.stat().st_mtime, reverse=True)
    total = 0
    for path in files:
        total += path.stat().st_size
        if total > most:
            path.unlink(missing_ok=True)


# --- the web server


@dataclass(frozen=True)
class Address:
    """The address of a lab."""

    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def check_token(host: str, token: str | None) -> str | None:
    """The token that visitors must show. A host that other machines can reach requires one."""
    if token == "auto":
        return secrets.token_urlsafe(24)
    if token is None and not is_loopback(host):
        raise ConfigError(
            "--host", host, "can be reached by other machines, so it needs a token: add --token auto, or choose one"
        )
    if token is not None and not TOKEN.fullmatch(token):
        raise ConfigError("--token", "(not shown)", TOKEN_TAKES)
    return token


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that the printed address is reachable."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(512)
    except socket.gaierror:
        raise ConfigError(
            "--host", host, "is not an address of this machine: use 127.0.0.1, or 0.0.0.0 for all addresses"
        ) from None
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"cannot listen on {host} port {port} ({reason}): choose another --port, or 0 for any") from None
    return bound


def serve(options: Options, host: str, port: int, token: str | None, ready: Callable[[Address], None]) -> None:
    """Serves until Ctrl-C or SIGTERM. `ready` is called when the address accepts connections."""
    import uvicorn

    from fedveil.lab.app import create
    from fedveil.lab.connections import Connection

    bound = listen(host, port)
    lab = Lab(options)
    address = Address(host, bound.getsockname()[1], token)

    config = uvicorn.Config(
        create(lab, host, token),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        http=Connection,
        ws="none",
        timeout_graceful_shutdown=3,
        limit_concurrency=500,
    )
    server = uvicorn.Server(config)
    lab.stopping = lambda: server.should_exit  # ends open event streams, for which the server would wait
    # uvicorn raises the signal again after its shutdown: ignore it.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ready(address)  # the socket listens already: early visitors wait
        server.run(sockets=[bound])
    finally:
        lab.close()
        bound.close()
        for number, handler in before.items():
            signal.signal(number, handler)
