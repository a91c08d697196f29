"""How far the dummy's gradients are from those observed: a number per attack, and the direction in which it falls."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedveil.models.layers import Array, Params


def squared(found: Params, target: Params) -> Array:
    """Squared L2 distance [attacks], all layers together (cpl, Algorithm 1 line 12)."""
    apart = jax.tree.map(jnp.subtract, found, target)
    return _inner(apart, apart)


def cosine(found: Params, target: Params) -> Array:
    """1 − cos of the angle [attacks]; a gradient of zeros is at distance 1 from everything."""
    lengths = _inner(found, found) * _inner(target, target)
    # The square root has no slope at 0: take it elsewhere, then leave that value out.
    safe = jnp.where(lengths > 0, lengths, 1.0)
    return 1.0 - jnp.where(lengths > 0, _inner(found, target) / jnp.sqrt(safe), 0.0)


def _inner(a: Params, b: Params) -> Array:
    each = jax.tree.map(lambda x, y: (x * y).reshape(x.shape[0], -1).sum(axis=1), a, b)
    return sum(jax.tree.leaves(each), start=jnp.zeros(()))


DISTANCES: dict[str, Callable[[Params, Params], Array]] = {"l2": squared, "cosine": cosine}
