"""Which entries of a whole gradient survive: exact counts, one threshold over all layers.

The entries of a tree are counted in its flattened order, layer after layer. A choice is a tree of booleans in the same
shape. With a leading axis over examples, `jax.vmap` makes one choice per example.

Magnitudes are compared to 16 binary digits (float64: 40), so numbers that differ by rounding alone are a tie. Ties go to
the earlier entry. With two classes the last layer's gradient holds every number twice, up to its sign; without this rule
the two engines could keep different ones. A value that is not finite counts as the largest, so a broken gradient stays
visible.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fedveil.models.layers import Array

Tree = Any

_DIGITS = {4: (8, 16), 8: (11, 40)}  # exponent and mantissa bits that are compared, by bytes per number


def entries(tree: Tree) -> int:
    """n: how many numbers a tree holds."""
    return sum(math.prod(a.shape) for a in jax.tree.leaves(tree))


def dropped(share: float, count: int) -> int:
    """⌊θ·n⌋ for θ as it is written: of 100 entries a share of 0.29 drops 29, although 0.29 * 100 < 29 in floats."""
    return math.floor(Fraction(str(float(share))) * count)


def shared(share: float, count: int) -> int:
    """⌈share·n⌉: what is left where the rest is dropped, so at least one for any share above zero."""
    return math.ceil(Fraction(str(float(share))) * count)


def largest(tree: Tree, keep: int) -> Tree:
    """True at exactly `keep` entries, those of largest magnitude."""
    flat, unravel = ravel_pytree(jax.tree.map(_rank, tree))
    if keep >= flat.size:
        return jax.tree.map(lambda a: jnp.ones(a.shape, bool), tree)
    smallest = jnp.sort(flat)[flat.size - keep]  # of those that are kept
    above, ties = flat > smallest, flat == smallest
    first = jnp.cumsum(ties) <= keep - above.sum()
    return _as_mask(unravel, above | (ties & first), flat.dtype)


def random(key: Array, tree: Tree, keep: int) -> Tree:
    """True at `keep` entries; every set of that size is equally likely."""
    flat, unravel = ravel_pytree(tree)
    return _as_mask(unravel, jax.random.permutation(key, flat.size) < keep, flat.dtype)


def only(mask: Tree, tree: Tree) -> Tree:
    """The tree where the mask is True, zero elsewhere, also where the value is not finite."""
    return jax.tree.map(lambda m, a: jnp.where(m, a, jnp.zeros((), a.dtype)), mask, tree)


def without(mask: Tree, tree: Tree) -> Tree:
    """The tree where the mask is False, zero elsewhere."""
    return jax.tree.map(lambda m, a: jnp.where(m, jnp.zeros((), a.dtype), a), mask, tree)


def prune(tree: Tree, share: float) -> Tree:
    """The tree with its ⌊share·n⌋ entries of smallest magnitude set to zero."""
    count = entries(tree)
    return only(largest(tree, count - dropped(share, count)), tree)


def _rank(a: Array) -> Array:
    """What entries are compared by."""
    size = jnp.where(jnp.isfinite(a), jnp.abs(a), jnp.inf)
    exponent, mantissa = _DIGITS[a.dtype.itemsize]
    return jax.lax.reduce_precision(size, exponent, mantissa)


def _as_mask(unravel: Any, flat: Array, dtype: Any) -> Tree:
    return jax.tree.map(lambda a: a > 0, unravel(flat.astype(dtype)))
