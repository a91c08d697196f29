"""Noise: Gaussian and Laplace, one key per array, so that every layer draws apart."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedveil.models.layers import Array

Tree = Any


def gaussian(key: Array, like: Tree, deviation: Array | float) -> Tree:
    """Independent normal noise in the shape of `like`."""
    return _draw(key, like, lambda k, a: deviation * jax.random.normal(k, a.shape, a.dtype))


def laplace(key: Array, like: Tree, scale: Array | float) -> Tree:
    """Independent Laplace noise in the shape of `like`."""
    return _draw(key, like, lambda k, a: scale * jax.random.laplace(k, a.shape, a.dtype))


LAWS = {"gaussian": gaussian, "laplace": laplace}


def add(tree: Tree, noise: Tree) -> Tree:
    return jax.tree.map(jnp.add, tree, noise)


def _draw(key: Array, like: Tree, one: Any) -> Tree:
    leaves, shape = jax.tree.flatten(like)
    return jax.tree.unflatten(shape, [one(jax.random.fold_in(key, place), a) for place, a in enumerate(leaves)])
