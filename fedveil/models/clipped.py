"""The fused backward pass: layerwise clipping without keeping example gradients.

With layerwise clipping a layer's clipped gradient depends on that layer's input and cotangent alone, and clipping does not
change what is passed on to earlier layers. So the ordinary backward pass of the summed loss does all the work.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.mechanisms import clip
from fedveil.mechanisms.clip import factor, scaled
from fedveil.models import pooling, products
from fedveil.models.layers import Array, LayerParams, affine

_HAIR_HALF = 1.0 - 2.0**-8  # where gradients were rounded to bfloat16: by at most 2⁻⁹ of each number


def clipping_linear(bound: Array) -> Any:
    """A `linear` whose backward pass gives the sum of the clipped example gradients of its layer.

    With layerwise clipping a layer's clipped gradient depends on that layer's input and cotangent alone, and clipping does
    not change what is passed on to earlier layers. So the ordinary backward pass of the summed loss does all the work.
    """

    def apply(name: str, params: LayerParams, x: Array) -> Array:
        return _linear(params, x, bound)

    return apply


def clipping_affine(bound: Array) -> Any:
    """The same for scale and shift of a normalisation."""

    def apply(name: str, params: LayerParams, x: Array) -> Array:
        return _affine(params, x, bound)

    return apply


def clipping_first(bound: Array) -> Any:
    """The same for a first convolution with pooling in one step (`pooling.first`)."""

    def apply(params: LayerParams, x: Array) -> Array:
        return pooling.first_with(_CLIP, params, x, bound)

    return apply


def clipping_pair(bound: Array) -> Any:
    """The same for the first two (`pooling.both`), each layer by its own norm: none exceeds the bound."""

    def apply(relus: pooling.Relus, first: LayerParams, second: LayerParams, x: Array) -> Array:
        return pooling.both_with(_CLIP, relus, first, second, x, bound)

    return apply


def _scale(found: Array, most: Array, entries: int, rounded: bool) -> Array:
    """The factors of gradients of `entries` numbers with these squared norms, all in units of `clip.limit`, leaving room
    where they were rounded to bfloat16. Squares may have been added up in any order."""
    return factor(jnp.sqrt(found), most * (clip.room_for(entries + 2, found.dtype) * (_HAIR_HALF if rounded else 1.0)))


def _widened(a: Array, scale: Array) -> Array:
    """`scaled` in float32 at least."""
    return scaled(a.astype(jnp.promote_types(a.dtype, jnp.float32)), scale)


_CLIP = pooling.Clip(clip.limit, _scale, _widened)


Saved = tuple[LayerParams, Array, Array, Array | None]


@jax.custom_vjp
def _linear(params: LayerParams, x: Array, bound: Array) -> Array:
    return _forward(params, x, bound)[0]


def _forward(params: LayerParams, x: Array, bound: Array) -> tuple[Array, Saved]:
    y, known = products.product_and_squares(x, params["w"])
    return (y + params["b"] if "b" in params else y), (params, x, bound, known)


def _backward(saved: Saved, g: Array) -> tuple[LayerParams, Array, Array]:
    params, x, bound, known = saved
    gradient = _dense_gradient(params, x, g, bound, known) if x.ndim == 2 else _conv_gradient(params, x, g, bound)
    return gradient, products.back_product(x, params["w"], g), jnp.zeros_like(bound)


_linear.defvjp(_forward, _backward)


def _dense_gradient(params: LayerParams, x: Array, g: Array, bound: Array, known: Array | None) -> LayerParams:
    """One position per example: the norm of an outer product is the product of the norms. `known`: the squared norms
    of the rows of `x`, where they are known."""
    scale = _outer_factors(x, g, bound, "b" in params, known)
    g = scaled(g, scale)
    g = jnp.where(jnp.abs(g) < np.finfo(g.dtype).tiny, 0.0, g)  # rounded coarsely there, then multiplied by `x`
    x = jnp.where((scale > 0)[:, None], x, 0.0)  # what is left out must not enter as 0 · ∞
    gradient = {"w": products.outer_sum(x, g)}
    return {**gradient, "b": g.sum(axis=0)} if "b" in params else gradient


def _outer_factors(x: Array, g: Array, bound: Array, bias: bool, known: Array | None) -> Array:
    """The factors of outer products; a bias is one more input, which is 1.

    In float32 an example is left out if the norm of its inputs is above 2⁶⁴, or without a bias below 2⁻⁵¹·√inputs:
    squares that were flushed to zero could matter then.
    """
    most = clip.limit(bound * products.outer_room(x), g.dtype)
    inputs = (clip.squares(x) if known is None else known) + bias
    least = x.shape[1] * float(np.finfo(inputs.dtype).tiny) * 2.0**24
    length = jnp.where(inputs < least, jnp.inf, jnp.sqrt(inputs))  # an infinite norm leaves it out
    times = (g * most.unit) * length[:, None]
    found = jnp.where(jnp.isfinite(length), jnp.sqrt(clip.squares(times)), jnp.inf)
    seen = clip.room(x) if known is None else clip.room_for(x.shape[1] + 4, inputs.dtype)
    return factor(found, most.bound * (seen * clip.room(g)))


def _conv_gradient(params: LayerParams, x: Array, g: Array, bound: Array) -> LayerParams:
    """Many positions per example: example gradients as one batched product, then norms, then a weighted sum."""
    most = clip.limit(bound, g.dtype)
    unit = g * most.unit
    each: LayerParams = {"w": products.by_example(x, unit)}
    if "b" in params:
        each["b"] = unit.sum(axis=1)
    rounded = _HAIR_HALF if each["w"].dtype == jnp.bfloat16 else 1.0
    scale = factor(jnp.sqrt(clip.squares(each)), most.bound * (clip.room(each) * rounded)) / most.unit
    summed = {name: _weighted_sum(a.astype(g.dtype), scale) for name, a in each.items()}
    return {**summed, "w": summed["w"].T} if products.turned(x, g) else summed


def _weighted_sum(each: Array, scale: Array) -> Array:
    """The sum of what `scaled` gives. On a GPU it becomes part of the update; elsewhere a product is quicker."""
    if jax.default_backend() == "gpu":
        return scaled(each, scale).sum(axis=0)
    kept = jnp.where(scale.reshape(scale.shape + (1,) * (each.ndim - 1)) > 0, each, 0.0)
    return jnp.tensordot(scale, kept, axes=1, precision="highest")


@jax.custom_vjp
def _affine(params: LayerParams, x: Array, bound: Array) -> Array:
    return affine("", params, x)


def _affine_backward(saved: tuple[LayerParams, Array, Array], g: Array) -> tuple[LayerParams, Array, Array]:
    """One number of each kind per example and channel: example gradients are small, whatever the image."""
    params, x, bound = saved
    each = {"scale": (g * x).sum(axis=(1, 2)), "shift": g.sum(axis=(1, 2))}
    scale = clip.factors(each, bound)
    summed = {name: scaled(a, scale).sum(axis=0) for name, a in each.items()}
    return summed, g * params["scale"], jnp.zeros_like(bound)


_affine.defvjp(lambda params, x, bound: (_affine(params, x, bound), (params, x, bound)), _affine_backward)
