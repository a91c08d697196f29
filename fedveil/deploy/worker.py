"""The resident process of a node that holds its data, its compiled programs and its ledger.

It answers one message at a time on a Unix socket in the node's folder, which only the node's own user can open. It opens no
network connection: `link` fetches the server's messages and hands them over. It runs installed code only, and receives
numbers and text only. If a round takes longer than the limit `seconds`, the process ends; `deploy node` starts it again.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedveil.core.errors import FedveilError
from fedveil.deploy import limits as limiting
from fedveil.deploy import node, refusals, wire
from fedveil.deploy.messages import BadMessage, Request
from fedveil.deploy.wire import Parcel

TOO_LONG = 70  # exit status after a round that took too long
MIB = 1 << 20


def serve(home: Path) -> None:
    """Answers messages until the process is ended. Never returns."""
    found = limiting.read_node(home)
    limiting.check_complete(found)
    _bound_memory(found.limits.memory)
    node.cached_compilations(home)
    with listen(home) as listener:
        print("the worker listens", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                if _same_user(connection):
                    _converse(home, connection)


def listen(home: Path) -> socket.socket:
    """A listening socket of mode 0600 in the node's folder; the current folder becomes the node's."""
    os.chdir(home)
    Path(wire.SOCKET).unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(wire.SOCKET)
    finally:
        os.umask(before)
    listener.listen(4)
    return listener


def _same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user. Where the kernel does not say, the file mode decides."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", found)[1] == os.getuid())


def _converse(home: Path, connection: socket.socket) -> None:
    """Answers the messages of one connection. Anything that is not a message ends the connection."""
    largest = limiting.read_node(home).limits.largest_message
    while True:
        try:
            asked = wire.receive(connection, largest)
        except wire.Broken as error:
            refusals.note(home, f"the link sent {error}")
            return
        if asked is None:
            return
        wire.send(connection, answer(home, asked))


def answer(home: Path, asked: Parcel) -> Parcel:
    """The answer to one message. A message that cannot be used is refused with one line."""
    watchdog = _watchdog(home)
    try:
        if asked.kind == "introduce":
            return Parcel("introduction", node.introduce(home).as_dict())
        if asked.kind == "secagg":
            from fedveil.deploy import sessions  # `cryptography` comes with the extra [flower]

            refused, parts = sessions.of(home).handle(asked.fields, asked.parts)
            return Parcel("secagg", {"refused": refused}, parts)
        if asked.kind != "train":
            raise BadMessage(f"this node has nothing to do for a message of kind {asked.kind[:50]!r}")
        request = Request.read(asked.fields)
        reply, update = node.handle(home, request, asked.parts)
        return Parcel("reply", reply.as_dict(), update)
    except BadMessage as error:
        return Parcel("refused", {"reason": refusals.note(home, str(error))})
    except Exception:
        return Parcel("refused", {"reason": node.log_error(home)})
    finally:
        watchdog.cancel()


def _watchdog(home: Path) -> threading.Timer:
    """A timer that ends this process when a message takes longer than the owner allows."""
    try:
        seconds = limiting.read_node(home).limits.seconds
    except FedveilError:
        seconds = limiting.Limits().seconds

    def end() -> None:
        with suppress(OSError):
            refusals.note(home, f"a message was dropped after {seconds:g} s, the limit of this node")
        os._exit(TOO_LONG)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


def _bound_memory(mebibytes: int) -> None:
    """Bounds the memory of this process, so that a request that needs more fails here and does not stop the machine."""
    wanted = mebibytes * MIB
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def main(arguments: list[str]) -> int:
    def stop(*_: Any) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    try:
        serve(Path(arguments[0]))
    except FedveilError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
