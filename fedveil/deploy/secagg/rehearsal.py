"""All parties of a session in one process: for tests, for measurements of cost, and to try a federation's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.deploy.secagg.aggregator import Aggregator
from fedveil.deploy.secagg.errors import Abort
from fedveil.deploy.secagg.member import Member
from fedveil.deploy.secagg.roster import Roster, new_key, public
from fedveil.deploy.secagg.terms import Terms

Hook = Callable[[str, int, bytes], bytes | None]  # phase, client and message → the message that is delivered, if any


class MemoryJournal:
    """A journal that is forgotten with its process."""

    def __init__(self) -> None:
        self.steps: list[tuple[bytes, str]] = []

    def note(self, context: bytes, step: str) -> None:
        if (context, step) in self.steps:
            raise Abort(f"the step '{step}' of this session is done already")
        self.steps.append((context, step))


@dataclass
class Federation:
    """Nodes in memory, each with a key, a journal and a vector."""

    vectors: Sequence[np.ndarray]
    keys: list[Ed25519PrivateKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keys = self.keys or [new_key() for _ in self.vectors]
        self.roster = Roster({client: public(key) for client, key in enumerate(self.keys)})
        self.journals = [MemoryJournal() for _ in self.vectors]
        self.members: dict[int, Member] = {}

    def run(
        self,
        terms: Terms,
        lost: Mapping[int, str] | None = None,
        to_node: Hook | None = None,
        to_server: Hook | None = None,
    ) -> Aggregator:
        """A whole session. `lost`: client → phase in which it stops answering. The hooks may change every message."""
        server, lost, self.members = Aggregator(terms, self.roster), dict(lost or {}), {}
        messages, gone = server.begin(), set[int]()
        while messages:
            phase, replies, failures = server.phase, dict[int, bytes](), dict[int, str]()
            for client, message in messages.items():
                gone |= {client} if lost.get(client) == phase else set()
                if client in gone:
                    continue
                delivered = to_node(phase, client, message) if to_node else message
                try:
                    reply = None if delivered is None else self.answer(client, delivered)
                    reply = to_server(phase, client, reply) if to_server and reply is not None else reply
                    if reply is not None:
                        replies[client] = reply
                except Abort as error:
                    failures[client] = str(error)
            messages = server.advance(replies, failures)
        return server

    def answer(self, client: int, message: bytes) -> bytes:
        """A node's answer to a message; the first one begins the session."""
        if client not in self.members:
            return self.join(client, message).advert()
        return self.members[client].answer(message)

    def join(self, client: int, message: bytes) -> Member:
        """The node's side of the session with these terms."""
        terms = Terms.decode(message)
        self.members[client] = Member(
            terms, client, self.keys[client], self.roster, self.journals[client], lambda: self.vectors[client]
        )
        return self.members[client]
