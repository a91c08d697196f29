"""L-BFGS without line search, for many attacks at once.

It makes the same steps as torch's optimiser with its defaults, which the papers' attacks were run with: step length 1
except for the first step, which is scaled by min(1, 1/‖g‖₁); the last 100 pairs (s, y) with yᵀs > 1e-10; first guess
yᵀs/yᵀy · I; tolerances 1e-7 on the largest gradient entry and 1e-9 on the change. One *attack iteration* is up to 20 steps;
a tolerance ends the iteration, not the attack, and pairs are kept from one iteration to the next.

The two loops over the pairs are written in their compact form (Byrd, Nocedal, Schnabel 1994, eq. 3.1): with S, Y the pairs,
R the upper triangle of SᵀY, D its diagonal and γ the first guess,

    H g = γ g + S b − γ Y a,   a = R⁻¹ Sᵀg,   b = R⁻ᵀ ((D + γ YᵀY) a − γ Yᵀg),

two passes over the pairs instead of two hundred small steps. R⁻¹ is stored, not solved for: a new pair adds one column to
it, and dropping the oldest pair drops one row and one column. Pairs are stored in a ring buffer; every attack has its own
position in it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.attacks.optim.slots import Evaluation, Slots
from fedveil.models.layers import Array

PAIRS = 100
INNER = 20  # steps per attack iteration
TOLERANCE_GRADIENT = 1e-7
TOLERANCE_CHANGE = 1e-9
LEAST_CURVATURE = 1e-10
RESCUED_REACH = 0.1  # the most that any input may change in one step after a rescue, halved with each further one


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pairs:
    """The stored pairs of each attack. Slots that are not `valid` may hold any finite values.

    There is one slot more than pairs are kept: rejected pairs are written there, and it is never valid.
    """

    s: Array  # [attacks, slots, n] steps
    y: Array  # [attacks, slots, n] changes of the gradient
    inverse: Array  # [attacks, slots, slots] R⁻¹
    gram: Array  # [attacks, slots, slots] YᵀY
    curvature: Array  # [attacks, slots] the diagonal of R
    valid: Array  # [attacks, slots] 1 or 0
    slot: Array  # [attacks] where the next pair goes
    guess: Array  # [attacks] γ


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Memory:
    """The pairs, and the last step with the point it was made from."""

    pairs: Pairs
    step: Array  # [attacks, n]
    slope: Array  # [attacks, n]
    value: Array  # [attacks]


@dataclass(frozen=True)
class LBFGS:
    """The optimiser, as `slots.Optimizer` describes it."""

    lr: float = 1.0
    slots: int = PAIRS

    def empty(self, attacks: int, size: int, dtype: Any) -> Memory:
        zeros = jnp.zeros((attacks, size), dtype)
        return Memory(empty(attacks, size, dtype, self.slots), zeros, zeros, jnp.zeros(attacks, dtype))

    def forget(self, memory: Memory, which: Array) -> Memory:
        return replace(memory, pairs=forget(memory.pairs, which))

    def rests(self, seen: Evaluation) -> Array:
        return jnp.abs(seen.slope).max(axis=1) <= TOLERANCE_GRADIENT

    def ended(self, slots: Slots, seen: Evaluation) -> Array:
        memory: Memory = slots.memory
        short = jnp.abs(memory.step).max(axis=1) <= TOLERANCE_CHANGE
        level = jnp.abs(seen.value - memory.value) < TOLERANCE_CHANGE
        return self.rests(seen) | short | level

    def diverged(self, slots: Slots, seen: Evaluation) -> Array:
        return seen.value > slots.began

    def move(self, slots: Slots, seen: Evaluation, moving: Array) -> tuple[Array, Memory, Array, Array]:
        memory: Memory = slots.memory
        fresh = moving & (slots.made > 0)
        way, pairs = direction(memory.pairs, seen.slope, memory.step, seen.slope - memory.slope, fresh)
        first = jnp.minimum(1.0, 1.0 / jnp.abs(seen.slope).sum(axis=1))
        length = self.lr * jnp.where(slots.made == 0, first, 1.0)
        # Attacks diverge by steps of many times the range of the inputs, so steps are bounded after a rescue.
        reach = RESCUED_REACH * 0.5 ** (slots.rescues - 1) / jnp.abs(way).max(axis=1)
        length = jnp.where(slots.rescues > 0, jnp.minimum(length, reach), length).astype(way.dtype)
        stuck = _dot(seen.slope, way) > -TOLERANCE_CHANGE
        step = length[:, None] * way
        kept = Memory(
            pairs,
            step=jnp.where(moving[:, None], step, memory.step),
            slope=jnp.where(moving[:, None], seen.slope, memory.slope),
            value=jnp.where(moving, seen.value, memory.value),
        )
        return slots.z + step, kept, stuck, slots.inner + 1 >= INNER


def empty(attacks: int, n: int, dtype: Any, slots: int = PAIRS) -> Pairs:
    """A memory without pairs."""
    shape = (attacks, slots + 1)
    rows, square, row = (jnp.zeros((*shape, *more), dtype) for more in ((n,), (slots + 1,), ()))
    slot, guess = jnp.zeros(attacks, jnp.int32), jnp.ones(attacks, dtype)
    return Pairs(s=rows, y=rows, inverse=square, gram=square, curvature=row, valid=row, slot=slot, guess=guess)


def forget(pairs: Pairs, which: Array) -> Pairs:
    """Discards the curvature pairs of the attacks in `which` [attacks]. The old values stay in the slots, unread."""
    valid = jnp.where(which[:, None], 0.0, pairs.valid)
    return replace(pairs, valid=valid, guess=jnp.where(which, 1.0, pairs.guess))


def direction(pairs: Pairs, g: Array, s: Array, y: Array, fresh: Array) -> tuple[Array, Pairs]:
    """The direction −H g [attacks, n], after the pair (s, y) is added for the attacks where `fresh` is set."""
    slots = pairs.valid.shape[1] - 1
    curvature, square = _dot(s, y), _dot(y, y)
    taken = fresh & (curvature > LEAST_CURVATURE) & jnp.isfinite(square)
    at = jnp.where(taken, pairs.slot, slots)
    new_s, new_y = _put(pairs.s, at, s, taken), _put(pairs.y, at, y, taken)
    # The pairs are read only after they are written: reading them before would copy them in every step.
    on_s, on_y = _products(new_s, y, g), _products(new_y, y, g)

    here = jax.nn.one_hot(at, slots + 1, dtype=bool) & taken[:, None]
    kept = jnp.where(here, 0.0, pairs.valid)
    divisor = jnp.where(taken, curvature, 1.0)[:, None]
    column = -_apply(pairs.inverse, on_s[..., 0] * kept) * kept / divisor
    column = jnp.where(here, 1.0 / divisor, column)
    along = on_y[..., 0]
    new = Pairs(
        s=new_s,
        y=new_y,
        inverse=_cross(pairs.inverse, here, jnp.zeros_like(column), column),
        gram=_cross(pairs.gram, here, along, along),
        curvature=jnp.where(here, curvature[:, None], pairs.curvature),
        valid=jnp.where(here, 1.0, pairs.valid),
        slot=jnp.where(taken, (pairs.slot + 1) % slots, pairs.slot),
        guess=jnp.where(taken, curvature / jnp.where(taken, square, 1.0), pairs.guess),
    )
    return -_times(new, g, on_s[..., 1], on_y[..., 1]), new


def _times(pairs: Pairs, g: Array, s_g: Array, y_g: Array) -> Array:
    """H g, given Sᵀg and Yᵀg."""
    guess = pairs.guess[:, None]
    a = _apply(pairs.inverse, s_g * pairs.valid) * pairs.valid
    inner = pairs.curvature * a + guess * (_apply(pairs.gram, a) - y_g)
    b = jnp.einsum("aij,ai->aj", pairs.inverse, inner * pairs.valid) * pairs.valid
    moved = jnp.einsum("as,asn->an", b, pairs.s) - guess * jnp.einsum("as,asn->an", a, pairs.y)
    return guess * g + moved


def _products(rows: Array, first: Array, second: Array) -> Array:
    """[attacks, slots, 2]: every row times each of the two vectors, the rows read once."""
    if jax.default_backend() == "gpu" and rows.dtype == jnp.float32:
        with contextlib.suppress(ImportError):  # without the folder `kernels` the plain product follows
            from fedveil.kernels import pallas

            return pallas.pair_products(rows, first, second)
    return jnp.einsum("asn,akn->ask", rows, jnp.stack([first, second], axis=1))


def _dot(a: Array, b: Array) -> Array:
    return (a * b).sum(axis=1)


def _apply(matrix: Array, vector: Array) -> Array:
    return jnp.einsum("aij,aj->ai", matrix, vector)


def _cross(matrix: Array, here: Array, row: Array, column: Array) -> Array:
    """`matrix` with one row and then one column replaced in every attack."""
    matrix = jnp.where(here[:, :, None], row[:, None, :], matrix)
    return jnp.where(here[:, None, :], column[:, :, None], matrix)


def _put(rows: Array, at: Array, row: Array, taken: Array) -> Array:
    """`row` [attacks, n] at each attack's slot; zeros where it is not taken."""
    attacks = jnp.arange(rows.shape[0])
    return rows.at[attacks, at].set(jnp.where(taken[:, None], row, 0.0), unique_indices=True, indices_are_sorted=True)
