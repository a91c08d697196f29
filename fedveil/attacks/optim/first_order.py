"""First-order optimisers for the slots: one step is one iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.attacks.optim.slots import Evaluation, Slots
from fedveil.models.layers import Array
from fedveil.simulation.client import OPTIMIZERS

Tree = Any
DECAY_AT = (3 / 8, 5 / 8, 7 / 8)  # shares of the iterations after which `decay` divides the step length by ten


@dataclass(frozen=True)
class FirstOrder:
    """One of the federation's local optimisers, applied to the inputs of an attack."""

    name: str
    lr: float
    signed: bool = False
    decay: bool = False
    box: tuple[float, float] | None = None
    content: int = 0  # the number of values that are inputs; only these stay in the box

    def empty(self, attacks: int, size: int, dtype: Any) -> Tree:
        return jax.vmap(OPTIMIZERS[self.name]().init)(jnp.zeros((attacks, size), dtype))

    def forget(self, memory: Tree, which: Array) -> Tree:
        if not jax.tree.leaves(memory):
            return memory
        wide = next(a for a in jax.tree.leaves(memory) if a.ndim == 2)
        attacks, size = wide.shape
        return _choose(which, self.empty(attacks, size, wide.dtype), memory)

    def rests(self, seen: Evaluation) -> Array:
        return jnp.abs(seen.slope).max(axis=1) == 0

    def ended(self, slots: Slots, seen: Evaluation) -> Array:
        return jnp.zeros(seen.value.shape, bool)  # every step closes its iteration

    diverged = ended  # never: steps of a fixed length may climb for a while

    def move(self, slots: Slots, seen: Evaluation, moving: Array) -> tuple[Array, Tree, Array, Array]:
        slope = jnp.sign(seen.slope) if self.signed else seen.slope
        step, memory = jax.vmap(OPTIMIZERS[self.name]().update)(slope, slots.memory)
        z = slots.z - (self._length(slots) * step.T).T.astype(slots.z.dtype)
        if self.box is not None:
            z = z.at[:, : self.content].set(jnp.clip(z[:, : self.content], *self.box))
        return z, _choose(moving, memory, slots.memory), jnp.zeros_like(moving), jnp.ones_like(moving)

    def _length(self, slots: Slots) -> Array:
        length = self.lr * 0.1**slots.rescues
        if self.decay:
            share = (slots.iteration + 1) / slots.rules.iterations
            for at in DECAY_AT:
                length = jnp.where(share > at, 0.1 * length, length)
        return length


def _choose(which: Array, new: Tree, old: Tree) -> Tree:
    return jax.tree.map(lambda a, b: jnp.where(which.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old)
