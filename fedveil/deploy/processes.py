"""Supervises the processes of a server or a node: starts them, restarts those that end, and stops all of them together.

A process that ends is restarted after a delay that grows to ten seconds: after SIGKILL a node is refused for about a
minute. Stopping the supervisor stops all its processes and their children.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from fedveil.core.errors import ConfigError, RunError
from fedveil.deploy import commands
from fedveil.deploy.bundle import digest
from fedveil.deploy.files import Federation, fingerprint, private, tighten
from fedveil.deploy.limits import Node
from fedveil.deploy.wire import SOCKET

if TYPE_CHECKING:
    from fedveil.deploy.control import Control

MAX_DELAY = 10.0  # seconds before a restart
REGISTER_EVERY = 5.0  # seconds between two comparisons of the roster
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
    folder: Path | None = None  # the current folder of the process

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
            with private(), self.log.open("ab") as log:
                self.process = start(self.command, self.environment, log, self.folder)
            self.started, self.starts = now, self.starts + 1
            say(f"{self.name} started, process {self.process.pid}")

    def end(self) -> None:
        if self.process is not None:
            end_group(self.process)


def start(
    command: Sequence[str], environment: dict[str, str], log: IO[bytes], folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts a process in a new process group; it ends when this process does, and its files belong to this user alone."""
    try:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=_end_with(os.getpid()), umask=0o077, cwd=folder,
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
    """Runs the server: the SuperLink on loopback, the gate to the outside, the executor, and the roster."""
    if federation.app != digest():
        takes = f"does not name the app of this version of Fedveil, which is {digest()}"
        raise ConfigError("app", federation.app[:16], takes)
    for what, port in (("port", federation.port), ("control", federation.control)):
        if not _becomes_free(port):
            raise ConfigError(what, port, "is in use: stop the other server, or change the port in federation.toml")
    own = federation.server
    tighten(own)
    environment = commands.environment(own)
    up = lambda: listening(federation.control)  # noqa: E731
    supervised = [
        Supervised("superlink", commands.superlink(federation), environment, own / "superlink.log"),
        Supervised("executor", commands.executor(federation), environment, own / "executor.log", up),
        Supervised("gate", commands.gate(federation), environment, own / "gate.log", up),
    ]
    supervise(supervised, say, _Registration(federation, say).update)


def _becomes_free(port: int, patience: float = 5.0) -> bool:
    """Whether nobody listens on a port. Processes that were killed a moment ago may still hold theirs, so this waits."""
    end = time.monotonic() + patience
    while listening(port):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


class _Registration:
    """Makes the roster in Flower equal to the keys in `server/nodes/`; `N.id` holds the id of a node and its key.

    A key that was dropped from the roster is registered again, and a node without a key in `server/nodes/` is removed.
    """

    def __init__(self, federation: Federation, say: Callable[[str], None]) -> None:
        self.federation, self.say = federation, say
        self.next, self.said = 0.0, ""

    def update(self) -> None:
        if time.monotonic() < self.next or not listening(self.federation.control):
            return
        self.next = time.monotonic() + REGISTER_EVERY
        try:
            from fedveil.deploy.control import Control

            with Control(self.federation.control, self.federation.server / "ca.crt") as control:
                self._update(control)
        except RunError as error:
            if str(error) != self.said:
                self.say(f"the roster is not updated: {error}")
            self.said = str(error)

    def _update(self, control: Control) -> None:
        from fedveil.deploy.credentials import public_bytes

        registered = {key: node for node, (_, key) in control.nodes().items()}
        wanted = set[bytes]()
        for path in sorted((self.federation.server / "nodes").glob("*.pub")):
            try:
                key = public_bytes(path)
            except (OSError, ValueError) as error:
                raise RunError(f"{path.name} is not a public key: {error}") from None
            wanted.add(key)
            if key not in registered:
                free_dropped_keys(self.federation.server / "state.db")
                registered[key] = control.register(path)
                self.say(f"key {path.name} registered as node {registered[key]}")
            text, known = f"{registered[key]} {fingerprint(path)}\n", path.with_suffix(".id")
            if not known.exists() or known.read_text(encoding="utf-8") != text:
                with private():
                    known.write_text(text, encoding="utf-8")
        for key, node in registered.items():
            if key not in wanted:
                control.unregister(node)
                self.say(f"node {node} removed: its key is not in server/nodes")


def free_dropped_keys(database: Path) -> None:
    """Lets keys register again whose nodes were removed: Flower never releases the key of a removed node."""
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True, timeout=10.0)) as found, found:
            found.execute("UPDATE node SET public_key = NULL WHERE status = 'unregistered'")
    except sqlite3.Error as error:
        raise RunError(f"{database} cannot be changed: {error}") from None


def run_node(home: Path, node: Node, server: str, say: Callable[[str], None]) -> None:
    """Runs a node: the worker, which holds the data, and the link, which talks to the server."""
    for name in ("key", "key.pub", "ca.crt"):
        if not (home / name).is_file():
            raise ConfigError("NODE", str(home), f"holds no {name}: see 'fedveil deploy init'")
    if node.app != digest():
        takes = f"does not name the app of this version of Fedveil, which is {digest()}: no run would be accepted"
        raise ConfigError("app", node.app[:16], takes)
    if len(os.fsencode(str(home))) > 4000:
        raise ConfigError("NODE", str(home)[:50], "is too long a path")
    tighten(home)
    environment = commands.environment(home)
    socket_there = lambda: (home / SOCKET).exists()  # noqa: E731
    supervised = [
        Supervised("worker", commands.worker(home), environment, home / "worker.log", folder=home),
        Supervised("link", commands.link(node, server), environment, home / "link.log", socket_there, folder=home),
    ]
    supervise(supervised, say)


def no_flower(what: str) -> ConfigError:
    return ConfigError("deploy", f"no {what}", "it needs an extra: pip install 'fedveil[flower]'")


def listening(port: int) -> bool:
    """Whether a process listens on this port of this machine."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            return True
    except OSError:
        return False
