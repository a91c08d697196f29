"""Noise: Gaussian and Laplace, drawn for all arrays of a tree in one call.

One draw for the whole tree costs one random stream instead of one per array, in time and in compilation; the parts of one
draw are independent of each other as separate draws would be.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.models.layers import Array

Tree = Any


def gaussian(key: Array, like: Tree, deviation: Array | float) -> Tree:
    """Independent normal noise in the shape of `like`."""
    return _draw(key, like, lambda k, n, t: deviation * jax.random.normal(k, n, t))


def laplace(key: Array, like: Tree, scale: Array | float) -> Tree:
    """Independent Laplace noise in the shape of `like`."""
    return _draw(key, like, lambda k, n, t: scale * jax.random.laplace(k, n, t))


LAWS = {"gaussian": gaussian, "laplace": laplace}


def add(tree: Tree, noise: Tree) -> Tree:
    return jax.tree.map(jnp.add, tree, noise)


def _draw(key: Array, like: Tree, one: Any) -> Tree:
    leaves, structure = jax.tree.flatten(like)
    sizes = [math.prod(a.shape) for a in leaves]
    drawn = one(key, (sum(sizes),), leaves[0].dtype)
    parts, start = [], 0
    for a, size in zip(leaves, sizes, strict=True):
        parts.append(drawn[start : start + size].reshape(a.shape))
        start += size
    return jax.tree.unflatten(structure, parts)
