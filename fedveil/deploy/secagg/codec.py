"""Messages as bytes: a fixed order of fields, lengths checked against what is left, one encoding for each value.

A message that decodes encodes to the same bytes again, so a signature or a digest over bytes covers the whole message.
Nothing is allocated for a length that the message does not have.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Self

from fedveil.deploy.secagg.errors import Abort

MAGIC = b"FVSA2"
MAX_NODES = 1 << 16  # client numbers are below this
MAX_TEXT = 256  # bytes of a text
_U32 = struct.Struct("!I")

Members = frozenset[int]  # a set of client numbers; encoded as a bitmap
Blobs = Mapping[int, bytes]  # bytes by client number; encoded in the order of the numbers


class Message:
    """Base of the messages: frozen dataclasses whose fields are `int`, `str`, `bytes`, `Members` or `Blobs`."""

    KIND: ClassVar[int]

    def encode(self) -> bytes:
        """The message as bytes."""
        body = [_WRITE[str(f.type)](getattr(self, f.name)) for f in fields(self)]  # type: ignore[arg-type]
        return MAGIC + bytes([self.KIND]) + b"".join(body)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The message in these bytes; raises `Abort` unless they are exactly one message of this kind."""
        if data[: len(MAGIC) + 1] != MAGIC + bytes([cls.KIND]):
            raise Abort(f"not a message '{cls.__name__.lower()}' of this version of the protocol")
        reader = _Reader(data, len(MAGIC) + 1)
        values = {f.name: _READ[str(f.type)](reader) for f in fields(cls)}  # type: ignore[arg-type]
        if reader.at != len(data):
            raise Abort(f"the message '{cls.__name__.lower()}' has {len(data) - reader.at} bytes too many")
        return cls(**values)


def kind_of(data: bytes) -> int:
    """The kind of an encoded message; raises `Abort` if the bytes are none."""
    if data[: len(MAGIC)] != MAGIC or len(data) <= len(MAGIC):
        raise Abort("not a message of this version of the protocol")
    return data[len(MAGIC)]


class _Reader:
    """Reads from bytes, and never past their end."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise Abort("the message ends too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self) -> int:
        return int(_U32.unpack(self.take(4))[0])


def _write_int(value: int) -> bytes:
    if not 0 <= value < 1 << 32:
        raise ValueError(f"{value} does not fit into 32 bits")
    return _U32.pack(value)


def _write_bytes(value: bytes) -> bytes:
    return _write_int(len(value)) + value


def _read_bytes(reader: _Reader) -> bytes:
    return reader.take(reader.number())


def _write_text(value: str) -> bytes:
    data = value.encode()
    if len(data) > MAX_TEXT:
        raise ValueError(f"a text of {len(data)} bytes is too long, at most {MAX_TEXT}")
    return _write_bytes(data)


def _read_text(reader: _Reader) -> str:
    data = _read_bytes(reader)
    if len(data) > MAX_TEXT:
        raise Abort("a text in the message is too long")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Abort("a text in the message is not UTF-8") from None


def bitmap(members: Members) -> bytes:
    """A set of client numbers as bits, without zero bytes at the end."""
    data = bytearray(max(members) // 8 + 1 if members else 0)
    for member in members:
        data[member // 8] |= 1 << member % 8
    return bytes(data)


def _write_members(members: Members) -> bytes:
    return _write_bytes(bitmap(members))


def _read_members(reader: _Reader) -> Members:
    data = _read_bytes(reader)
    if len(data) > MAX_NODES // 8 or data.endswith(b"\0"):
        raise Abort("a set of nodes in the message is too large or not in its shortest form")
    bits = bin(int.from_bytes(data, "little"))[:1:-1]  # the lowest first
    return frozenset(number for number, bit in enumerate(bits) if bit == "1")


def _write_blobs(blobs: Blobs) -> bytes:
    parts = [_write_int(number) + _write_bytes(blobs[number]) for number in sorted(blobs)]
    return _write_int(len(parts)) + b"".join(parts)


def _read_blobs(reader: _Reader) -> Blobs:
    count, found, last = reader.number(), dict[int, bytes](), -1
    if count > MAX_NODES:
        raise Abort("the message has too many parts")
    for _ in range(count):
        number = reader.number()
        if not last < number < MAX_NODES:
            raise Abort("a part of the message is repeated, out of order, or for a node that cannot exist")
        found[number], last = _read_bytes(reader), number
    return found


_WRITE: dict[str, Any] = {
    "int": _write_int,
    "str": _write_text,
    "bytes": _write_bytes,
    "Members": _write_members,
    "Blobs": _write_blobs,
}
_READ: dict[str, Any] = {
    "int": _Reader.number,
    "str": _read_text,
    "bytes": _read_bytes,
    "Members": _read_members,
    "Blobs": _read_blobs,
}
