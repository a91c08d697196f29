"""Messages between the two processes of a node, over a Unix socket.

A message is a header (JSON: its kind, its fields and the sizes of its parts) and the parts themselves. Both sides check all
sizes before they allocate anything.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedveil.core.errors import FedveilError

SOCKET = "worker.sock"  # relative to the node's folder: the path of a Unix socket has at most 107 bytes
MAX_HEADER = 1 << 20
MAX_PARTS = 4096
_LENGTH = struct.Struct("!I")


class Broken(FedveilError):
    """The other side sent something else than a message, or closed the connection."""


@dataclass(frozen=True)
class Parcel:
    """A message: its kind, its fields, and named parts."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, bytes] = field(default_factory=dict)


def send(connection: socket.socket, parcel: Parcel) -> None:
    """Sends one message."""
    sizes = [(name, len(data)) for name, data in parcel.parts.items()]
    header = json.dumps({"kind": parcel.kind, "fields": dict(parcel.fields), "parts": sizes}).encode()
    if len(header) > MAX_HEADER or len(sizes) > MAX_PARTS:
        raise Broken(f"a message with a header of {len(header)} bytes and {len(sizes)} parts is too large")
    connection.sendall(_LENGTH.pack(len(header)) + header)
    for data in parcel.parts.values():
        connection.sendall(data)


def receive(connection: socket.socket, largest: int) -> Parcel | None:
    """The next message, whose parts have at most `largest` bytes together; None if the other side is done."""
    head = _exactly(connection, _LENGTH.size, at_start=True)
    if not head:
        return None
    length = _LENGTH.unpack(head)[0]
    if length > MAX_HEADER:
        raise Broken(f"a header of {length} bytes is too large")
    kind, fields, sizes = _header(_exactly(connection, length))
    if sum(sizes.values()) > largest:
        raise Broken(f"a message of {sum(sizes.values())} bytes is too large, at most {largest} are accepted")
    return Parcel(kind, fields, {name: _exactly(connection, size) for name, size in sizes.items()})


def _header(text: bytes) -> tuple[str, dict[str, Any], dict[str, int]]:
    try:
        found = json.loads(text)
        kind, fields, sizes = str(found["kind"]), dict(found["fields"]), dict(found["parts"])
        if len(sizes) > MAX_PARTS or not all(type(size) is int and size >= 0 for size in sizes.values()):
            raise ValueError("sizes of parts")
        return kind, fields, {str(name): size for name, size in sizes.items()}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Broken(f"not a message ({type(error).__name__})") from None


def _exactly(connection: socket.socket, size: int, *, at_start: bool = False) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(min(size - len(data), 1 << 20))
        if not more:
            if at_start and not data:
                return b""
            raise Broken("the connection ended within a message")
        data += more
    return bytes(data)
