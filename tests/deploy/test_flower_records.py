"""Our messages as Flower's records: few objects, and nothing is taken from bytes that are not a payload."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedveil[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedveil.deploy.records import INLINE, content, fields_of, joined, parted, payload_of

PARTS = {"dense/w": b"abc", "dense/b": b"", "ü": b"\0" * 10}


@pytest.mark.parametrize("extra", [{}, {"large": bytes(INLINE)}])
def test_a_message_keeps_its_fields_and_payload_in_few_records(extra: dict[str, bytes]) -> None:
    made = content("request", {"round": 3, "config": "x"}, PARTS | extra)
    assert fields_of(made, "request") == {"round": 3, "config": "x"}
    assert payload_of(made) == PARTS | extra
    assert sum(len(record) for record in made.array_records.values()) == (1 if extra else 0)
    assert list(content("query", {"a": 1}).values()) == [ConfigRecord({"a": 1})]


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_no_payload(data: bytes) -> None:
    for tried in (data, len(data[:8]).to_bytes(4, "big") + data):
        try:
            assert joined(parted(tried)) is not None
        except ValueError:
            continue


@pytest.mark.parametrize(
    "head", ['[["a", 4]]', '[["a", -1]]', '[["a", 1], ["a", 1]]', '[["a", true]]', '{"a": 1}', "7"]
)
def test_wrong_lists_of_parts_are_refused(head: str) -> None:
    data = len(head).to_bytes(4, "big") + head.encode() + b"xyz"
    with pytest.raises((ValueError, TypeError)):
        parted(data)


@pytest.mark.parametrize(
    "found",
    [
        RecordDict({"reply": ConfigRecord({"payload": 7})}),
        RecordDict({"reply": ConfigRecord({"a": 1})}),
        RecordDict({"payload": ArrayRecord({"other": Array("bytes", (1,), "bytes", b"x")})}),
        RecordDict({"payload": ArrayRecord({"payload": Array("bytes", (1,), "bytes", b"x")})}),
    ],
)
def test_a_message_without_a_payload_is_an_error(found: RecordDict) -> None:
    with pytest.raises((ValueError, KeyError)):
        payload_of(found)


def test_the_process_that_talks_to_flower_imports_no_jax() -> None:
    import subprocess
    import sys

    code = "import sys, fedveil.deploy.link; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
