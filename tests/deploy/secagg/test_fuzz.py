"""Protocol messages with arbitrary changes: a party answers or stops with `Abort`, and opens nothing by mistake."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedveil.deploy.secagg import codec, messages, vectors
from fedveil.deploy.secagg.aggregator import PHASES
from fedveil.deploy.secagg.errors import Abort
from fedveil.deploy.secagg.terms import Terms
from tests.deploy.secagg.test_session import federation_of, terms_of

KINDS = [Terms, *(k for k in vars(messages).values() if isinstance(k, type) and k.__module__ == messages.__name__)]
TO_NODE = tuple(phase for phase in PHASES if phase != "challenge")


def flipped(message: bytes, at: int, value: int) -> bytes:
    data = bytearray(message)
    data[at % len(data)] ^= value
    return bytes(data)


CHANGES = st.one_of(
    st.binary(max_size=300).map(lambda junk: lambda message: junk),
    st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)).map(lambda c: lambda message: flipped(message, *c)),
    st.integers(0, 1 << 12).map(lambda cut: lambda message: message[: cut % (len(message) + 1)]),
    st.binary(min_size=1, max_size=40).map(lambda junk: lambda message: message + junk),
    st.tuples(st.integers(0, 1 << 12), st.binary(min_size=4, max_size=4)).map(
        lambda c: lambda message: message[: c[0] % len(message)] + c[1] + message[c[0] % len(message) + 4 :]
    ),
)


def decoded(data: bytes) -> Iterator[codec.Message]:
    """What each kind of message makes of the bytes."""
    for kind in KINDS:
        try:
            yield kind.decode(data)
        except Abort:
            continue


def check_bytes(data: bytes) -> None:
    """At most one kind reads the bytes, and it writes the same bytes again."""
    found = list(decoded(data))
    assert len(found) <= 1
    assert all(message.encode() == data for message in found)


def check_session(phase: str, change, to_server: bool) -> None:
    """One changed message. The sum is exact without or with that node, or the session ends with a reason."""
    federation = federation_of(4, 5, 8)

    def hook(at: str, client: int, message: bytes) -> bytes:
        if (at, client) != (phase, 1):
            return message
        check_bytes(change(message))
        return change(message)

    try:
        server = federation.run(terms_of(4, 5, 8), **{"to_server" if to_server else "to_node": hook})
    except Abort:
        return
    assert len(server.survivors) >= 3
    wanted = vectors.reduce(np.sum([federation.vectors[c] for c in server.survivors], axis=0), 8)
    # A node may send any vector it likes, and only that can change the sum.
    assert np.array_equal(server.total, wanted) or (to_server and phase == "masked")


FUZZ = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@settings(max_examples=1700, **FUZZ)
@given(st.binary(max_size=200), st.integers(0, 12))
def test_arbitrary_bytes_as_messages(data: bytes, kind: int) -> None:
    check_bytes(data)
    check_bytes(codec.MAGIC + bytes([kind]) + data)


@settings(max_examples=300, **FUZZ)
@given(st.sampled_from(TO_NODE), CHANGES, st.booleans())
def test_changed_messages(phase: str, change, to_server: bool) -> None:
    check_session(phase, change, to_server)


@pytest.mark.slow
@settings(max_examples=80_000, **FUZZ)
@given(st.binary(max_size=200), st.integers(0, 12))
def test_arbitrary_bytes_as_messages_at_length(data: bytes, kind: int) -> None:
    check_bytes(data)
    check_bytes(codec.MAGIC + bytes([kind]) + data)


@pytest.mark.slow
@settings(max_examples=20_000, **FUZZ)
@given(st.sampled_from(TO_NODE), CHANGES, st.booleans())
def test_changed_messages_at_length(phase: str, change, to_server: bool) -> None:
    check_session(phase, change, to_server)
