"""The messages of the protocol after `Terms`, in the order of its phases. All name the session by its digest, `context`."""

from __future__ import annotations

from dataclasses import dataclass

from fedveil.deploy.secagg.codec import MAGIC, Blobs, Members, Message
from fedveil.deploy.secagg.errors import Abort

__all__ = ["Blobs", "Members"]
SIZE = 32  # bytes of the digest that names a session


def context_of(data: bytes) -> bytes:
    """The session that an encoded message names."""
    start = len(MAGIC) + 1
    if data[start : start + 4] != SIZE.to_bytes(4, "big") or len(data) < start + 4 + SIZE:
        raise Abort("the message names no session")
    return data[start + 4 : start + 4 + SIZE]


@dataclass(frozen=True)
class Advert(Message):
    """Node → server, phase 1: public keys for this session, and the neighbours that the node chose; signed."""

    KIND = 1
    context: bytes
    sender: int
    mask_key: bytes  # X25519: pairwise masks
    channel_key: bytes  # X25519: encryption of shares
    commitment: bytes  # to the seed of the node's own mask
    neighbours: Members
    signature: bytes  # Ed25519, by the node's long-term key


@dataclass(frozen=True)
class Adverts(Message):
    """Server → node, phase 2: the adverts of its neighbours, by client."""

    KIND = 2
    context: bytes
    adverts: Blobs


@dataclass(frozen=True)
class Shares(Message):
    """Node → server, phase 2: encrypted shares of its two secrets by neighbour that may read them, and their digests."""

    KIND = 3
    context: bytes
    sender: int
    sealed: Blobs
    digests: bytes  # of both shares of each holder, this node among them, in the order of their numbers


@dataclass(frozen=True)
class Delivery(Message):
    """Server → node, phase 3: which neighbours sent shares; the shares for this node by sender, and their digests."""

    KIND = 4
    context: bytes
    present: Members
    sealed: Blobs
    digests: bytes  # of both shares for this node, in the order of the senders


@dataclass(frozen=True)
class Masked(Message):
    """Node → server, phase 3: the masked vector, packed."""

    KIND = 5
    context: bytes
    sender: int
    vector: bytes


@dataclass(frozen=True)
class Survivors(Message):
    """Server → node, phase 4: the nodes whose masked vectors arrived."""

    KIND = 6
    context: bytes
    survivors: Members


@dataclass(frozen=True)
class Signed(Message):
    """Node → server, phase 4: the node's signature of the set of survivors."""

    KIND = 7
    context: bytes
    sender: int
    signature: bytes


@dataclass(frozen=True)
class Signers(Message):
    """Server → node, phase 5, sparse graphs only: who has signed the set of survivors."""

    KIND = 8
    context: bytes
    signers: Members


@dataclass(frozen=True)
class Challenge(Message):
    """Node → server, phase 5, sparse graphs only: nodes drawn at random whose signatures this node wants to see."""

    KIND = 9
    context: bytes
    sender: int
    audited: Members


@dataclass(frozen=True)
class Certificate(Message):
    """Server → node, phase 6: signatures of the set of survivors, by signer."""

    KIND = 10
    context: bytes
    signatures: Blobs


@dataclass(frozen=True)
class Reveal(Message):
    """Node → server, phase 6: shares of the mask seeds of survivors and of the mask keys of lost nodes, by owner."""

    KIND = 11
    context: bytes
    sender: int
    seeds: Blobs
    keys: Blobs
