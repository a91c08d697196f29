"""An update as integers that can be added modulo 2^bits, and the sum of many as an update again.

`FixedPoint` is for updates that carry their noise as floating-point numbers. Rounding after the noise is post-processing of
what one node sends. The sum of rounded numbers is no function of the sum, though: where an account counts the noise of all
nodes together, the grid must be much finer than the noise. A step of 2⁻³² is: a float32 above 2⁻⁸ is not rounded at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fedveil.deploy.secagg import vectors
from fedveil.simulation import client
from fedveil.simulation.client import Task

Tree = Any


@dataclass(frozen=True)
class FixedPoint:
    """Multiples of `unit`. A value whose sum over the cohort could leave the range is moved to the range's edge."""

    bits: int = 48
    unit: float = 2.0**-32

    @classmethod
    def of(cls, task: Task, number: int, lr: float) -> FixedPoint:
        """How nodes send what they compute in a round."""
        if not client.sums_integers(task):
            return cls()
        return cls(task.defenses[0].integer_bits(task.setting), client.integer_unit(task, number, lr))

    def encode(self, tree: Tree, cohort: int) -> np.ndarray:
        """The integers of one node's update. An update that is not finite counts as zero, as in simulation."""
        flat = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(jax.device_get(tree))])
        if not np.isfinite(flat).all():
            flat = np.zeros_like(flat)
        most = ((1 << self.bits - 1) - 1) // cohort
        return np.clip(np.rint(flat / self.unit), -most, most).astype(np.int64)

    def decode(self, total: np.ndarray, like: Tree) -> Tree:
        """The sum of the updates, in the shapes and types of `like`."""
        values, at, leaves = vectors.centred(total, self.bits) * self.unit, 0, []
        for leaf in jax.tree.leaves(like):
            size = math.prod(leaf.shape)
            leaves.append(values[at : at + size].reshape(leaf.shape).astype(leaf.dtype))
            at += size
        return jax.tree.unflatten(jax.tree.structure(like), leaves)


def length(like: Tree) -> int:
    """The number of values of an update."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(like))
