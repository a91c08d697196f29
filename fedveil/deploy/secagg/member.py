"""A node's side of a session: a machine that answers each phase once, in order, or stops for good.

The server is not believed. What a node gives away follows from its own checks:

- Keys count only with the signature of a client in the pinned roster, over this session.
- The node chooses its neighbours. It masks its vector only if t > 2/3 of them and itself take part.
- It signs one set of survivors, which contains the node, the quorum and t of its neighbours and itself.
- It opens shares once, for that set, after it has seen the signatures of t of its neighbours and itself, and in a sparse
  graph of two thirds of nodes drawn at random. For each peer it opens the seed (a survivor) or the mask key (a lost node),
  never both.

Before each answer that cannot be taken back the node tells its journal, which refuses a second one. A message that breaks a
rule ends the session at this node and erases its secrets. The same message again gets the same answer.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedveil.deploy.secagg import degree, secrecy, shamir, vectors
from fedveil.deploy.secagg.codec import Members, bitmap, kind_of
from fedveil.deploy.secagg.errors import Abort
from fedveil.deploy.secagg.messages import (
    Advert,
    Adverts,
    Certificate,
    Challenge,
    Delivery,
    Masked,
    Reveal,
    Shares,
    Signed,
    Signers,
    Survivors,
)
from fedveil.deploy.secagg.roster import Roster, public
from fedveil.deploy.secagg.terms import Terms, digest, majority

CROWD = 4  # times the degree: a node with more nodes that chose it stops

MakeVector = Callable[[], np.ndarray]  # integers of any type; computed only once the session may use them


class Journal(Protocol):
    """What a node has done in each session, on stable storage."""

    def note(self, context: bytes, step: str) -> None:
        """Writes a step down before it is done; raises `Abort` if the session already has it."""


def advert_text(advert: Advert) -> bytes:
    """What the signature of an advert covers: all its fields, the chosen neighbours by their bitmap."""
    sender = advert.sender.to_bytes(4, "big")
    keys = (advert.mask_key, advert.channel_key, advert.commitment, bitmap(advert.neighbours))
    return digest(b"advert", advert.context, sender, *keys)


def survivors_text(context: bytes, survivors: Members) -> bytes:
    """What a node signs about the set of survivors."""
    return digest(b"survivors", context, bitmap(survivors))


def check_advert(data: bytes, terms: Terms, context: bytes, roster: Roster, client: int) -> Advert:
    """The advert in these bytes, if this client signed it for this session."""
    advert = Advert.decode(data)
    if advert.context != context or advert.sender != client:
        raise Abort(f"the advert of client {client} is one of another session or client")
    if len(advert.mask_key) != 32 or len(advert.channel_key) != 32 or len(advert.commitment) != 32:
        raise Abort(f"the advert of client {client} has keys of a wrong size")
    chosen = advert.neighbours
    if len(chosen) != terms.degree or client in chosen or not chosen <= terms.cohort:
        raise Abort(f"the advert of client {client} names neighbours that it cannot have chosen")
    roster.verify(client, advert.signature, advert_text(advert), "advert")
    return advert


class Member:
    """One node in one session. `answer` turns each message of the server into the reply."""

    def __init__(
        self, terms: Terms, client: int, key: Ed25519PrivateKey, roster: Roster, journal: Journal, make: MakeVector
    ) -> None:
        terms.check(roster)
        if client not in terms.cohort:
            raise Abort(f"client {client} is not in the cohort of this session")
        if roster.keys[client] != public(key):
            raise Abort(f"the roster has another key for client {client} than this node's own")
        self.terms, self.client, self.key, self.roster, self.journal = terms, client, key, roster, journal
        self.make: MakeVector | None = make
        self.context = terms.context(roster)
        self.secrets: secrecy.Secrets | None = secrecy.Secrets.new()
        others = sorted(terms.cohort - {client})
        self.neighbours = frozenset(secrets.SystemRandom().sample(others, terms.degree))  # chosen by this node
        self.peers: dict[int, Advert] = {}  # neighbours in the graph: chosen by this node, or having chosen it
        self.held: dict[int, tuple[bytes, bytes]] = {}  # shares of seed and mask secret, by owner
        self.agreed: dict[int, bytes] = {}  # what the channel keys give with each peer
        self.masking: Members = frozenset()  # the peers with which the vector was masked
        self.survivors: Members = frozenset()
        self.audited: Members = frozenset()
        self.expected: tuple[int, ...] = (Adverts.KIND,)
        self.last: tuple[bytes, bytes] = (b"", b"")  # digest of the last message and the answer to it

    @property
    def over(self) -> bool:
        """Whether the session has ended at this node."""
        return not self.expected

    def advert(self) -> bytes:
        """The first message: this node's keys and neighbours, signed."""
        mine = self._mine()
        made = Advert(
            self.context,
            self.client,
            mine.mask_public,
            mine.channel_public,
            secrecy.commitment(self.context, self.client, mine.seed),
            self.neighbours,
            b"",
        )
        signed = Advert(**{**made.__dict__, "signature": self.key.sign(advert_text(made))})
        self._once("advert", signed.encode())
        return signed.encode()

    def answer(self, data: bytes) -> bytes:
        """The reply to a message. Raises `Abort` with the reason, after which this node is done with the session."""
        seen = hashlib.sha256(data).digest()
        if seen == self.last[0]:
            return self.last[1]
        kind = kind_of(data)
        steps: dict[int, Callable[[bytes], bytes]] = {
            Adverts.KIND: self._share,
            Delivery.KIND: self._mask,
            Survivors.KIND: self._sign,
            Signers.KIND: self._challenge,
            Certificate.KIND: self._reveal,
        }
        if kind not in steps:
            raise Abort("a node has no answer to a message of this kind")
        try:
            if kind not in self.expected:
                done = "has ended at this node" if self.over else "is in another phase"
                raise Abort(f"this session {done}: a phase is answered once, and in order")
            reply = steps[kind](data)
        except BaseException:
            self.end()
            raise
        self.last = (seen, reply)
        return reply

    def end(self) -> None:
        """Ends the session at this node and drops its secrets."""
        self.expected, self.secrets, self.held, self.make = (), None, {}, None
        self.agreed = {}
        self.last = (b"", b"")

    # --- the phases

    def _share(self, data: bytes) -> bytes:
        """Phase 2: checks the neighbours' adverts, then shares the two secrets among the chosen nodes and this one."""
        message, mine, t = Adverts.decode(data), self._mine(), self.terms.threshold
        self._in_session(message.context)
        for client, given in message.adverts.items():
            if client == self.client:
                raise Abort("the server sent this node its own advert")
            advert = check_advert(given, self.terms, self.context, self.roster, client)
            if client not in self.neighbours and self.client not in advert.neighbours:
                raise Abort(f"client {client} is no neighbour of this node")
            self.peers[client] = advert
        if len(set(self.peers) - self.neighbours) > CROWD * self.terms.degree:
            raise Abort("too many nodes chose this node as their neighbour")
        holders = (self.neighbours & set(self.peers)) | {self.client}
        if len(holders) < t:
            raise Abort(f"{len(holders)} holders of shares take part, {t} are needed")
        seeds, keys = shamir.split(mine.seed, holders, t), shamir.split(mine.mask_secret, holders, t)
        self.held[self.client] = (seeds[self.client], keys[self.client])
        sealed = {
            peer: secrecy.seal(self._channel(self.client, peer), self.context, (seeds[peer], keys[peer]))
            for peer in holders - {self.client}
        }
        digests = b"".join(
            self._digests(self.client, holder, (seeds[holder], keys[holder])) for holder in sorted(holders)
        )
        self.expected = (Delivery.KIND,)
        return self._once("shares", Shares(self.context, self.client, sealed, digests).encode())

    def _mask(self, data: bytes) -> bytes:
        """Phase 3: takes the shares of others, makes the vector and masks it."""
        message, mine, terms = Delivery.decode(data), self._mine(), self.terms
        self._in_session(message.context)
        if not message.present <= set(self.peers):
            raise Abort("the server names a node as present that is no neighbour with a checked advert")
        owners = {peer for peer in message.present if self.client in self.peers[peer].neighbours}
        if set(message.sealed) != owners:
            raise Abort("the shares that arrived are not those of the present nodes that chose this node")
        told = [
            message.digests[at : at + 2 * secrecy.DIGEST] for at in range(0, len(message.digests), 2 * secrecy.DIGEST)
        ]
        if len(told) != len(owners):
            raise Abort("the digests that arrived are not those of the shares")
        for (owner, sealed), digests in zip(sorted(message.sealed.items()), told, strict=True):
            shares = secrecy.unseal(self._channel(owner, self.client), self.context, sealed, owner)
            if self._digests(owner, self.client, shares) != digests:
                raise Abort(f"client {owner} published other shares for this node than those that it sent")
            self.held[owner] = (shamir.checked(shares[0]), shamir.checked(shares[1]))
        self._enough(message.present, "take part")
        self.masking = message.present
        keys = [(secrecy.own_mask(self.context, self.client, mine.seed), 1)]
        me, private = (self.client, mine.mask_public), secrecy.mask_private(mine.mask_secret)
        for peer in sorted(self.masking):
            other = (peer, self.peers[peer].mask_key)
            keys.append((secrecy.pair_mask(self.context, private, me, other), 1 if self.client < peer else -1))
        self.journal.note(self.context, "masked")  # before the vector exists: a second one must not
        vector = self._vector()
        for key, sign in keys:
            vectors.add_stream(vector, key, terms.bits, sign)
        packed = vectors.pack(vectors.clear_high_bits(vector, terms.bits), terms.bits)
        self.expected = (Survivors.KIND,)
        return Masked(self.context, self.client, packed).encode()

    def _sign(self, data: bytes) -> bytes:
        """Phase 4: signs the set of survivors, one in a session."""
        message = Survivors.decode(data)
        self._in_session(message.context)
        survivors = message.survivors
        if not survivors <= self.terms.cohort:
            raise Abort("the server names a survivor outside the cohort")
        if self.client not in survivors:
            raise Abort("the server says that this node's vector was lost: the node has nothing left to do")
        if len(survivors) < self.terms.quorum:
            raise Abort(f"{len(survivors)} survivors, the quorum is {self.terms.quorum}: nothing is unmasked")
        if (survivors & set(self.peers)) - self.masking:
            raise Abort("the server names a survivor that it had called lost")
        self._enough(survivors & self.masking, "survive")
        signature = self.key.sign(survivors_text(self.context, survivors))
        self.survivors = survivors
        self.expected = (Signers.KIND,) if self.terms.sparse else (Certificate.KIND,)
        return self._once("signed", Signed(self.context, self.client, signature).encode())

    def _challenge(self, data: bytes) -> bytes:
        """Phase 5 of a sparse graph: names nodes at random whose signatures it wants to see."""
        message = Signers.decode(data)
        self._in_session(message.context)
        size = min(degree.AUDITED, len(self.terms.cohort))
        self.audited = frozenset(secrets.SystemRandom().sample(sorted(self.terms.cohort), size))
        self.expected = (Certificate.KIND,)
        return self._once("challenge", Challenge(self.context, self.client, self.audited).encode())

    def _reveal(self, data: bytes) -> bytes:
        """Phase 6: opens one kind of share for each owner, if enough nodes have signed the same survivors."""
        message = Certificate.decode(data)
        self._in_session(message.context)
        near, text = self.neighbours | {self.client}, survivors_text(self.context, self.survivors)
        if not set(message.signatures) <= (near | self.audited) & self.survivors:
            raise Abort("the certificate has signatures of nodes that have nothing to sign for this node")
        for signer, signature in message.signatures.items():
            self.roster.verify(signer, signature, text, "certificate")
        signers = set(message.signatures) | {self.client}
        if len(signers & near) < self.terms.threshold:
            told = f"{len(signers & near)} of this node's neighbours and itself signed the survivors"
            raise Abort(f"{told}, {self.terms.threshold} are needed")
        if self.audited and len(signers & self.audited) < majority(len(self.audited)):
            told = f"{len(signers & self.audited)} of {len(self.audited)} nodes drawn at random signed the survivors"
            raise Abort(f"{told}, {majority(len(self.audited))} are needed")
        owners = set(self.held)  # the present nodes that chose this node, and itself
        seeds = {owner: self.held[owner][0] for owner in owners & self.survivors}
        keys = {owner: self.held[owner][1] for owner in owners - self.survivors}
        reply = self._once("revealed", Reveal(self.context, self.client, seeds, keys).encode())
        self.end()
        return reply

    # --- helpers

    def _mine(self) -> secrecy.Secrets:
        if self.secrets is None:
            raise Abort("this session has ended at this node")
        return self.secrets

    def _once(self, step: str, reply: bytes) -> bytes:
        """The reply, after its step is in the journal."""
        self.journal.note(self.context, step)
        return reply

    def _in_session(self, context: bytes) -> None:
        if context != self.context:
            raise Abort("the message belongs to another session")

    def _enough(self, peers: Members, do_what: str) -> None:
        holders = len(peers & self.neighbours) + 1
        if holders < self.terms.threshold:
            told = f"{holders} of this node's neighbours and itself {do_what}"
            raise Abort(f"{told}, {self.terms.threshold} are needed: nothing is unmasked")

    def _channel(self, sender: int, receiver: int) -> ChaCha20Poly1305:
        peer = receiver if sender == self.client else sender
        if peer not in self.agreed:
            self.agreed[peer] = secrecy.agree(self._mine().channel, self.peers[peer].channel_key)
        return secrecy.channel(self.context, self.agreed[peer], sender, receiver)

    def _digests(self, owner: int, holder: int, shares: tuple[bytes, bytes]) -> bytes:
        return secrecy.share_digests(self.context, owner, holder, shares)

    def _vector(self) -> np.ndarray:
        assert self.make is not None
        made, self.make = self.make(), None
        if made.shape != (self.terms.length,):
            raise Abort(f"the node's vector has the shape {list(made.shape)}, expected [{self.terms.length}]")
        return vectors.reduce(made, self.terms.bits)
