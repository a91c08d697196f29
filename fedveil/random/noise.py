"""Noise: Gaussian and Laplace, drawn for all arrays of a tree in one call.

One draw for the whole tree costs one random stream instead of one per array, in time and in compilation; the parts of one
draw are independent of each other as separate draws would be.

Keys of `random.secure`, which a deployment uses, get their noise from there: the same laws, a cryptographic source.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.random import pairs, secure

Array = jax.Array
Tree = Any


def gaussian(key: Array, like: Tree, deviation: Array | float) -> Tree:
    """Independent normal noise in the shape of `like`."""
    dtype = jax.tree.leaves(like)[0].dtype
    if secure.is_secure(key):
        return _parts(like, deviation * secure.gaussian(key, _count(like), dtype))
    if not pairs.suits(key, dtype):
        return _parts(like, deviation * jax.random.normal(key, (_count(like),), dtype))
    if jax.default_backend() == "cpu":
        return _parts(like, deviation * pairs.normal(key, _count(like)))
    return _never_stored(key, like, deviation)


def laplace(key: Array, like: Tree, scale: Array | float) -> Tree:
    """Independent Laplace noise in the shape of `like`."""
    dtype = jax.tree.leaves(like)[0].dtype
    if secure.is_secure(key):
        return _parts(like, scale * secure.laplace(key, _count(like), dtype))
    return _parts(like, scale * jax.random.laplace(key, (_count(like),), dtype))


def draw(distribution: str, key: Array, like: Tree, scale: Array | float) -> Tree:
    """Independent noise of a distribution by its name, `gaussian` or `laplace`."""
    return gaussian(key, like, scale) if distribution == "gaussian" else laplace(key, like, scale)


def add(tree: Tree, noise: Tree) -> Tree:
    return jax.tree.map(jnp.add, tree, noise)


def _count(like: Tree) -> int:
    return sum(math.prod(a.shape) for a in jax.tree.leaves(like))


def _parts(like: Tree, drawn: Array) -> Tree:
    """`like` filled from so many numbers, array by array."""
    leaves, structure = jax.tree.flatten(like)
    ends = list(itertools.accumulate(math.prod(a.shape) for a in leaves))
    parts = [part.reshape(a.shape) for a, part in zip(leaves, jnp.split(drawn, ends[:-1]), strict=True)]
    return jax.tree.unflatten(structure, parts)


def _never_stored(key: Array, like: Tree, deviation: Array | float) -> Tree:
    """The same law on a graphics card, where each array's noise becomes part of what reads it.

    Other numbers than elsewhere for the same key: the two of a pair lie side by side, and each array begins with a pair.
    """
    leaves, structure = jax.tree.flatten(like)
    sizes = [math.prod(a.shape) for a in leaves]
    starts = itertools.accumulate((size + size % 2 for size in sizes[:-1]), initial=0)
    parts = [
        deviation * pairs.neighbours(key, start, size).reshape(a.shape)
        for a, size, start in zip(leaves, sizes, starts, strict=True)
    ]
    return jax.tree.unflatten(structure, parts)
