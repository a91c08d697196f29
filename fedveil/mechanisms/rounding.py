"""Rounding to whole numbers without a norm above a bound: conditional randomised rounding (Kairouz, Liu and Steinke 2021).

A contribution x of norm at most R, in units of the grid, is rounded up or down at random, so that its mean stays x. The
norm can grow; `usual_square` bounds its square so that a draw rarely exceeds it. Where one does, or where x was longer
than it should have been, the numbers are rounded towards zero, and if that is still too long the contribution is zero. So
the bound holds for every input and every coin: it is checked on the integers, in integers.

The coins need not be secret: for any fixed coins the integers of one contribution stay within the bound, and those of the
others do not depend on it.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.mechanisms import clip
from fedveil.mechanisms.grid import LARGEST_SQUARE, usual_square
from fedveil.random import noise

Array = jax.Array
Tree = Any

COIN_BITS = 16
LARGEST_COUNT = 2**31  # of int32, which adds up the squares


def largest_square(reach: Any, values: int) -> Any:
    """`usual_square` as a whole number: what `to_integers` allows."""
    found = usual_square(reach, values, jnp.minimum)
    return jnp.floor(jnp.minimum(found, 1.0 * LARGEST_SQUARE)).astype(jnp.int32)


def to_integers(each: Tree, key: Array, most: Array | int) -> Tree:
    """Contributions in units of the grid as int32, each with a sum of squares of at most `most`; a leading axis of them."""
    # Otherwise XLA computes them again for every pass over the integers.
    each = jax.lax.optimization_barrier(each)  # type: ignore[no-untyped-call]
    usual, countable = _at_random(each, key), _countable(each)
    first = countable & within(usual, most)
    # Towards zero is rarely needed, and another pass over all numbers.
    second = jax.lax.cond(
        first.all(), lambda: first, lambda: countable & within(jax.tree.map(_towards_zero, each), most)
    )

    def chosen(one: Array, value: Array) -> Array:
        shape = (-1, *[1] * (one.ndim - 1))
        short = jnp.where(second.reshape(shape), _towards_zero(value), 0)
        return jnp.where(first.reshape(shape), one, short)

    return jax.tree.map(chosen, usual, each)


def within(each: Tree, most: Array | int) -> Array:
    """[n]: whether the sum of squares of each contribution, int32 with a leading axis, is at most `most`.

    Squares are added modulo 2³²: the contributions must be `_countable` before they are rounded.
    """
    squares = [jnp.square(a.reshape(a.shape[0], -1)).sum(axis=1) for a in jax.tree.leaves(each)]
    return jnp.stack(squares).sum(axis=0) <= most


def _countable(each: Tree) -> Array:
    """[n]: whether the squares of each contribution add up to less than 2³¹ once it is rounded, by any coins.

    Rounding makes a vector of d numbers longer by at most √d. The float errs by less than a hundredth.
    """
    values = sum(a.size // a.shape[0] for a in jax.tree.leaves(each))
    longest = 1.01 * jnp.sqrt(clip.squares(each)) + math.sqrt(values)
    return longest < math.sqrt(LARGEST_COUNT)


def _at_random(each: Tree, key: Array) -> Tree:
    """Each number rounded down, or up with the probability of its fraction.

    All coins are independent. Coins that depend on a contribution's place in the batch would let a removed contribution
    change how the others are rounded together, which no bound on its own integers covers.
    """

    def up_or_down(a: Array, words: Array) -> Array:
        low = jnp.floor(a)
        return _as_int32(low + (words.astype(a.dtype) * 2.0**-COIN_BITS < a - low))

    drawn = jax.random.bits(key, (sum(a.size for a in jax.tree.leaves(each)),), jnp.uint16)
    return jax.tree.map(up_or_down, each, noise.shaped(each, drawn))


def _towards_zero(a: Array) -> Array:
    return _as_int32(a - jnp.fmod(a, 1.0))


def _as_int32(a: Array) -> Array:
    """Whole numbers as int32; those beyond 2³⁰, and what is not finite, end at the edge, which no bound allows."""
    return jnp.where(jnp.isfinite(a), jnp.clip(a, -(2.0**30), 2.0**30), 2.0**30).astype(jnp.int32)
