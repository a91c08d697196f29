"""The executed path: the simulator's own compiled programs and a node's, with records that the audit places.

Cohorts, keys, micro-batches, chunks, programs and the server's step are the simulator's. The audit decides only who takes
part, which record is in which slot of a batch, and after how many local steps a client stops. The first differences of
messages after 0, 1, 2, … steps show the noise of each step alone. Two runs that differ in one record show its contribution
alone: noise is keyed by round, client and step, so it cancels.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.audit.canary import LABEL, Kind, canary_model
from fedveil.core import keys
from fedveil.data.dataset import Dataset, Part
from fedveil.defenses.base import Defense
from fedveil.deploy import node
from fedveil.random import secure
from fedveil.simulation import microbatches
from fedveil.simulation.client import Task
from fedveil.simulation.inputs import ClientInputs, RoundContext
from fedveil.simulation.microbatches import Microbatches
from fedveil.simulation.sampling import Batches, Cohort
from fedveil.simulation.server import ServerRule, ServerState
from fedveil.simulation.simulator import FederatedData, SimulationSettings, Simulator

Leaves = dict[str, np.ndarray]  # "layer/array" → values in float64

MOST_STEPS = 32  # local steps of an audited round
CANARY_STEPS = 4  # local steps on the canary model
_RULE = ServerRule(server_lr=1.0, server_momentum=0.0, keeps_late=False)  # the rest is post-processing


@dataclass(frozen=True)
class Scene:
    """The records that an audit places in a round: rows of the dataset, by client, in the first slots of the batches.

    All other slots are blank. `steps`: the steps that hold the rows (None: all). `made`: every client stops after this many
    steps (None: after all). `fill`: the rows of a client are repeated until its batches are full.
    """

    placed: tuple[tuple[int, tuple[int, ...]], ...] = ()
    steps: tuple[int, ...] | None = None
    made: int | None = None
    fill: bool = False


EMPTY = Scene()


class Path:
    """One model on the executed path: what a client sends and what the server releases, for any scene.

    `forced` is the cohort of every round, None for drawn cohorts. `blank` is the row of a record without a gradient; None:
    blank slots are masked out.
    """

    name = "simulator"

    def __init__(self, simulator: Simulator, blank: int | None = None):
        self.simulator, self.task, self.blank = simulator, simulator.task, blank
        self.forced: Cohort | None = None
        self._models: dict[float, ServerState] = {}

    def in_whole_batches(self) -> Self:
        """The same path without micro-batches."""
        made = copy.copy(self)
        made.simulator = self.simulator.variant(microbatches=None)
        return made

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
        chunks = sim.chunks(Cohort.only([client]), number, partial(self.place, scene))
        summed = sim.collect(self.state(factor), number, chunks)
        return _leaves(summed.total, float(sim.weights[client]))

    def change(self, number: int, scene: Scene, factor: float = 0.0) -> Leaves:
        """What a whole round adds to the released model: cohort, clients, aggregation and the server's step."""
        sim, state = self.simulator, self.state(factor)
        before = _leaves(state.params)
        cohort = sim.cohort(state, number) if self.forced is None else self.forced
        after = sim.run(state, number, sim.chunks(cohort, number, partial(self.place, scene)))
        return subtract(_leaves(after.params), before)

    def examples(self, number: int, client: int, records: np.ndarray) -> tuple[Leaves, int]:
        """What the tap `example` shows in the first step of a client, [slots, ...], and how many slots are filled.

        `records` [n, ...] are in the first slots of the batch; all others are blank. Nothing is shown of batches that
        would need a program of another width.
        """
        sim = self.simulator
        batches = sim.observed_batches(number, [client], 1)
        if batches.mask.shape[2] != self._usual_width:
            return {}, 0
        drawn = batches.index[0, 0][batches.mask[0, 0]]
        fits = min(len(drawn), len(records))
        if fits:
            sim = sim.variant(x=sim.x.at[drawn[:fits]].set(jnp.asarray(records[:fits], sim.x.dtype)))
        shown = sim.observe(self.state(0.0), number, client, frozenset({"example"}), (0,))["example"][0]
        return _leaves(shown), len(drawn)

    @cached_property
    def _usual_width(self) -> int:
        """The commonest width of first batches."""
        clients = range(min(32, self.task.setting.clients))
        widths = [self.simulator.observed_batches(0, [c], 1).mask.shape[2] for c in clients]
        return max(set(widths), key=widths.count)

    def reseed(self, seed: int) -> None:
        self.simulator = self.simulator.variant(seed=seed, draws=keys.Draws(seed))

    # --- the scene

    def place(self, scene: Scene, cohort: Cohort, drawn: Batches | Microbatches) -> Batches | Microbatches:
        """The batches of a cohort with the records of a scene in place of those that were drawn."""
        batches = jax.tree.map(np.array, drawn)
        if self.blank is None:
            batches.mask[:] = False
        else:
            batches.index[:] = self.blank
        held = dict(scene.placed)
        for row, client in enumerate(cohort.clients):
            if int(client) in held:
                self._fill(scene, batches, row, held[int(client)])
        if scene.made is not None:
            if isinstance(batches, Microbatches):
                batches.last[:] &= batches.step < scene.made
            else:
                batches.steps[:] = np.minimum(batches.steps, scene.made)
        return batches

    def _fill(self, scene: Scene, batches: Batches | Microbatches, row: int, rows: tuple[int, ...]) -> None:
        """Puts the rows into the first slots of each step's batch (of its first micro-batch)."""
        index, mask = batches.index[row], batches.mask[row]
        if scene.fill:
            rows = tuple(np.resize(rows, min(index.shape[1], int(self.simulator.partition.length.max()))))
        for step in range(self.task.setting.local_steps) if scene.steps is None else scene.steps:
            at = int(np.argmax(batches.step[row] == step)) if isinstance(batches, Microbatches) else step
            index[at, : len(rows)], mask[at, : len(rows)] = rows, True


class NodePath:
    """The same messages from a deployed node's program, under ChaCha keys that follow from a secret of the audit."""

    name = "node"

    def __init__(self, path: Path):
        self.path, self.task = path, path.task

    @property
    def simulator(self) -> Simulator:
        return self.path.simulator

    @property
    def blank(self) -> int | None:
        return self.path.blank

    def message(self, number: int, client: int, scene: Scene, factor: float = 0.0) -> Leaves:
        """What a node sends in a round."""
        sim, cohort = self.simulator, Cohort.only([client])
        batches = jax.tree.map(lambda a: a[0], self.path.place(scene, cohort, sim.whole_batches(cohort, number)))
        with jax.enable_x64(self.task.dtype == "float64"):
            state = self.path.state(factor)
            inputs = sim.inputs(state, number)
            keys = self._key(number, client), self._key(number, -1)
            context = RoundContext(*keys, jnp.int32(number), inputs.lr, client)
            known = jax.tree.map(lambda a: a[client], state.clients)
            own = ClientInputs(client, 0, batches, state=known)
            return _leaves(node.local_round(self.task, inputs, state.params, own, context).message)

    def _key(self, number: int, client: int) -> Any:
        return secure.key_of(hashlib.sha256(f"audit {self.simulator.seed} {number} {client}".encode()).digest())


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
    return Path(_simulator(like, audited_task(like.task, defenses, MOST_STEPS), like.dataset, seed))


def canary_path(like: Simulator, defenses: tuple[Defense, ...], width: int, seed: int, room: int = 256) -> CanaryPath:
    """The canary model in the same federation; the last `room` rows of its dataset are free for canaries."""
    task = audited_task(like.task, defenses, CANARY_STEPS)
    model, kinds = canary_model(task.model, task.setting.layers, width)
    task = replace(task.exact, model=model, scale=1.0)
    count = len(like.dataset.train) + room
    x = np.zeros((count, len(kinds) + 1 + width), task.dtype)
    part = Part(x, np.full(count, LABEL, np.int32))
    dataset = replace(like.dataset, name="canaries", train=part, held_out=part.take(np.arange(1)), classes=2)
    return CanaryPath(_simulator(like, task, dataset, seed), kinds, width, count - room)


class CanaryPath(Path):
    """The canary model: records are set by the audit, row by row."""

    def __init__(self, simulator: Simulator, kinds: tuple[Kind, ...], width: int, first: int):
        super().__init__(simulator, blank=0)
        self.kinds, self.width, self.first = kinds, width, first

    @property
    def records(self) -> int:
        """The number of values in a record."""
        return len(self.kinds) + 1 + self.width

    def put(self, records: np.ndarray) -> tuple[int, ...]:
        """Writes records [n, ...] into the free rows; returns the rows."""
        x = np.array(self.simulator.x)  # on the host: on the device, every number of records would be a program
        rows = slice(self.first, self.first + len(records))
        x[rows] = records
        self.simulator = self.simulator.variant(x=jax.device_put(x))
        return tuple(range(rows.start, rows.stop))


def _simulator(like: Simulator, task: Task, dataset: Dataset, seed: int) -> Simulator:
    """A simulator of the same federation, with micro-batches as wide as the user's."""
    steps = task.setting.local_steps
    drawn = replace(like.sampling, local_steps=steps, local_epochs=None)
    shape = None
    if like.microbatches is not None:
        width, largest = like.microbatches.width, int(like.partition.max_length)
        count = microbatches.needed(largest, drawn.rate(largest), width, steps, like.chunk)
        shape = microbatches.Shape(width, count)
    settings = SimulationSettings(seed, keys.Draws(seed), faults=False, chunk=like.chunk, microbatches=shape)
    return Simulator(task, _RULE, FederatedData(dataset, like.partition, drawn), settings)
