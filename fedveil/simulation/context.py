"""What defences may compute with the federation before training, and with the server's public data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.core import keys
from fedveil.core.stage import StageContext
from fedveil.data.dataset import Dataset
from fedveil.data.partition import Partition
from fedveil.models.layers import Array, Params
from fedveil.models.net import Model
from fedveil.simulation import client as client_part
from fedveil.simulation import sampling as draw
from fedveil.simulation.client import Task
from fedveil.simulation.inputs import Batch, ClientInputs, RoundContext, RoundInputs
from fedveil.simulation.sampling import BatchSampling, Cohort

Tree = Any
Measure = Callable[[Model, Params, Array, Array, Array], Tree]  # (model, params, x, y, present) → measurement

CHUNK = 20  # clients at once; a constant, so that nothing in [speed] can change what is measured
MOST = 1000  # examples of a client that are measured, evenly spread over its data


@dataclass(frozen=True, eq=False)
class FederationContext:
    """A federation as a defence sees it before the first round (`defenses.base.DefenseContext`)."""

    task: Task  # without defences
    dataset: Dataset
    partition: Partition
    sampling: BatchSampling
    draws: keys.Draws

    @property
    def model(self) -> Model:
        return self.task.model

    def measure_clients(self, params: Params, measure: Measure, validation: float = 0.0) -> Tree:
        """[clients, ...]: each client pre-trains from `params` and measures the result on its own data.

        Pre-training is one round's local steps, with batches that training never draws. `validation`: the share of each
        client's examples that pre-training leaves out and that are measured; 0: all are trained on and measured.
        """
        measured, partition = self.partition.set_aside(validation) if validation else (self.partition, self.partition)
        task = self._task_on(partition)
        after = task.setting.rounds  # the number of a round that training never reaches
        key, lr = keys.round_key(self.draws.root(), after), jnp.asarray(task.setting.lr, task.dtype)
        chunk = min(CHUNK, partition.clients)
        widths = draw.batch_widths(self.sampling, partition, chunk * task.setting.local_steps)
        x, y = jnp.asarray(self.dataset.train.x), jnp.asarray(self.dataset.train.y)
        inputs = RoundInputs(params, x, y, key, after, lr)

        def one(inputs: RoundInputs, own: ClientInputs, rows: Array, present: Array) -> Tree:
            update = client_part.client_round(task, inputs, own).message
            trained = jax.tree.map(jnp.add, inputs.params, update)
            examples = inputs.x[rows].astype(task.dtype) * jnp.asarray(task.scale, task.dtype)
            return measure(task.model, trained, examples, inputs.y[rows], present)

        together = jax.jit(jax.vmap(one, in_axes=(None, 0, 0, 0)))
        found = []
        for first in range(0, partition.clients, chunk):
            ids = np.arange(first, first + chunk) % partition.clients  # the last chunk is filled up, truncated below
            cohort = Cohort.only(ids)
            drawn = draw.draw_batches(self.sampling, partition, self.draws, after, cohort, widths)
            own = ClientInputs(ids, cohort.occurrence, drawn, np.ones(chunk, task.dtype), cohort.late)
            found.append(together(inputs, own, *measured_rows(measured, ids)))
        return jax.tree.map(lambda *parts: jnp.concatenate(parts)[: partition.clients], *found)

    def _task_on(self, partition: Partition) -> Task:
        """The task with the local steps of clients of these sizes."""
        steps = {self.sampling.steps_for(int(size)) for size in np.unique(partition.length)}
        setting = replace(self.task.setting, local_steps=max(steps))
        return replace(self.task, setting=setting, ragged_steps=len(steps) > 1)

    def public_epoch(self, params: Params, at: StageContext) -> Params:
        """One epoch over the public set, in a fresh order, by the local optimiser and its learning rate."""
        public = self.dataset.public
        assert public is not None
        # Public batches need no nominal divisor: each is divided by its number of examples.
        task = replace(self.task, setting=replace(self.task.setting, batching="shuffle"))
        size, count = min(task.setting.batch, len(public)), len(public)
        steps = math.ceil(count / size)
        order_key, step_key = jax.random.split(at.key)
        order = jnp.resize(jax.random.permutation(order_key, count), (steps * size,)).reshape(steps, size)
        mask = (jnp.arange(steps * size) < count).reshape(steps, size)
        x, y = jnp.asarray(public.x), jnp.asarray(public.y)
        context = RoundContext(step_key, at.shared, at.round, at.lr)

        def step(local: Any, inputs: Any) -> Any:
            number, rows, present = inputs
            return client_part.step(task, local, Batch(x[rows], y[rows], present), number, context), None

        local, _ = jax.lax.scan(step, client_part.start(task, params), (jnp.arange(steps), order, mask))
        return local.params


def measured_rows(partition: Partition, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the dataset that each client measures [clients, width], and which of them are not padding."""
    width = min(MOST, partition.max_length)
    rows, present = np.zeros((len(ids), width), np.int32), np.zeros((len(ids), width), bool)
    for index, c in enumerate(ids):
        own = partition.client(int(c))
        taken = own if len(own) <= width else own[np.arange(width) * len(own) // width]
        rows[index, : len(taken)], present[index, : len(taken)] = taken, True
    return rows, present
