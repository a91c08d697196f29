"""Clipping: what bounds one contribution.

Sensitivity. `scope = layerwise` bounds the L2 norm of each layer (its weights and bias together) by `bound`, so the whole
gradient of M layers by √M·bound; `flat` bounds the whole by `bound`. A contribution that is not finite, or whose norm
overflows, becomes zero: the bound holds for any input whatever.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
Params = dict[str, dict[str, Array]]
Tree = Any

# The bound is kept after rounding too: factors are a hair smaller than bound / norm.
_HAIR = 1.0 - 2.0**-20


def factor(norm: Array, bound: Array | float) -> Array:
    """What to multiply by so that a norm does not exceed the bound; zero where the norm is not finite."""
    tiny = 1e-30  # a zero norm needs no clipping and must not divide
    shrink = jnp.minimum(1.0, bound * _HAIR / jnp.maximum(norm, tiny))
    return jnp.where(jnp.isfinite(norm), shrink, 0.0)


def layer_norms(each: Params) -> dict[str, Array]:
    """L2 norm of every layer of every example: the leaves have a leading axis over examples."""
    return {name: jnp.sqrt(squares(layer)) for name, layer in each.items()}


def squares(layer: Tree) -> Array:
    return jnp.stack([_square(a).reshape(a.shape[0], -1).sum(axis=1) for a in jax.tree.leaves(layer)]).sum(axis=0)


def _square(a: Array) -> Array:
    """Squares in float32 at least."""
    return jnp.square(a.astype(jnp.promote_types(a.dtype, jnp.float32)))


def clip_examples(each: Params, bound: Array | float | dict[str, Array], scope: str) -> Params:
    """Every example's gradient clipped; `bound` may differ by layer."""
    norms = layer_norms(each)
    if scope == "flat":
        whole = jnp.sqrt(sum(jnp.square(n) for n in norms.values()))
        norms = dict.fromkeys(norms, whole)
    clipped = {}
    for name, layer in each.items():
        limit = bound[name] if isinstance(bound, dict) else bound
        scale = factor(norms[name], limit)
        clipped[name] = {k: scaled(a, scale) for k, a in layer.items()}
    return clipped


def scaled(a: Array, scale: Array) -> Array:
    """`a` times a factor per example; where the factor is zero the result is zero, even if `a` is not finite."""
    wide = scale.reshape(scale.shape + (1,) * (a.ndim - 1))
    return jnp.where(wide > 0, a * wide, 0.0)


def clip_one(tree: Params, bound: Array | float, scope: str) -> Params:
    """One contribution clipped (an update, a model)."""
    lifted = jax.tree.map(lambda a: a[None], tree)
    return jax.tree.map(lambda a: a[0], clip_examples(lifted, bound, scope))


def clip_l1(tree: Tree, bound: Array | float) -> Tree:
    """One contribution scaled so that the sum of absolute values over all parameters does not exceed the bound."""
    norm = jnp.stack([jnp.abs(a).sum() for a in jax.tree.leaves(tree)]).sum()
    scale = factor(norm, bound)
    return jax.tree.map(lambda a: jnp.where(scale > 0, a * scale, 0.0), tree)
