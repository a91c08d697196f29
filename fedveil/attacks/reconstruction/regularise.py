"""What is added to the distance: the label term of cpl, the total variation of images."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedveil.models.layers import Array


def label_term(logits: Array, q: Array) -> Array:
    """‖softmax f(x) − y‖² [attacks], summed over an attack's examples (cpl, Algorithm 1 line 12).

    logits, q [attacks, examples, classes].
    """
    return jnp.square(jax.nn.softmax(logits) - q).sum(axis=(1, 2))


def total_variation(x: Array) -> Array:
    """Mean absolute difference of neighbours, down plus across [attacks]; x [attacks, examples, height, width, colours]."""
    down = jnp.abs(x[:, :, 1:] - x[:, :, :-1]).mean(axis=(1, 2, 3, 4))
    across = jnp.abs(x[:, :, :, 1:] - x[:, :, :, :-1]).mean(axis=(1, 2, 3, 4))
    return down + across
