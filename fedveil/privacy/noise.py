"""Noise: Gaussian and Laplace, drawn for all arrays of a tree in one call.

One draw for the whole tree costs one random stream instead of one per array, in time and in compilation; the parts of one
draw are independent of each other as separate draws would be.

Keys of `privacy.secure`, which a deployment uses, get their noise from there: the same laws, a cryptographic source.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.models.layers import Array
from fedveil.privacy import pairs, secure

Tree = Any


def gaussian(key: Array, like: Tree, deviation: Array | float) -> Tree:
    """Independent normal noise in the shape of `like`."""
    return _draw(key, like, lambda k, n, t: deviation * _normal(k, n, t))


def laplace(key: Array, like: Tree, scale: Array | float) -> Tree:
    """Independent Laplace noise in the shape of `like`."""
    return _draw(key, like, lambda k, n, t: scale * _laplace(k, n, t))


def _normal(key: Array, count: int, dtype: Any) -> Array:
    if secure.is_secure(key):
        return secure.gaussian(key, count, dtype)
    return pairs.normal(key, count) if pairs.suits(key, dtype) else jax.random.normal(key, (count,), dtype)


def _laplace(key: Array, count: int, dtype: Any) -> Array:
    return secure.laplace(key, count, dtype) if secure.is_secure(key) else jax.random.laplace(key, (count,), dtype)


LAWS = {"gaussian": gaussian, "laplace": laplace}


def add(tree: Tree, noise: Tree) -> Tree:
    return jax.tree.map(jnp.add, tree, noise)


def _draw(key: Array, like: Tree, one: Any) -> Tree:
    leaves, structure = jax.tree.flatten(like)
    sizes = [math.prod(a.shape) for a in leaves]
    drawn = one(key, sum(sizes), leaves[0].dtype)
    parts, start = [], 0
    for a, size in zip(leaves, sizes, strict=True):
        parts.append(drawn[start : start + size].reshape(a.shape))
        start += size
    return jax.tree.unflatten(structure, parts)
