"""Rounding to whole numbers without a norm above a bound: conditional randomised rounding (Kairouz, Liu and Steinke 2021).

A contribution x of norm at most R, in units of the grid, is rounded up or down at random, so that its mean stays x. The
norm can grow; `usual_square` bounds its square so that a draw rarely exceeds it. Where one does, or where x was longer
than it should have been, the numbers are rounded towards zero, and if that is still too long the contribution is zero. So
the bound holds for every input and every coin: it is checked on the integers, in integers.

The coins need not be secret: for any fixed coins the integers of one contribution stay within the bound, and those of the
others do not depend on it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedveil.mechanisms import clip
from fedveil.mechanisms.grid import LARGEST_SQUARE, usual_square
from fedveil.random import noise

Array = jax.Array
Tree = Any

COIN_BITS = 16


def largest_square(reach: Any, values: int) -> Any:
    """`usual_square` as a whole number: what `to_integers` allows."""
    found = usual_square(reach, values, jnp.minimum)
    return jnp.floor(jnp.minimum(found, 1.0 * LARGEST_SQUARE)).astype(jnp.int32)


def to_integers(each: Tree, key: Array, most: Array | int) -> Tree:
    """Contributions in units of the grid as int32, each with a sum of squares of at most `most`; a leading axis of them."""
    usual = _at_random(each, key)
    short = jax.tree.map(lambda a: _as_int32(a - jnp.fmod(a, 1.0)), each)
    first, second = within(usual, most), within(short, most)

    def chosen(one: Array, other: Array) -> Array:
        shape = (-1, *[1] * (one.ndim - 1))
        return jnp.where(first.reshape(shape), one, jnp.where(second.reshape(shape), other, 0))

    return jax.tree.map(chosen, usual, short)


def within(each: Tree, most: Array | int) -> Array:
    """[n]: whether the sum of squares of each contribution, int32 with a leading axis, is at most `most`."""
    leaves = jax.tree.leaves(each)
    squares = jnp.stack([jnp.square(a.reshape(a.shape[0], -1)).sum(axis=1) for a in leaves]).sum(axis=0)
    # Squares are added modulo 2³². A float, which errs by less than a hundredth, tells whether they went beyond.
    size = clip.squares(jax.tree.map(lambda a: a.astype(jnp.float32), each))
    return (size < 1.5 * LARGEST_SQUARE) & (squares <= most)


def _at_random(each: Tree, key: Array) -> Tree:
    """Each number rounded down, or up with the probability of its fraction."""

    def up_or_down(a: Array, words: Array) -> Array:
        low = jnp.floor(a)
        return _as_int32(low + (words.astype(a.dtype) * 2.0**-COIN_BITS < a - low))

    drawn = jax.random.bits(key, (sum(a.size for a in jax.tree.leaves(each)),), jnp.uint16)
    return jax.tree.map(up_or_down, each, noise.shaped(each, drawn))


def _as_int32(a: Array) -> Array:
    """Whole numbers as int32; those beyond 2³⁰, and what is not finite, end at the edge, which no bound allows."""
    return jnp.where(jnp.isfinite(a), jnp.clip(a, -(2.0**30), 2.0**30), 2.0**30).astype(jnp.int32)
