"""The executed path: the simulator's own compiled programs and a node's, fed with records that the audit places.

Cohorts, keys, micro-batches, chunks, programs, the server's step: all are the simulator's. The audit decides only who takes
part, which record is where in a batch, and after how many local steps a client stops. The first differences of messages
after 0, 1, 2, … steps show each step's noise alone, and two runs that differ in one record show its contribution alone,
since noise is keyed by round, client and step and so cancels.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.audit.canary import LABEL, Kind, canary_model
from fedveil.core import keys
from fedveil.data.dataset import Dataset, Part
from fedveil.defenses.base import Defense
from fedveil.deploy import node
from fedveil.random import secure
from fedveil.simulation import microbatches, sampling
from fedveil.simulation.client import RoundContext, Task
from fedveil.simulation.server import ServerRule, ServerState
from fedveil.simulation.simulator import Simulator

Leaves = dict[str, np.ndarray]  # "layer/array" → values in float64

MOST_STEPS = 32  # local steps of an audited round, and
CANARY_STEPS = 4  # on the canary model
_RULE = ServerRule(server_lr=1.0, server_momentum=0.0, keeps_late=False)  # the rest is post-processing


@dataclass(frozen=True)
class Scene:
    """What the clients of a round hold: rows of the dataset in the first slots of their batches, by client.

    All other slots are blank. `steps`: the steps in which the rows are there (None: all). `made`: after how many steps
    every client stops (None: all). `fill`: each row of a client is repeated until its batches are full.
    """

    placed: tuple[tuple[int, tuple[int, ...]], ...] = ()
    steps: tuple[int, ...] | None = None
    made: int | None = None
    fill: bool = False


EMPTY = Scene()


class Placed(Simulator):
    """A simulator whose records, and where wanted cohorts, are placed by the audit."""

    scene = EMPTY
    forced: sampling.Cohort | None = None
    blank: int | None = None  # the row of a record without gradient; None: blank slots are masked out
    in_microbatches = True
    faults = (0.0, 0.0)  # every chosen client answers, in its own round

    def cohort(self, state: ServerState, number: int) -> sampling.Cohort:
        return super().cohort(state, number) if self.forced is None else self.forced

    def _batches(self, part: sampling.Cohort, number: int) -> tuple[np.ndarray, ...]:
        cut, self.cut = self.cut, self.cut if self.in_microbatches else None
        arrays = [np.array(a) for a in super()._batches(part, number)]
        self.cut = cut
        self._clear(arrays[0], arrays[1])
        held = dict(self.scene.placed)
        for place, client in enumerate(part.clients):
            if int(client) in held:
                self._place(arrays, place, held[int(client)])
        if self.scene.made is not None:
            if len(arrays) == 3:
                arrays[2][:] = np.minimum(arrays[2], self.scene.made)
            else:
                arrays[3][:] &= arrays[2] < self.scene.made
        return tuple(arrays)

    def _clear(self, index: np.ndarray, mask: np.ndarray) -> None:
        if self.blank is None:
            mask[:] = False
        else:
            index[:] = self.blank

    def _place(self, arrays: list[np.ndarray], client: int, rows: tuple[int, ...]) -> None:
        """Puts the rows into the first slots of each step's batch (of its first part, where it has parts)."""
        index, mask = arrays[0][client], arrays[1][client]
        if self.scene.fill:
            rows = tuple(np.resize(rows, min(index.shape[1], int(self.partition.length.max()))))
        last = self.task.setting.local_steps
        for step in range(last) if self.scene.steps is None else self.scene.steps:
            at = step if len(arrays) == 3 else int(np.argmax(arrays[2][client] == step))
            index[at, : len(rows)], mask[at, : len(rows)] = rows, True


class Path:
    """One model on the executed path: what a client sends and what the server releases, for any scene."""

    name = "simulator"

    def __init__(self, simulator: Placed):
        self.simulator, self.task = simulator, simulator.task
        self._models: dict[float, ServerState] = {}

    def state(self, factor: float) -> ServerState:
        """The state before the first round, every parameter of the first model times a factor: an adversary at the server
        may send any model."""
        if factor not in self._models:
            started = self.simulator.start()
            params = jax.tree.map(lambda a: a * factor, started.params)
            self._models[factor] = replace(started, params=params)
        return jax.tree.map(jnp.copy, self._models[factor])

    def message(self, number: int, client: int, scene: Scene, factor: float = 0.0) -> Leaves:
        """What one client sends in a round, by the training program of its chunk, as a difference to the server's model."""
        sim = self.simulator
        sim.scene = scene
        with jax.enable_x64(self.task.dtype == "float64"):
            lr = jnp.asarray(sim.task.setting.lr_at(number), self.task.dtype)
            summed, _ = sim._collect_vectorised(self.state(factor), alone(client), number, sim.round_key(number), lr)
            return _leaves(summed.total, float(sim.weights[client]))

    def change(self, number: int, scene: Scene, factor: float = 0.0) -> Leaves:
        """What a whole round adds to the released model: cohort, clients, aggregation and the server's step."""
        sim = self.simulator
        sim.scene = scene
        with jax.enable_x64(self.task.dtype == "float64"):
            state = self.state(factor)
            before = _leaves(state.params)
            after, _ = sim.round(state, number)
            return subtract(_leaves(after.params), before)

    def examples(self, number: int, client: int, records: np.ndarray) -> tuple[Leaves, int]:
        """What the tap `example` shows in the first step of a client, [slots, ...], and how many slots are filled.

        `records` [n, ...] stand in the first slots of the batch; all others are blank. Nothing is shown of batches that
        would need a program of another width.
        """
        sim = self.simulator
        batches = sim._whole_batches(number, [client], 1)
        if batches.mask.shape[2] != self._usual_width:
            return {}, 0
        drawn = batches.index[0, 0][batches.mask[0, 0]]
        kept = sim.x
        fits = min(len(drawn), len(records))
        if fits:
            sim.x = kept.at[drawn[:fits]].set(jnp.asarray(records[:fits], kept.dtype))
        with jax.enable_x64(self.task.dtype == "float64"):
            shown = sim.observe(self.state(0.0), number, client, frozenset({"example"}), (0,))["example"][0]
        sim.x = kept
        return _leaves(shown), len(drawn)

    @cached_property
    def _usual_width(self) -> int:
        """The commonest width of first batches."""
        clients = range(min(32, self.task.setting.clients))
        widths = [self.simulator._whole_batches(0, [c], 1).mask.shape[2] for c in clients]
        return max(set(widths), key=widths.count)

    def reseed(self, seed: int) -> None:
        draws = keys.Draws(seed)
        self.simulator.seed, self.simulator.draws, self.simulator._root = seed, draws, draws.root()


class NodePath:
    """The same messages from a deployed node's program, under its ChaCha keys: each follows from a secret of the audit."""

    name = "node"

    def __init__(self, path: Path):
        self.path, self.simulator, self.task = path, path.simulator, path.task

    def message(self, number: int, client: int, scene: Scene, factor: float = 0.0) -> Leaves:
        """What a node sends in a round."""
        sim, task = self.simulator, self.task
        sim.scene, sim.in_microbatches = scene, False
        index, mask, steps = (a[0] for a in sim._batches(alone(client), number))
        sim.in_microbatches = True
        with jax.enable_x64(task.dtype == "float64"):
            state = self.path.state(factor)
            lr = jnp.asarray(sim.task.setting.lr_at(number), task.dtype)
            moment = RoundContext(self._key(number, client), self._key(number, -1), jnp.int32(number), lr)
            model = state.params  # as sent and as received
            known = jax.tree.map(lambda a: a[client], state.clients)
            message, _, _ = node._whole(task, model, model, sim.x, sim.y, index, mask, steps, known, moment)
            return _leaves(message)

    def _key(self, number: int, client: int) -> Any:
        return secure.key_of(hashlib.sha256(f"audit {self.simulator.seed} {number} {client}".encode()).digest())


def alone(client: int) -> sampling.Cohort:
    """A cohort of one."""
    return sampling.Cohort(np.array([client]), np.zeros(1, np.int64), np.zeros(1, bool), 1, 0)


def _leaves(tree: Any, divisor: float = 1.0) -> Leaves:
    flat = jax.tree_util.tree_flatten_with_path(jax.device_get(tree))[0]
    return {"/".join(str(k.key) for k in path): np.asarray(a, np.float64) / divisor for path, a in flat}


def subtract(one: Leaves, other: Leaves) -> Leaves:
    return {name: a - other[name] for name, a in one.items()}


# --- the two models that are audited


def audited_task(task: Task, defenses: tuple[Defense, ...], most: int) -> Task:
    """The task with steps that may end early, plain SGD (what comes after the noise is post-processing), few steps."""
    setting = replace(task.setting, local_steps=min(task.setting.local_steps, most))
    return replace(task, setting=setting, defenses=defenses, optimizer="sgd", ragged_steps=True)


def own_path(like: Simulator, defenses: tuple[Defense, ...], seed: int) -> Path:
    """The user's own model on its own data."""
    task = audited_task(like.task, defenses, MOST_STEPS)
    simulator = _placed(like, task, like.dataset, seed)
    return Path(simulator)


def canary_path(like: Simulator, defenses: tuple[Defense, ...], width: int, seed: int, room: int = 256) -> CanaryPath:
    """The canary model in the same federation; the last `room` rows of its dataset are free for canaries."""
    task = audited_task(like.task, defenses, CANARY_STEPS)
    model, kinds = canary_model(task.model, task.setting.layers, width)
    task = replace(task, model=model, scale=1.0, half=False)
    count = len(like.dataset.train) + room
    x = np.zeros((count, len(kinds) + 1 + width), task.dtype)
    part = Part(x, np.full(count, LABEL, np.int32))
    dataset = replace(like.dataset, name="canaries", train=part, held_out=part.take(np.arange(1)), classes=2)
    simulator = _placed(like, task, dataset, seed)
    simulator.blank = 0
    return CanaryPath(simulator, kinds, width, count - room)


class CanaryPath(Path):
    """The canary model: records are set by the audit, row by row."""

    def __init__(self, simulator: Placed, kinds: tuple[Kind, ...], width: int, first: int):
        super().__init__(simulator)
        self.kinds, self.width, self.first = kinds, width, first

    @property
    def records(self) -> int:
        """Numbers in a record."""
        return len(self.kinds) + 1 + self.width

    def put(self, records: np.ndarray) -> tuple[int, ...]:
        """Writes records [n, ...] into the free rows; returns the rows."""
        sim = self.simulator
        sim.x = sim.x.at[self.first : self.first + len(records)].set(jnp.asarray(records, sim.x.dtype))
        return tuple(range(self.first, self.first + len(records)))


def _placed(like: Simulator, task: Task, dataset: Dataset, seed: int) -> Placed:
    """A simulator of the same federation, with batches cut the way the user's are."""
    law = replace(like.law, local_steps=task.setting.local_steps, local_epochs=None)
    draws = keys.Draws(seed)
    made = Placed(task, _RULE, dataset, like.partition, law, draws=draws, seed=seed, chunk=like.chunk)
    made.cut = None
    if like.cut is not None:
        largest = int(like.partition.max_length)
        needed = microbatches._parts_needed(
            largest, law.rate(largest), like.cut.width, task.setting.local_steps, like.chunk
        )
        made.cut = microbatches.Shape(like.cut.width, needed)
    return made
