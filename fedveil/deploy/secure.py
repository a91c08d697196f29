"""The server's side of a round under secure aggregation: the phases of the protocol over a transport."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.core.errors import RunError
from fedveil.deploy.messages import Payload, Request, Transport
from fedveil.deploy.secagg import vectors
from fedveil.deploy.secagg.aggregator import Aggregator
from fedveil.deploy.secagg.errors import Abort
from fedveil.deploy.secagg.roster import Roster
from fedveil.deploy.secagg.terms import Terms, majority
from fedveil.deploy.sessions import MESSAGE, PLAIN

ROOM = 1 << 20  # bytes of a reply besides its vector


@dataclass(frozen=True)
class Asked:
    """What one node of the cohort is asked: its id at the transport, the request, and the model as it receives it."""

    node: int
    request: Request
    model: Payload


@dataclass(frozen=True)
class Summed:
    """The outcome of a session: the sum modulo 2^bits, over whom, and what happened."""

    total: np.ndarray
    survivors: tuple[int, ...]
    refused: Mapping[str, str]  # by client: why its update is not in the sum
    report: Mapping[str, Any]


def quorum_of(cohort: int, share: float) -> int:
    """The number of survivors below which nothing is unmasked: this share of the cohort, and more than two thirds."""
    return min(cohort, max(majority(cohort), int(np.ceil(share * cohort))))


def terms_of(asked: Mapping[int, Asked], length: int, bits: int, quorum: int, model: bytes) -> Terms:
    """The terms of a new session."""
    first = next(iter(asked.values())).request
    attempt = secrets.token_bytes(16)
    return Terms(first.run, first.round, attempt, first.common, length, bits, quorum, frozenset(asked), model)


def aggregate(transport: Transport, asked: Mapping[int, Asked], terms: Terms, roster: Roster, timeout: float) -> Summed:
    """Runs a session. Raises `Abort` with the reason if nothing can be unmasked. `timeout`: seconds for each phase."""
    began = time.monotonic()
    server, plain = Aggregator(terms, roster), dict[int, bytes]()
    largest = ROOM + vectors.packed_size(terms.length, terms.bits) * 2 + 256 * len(terms.cohort)
    messages = server.begin()
    while messages:
        sent = {asked[c].node: _parcel(asked[c], server.phase, message) for c, message in messages.items()}
        found = transport.exchange(sent, timeout, largest)
        replies, failures = dict[int, bytes](), dict[int, str]()
        for client in messages:
            reply = found.get(asked[client].node)
            if reply is None or reply.refused or MESSAGE not in reply.parts:
                failures[client] = "no reply in time" if reply is None else reply.refused or "a reply without a message"
                continue
            replies[client] = reply.parts[MESSAGE]
            if PLAIN in reply.parts:
                plain[client] = reply.parts[PLAIN]
        messages = server.advance(replies, failures)
    assert server.total is not None
    survivors = tuple(sorted(server.survivors))
    if asked[survivors[0]].request.test:
        _check_plain(server.total, survivors, plain, terms)
    refused = {str(c): reason for phase in ("advert", "shares", "masked")
               for c, reason in server.transcript.lost.get(phase, {}).items()}  # fmt: skip
    return Summed(server.total, survivors, refused, {**server.as_dict(), "seconds": time.monotonic() - began})


def _parcel(asked: Asked, phase: str, message: bytes) -> tuple[Mapping[str, Any], Payload]:
    """The first message goes with the request; the one that is answered by the masked vector goes with the model."""
    fields = asked.request.as_dict() if phase == "advert" else {}
    return fields, {MESSAGE: message, **(asked.model if phase == "masked" else {})}


def _check_plain(total: np.ndarray, survivors: tuple[int, ...], plain: Mapping[int, bytes], terms: Terms) -> None:
    """In test mode: raises `RunError` unless the unmasked sum is the sum of the integers that the nodes say they masked."""
    missing = set(survivors) - set(plain)
    if missing:
        raise RunError(f"test mode: client {min(missing)} did not send its integers")
    wanted = vectors.add(
        (vectors.unpack(plain[c], terms.length, terms.bits) for c in survivors), terms.length, terms.bits
    )
    if not np.array_equal(total, wanted):
        raise RunError(
            f"test mode: the unmasked sum differs from the plain sum in {int((total != wanted).sum())} values"
        )


def summary(summed: Summed) -> dict[str, Any]:
    """What a round's row in the metrics says about its session."""
    report = summed.report
    return {
        "survivors": len(summed.survivors),
        "quorum": report["quorum"],
        "noise_share": len(summed.survivors) / report["quorum"],
        "threshold": report["threshold"],
        "neighbours": report["degree"],
        "bytes_up": report["bytes_up"],
        "bytes_down": report["bytes_down"],
    }


__all__ = ["Abort", "Asked", "Summed", "aggregate", "quorum_of", "summary", "terms_of"]
