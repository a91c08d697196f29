"""Federations in one process, with messages passed directly: real nodes in folders, and nodes that compute nothing."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.config import Config, resolve
from fedveil.deploy import node, sessions
from fedveil.deploy.account import NodeLedger
from fedveil.deploy.files import Member
from fedveil.deploy.messages import Introduction, Payload, ReceivedReply, Reply, Request, Secured
from fedveil.deploy.secagg import identity
from fedveil.federation import prepare

SMALL = {
    "data": {"name": "digits", "clients": 4, "per_client": 60},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"rounds": 3, "per_round": 4, "sampling": "fixed", "local_steps": 2, "batch": 5},
    "defense": [{"name": "fed-cdp", "clip": 1.0, "noise": 1.0}],
}

# Limits of a node that takes part in everything that is certified.
WIDE = "[limits]\nsteps = 1000\nrounds = 1000\nepsilon = 1e6\nmultiplier = 1e-9\nclip = 1e9\nclip_min = 1e-12\n"
WIDE += "floating = true\n"
# Limits of a node that takes part in anything.
UNACCOUNTED = "[limits]\nsteps = 1000\nrounds = 1000\nunaccounted = true\n"


def key_of(client: int) -> str:
    return hashlib.sha256(bytes([client]) * 40).hexdigest()[:32]


def nodes_of(config: Config, below: Path, text: str = "") -> list[Path]:
    """A folder for each client of a config, with its examples and an empty account."""
    federation = prepare(resolve(config))
    homes = []
    for c in range(federation.partition.clients):
        home = below / f"node-{c}"
        home.mkdir(parents=True)
        part = federation.dataset.train.take(federation.partition.client(c))
        np.savez(home / "data.npz", x=part.x, y=part.y)
        (home / "key.pub").write_text(f"ecdsa-sha2-nistp384 {base64.b64encode(bytes([c]) * 40).decode()}\n")
        head = f'client = {c}\ndata = "data.npz"\nclasses = {federation.dataset.classes}\n'
        (home / "node.toml").write_text(head + (text if "[limits]" in text else text + WIDE))
        NodeLedger(home).create()
        homes.append(home)
    return homes


class InMemory:
    """A transport over node folders; `spoil` may change a reply, or drop it by returning None."""

    def __init__(
        self, homes: list[Path], spoil: Callable[[Request, Reply, Payload], tuple[Reply, Payload] | None] | None = None
    ) -> None:
        self.homes, self.spoil = homes, spoil
        self.keys = identity.read_roster(homes[0]) if (homes[0] / identity.ROSTER).exists() else None
        self.sent: list[tuple[Request, Payload]] = []
        self.meddle: Callable[[int, Payload], Payload | None] | None = None  # under secure aggregation: client, parts
        self.received: list[tuple[int, Payload]] = []  # under secure aggregation, in the order of arrival

    def online(self) -> dict[int, Member]:
        return {100 + number: Member(number, key_of(number)) for number in range(len(self.homes))}

    def introduce(self, nodes: list[int], timeout: float) -> dict[int, Introduction]:
        return {number: node.introduce(self.homes[number - 100]) for number in nodes}

    def exchange(
        self, asked: Mapping[int, tuple[Mapping[str, Any], Payload]], timeout: float, largest: int
    ) -> dict[int, Secured]:
        found = {}
        for number, (fields, parts) in asked.items():
            delivered = parts if self.meddle is None else self.meddle(number - 100, parts)
            if delivered is None:
                continue
            refused, reply = sessions.of(self.homes[number - 100]).handle(fields, delivered)
            self.received.append((number - 100, reply))
            found[number] = Secured(reply, refused)
        return found

    def send(self, requests: Mapping[int, tuple[Request, Payload]], timeout: float) -> dict[int, ReceivedReply]:
        found = {}
        for number, (request, parts) in requests.items():
            self.sent.append((request, parts))
            made: tuple[Reply, Payload] | None = node.handle(self.homes[number - 100], request, parts)
            if self.spoil is not None:
                made = self.spoil(request, *made)
            if made is not None:
                found[number] = ReceivedReply(*made)
        return found


class Puppets:
    """Nodes that reply with zeros, or with what `answers` gives for a round and client, and compute nothing."""

    def __init__(self, clients: int = 4) -> None:
        self.clients, self.there, self.keys = clients, set(range(clients)), None
        self.answers: dict[tuple[int, int], Any] = {}  # (round, client) → what comes instead
        self.asked: list[tuple[int, int]] = []

    def online(self) -> dict[int, Member]:
        return {number: Member(number, key_of(number)) for number in sorted(self.there)}

    def introduce(self, nodes: list[int], timeout: float) -> dict[int, Introduction]:
        return {number: Introduction(number, 60, "8,8,1", 10, "float32") for number in nodes}

    def send(self, requests: dict[int, tuple[Request, Payload]], timeout: float) -> dict[int, ReceivedReply]:
        found = {}
        for number, (request, parts) in requests.items():
            self.asked.append((request.round, number))
            change = self.answers.get((request.round, number), lambda reply, sent: (reply, sent))
            zeros = {name: np.load(io.BytesIO(data)) * 0 for name, data in parts.items()}
            made = change(Reply(request.run, request.round, request.client, "", float("nan")), zeros)
            if made is not None:
                found[number] = ReceivedReply(made[0], {name: _npy(a) for name, a in made[1].items()})
        return found


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def silent(*rounds_and_clients: tuple[int, int]) -> dict[tuple[int, int], Any]:
    """`Puppets.answers` in which these clients do not reply in these rounds."""
    return dict.fromkeys(rounds_and_clients, lambda reply, sent: None)
