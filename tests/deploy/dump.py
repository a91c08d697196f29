"""Everything that the server receives in a run under secure aggregation, and what attacks make of it.

    python tests/deploy/dump.py ROUNDS >> docs/data/secagg-dump.jsonl

Nodes and server are in one process; the messages are those that would go over the network, byte for byte. Three runs, in
test mode so that the truth is known: updates without any noise, sent one by one and under masks, and Fed-CDP with `cohort`
noise in whole numbers under masks. Each vector that the server receives of a node is read as that node's gradient and
given to the reconstruction attacks. Masks are drawn from the operating system's entropy in test mode, too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from deploy_memory import UNACCOUNTED, InMemory, nodes_of
from scipy import stats

from fedveil.attacks import taps
from fedveil.attacks.base import Execution, ReconstructionAttack
from fedveil.attacks.guess import guess
from fedveil.attacks.observation import of_gradients
from fedveil.attacks.reconstruction.aono import Aono
from fedveil.attacks.reconstruction.cpl import CPL
from fedveil.attacks.reconstruction.dlg import DLG
from fedveil.attacks.reconstruction.inverting import Inverting
from fedveil.attacks.score import RULES, score
from fedveil.config import Config, from_dict, resolve
from fedveil.deploy import encoding
from fedveil.deploy.coordinator import Terms, conduct
from fedveil.deploy.messages import Payload, Reply, Request, unpack
from fedveil.deploy.secagg import identity, messages, vectors
from fedveil.deploy.secagg.codec import kind_of
from fedveil.deploy.secagg.messages import Masked
from fedveil.federation import Federation, prepare
from fedveil.runs import RunFolder

Tree = Any
CLEAR, MASKED, COHORT = "in the clear, no noise", "under masks, no noise", "under masks, cohort noise"
KINDS = {kind.KIND: kind for kind in (messages.Advert, messages.Shares, Masked, messages.Signed, messages.Reveal)}
LONG = 10.0  # norm of a vector that is no gradient
ATTACKS: tuple[ReconstructionAttack, ...] = (
    Aono(), CPL(iterations=40), DLG(iterations=60), Inverting(iterations=1200),
)  # fmt: skip


def config_of(what: str, rounds: int) -> Config:
    """One example is in a batch on average; the learning rate is small, so that the model stays one that leaks."""
    train = {"rounds": rounds, "per_round": 4, "sampling": "fixed", "local_steps": 1, "batch": 1, "batching": "poisson",
             "lr": 0.01, "noise_seed": 3, "secure_aggregation": what != CLEAR, "eval_every": 10_000}  # fmt: skip
    defense: dict[str, Any] = {"name": "none"}
    if what == COHORT:
        train |= {"quorum": 0.75}
        defense = {"name": "fed-cdp", "placement": "cohort", "clip": 1.0, "noise": 6.0, "clip_scope": "flat",
                   "arithmetic": "integer"}  # fmt: skip
    model = {"name": "mlp", "hidden": [16], "activation": "sigmoid"}
    data = {"name": "digits", "clients": 4, "per_client": 60}
    return from_dict({"data": data, "model": model, "train": train, "defense": [defense]})


@dataclass
class Dump:
    """What the server received, by round; and the model that it had sent."""

    what: str
    federation: Federation
    models: dict[int, Tree] = field(default_factory=dict)
    vectors: dict[tuple[int, int], Tree] = field(default_factory=dict)  # by round and client: read as gradients
    bare: dict[tuple[int, int], Tree] = field(default_factory=dict)  # the same before masking, which no server receives
    received: list[tuple[int, int, bytes]] = field(default_factory=list)  # round, client, message of the protocol


def dumped(what: str, rounds: int, below: Path, change: Any = None) -> Dump:
    """Makes a run and keeps what its server receives. `change` may alter the nodes' folders beforehand."""
    config = config_of(what, rounds)
    homes = nodes_of(config, below, "test = true\n" + UNACCOUNTED)
    identity.make_keys(dict(enumerate(homes)))
    if change is not None:
        change(homes)
    dump = Dump(what, prepare(resolve(config)))
    nodes = Recorder(homes, dump)
    result = conduct(config, nodes, RunFolder.create(below / "run"), Terms(test=True))
    assert result["rounds"] == rounds and result["clients_lost"] == 0
    return dump


class Recorder(InMemory):
    """A transport that keeps all messages."""

    def __init__(self, homes: list[Path], dump: Dump) -> None:
        super().__init__(homes, self.of_reply)
        self.dump, self.round, self.like = dump, -1, dump.federation.simulator.start().params

    def exchange(
        self, asked: Mapping[int, tuple[Mapping[str, Any], Payload]], timeout: float, largest: int
    ) -> dict[int, Any]:
        for fields, parts in asked.values():
            self.round = int(fields.get("round", self.round))
            model = {name: data for name, data in parts.items() if name != "message"}
            if model:
                self.dump.models[self.round] = unpack(model, self.like)
        found = super().exchange(asked, timeout, largest)
        for number, reply in found.items():
            assert not reply.refused, reply.refused
            self.keep(number - 100, reply.parts)
        return found

    def keep(self, client: int, parts: Payload) -> None:
        self.dump.received.append((self.round, client, parts["message"]))
        if kind_of(parts["message"]) == Masked.KIND:
            at = (self.round, client)
            self.dump.vectors[at] = self.as_gradient(Masked.decode(parts["message"]).vector)
            self.dump.bare[at] = self.as_gradient(parts["plain"])

    def as_gradient(self, packed: bytes) -> Tree:
        """The integers of a message, read as an update and divided by the learning rate."""
        task, lr = self.dump.federation.simulator.task, self.lr
        grid = encoding.FixedPoint.of(task, self.round, lr)
        total = vectors.unpack(packed, encoding.length(self.like), grid.bits)
        return jax.tree.map(lambda a: -np.asarray(a, np.float64) / lr, grid.decode(total, self.like))

    @property
    def lr(self) -> float:
        return float(self.dump.federation.simulator.task.setting.lr_at(self.round))

    def of_reply(self, request: Request, reply: Reply, update: Payload) -> tuple[Reply, Payload]:
        """A reply without secure aggregation. The models that were sent are those of `sent`."""
        assert not reply.refused, reply.refused
        self.round = request.round
        self.dump.models[self.round] = unpack(self.sent[-1][1], self.like)
        at = (request.round, request.client)
        self.dump.vectors[at] = jax.tree.map(lambda a: -np.asarray(a) / self.lr, unpack(update, self.like))
        return reply, update


# --- attacks


def attacked(dump: Dump, attack: ReconstructionAttack, most: int = 200, bare: bool = False) -> dict[str, Any]:
    """The attack on each vector with one example behind it: how often it rebuilds the example, and how often a guess."""
    federation = dump.federation
    chosen, x, y = [], [], []
    for at in dump.vectors:
        truth_x, truth_y = taps.truth_at_tap(federation, at[0], [at[1]], "client")
        if truth_y.shape[1] == 1 and len(chosen) < most:
            chosen, x, y = [*chosen, at], [*x, truth_x[0]], [*y, truth_y[0]]
    given = dump.bare if bare else dump.vectors
    stack = partial(jax.tree.map, lambda *leaves: np.stack(leaves))
    seen = of_gradients(
        federation.simulator.task.model, stack(*[dump.models[r] for r, _ in chosen]),
        stack(*[scaled(given[at]) for at in chosen]), federation.dataset.shape, federation.dataset.classes,
        own_params=True, ids=np.arange(len(chosen)),
    )  # fmt: skip
    done = attack.run(seen, Execution())
    rule, known = RULES["ssim"], taps.examples_as_seen(federation.dataset, federation.dataset.held_out, slice(256)).x
    scores, guessed = score(done, np.stack(x), np.stack(y), "ssim"), guess(np.stack(x), np.stack(y), known, rule)
    said = scores.summary()
    return {
        "what": dump.what + (", before masking" if bare else ""), "attack": attack.name, "rounds": len(dump.models),
        "vectors": len(chosen), "rebuilt": int(scores.success.sum()), "guess_rate": guessed.rate,
        "best_ssim": round(float(scores.items.ssim.max()), 3), "mean_ssim": round(said["ssim"], 3),
        "guess_ssim": round(float(guessed.match or 0), 3), "labels": round(said["label_success_rate"], 3),
        "label_guess": round(guessed.label_rate, 3), "failed": said["failed"],
    }  # fmt: skip


def scaled(gradient: Tree) -> Tree:
    """A vector that is too long for a gradient gets norm 1: otherwise attacks that compare lengths could not even start."""
    norm = np.sqrt(sum(float(np.square(a).sum()) for a in jax.tree.leaves(gradient)))
    return gradient if norm < LONG else jax.tree.map(lambda a: a / norm, gradient)


# --- statistics


def uniform(dump: Dump) -> dict[str, float]:
    """p of the chi-square test that all byte values are equally frequent, in masked vectors and in encrypted shares."""
    vectors_, shares = list[bytes](), list[bytes]()
    for _, _, message in dump.received:
        if kind_of(message) == Masked.KIND:
            vectors_.append(Masked.decode(message).vector)
        if kind_of(message) == messages.Shares.KIND:
            shares += list(messages.Shares.decode(message).sealed.values())
    return {"masked": _chi_square(b"".join(vectors_)), "shares": _chi_square(b"".join(shares))}


def _chi_square(data: bytes) -> float:
    return float(stats.chisquare(np.bincount(np.frombuffer(data, np.uint8), minlength=256)).pvalue)


def told_apart(one: Dump, other: Dump, kind: int | None) -> tuple[int, int]:
    """Hits and tries of a fitted attack that guesses from one message of client 0 which of two runs it belongs to.

    The attack is a logistic regression on the bits of the message, fitted on half of the rounds. Without a kind it reads
    the vectors before masking: the check that it can win.
    """
    from sklearn.linear_model import LogisticRegression

    read = [_messages(dump, kind) if kind is not None else _bare(dump) for dump in (one, other)]
    bits = np.concatenate([np.unpackbits(np.stack(rows), axis=1) for rows in read]).astype(np.float32)
    labels = np.repeat([0, 1], [len(rows) for rows in read])
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    fitted = LogisticRegression(max_iter=200).fit(bits[train], labels[train])
    return round(fitted.score(bits[test], labels[test]) * len(test)), len(test)


def _messages(dump: Dump, kind: int) -> list[np.ndarray]:
    return [np.frombuffer(m, np.uint8) for _, client, m in dump.received if client == 0 and kind_of(m) == kind]


def _bare(dump: Dump) -> list[np.ndarray]:
    flat = (np.concatenate([a.ravel() for a in jax.tree.leaves(tree)]) for (_, c), tree in dump.bare.items() if c == 0)
    return [a.astype(np.float32).view(np.uint8) for a in flat]


def other_data(homes: list[Path]) -> None:
    """Client 0 gets other examples: black pictures of one class."""
    with np.load(homes[0] / "data.npz") as stored:
        x, y = np.zeros_like(stored["x"]), np.zeros_like(stored["y"])
    np.savez(homes[0] / "data.npz", x=x, y=y)


def statistics(dump: Dump, other: Dump) -> dict[str, Any]:
    """All statistics of two runs that differ in the data of client 0."""
    found = {kind.__name__.lower(): told_apart(dump, other, number) for number, kind in KINDS.items()}
    return {"what": dump.what, "rounds": len(dump.models), "chi_square_p": uniform(dump), "told_apart": found,
            "before_masking": told_apart(dump, other, None)}  # fmt: skip


def main(rounds: int) -> None:
    for kind in (CLEAR, MASKED, COHORT):
        with tempfile.TemporaryDirectory() as folder:
            found = dumped(kind, rounds, Path(folder) / "one")
            if found.received:
                other = dumped(kind, rounds, Path(folder) / "other", other_data)
                print(json.dumps(statistics(found, other)), flush=True)
        for one in ATTACKS:
            print(json.dumps(attacked(found, one)), flush=True)
            if kind == COHORT:
                print(json.dumps(attacked(found, one, bare=True)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
