"""Our messages as Flower's records. Imports Flower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

STYPE = "numpy.ndarray"  # Flower's name for arrays that are .npy files


def to_record(payload: Mapping[str, bytes]) -> ArrayRecord:
    """A payload as Flower's record. Types and shapes are inside the bytes, and are checked when these are unpacked."""
    return ArrayRecord({name: Array("bytes", (len(data),), STYPE, data) for name, data in payload.items()})


def from_record(record: ArrayRecord) -> dict[str, bytes]:
    return {name: array.data for name, array in record.items()}


def content(kind: str, fields: Mapping[str, Any], payload: Mapping[str, bytes] | None = None) -> RecordDict:
    """A message's content: one record of fields, and one of arrays if there is a payload."""
    records = {kind: ConfigRecord(dict(fields))}
    return RecordDict(records if payload is None else {**records, "payload": to_record(payload)})


def fields_of(found: RecordDict, kind: str) -> dict[str, Any]:
    """The fields of a message; raises KeyError if it has none of this kind."""
    return dict(found.config_records[kind])


def payload_of(found: RecordDict) -> dict[str, bytes]:
    return from_record(found.array_records["payload"])
