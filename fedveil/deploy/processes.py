"""Supervises Flower's processes: starts them, restarts those that end, and stops all of them together.

A process that ends is restarted after a delay that grows to ten seconds: after SIGKILL a node is refused for about a
minute. Stopping the supervisor stops all its processes and their children.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from fedveil.core.errors import ConfigError, RunError
from fedveil.deploy import commands
from fedveil.deploy.files import Federation
from fedveil.deploy.limits import Node

MAX_DELAY = 10.0  # seconds before a restart
REGISTER_AGAIN = 60.0  # seconds until a failed registration of a key is repeated
SETTLED = 30.0  # seconds after which a process counts as running
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


@dataclass
class Supervised:
    """One process that is restarted when it ends."""

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    log: Path
    ready: Callable[[], bool] = lambda: True  # the condition for starting it
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    delay: float = 1.0
    next: float = 0.0
    starts: int = field(default=0)

    def keep_up(self, say: Callable[[str], None]) -> None:
        """Starts the process if it is not running and its delay is over."""
        now = time.monotonic()
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return
            self.process = None
            self.delay = 1.0 if now - self.started > SETTLED else min(MAX_DELAY, 2 * self.delay)
            self.next = now + self.delay
            say(f"{self.name} ended with status {code}; restart in {self.delay:.0f} s (log: {self.log})")
        if now >= self.next and self.ready():
            with self.log.open("ab") as log:
                self.process = start(self.command, self.environment, log)
            self.started, self.starts = now, self.starts + 1
            say(f"{self.name} started, process {self.process.pid}")

    def end(self) -> None:
        if self.process is not None:
            end_group(self.process)


def start(command: Sequence[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts a process in a new process group; it ends when this process does."""
    try:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=_end_with(os.getpid()),
        )  # fmt: skip
    except FileNotFoundError:
        raise no_flower(command[0]) from None


def _end_with(parent: int) -> Callable[[], None] | None:
    """On Linux: asks the kernel to terminate the child when its parent is killed."""
    if not sys.platform.startswith("linux"):
        return None
    prctl: Any = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def end_group(process: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """Ends a process and its children: SIGTERM first, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class _Stopped(Exception):
    """SIGINT or SIGTERM arrived."""


def supervise(
    supervised: Sequence[Supervised], say: Callable[[str], None], each: Callable[[], None] = lambda: None
) -> None:
    """Keeps processes running until Ctrl-C or SIGTERM. `each` is called about once a second."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while True:
            for one in supervised:
                one.keep_up(say)
            each()
            time.sleep(1.0)
    except _Stopped:
        say("stopping")
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        for one in supervised:
            if one.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.process.pid, signal.SIGTERM)
        for one in reversed(supervised):
            one.end()
        for number, handler in before.items():
            signal.signal(number, handler)


# --- server and node


def serve(federation: Federation, say: Callable[[str], None]) -> None:
    """Runs the server: the SuperLink, the process that starts its apps, and the registration of node keys."""
    if listening(federation.port):
        raise ConfigError(
            "port", federation.port, "is in use: stop the other server, or change the port in federation.toml"
        )
    own = federation.server
    write_connection(federation)
    environment = commands.environment(own)
    up = lambda: listening(federation.port)  # noqa: E731
    supervised = [
        Supervised("superlink", commands.superlink(federation), environment, own / "superlink.log"),
        Supervised("superexec", commands.superexec(federation), environment, own / "superexec.log", up),
    ]
    supervise(supervised, say, _Registration(federation, environment, say).register_new)


class _Registration:
    """Registers every key in `server/nodes/`, including keys that are added later; `N.id` holds the id of the node."""

    def __init__(self, federation: Federation, environment: dict[str, str], say: Callable[[str], None]) -> None:
        self.federation, self.environment, self.say = federation, environment, say
        self.failed: dict[Path, float] = {}

    def register_new(self) -> None:
        for key in sorted((self.federation.server / "nodes").glob("*.pub")):
            known = key.with_suffix(".id")
            if known.exists() or time.monotonic() < self.failed.get(key, 0.0) or not listening(self.federation.port):
                continue
            try:
                registered = flwr(commands.register(key), self.environment)
            except RunError as error:
                self.failed[key] = time.monotonic() + REGISTER_AGAIN
                self.say(f"key {key.name} is not registered: {error}")
                continue
            known.write_text(f"{registered['node-id']}\n", encoding="utf-8")
            self.say(f"key {key.name} registered as node {registered['node-id']}")


def run_node(home: Path, node: Node, server: str, say: Callable[[str], None]) -> None:
    """Runs a node."""
    for name in ("key", "ca.crt"):
        if not (home / name).is_file():
            raise ConfigError("NODE", str(home), f"holds no {name}: see 'fedveil deploy init'")
    command = commands.supernode(home.resolve(), server, node.port)
    supervise([Supervised("node", command, commands.environment(home.resolve()), home / "node.log")], say)


# --- Flower's command line


def write_connection(federation: Federation) -> None:
    folder = federation.server / "flwr"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(commands.connection_toml(federation), encoding="utf-8")


def flwr(command: Sequence[str], environment: dict[str, str], patience: float = 60.0) -> dict[str, Any]:
    """The JSON that a `flwr` command prints; raises `RunError` with its message if it failed."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience)
    except FileNotFoundError:
        raise no_flower(command[0]) from None
    except subprocess.TimeoutExpired:
        raise RunError(f"'{' '.join(command[:3])}' did not finish in {patience:g} s: is the server running?") from None
    try:
        found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        output = " ".join((done.stderr or done.stdout).split())[-300:]
        raise RunError(f"'{' '.join(command[:3])}' failed: {output or f'status {done.returncode}'}") from None
    if not found.get("success", False):
        raise RunError(" ".join(str(found.get("error-message", "no reason given")).split())[:500])
    return found


def no_flower(what: str) -> ConfigError:
    return ConfigError("deploy", f"no {what}", "it needs an extra: pip install 'fedveil[flower]'")


def listening(port: int) -> bool:
    """Whether a process listens on this port of this machine."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            return True
    except OSError:
        return False
