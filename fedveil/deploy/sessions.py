"""A node's sessions of secure aggregation: which round a session is for, and what the protocol's messages make the node do.

The config of a round is checked when its session begins. The model arrives with the third message of the server; only then
the node's ledger is written, the update computed, masked and sent. Secrets are in the memory of this process only: a node
that was restarted takes part again from the next session on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.deploy import node, refusals
from fedveil.deploy.account import now
from fedveil.deploy.limits import Refused
from fedveil.deploy.messages import Payload, Request
from fedveil.deploy.secagg import identity, vectors
from fedveil.deploy.secagg.codec import kind_of
from fedveil.deploy.secagg.errors import Abort
from fedveil.deploy.secagg.member import Member
from fedveil.deploy.secagg.messages import Delivery, Survivors, context_of
from fedveil.deploy.secagg.terms import Terms

LIVE = 4  # sessions that a node takes part in at once: the oldest is dropped for a fifth
MESSAGE, PLAIN = "message", "plain"  # parts of a message besides the model; `plain` in test mode only


class _Session:
    """One session: its round, its member, and the vector before masking in test mode."""

    def __init__(self, home: Path, journal: identity.FileJournal, round_: node.NodeRound, terms: Terms) -> None:
        roster, key = identity.read_roster(home), identity.read_key(home)
        self.round, self.plain = round_, b""
        self.model: Payload = {}
        self.member = Member(terms, round_.request.client, key, roster, journal, self.vector)

    def vector(self) -> np.ndarray:
        """The node's integers: computed once, after the ledger has the round."""
        terms = self.member.terms
        self.round.check_model(self.model, terms)
        found, _ = self.round.computed(self.model, lambda message: self.round.integers(message, len(terms.cohort)))
        if self.round.request.test:
            self.plain = vectors.pack(vectors.reduce(found, terms.bits), terms.bits)
        return found


class Sessions:
    """All sessions of the node in one folder."""

    def __init__(self, home: Path) -> None:
        self.home, self.journal, self.live = home, identity.FileJournal(home), dict[bytes, _Session]()

    def handle(self, fields: Mapping[str, Any], parts: Payload) -> tuple[str, dict[str, bytes]]:
        """The reason of a refusal, or "" and the parts of the reply. The texts of unexpected errors stay on the node."""
        try:
            return "", self._answer(fields, parts)
        except (Refused, Abort) as error:
            return refusals.note(self.home, str(error)), {}
        except Exception:
            return node.log_error(self.home), {}

    def _answer(self, fields: Mapping[str, Any], parts: Payload) -> dict[str, bytes]:
        message = parts.get(MESSAGE, b"")
        if kind_of(message) == Terms.KIND:
            return {MESSAGE: self._begin(Request.read(fields), Terms.decode(message))}
        context = context_of(message)
        if context not in self.live:
            raise Abort("this node takes no part in this session: it was restarted, or the session is too old")
        session = self.live[context]
        session.model = {name: data for name, data in parts.items() if name != MESSAGE}
        try:
            reply = {MESSAGE: session.member.answer(message)}
        finally:
            session.model = {}
            if session.member.over and kind_of(message) in (Delivery.KIND, Survivors.KIND):
                del self.live[context]  # it was refused: the session is over for this node
        if session.plain and kind_of(message) == Delivery.KIND:
            reply[PLAIN] = session.plain
        if kind_of(message) == Survivors.KIND:
            self._remember(session.member)
        return reply

    def _begin(self, request: Request, terms: Terms) -> bytes:
        round_ = node.NodeRound(self.home, request, secure=True)
        round_.check_terms(terms)
        session = _Session(self.home, self.journal, round_, terms)
        advert = session.member.advert()
        for context in [c for c, old in self.live.items() if old.round.request.run == request.run]:
            self._drop(context)  # a run has one session at a time
        while len(self.live) >= LIVE:
            self._drop(next(iter(self.live)))
        self.live[session.member.context] = session
        return advert

    def _drop(self, context: bytes) -> None:
        self.live.pop(context).member.end()

    def _remember(self, member: Member) -> None:
        terms = member.terms
        identity.write_last(
            self.home,
            {
                "run": terms.run,
                "round": terms.round,
                "cohort": len(terms.cohort),
                "survivors": len(member.survivors),
                "quorum": terms.quorum,
                "noise_share": len(member.survivors) / terms.quorum,
                "time": now(),
            },
        )


_of: dict[Path, Sessions] = {}


def of(home: Path) -> Sessions:
    """The sessions of a node's folder in this process."""
    return _of.setdefault(home.resolve(), Sessions(home.resolve()))


def forget(home: Path) -> None:
    """Drops all sessions of a node, as the end of its process does."""
    _of.pop(home.resolve(), None)
