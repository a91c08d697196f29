"""The server's side of a session: relays messages, counts who is left, and removes the masks from the sum.

`begin` gives the first messages; `advance` takes the replies to the last ones and gives the next, until `total` is there.
A node whose reply is missing or wrong counts as lost from that phase on, with the reason. The session ends with `Abort` if
too few are left.
Every reply is checked as if its sender were hostile: what a node sends can spoil the round, but not the server. Opened
shares are compared with the digests that their owner published: who opens a wrong one is named and counts as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedveil.deploy.secagg import degree, secrecy, shamir, vectors
from fedveil.deploy.secagg.codec import Members
from fedveil.deploy.secagg.errors import Abort
from fedveil.deploy.secagg.member import check_advert, survivors_text
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
from fedveil.deploy.secagg.roster import Roster
from fedveil.deploy.secagg.terms import Terms

PHASES = ("advert", "shares", "masked", "signed", "challenge", "reveal")


@dataclass
class Transcript:
    """What happened in a session, for the records of a run. Contains no secret."""

    cohort: list[int]
    quorum: int
    threshold: int
    degree: int
    roster: str
    survivors: list[int] = field(default_factory=list)
    signers: list[int] = field(default_factory=list)
    lost: dict[str, dict[int, str]] = field(default_factory=dict)  # by phase: client → reason
    bytes_up: int = 0
    bytes_down: int = 0


class Aggregator:
    """One session at the server."""

    def __init__(self, terms: Terms, roster: Roster) -> None:
        terms.check(roster)
        self.terms, self.roster, self.context = terms, roster, terms.context(roster)
        self.phase = PHASES[0]
        self.alive: set[int] = set(terms.cohort)  # who was sent the last messages
        self.adverts: dict[int, tuple[Advert, bytes]] = {}
        self.sealed: dict[int, Mapping[int, bytes]] = {}  # encrypted shares by sender
        self.digests: dict[int, dict[int, bytes]] = {}  # of both shares, by owner and holder
        self.present: Members = frozenset()  # nodes that sent shares
        self.survivors: Members = frozenset()
        self.signatures: dict[int, bytes] = {}
        self.certificates: dict[int, bytes] = {}
        self.reveals: dict[int, Reveal] = {}
        self.sum = np.zeros(terms.length, vectors.word(terms.bits))
        self.total: np.ndarray | None = None
        fingerprint = roster.fingerprint.hex()
        self.transcript = Transcript(sorted(terms.cohort), terms.quorum, terms.threshold, terms.degree, fingerprint)

    def begin(self) -> dict[int, bytes]:
        """The first message for each node."""
        return self._sent(dict.fromkeys(sorted(self.terms.cohort), self.terms.encode()))

    def advance(self, replies: Mapping[int, bytes], failures: Mapping[int, str] | None = None) -> dict[int, bytes]:
        """The next messages, by client; empty when `total` is there. `failures` says why a reply is missing, if known."""
        if self.phase == "over":
            raise Abort("this session is over")
        steps: dict[str, tuple[Callable[[int, bytes], None], Callable[[], dict[int, bytes]]]] = {
            "advert": (self._take_advert, self._after_adverts),
            "shares": (self._take_shares, self._after_shares),
            "masked": (self._take_masked, self._after_masked),
            "signed": (self._take_signed, self._after_signed),
            "challenge": (self._take_challenge, self._after_challenges),
            "reveal": (self._take_reveal, self._after_reveals),
        }
        take, after = steps[self.phase]
        try:
            for client in sorted(self.alive):
                self._take(client, replies.get(client), take, (failures or {}).get(client, "no answer"))
            self._enough()
            messages = after()
        except Abort:
            self.phase = "over"
            raise
        return self._sent(messages)

    def _take(self, client: int, reply: bytes | None, take: Callable[[int, bytes], None], missing: str) -> None:
        """One reply; a node without a usable one is lost from here on."""
        try:
            if reply is None:
                raise Abort(missing)
            self.transcript.bytes_up += len(reply)
            take(client, reply)
        except Abort as error:
            self.alive.discard(client)
            self.transcript.lost.setdefault(self.phase, {})[client] = str(error)

    def _enough(self) -> None:
        needed = self.terms.quorum if self.phase in ("advert", "shares", "masked") else self.terms.threshold
        if len(self.alive) >= needed:
            return
        lost = self.transcript.lost.get(self.phase, {})
        told = "; ".join(f"client {client}: {reason}" for client, reason in sorted(lost.items())[:5])
        raise Abort(f"{len(self.alive)} nodes are left in the phase '{self.phase}', {needed} are needed ({told})")

    def _sent(self, messages: dict[int, bytes]) -> dict[int, bytes]:
        self.transcript.bytes_down += sum(map(len, messages.values()))
        return messages

    # --- the phases

    def _take_advert(self, client: int, data: bytes) -> None:
        self.adverts[client] = (check_advert(data, self.terms, self.context, self.roster, client), data)

    def _after_adverts(self) -> dict[int, bytes]:
        self.phase = "shares"
        return {c: Adverts(self.context, {p: self.adverts[p][1] for p in self._peers(c)}).encode() for c in self.alive}

    def _take_shares(self, client: int, data: bytes) -> None:
        message = Shares.decode(data)
        self._from(client, message.context, message.sender)
        wanted = self.adverts[client][0].neighbours & set(self.adverts)
        if set(message.sealed) != wanted or any(len(s) != 2 * shamir.SIZE + 16 for s in message.sealed.values()):
            raise Abort("the encrypted shares are not one for each neighbour that the node chose")
        holders, size = sorted(wanted | {client}), 2 * secrecy.DIGEST
        if len(message.digests) != size * len(holders):
            raise Abort("the digests of the shares are not one pair for each holder")
        self.sealed[client] = message.sealed
        self.digests[client] = {h: message.digests[at * size : (at + 1) * size] for at, h in enumerate(holders)}

    def _after_shares(self) -> dict[int, bytes]:
        self.phase, self.present = "masked", frozenset(self.alive)
        made = {}
        for client in self.alive:
            near = self._peers(client) & self.present
            sealed = {p: self.sealed[p][client] for p in near if client in self.sealed[p]}
            digests = b"".join(self.digests[p][client] for p in sorted(sealed))
            made[client] = Delivery(self.context, near, sealed, digests).encode()
        self.sealed = {}
        return made

    def _take_masked(self, client: int, data: bytes) -> None:
        message = Masked.decode(data)
        self._from(client, message.context, message.sender)
        np.add(self.sum, vectors.unpack(message.vector, self.terms.length, self.terms.bits), out=self.sum)

    def _after_masked(self) -> dict[int, bytes]:
        self.phase, self.survivors = "signed", frozenset(self.alive)
        self.transcript.survivors = sorted(self.survivors)
        return dict.fromkeys(self.alive, Survivors(self.context, self.survivors).encode())

    def _take_signed(self, client: int, data: bytes) -> None:
        message = Signed.decode(data)
        self._from(client, message.context, message.sender)
        text = survivors_text(self.context, self.survivors)
        self.roster.verify(client, message.signature, text, "survivors")
        self.signatures[client] = message.signature

    def _after_signed(self) -> dict[int, bytes]:
        self.transcript.signers = sorted(self.signatures)
        if self.terms.sparse:
            self.phase = "challenge"
            return dict.fromkeys(self.alive, Signers(self.context, frozenset(self.signatures)).encode())
        self.phase = "reveal"
        return {client: self._certificate(client, frozenset()) for client in self.alive}

    def _take_challenge(self, client: int, data: bytes) -> None:
        message = Challenge.decode(data)
        self._from(client, message.context, message.sender)
        if not message.audited <= self.terms.cohort or len(message.audited) > degree.AUDITED:
            raise Abort("the node asks for signatures of nodes that are not in the cohort, or of too many")
        self.certificates[client] = self._certificate(client, message.audited)

    def _after_challenges(self) -> dict[int, bytes]:
        self.phase = "reveal"
        return self.certificates

    def _take_reveal(self, client: int, data: bytes) -> None:
        message = Reveal.decode(data)
        self._from(client, message.context, message.sender)
        owners = {client} | {p for p in self._peers(client) & self.present if client in self.adverts[p][0].neighbours}
        if set(message.seeds) != owners & self.survivors or set(message.keys) != owners - self.survivors:
            raise Abort("the opened shares are not those of the survivors' seeds and the lost nodes' keys")
        for kind, (shares, what) in enumerate(((message.seeds, "seed"), (message.keys, "mask key"))):
            for owner, share in shares.items():
                digests = secrecy.share_digests(self.context, owner, client, (shamir.checked(share),) * 2)
                part = slice(kind * secrecy.DIGEST, (kind + 1) * secrecy.DIGEST)
                if digests[part] != self.digests[owner][client][part]:
                    raise Abort(f"a wrong share of client {owner}'s {what}: the node had accepted another")
        self.reveals[client] = message

    def _after_reveals(self) -> dict[int, bytes]:
        """Removes the masks: the survivors' own, and those that they share with lost nodes."""
        context, bits = self.context, self.terms.bits
        for client in sorted(self.survivors):
            seed = self._join(
                client, {c: r.seeds[client] for c, r in self.reveals.items() if client in r.seeds}, "seed"
            )
            if secrecy.commitment(context, client, seed) != self.adverts[client][0].commitment:
                raise Abort(f"client {client} dealt wrong shares: they do not open the seed to which it is committed")
            vectors.add_stream(self.sum, secrecy.own_mask(context, client, seed), bits, -1)
        for client in sorted(self.present - self.survivors):
            self._remove_pairs(client)
        self.total, self.phase = vectors.clear_high_bits(self.sum, bits), "over"
        return {}

    def _remove_pairs(self, lost: int) -> None:
        """Removes the masks that the survivors share with a lost node."""
        near = self._peers(lost) & self.survivors
        if not near:
            return
        secret = self._join(lost, {c: r.keys[lost] for c, r in self.reveals.items() if lost in r.keys}, "mask key")
        mine = self.adverts[lost][0].mask_key
        if secrecy.mask_public(secret) != mine:
            raise Abort(f"client {lost} dealt wrong shares: they do not open the mask key that it has published")
        private = secrecy.mask_private(secret)
        for client in sorted(near):
            key = secrecy.pair_mask(self.context, private, (lost, mine), (client, self.adverts[client][0].mask_key))
            vectors.add_stream(self.sum, key, self.terms.bits, -1 if client < lost else 1)

    # --- helpers

    def _from(self, client: int, context: bytes, sender: int) -> None:
        if context != self.context or sender != client:
            raise Abort("the reply belongs to another session or another node")

    def _peers(self, client: int) -> Members:
        """The neighbours of a node in the graph: those it chose and those that chose it, as far as they sent adverts."""
        if not self.terms.sparse:
            return frozenset(self.adverts) - {client}
        chosen = self.adverts[client][0].neighbours & set(self.adverts)
        return chosen | {p for p, (advert, _) in self.adverts.items() if client in advert.neighbours}

    def _certificate(self, client: int, audited: Members) -> bytes:
        wanted = self.adverts[client][0].neighbours | {client} | audited
        return Certificate(self.context, {s: self.signatures[s] for s in wanted & set(self.signatures)}).encode()

    def _join(self, owner: int, shares: dict[int, bytes], what: str) -> bytes:
        try:
            return shamir.join(shares, self.terms.threshold)
        except Abort as error:
            raise Abort(f"the {what} of client {owner} cannot be opened: {error}") from None

    def as_dict(self) -> dict[str, Any]:
        """The transcript as JSON types."""
        return dict(self.transcript.__dict__)
