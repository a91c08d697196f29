"""Noise: Gaussian and Laplace, drawn for all arrays of a tree in one call.

One draw for the whole tree costs one random stream instead of one per array, in time and in compilation; the parts of one
draw are independent of each other as separate draws would be.

Keys of `privacy.secure`, which a deployment uses, get their noise from there: the same laws, a cryptographic source.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.models.layers import Array
from fedveil.privacy import pairs, secure

Tree = Any
PLACES = 8  # every array begins at a multiple of so many numbers
SPARE = 1 / 8  # of the numbers, that may be drawn in vain


def gaussian(key: Array, like: Tree, deviation: Array | float) -> Tree:
    """Independent normal noise in the shape of `like`."""
    dtype = jax.tree.leaves(like)[0].dtype
    if secure.is_secure(key):
        return _parts(like, 1, lambda count: (deviation * secure.gaussian(key, count, dtype),))
    if pairs.suits(key, dtype):
        return _parts(like, 2, lambda count: tuple(deviation * half for half in pairs.halves(key, count)))
    return _parts(like, 1, lambda count: (deviation * jax.random.normal(key, (count,), dtype),))


def laplace(key: Array, like: Tree, scale: Array | float) -> Tree:
    """Independent Laplace noise in the shape of `like`."""
    dtype = jax.tree.leaves(like)[0].dtype
    if secure.is_secure(key):
        return _parts(like, 1, lambda count: (scale * secure.laplace(key, count, dtype),))
    return _parts(like, 1, lambda count: (scale * jax.random.laplace(key, (count,), dtype),))


LAWS = {"gaussian": gaussian, "laplace": laplace}


def add(tree: Tree, noise: Tree) -> Tree:
    return jax.tree.map(jnp.add, tree, noise)


def _parts(like: Tree, rows: int, draw: Callable[[int], tuple[Array, ...]]) -> Tree:
    """`like` filled from `draw(count)`, rows of so many numbers each.

    The largest array is placed first, each in the row that is emptiest, at a place that a graphics card reads in wide
    words: one that ran over from a row to the next would be read a number at a time. Where rows cannot be filled so without
    many numbers to spare, they are laid end to end, and arrays run over.
    """
    leaves, structure = jax.tree.flatten(like)
    sizes = [math.prod(a.shape) for a in leaves]
    filled, starts = [0] * rows, [(0, 0)] * len(leaves)
    for place in sorted(range(len(leaves)), key=lambda place: -sizes[place]):
        row = filled.index(min(filled))
        starts[place] = (row, filled[row])
        filled[row] += _room(sizes[place])
    if max(filled) > (1 + SPARE) * sum(filled) / rows:
        drawn = [jnp.concatenate(draw(_room(-(-sum(filled) // rows))))]
        starts = [(0, sum(filled[:row]) + start) for row, start in starts]
    else:
        drawn = list(draw(max(filled)))
    parts = [
        drawn[row][start : start + size].reshape(a.shape)
        for a, size, (row, start) in zip(leaves, sizes, starts, strict=True)
    ]
    return jax.tree.unflatten(structure, parts)


def _room(size: int) -> int:
    return -(-size // PLACES) * PLACES
