"""What one session of the protocol is about, and the digest that binds every message of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fedveil.deploy.secagg import vectors
from fedveil.deploy.secagg.codec import Members, Message
from fedveil.deploy.secagg.degree import degree, threshold
from fedveil.deploy.secagg.errors import Abort
from fedveil.deploy.secagg.roster import Roster

SMALLEST = 3  # nodes: the sum of two shows each of them the other's vector
MAX_LENGTH = 1 << 30


@dataclass(frozen=True)
class Terms(Message):
    """Server → node, phase 1: the session. Everything in it is public."""

    KIND = 0
    run: str
    round: int
    attempt: bytes  # 16 random bytes: a repeated round is another session
    config: str  # digest of the config and of all else that is requested of every node alike
    length: int  # of a vector
    bits: int  # vectors are added modulo 2^bits
    quorum: int  # survivors below which nothing is unmasked
    cohort: Members
    model: bytes = b""  # digest of the model; empty if each node receives another

    def check(self, roster: Roster) -> None:
        """Raises `Abort` for terms that no node accepts."""
        if len(self.attempt) != 16:
            raise Abort("the session has no attempt of 16 bytes")
        if len(self.model) not in (0, 32):
            raise Abort("the session has no digest of the model of 32 bytes")
        if not 1 <= self.length <= MAX_LENGTH:
            raise Abort(f"vectors of {self.length} values are not accepted, from 1 to {MAX_LENGTH}")
        if not 1 <= self.bits <= vectors.MAX_BITS:
            raise Abort(f"sums modulo 2^{self.bits} are not accepted, from 1 to {vectors.MAX_BITS} bits")
        if len(self.cohort) < SMALLEST:
            raise Abort(f"a sum over {len(self.cohort)} nodes shows too much of each, at least {SMALLEST} are needed")
        if not self.cohort <= set(roster.keys):
            raise Abort(f"client {min(self.cohort - set(roster.keys))} of the cohort is not in the roster")
        if not majority(len(self.cohort)) <= self.quorum <= len(self.cohort):
            told = f"a quorum of {self.quorum} of {len(self.cohort)} nodes is not accepted"
            raise Abort(f"{told}, from {majority(len(self.cohort))} to {len(self.cohort)}")

    def context(self, roster: Roster) -> bytes:
        """The digest that names this session between nodes with this roster."""
        return digest(b"session", roster.fingerprint, self.encode())

    @property
    def degree(self) -> int:
        """Neighbours that each node chooses."""
        return degree(len(self.cohort))

    @property
    def threshold(self) -> int:
        """Shares that open a secret, and signatures that a node wants from its neighbours and itself."""
        return threshold(self.degree)

    @property
    def sparse(self) -> bool:
        """Whether nodes have fewer neighbours than there are other nodes."""
        return self.degree < len(self.cohort) - 1


def majority(nodes: int) -> int:
    """More than two thirds."""
    return 2 * nodes // 3 + 1


def digest(label: bytes, *parts: bytes) -> bytes:
    """SHA-256 over a label and parts, each with its length: two lists of parts never give the same input."""
    named = (b"fedveil secagg 1", label, *parts)
    return hashlib.sha256(b"".join([len(part).to_bytes(8, "big") + part for part in named])).digest()
