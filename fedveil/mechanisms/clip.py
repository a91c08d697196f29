"""Clipping: what bounds one contribution.

Sensitivity. `scope = layerwise` bounds the L2 norm of each layer (its weights and bias together) by `bound`, so the whole
gradient of M layers by √M·bound; `flat` bounds the whole by `bound`. A contribution that is not finite becomes zero. The
bound holds for any input, after rounding, whether the machine flushes denormal numbers to zero or not.

Why it holds, in float32 (u = 2⁻²⁴ is the unit roundoff, n the number of entries):
1. Range. Norms are taken of entries times `Limit.unit`, a power of two that makes the bound 2⁻³³ or more. Squares and
   entries that are flushed to zero are below 2⁻¹²⁶ then: all together they add less than n·2⁻⁶⁰ of the bound's square.
   Squares that overflow give an infinite norm, and a zero contribution.
2. Sums. The compiler may add up squares in any order, within blocks that it cannot join. At most D roundings
   affect any square (`depth`), so the computed sum is at least 1 − D·u times the true one. Bounds are scaled by 1 − D·u.
3. The rest. Fewer than 16 other roundings follow (root, quotient, products): `_HAIR` is 1 − 16u. Entries that become
   denormal err by 2⁻¹⁵⁰ each, which is negligible for bounds of 2⁻⁷⁶ or more; below that every contribution is zero.

So contributions longer than about 2⁹⁶ bounds are left out (8e28; in float64 2⁷⁶⁸), and all where the bound is below 2⁻⁷⁶
(1e-23; in float64 2⁻⁹⁷²).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Params = dict[str, dict[str, Array]]
Tree = Any

_HAIR = 1.0 - 2.0**-20
_BLOCK = 1024  # the most numbers that are added up at once: D·u is 6e-5 for them in float32, 2e-5 for the CNN


class Limit(NamedTuple):
    """A clip bound in scaled units. Entries are multiplied by `unit` before they are squared; `bound` is scaled alike."""

    bound: Array
    unit: Array


def limit(bound: Array | float, dtype: Any) -> Limit:
    """A bound in the units that norms are taken in. Zero if it is so small that rounding could exceed it."""
    info = np.finfo(dtype)
    least, most = 2.0 ** (info.minexp + 50), 2.0 ** (-info.minexp * 3 // 4 - 2)
    bound = jnp.minimum(jnp.asarray(bound, dtype), info.max)
    near = jnp.where(bound >= least, jnp.minimum(bound, most), least)
    unit = jnp.frexp(near)[0] / near * 2.0 ** (info.minexp // 4)  # a mantissa over its number is a power of two
    return Limit(jnp.where(bound >= least, bound * unit, 0.0), unit)


def factor(norm: Array, bound: Array | float) -> Array:
    """The factor, at most one, that brings a norm down to the bound; zero if the norm is not finite.

    A norm of zero keeps the factor one, even if it underflowed: in the units of `limit` it is then below the bound.
    """
    most = jnp.asarray(bound, norm.dtype) * _HAIR
    shrink = jnp.minimum(1.0, most / jnp.maximum(norm, np.finfo(norm.dtype).tiny))
    return jnp.where(jnp.isfinite(norm) & (most > 0), shrink, 0.0)


# --- sums


def layer_norms(each: Params) -> dict[str, Array]:
    """L2 norm of every layer of every example: the leaves have a leading axis over examples."""
    return {name: jnp.sqrt(squares(layer)) for name, layer in each.items()}


def squares(layer: Tree, unit: Array | float = 1.0) -> Array:
    """The sum of squares of every example [batch], of entries times `unit`, in float32 at least."""
    return jnp.stack([_total(jnp.square(_wide(a) * unit)) for a in jax.tree.leaves(layer)]).sum(axis=0)


def room(layer: Tree) -> float:
    """The share of the true sum that `squares` finds, at least."""
    leaves = jax.tree.leaves(layer)
    sides = [_blocks(a.shape[1:]) for a in leaves]
    depth = max((sum(s) + 2 * len(s) for s in sides), default=0) + len(leaves)
    return room_for(depth, jnp.result_type(jnp.float32, *leaves))


def room_for(depth: int, dtype: Any) -> float:
    """The same for a sum with at most `depth` roundings on the way of each term. In float64 the hair is room enough."""
    lost = depth * float(np.finfo(dtype).eps) / 2
    return 1.0 if lost < 2.0**-24 else max(0.0, 1.0 - lost)


def _wide(a: Array) -> Array:
    return a.astype(jnp.promote_types(a.dtype, jnp.float32))


def _blocks(shape: tuple[int, ...]) -> list[int]:
    """The lengths of the sums that a sum over this shape is made of: the last axis first if it suits, which is quick."""
    count, sides = math.prod(shape), list[int]()
    while count > _BLOCK:
        own = not sides and len(shape) > 1 and 16 <= shape[-1] <= _BLOCK
        sides.append(shape[-1] if own else _BLOCK)
        count = -(-count // sides[-1])
    return [*sides, count]


def _total(a: Array) -> Array:
    """The sum over all axes but the first, in blocks."""
    flat = a.reshape(a.shape[0], -1)
    for side in _blocks(a.shape[1:])[:-1]:
        whole = flat.shape[1] // side * side
        sums = flat[:, :whole].reshape(flat.shape[0], -1, side).sum(axis=2)
        if whole < flat.shape[1]:
            sums = jnp.concatenate([sums, flat[:, whole:].sum(axis=1, keepdims=True)], axis=1)
        flat = _apart(sums)
    return flat.sum(axis=1)


def _apart(sums: Array) -> Array:
    """Rounded to one bit less: the compiler would join a sum of sums."""
    info = np.finfo(sums.dtype)
    return jax.lax.reduce_precision(sums, exponent_bits=info.nexp, mantissa_bits=info.nmant - 1)


# --- clips


def factors(layer: Tree, bound: Array | float) -> Array:
    """The factors [batch] that clip examples' gradients in L2 norm: leaves [batch, ...]."""
    most = limit(bound, jnp.result_type(jnp.float32, *jax.tree.leaves(layer)))
    return factor(jnp.sqrt(squares(layer, most.unit)), most.bound * room(layer))


def clip_examples(each: Params, bound: Array | float | dict[str, Array], scope: str) -> Params:
    """Every example's gradient clipped; `bound` may differ by layer."""
    limits = bound if isinstance(bound, dict) else dict.fromkeys(each, bound)
    if scope == "flat" and not isinstance(bound, dict):
        scales = dict.fromkeys(each, factors(each, bound))
    else:
        scales = {name: factors(each if scope == "flat" else layer, limits[name]) for name, layer in each.items()}
    return {name: {k: scaled(a, scales[name]) for k, a in layer.items()} for name, layer in each.items()}


def scaled(a: Array, scale: Array) -> Array:
    """`a` times a factor per example; where the factor is zero the result is zero, even if `a` is not finite."""
    wide = scale.reshape(scale.shape + (1,) * (a.ndim - 1))
    return jnp.where(wide > 0, a * wide, 0.0)


def clip_one(tree: Params, bound: Array | float, scope: str) -> Params:
    """One contribution clipped (an update, a model)."""
    lifted = jax.tree.map(lambda a: a[None], tree)
    return jax.tree.map(lambda a: a[0], clip_examples(lifted, bound, scope))


def clamp(tree: Tree, bound: Array | float) -> Tree:
    """One contribution with every value limited to ±bound; a value that is not finite becomes zero."""

    def limited(a: Array) -> Array:
        wide = _wide(a)
        most = jnp.asarray(bound, wide.dtype) * _HAIR  # the bound may have been rounded up
        return jnp.where(jnp.isfinite(wide) & (most > 0), jnp.clip(wide, -most, most), 0.0)

    return jax.tree.map(limited, tree)


def clip_l1(tree: Tree, bound: Array | float) -> Tree:
    """One contribution scaled so that the sum of absolute values over all parameters does not exceed the bound."""
    lifted = [_wide(a)[None] for a in jax.tree.leaves(tree)]
    most = limit(bound, jnp.result_type(*lifted))
    norm = jnp.stack([_total(jnp.abs(a * most.unit)) for a in lifted]).sum(axis=0)
    scale = factor(norm, most.bound * room(lifted))
    return jax.tree.map(lambda a: scaled(a[None], scale)[0], tree)
