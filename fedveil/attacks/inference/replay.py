"""Replays a client's local training as the attacker: on the attacker's records, from a model that it has observed.

The rules of the training are public, and so is the defence: the attacker clips and drops what the defence clips and drops.
The client's draws (batches and noise) are secret, so the attacker draws its own batches and adds no noise. The result is
roughly the mean of the client's update.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.attacks.observation import AuxiliaryData
from fedveil.core.system import Lazy
from fedveil.models.layers import Array, Params
from fedveil.simulation.sampling import Batches, BatchSampling

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp

    from fedveil.simulation.client import Task
    from fedveil.simulation.inputs import RoundInputs
else:
    jax, jnp = Lazy("jax"), Lazy("jax.numpy")

AT_ONCE = 10  # clients computed together


@dataclass(frozen=True)
class LocalRules:
    """The published rules of local training: what any client does in a round."""

    task: Task  # with silenced defences; inputs as the model sees them
    batches: BatchSampling
    lrs: tuple[float, ...]  # learning rate of each round


def flat(tree: Params) -> np.ndarray:
    """All values of a tree as one vector, in the order of `updates`."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def local_batches(rng: np.random.Generator, sizes: Sequence[int], sampling: BatchSampling) -> Batches:
    """Batches that the attacker draws for clients of these sizes: fresh permutations, cut into batches.

    The index counts within each client.
    """
    steps = np.array([sampling.steps_for(size) for size in sizes], np.int32)
    index = np.zeros((len(sizes), int(steps.max()), sampling.batch), np.int32)
    mask = np.zeros(index.shape, bool)
    for row, size in enumerate(sizes):
        width, count = min(sampling.batch, size), int(steps[row])
        epochs = math.ceil(count * width / size)
        drawn = np.concatenate([rng.permutation(size) for _ in range(epochs)])[: count * width]
        index[row, :count, :width], mask[row, :count, :width] = drawn.reshape(count, width), True
    return Batches(index, mask, steps)


def updates(rules: LocalRules, params: Params, records: AuxiliaryData, batches: Batches, number: int) -> np.ndarray:
    """Updates [clients, values] of clients that train by these batches (rows of `records`) in round `number`."""
    from fedveil.simulation.inputs import RoundInputs

    with jax.enable_x64(rules.task.dtype == "float64"):
        dtype = rules.task.dtype
        held = jax.tree.map(lambda a: jnp.asarray(a, dtype), params)
        x, y = jnp.asarray(records.x, dtype), jnp.asarray(records.y)
        lr = jnp.asarray(rules.lrs[number], dtype)
        key = jax.random.key(0)  # for the network's dropout, which the attacker draws itself
        inputs = RoundInputs(held, x, y, key, np.int32(number), lr)
        return np.asarray(_compiled()(rules.task, inputs, batches))


@cache
def _compiled() -> Any:
    """The jitted `_updates`; made on first use, because JAX is imported on first use."""
    return jax.jit(_updates, static_argnums=0)


def _updates(task: Task, inputs: RoundInputs, batches: Batches) -> Array:
    """The updates of clients with these batches, [clients, values]."""
    from fedveil.simulation import client
    from fedveil.simulation.inputs import ClientInputs, RoundContext

    def one(own: Batches) -> Array:
        context = RoundContext(inputs.key, inputs.key, inputs.number, inputs.lr)
        received = client.begin(task, inputs.params, context)
        made = client.local_round(task, inputs, received, ClientInputs(0, 0, own), context)
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(made.message)])

    return jax.lax.map(one, batches, batch_size=min(AT_ONCE, batches.index.shape[0]))
