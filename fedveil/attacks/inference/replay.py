"""What a client would send, made again by the attacker: local training on records it has, from a model it has seen.

The rules of the training are known to everyone, and the defence is among them: what it clips or drops, the attacker clips
and drops too. The client's own draws (its batches, its noise) are not known, so the attacker takes batches of its own and
no noise. What comes out is what the client's update would be on average, more or less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks.observe import AuxiliaryData
from fedveil.models.layers import Array, Params
from fedveil.simulation import client as client_part
from fedveil.simulation.client import RoundContext, Task
from fedveil.simulation.sampling import BatchSampling

if TYPE_CHECKING:
    from fedveil.federation import Federation

AT_ONCE = 10  # clients computed together


@dataclass(frozen=True)
class Rules:
    """The published rules of local training: what one client does in a round, whoever it is."""

    task: Task  # its defences silenced; inputs as the model sees them
    law: BatchSampling
    lrs: tuple[float, ...]  # learning rate of each round


def rules_of(federation: Federation) -> Rules:
    """What everyone knows of how a client trains."""
    simulator = federation.simulator
    quiet = tuple(quiet for d in simulator.task.defenses if (quiet := d.silenced()) is not None)
    task = replace(simulator.task, defenses=quiet, scale=1.0)
    return Rules(task, simulator.law, tuple(task.setting.lr_at(n) for n in range(federation.rounds)))


def flat(tree: Params) -> np.ndarray:
    """All values of a tree as one vector, in the order of `updates`."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def local_batches(
    rng: np.random.Generator, sizes: Sequence[int], law: BatchSampling
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Batches of the attacker's own drawing for clients of these sizes: index and mask [clients, steps, batch], steps
    [clients]. Epochs of fresh permutations, cut into batches; index counts within the client."""
    steps = np.array([law.steps_for(size) for size in sizes], np.int32)
    index = np.zeros((len(sizes), int(steps.max()), law.batch), np.int32)
    mask = np.zeros(index.shape, bool)
    for row, size in enumerate(sizes):
        width, count = min(law.batch, size), int(steps[row])
        epochs = math.ceil(count * width / size)
        drawn = np.concatenate([rng.permutation(size) for _ in range(epochs)])[: count * width]
        index[row, :count, :width], mask[row, :count, :width] = drawn.reshape(count, width), True
    return index, mask, steps


def updates(
    rules: Rules,
    params: Params,
    records: AuxiliaryData,
    batches: tuple[np.ndarray, np.ndarray, np.ndarray],
    number: int,
) -> np.ndarray:
    """Updates [clients, values] of clients that train by these batches (rows of `records`) in round `number`."""
    with jax.enable_x64(rules.task.dtype == "float64"):
        dtype = rules.task.dtype
        held = jax.tree.map(lambda a: jnp.asarray(a, dtype), params)
        x, y = jnp.asarray(records.x, dtype), jnp.asarray(records.y)
        lr = jnp.asarray(rules.lrs[number], dtype)
        return np.asarray(_updates(rules.task, held, x, y, *batches, np.int32(number), lr))


@partial(jax.jit, static_argnums=0)
def _updates(
    task: Task, params: Params, x: Array, y: Array, index: Array, mask: Array, steps: Array, number: Array, lr: Array
) -> Array:
    key = jax.random.key(0)  # of the network's own dropout, which the attacker draws for itself

    def one(batches: tuple[Array, Array, Array]) -> Array:
        rows, filled, count = batches
        now = RoundContext(key, key, number, lr)
        message, _, _ = client_part.whole(task, params, x, y, rows, filled, count, {}, now)
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(message)])

    return jax.lax.map(one, (index, mask, steps), batch_size=min(AT_ONCE, index.shape[0]))
