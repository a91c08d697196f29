"""Our messages as Flower's records. Imports Flower.

Flower sends every record, array and chunk of a message as a separate object, by separate requests, and each request
costs its server 10 to 20 ms of processor time. So a payload travels as one sequence of bytes: within the record of the
fields if it is small, and otherwise as one array.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

STYPE = "bytes"  # what the array holds; its content is checked when it is unpacked
PAYLOAD = "payload"  # the record of an array, or the field of a small payload
INLINE = 1 << 18  # bytes of a payload that is a field
MAX_PARTS = 4096
_LENGTH = struct.Struct("!I")


def joined(payload: Mapping[str, bytes]) -> bytes:
    """A payload as bytes: its names and sizes as JSON, after their length, then the parts."""
    head = json.dumps([[name, len(data)] for name, data in payload.items()]).encode()
    return b"".join((_LENGTH.pack(len(head)), head, *payload.values()))


def parted(data: bytes) -> dict[str, bytes]:
    """The payload in these bytes; raises ValueError unless they are exactly one."""
    if len(data) < _LENGTH.size:
        raise ValueError("a payload without a length")
    at = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    found, payload = json.loads(data[_LENGTH.size : at]), dict[str, bytes]()
    if type(found) is not list or len(found) > MAX_PARTS:
        raise ValueError("a payload without a list of its parts")
    for name, size in found:
        if type(name) is not str or type(size) is not int or not 0 <= size <= len(data) - at or name in payload:
            raise ValueError("a payload with a wrong list of its parts")
        payload[name] = data[at : at + size]
        at += size
    if at != len(data):
        raise ValueError("a payload with bytes after its end")
    return payload


def content(kind: str, fields: Mapping[str, Any], payload: Mapping[str, bytes] | None = None) -> RecordDict:
    """A message's content: a record of fields, with the payload if there is one."""
    if payload is None:
        return RecordDict({kind: ConfigRecord(dict(fields))})
    data = joined(payload)
    if len(data) <= INLINE:
        return RecordDict({kind: ConfigRecord({**fields, PAYLOAD: data})})
    array = Array("bytes", (len(data),), STYPE, data)
    return RecordDict({kind: ConfigRecord(dict(fields)), PAYLOAD: ArrayRecord({PAYLOAD: array})})


def fields_of(found: RecordDict, kind: str) -> dict[str, Any]:
    """The fields of a message; raises KeyError if it has none of this kind."""
    return {name: value for name, value in found.config_records[kind].items() if name != PAYLOAD}


def payload_of(found: RecordDict) -> dict[str, bytes]:
    """The payload of a message; raises KeyError or ValueError if there is none that can be read."""
    for record in found.config_records.values():
        if PAYLOAD in record:
            data = record[PAYLOAD]
            if not isinstance(data, bytes):
                raise ValueError("a payload that is not bytes")
            return parted(data)
    return parted(found.array_records[PAYLOAD][PAYLOAD].data)
