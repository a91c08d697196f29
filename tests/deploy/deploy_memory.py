"""A federation of node folders in one process: what Flower carries, handed over directly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedveil.config import Config, resolve
from fedveil.deploy import node
from fedveil.deploy.account import NodeLedger
from fedveil.deploy.messages import Introduction, Payload, ReceivedReply, Reply, Request
from fedveil.federation import prepare

SMALL = {
    "data": {"name": "digits", "clients": 4, "per_client": 60},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"rounds": 3, "per_round": 4, "sampling": "fixed", "local_steps": 2, "batch": 5},
    "defense": [{"name": "fed-cdp", "clip": 1.0, "noise": 1.0}],
}


def nodes_of(config: Config, below: Path, text: str = "") -> list[Path]:
    """A folder for each client of a config, with its examples and an empty account."""
    federation = prepare(resolve(config))
    homes = []
    for c in range(federation.partition.clients):
        home = below / f"node-{c}"
        home.mkdir(parents=True)
        part = federation.dataset.train.take(federation.partition.client(c))
        np.savez(home / "data.npz", x=part.x, y=part.y)
        head = f'client = {c}\ndata = "data.npz"\nclasses = {federation.dataset.classes}\n'
        (home / "node.toml").write_text(head + text)
        NodeLedger(home).create()
        homes.append(home)
    return homes


class InMemory:
    """An exchange over node folders; `spoil` may change an answer, or drop it by returning None."""

    def __init__(
        self, homes: list[Path], spoil: Callable[[Request, Reply, Payload], tuple[Reply, Payload] | None] | None = None
    ) -> None:
        self.homes, self.spoil = homes, spoil
        self.sent: list[tuple[Request, Payload]] = []

    def online(self) -> list[int]:
        return [100 + place for place in range(len(self.homes))]

    def introduce(self, nodes: list[int], timeout: float) -> dict[int, Introduction]:
        return {number: node.introduce(self.homes[number - 100]) for number in nodes}

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
