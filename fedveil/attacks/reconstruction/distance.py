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
    """1 − cos of the angle [attacks]; a gradient of zeros is at distance 1 from everything.

    Computed as half the squared distance of the directions: subtracting the cosine from 1 would round small angles away.
    """
    lengths = _inner(found, found) * _inner(target, target)
    apart = jax.tree.map(jnp.subtract, _direction(found), _direction(target))
    return jnp.where(lengths > 0, 0.5 * _inner(apart, apart), 1.0)


def _direction(tree: Params) -> Params:
    """Each attack's gradient divided by its length; zeros stay zeros."""
    square = _inner(tree, tree)
    length = jnp.sqrt(jnp.where(square > 0, square, 1.0))  # the square root has no slope at 0
    return jax.tree.map(lambda a: a / length.reshape(-1, *[1] * (a.ndim - 1)), tree)


def cosine_by_layer(found: Params, target: Params) -> Array:
    """1 − cos [attacks] of each layer, summed over the layers: blind to how long each layer's gradient is, so that a clip
    that scales layers apart does not hide the direction."""
    layers = [cosine({name: found[name]}, {name: target[name]}) for name in found]
    return sum(layers[1:], start=layers[0])


def divergence(found: Params, target: Params) -> Array:
    """Kullback and Leibler's divergence [attacks] of the gradients' softmax, target from found: cpl names entropy as a
    distance and does not define it."""
    log_found, log_target = (jax.nn.log_softmax(_flat(tree)) for tree in (found, target))
    apart = log_target - log_found
    # Both sum to one, so Σ p·expm1(−apart) = 0. With it no summand is negative, and small differences survive rounding.
    return (jnp.exp(log_target) * (apart + jnp.expm1(-apart))).sum(axis=1)


def _flat(tree: Params) -> Array:
    leaves = jax.tree.leaves(tree)
    return jnp.concatenate([a.reshape(a.shape[0], -1) for a in leaves], axis=1)


def _inner(a: Params, b: Params) -> Array:
    each = jax.tree.map(lambda x, y: (x * y).reshape(x.shape[0], -1).sum(axis=1), a, b)
    return sum(jax.tree.leaves(each), start=jnp.zeros(()))


DISTANCES: dict[str, Callable[[Params, Params], Array]] = {
    "l2": squared,
    "cosine": cosine,
    "cosine-layers": cosine_by_layer,
    "entropy": divergence,
}
