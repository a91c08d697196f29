"""Clipping: what bounds one contribution, and the fused backward pass that clips without keeping example gradients.

Sensitivity. `scope = layerwise` bounds the L2 norm of each layer (its weights and bias together) by `bound`, so the whole
gradient of M layers by √M·bound; `flat` bounds the whole by `bound`. A contribution that is not finite, or whose norm
overflows, becomes zero: the bound holds for any input whatever.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedveil.models import pooling, products
from fedveil.models.layers import Array, LayerParams, Params, affine

Tree = Any

# The bound is kept after rounding too: factors are a hair smaller than bound / norm.
_HAIR = 1.0 - 2.0**-20
_HAIR_HALF = 1.0 - 2.0**-8  # where gradients were rounded to bfloat16: by at most 2⁻⁹ of each number


def factor(norm: Array, bound: Array | float) -> Array:
    """What to multiply by so that a norm does not exceed the bound; zero where the norm is not finite."""
    tiny = 1e-30  # a zero norm needs no clipping and must not divide
    shrink = jnp.minimum(1.0, bound * _HAIR / jnp.maximum(norm, tiny))
    return jnp.where(jnp.isfinite(norm), shrink, 0.0)


def layer_norms(each: Params) -> dict[str, Array]:
    """L2 norm of every layer of every example: the leaves have a leading axis over examples."""
    return {name: jnp.sqrt(_squares(layer)) for name, layer in each.items()}


def _squares(layer: Tree) -> Array:
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
        clipped[name] = {k: _scaled(a, scale) for k, a in layer.items()}
    return clipped


def _scaled(a: Array, scale: Array) -> Array:
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


# --- fused: layerwise clipping inside one backward pass


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


def _scale(squares: Array, bound: Array, rounded: bool) -> Array:
    """The factors of gradients with these squared norms, leaving room where they were rounded to bfloat16."""
    return factor(jnp.sqrt(squares), bound * _HAIR_HALF if rounded else bound)


def _widened(a: Array, scale: Array) -> Array:
    """`_scaled` in float32 at least."""
    return _scaled(a.astype(jnp.promote_types(a.dtype, jnp.float32)), scale)


_CLIP = pooling.Clip(_scale, _widened)


Saved = tuple[LayerParams, Array, Array, Array | None]


@jax.custom_vjp
def _linear(params: LayerParams, x: Array, bound: Array) -> Array:
    return _forward(params, x, bound)[0]


def _forward(params: LayerParams, x: Array, bound: Array) -> tuple[Array, Saved]:
    y, squares = products.product_and_squares(x, params["w"])
    return (y + params["b"] if "b" in params else y), (params, x, bound, squares)


def _backward(saved: Saved, g: Array) -> tuple[LayerParams, Array, Array]:
    params, x, bound, squares = saved
    gradient = _dense_gradient(params, x, g, bound, squares) if x.ndim == 2 else _conv_gradient(params, x, g, bound)
    return gradient, products.back_product(x, params["w"], g), jnp.zeros_like(bound)


_linear.defvjp(_forward, _backward)


def _dense_gradient(params: LayerParams, x: Array, g: Array, bound: Array, squares: Array | None) -> LayerParams:
    """One position per example: the norm of an outer product is the product of the norms. `squares`: of the rows of `x`,
    where they are known."""
    inputs = (jnp.square(x).sum(axis=1) if squares is None else squares) + ("b" in params)
    scale = factor(jnp.sqrt(inputs * jnp.square(g).sum(axis=1)), bound)
    g = _scaled(g, scale)
    x = jnp.where((scale > 0)[:, None], x, 0.0)  # what is left out must not enter as 0 · ∞
    gradient = {"w": products.outer_sum(x, g)}
    return {**gradient, "b": g.sum(axis=0)} if "b" in params else gradient


def _conv_gradient(params: LayerParams, x: Array, g: Array, bound: Array) -> LayerParams:
    """Many positions per example: example gradients as one batched product, then norms, then a weighted sum."""
    each: LayerParams = {"w": products.by_example(x, g)}
    if "b" in params:
        each["b"] = g.sum(axis=1)
    scale = _scale(_squares(each), bound, each["w"].dtype == jnp.bfloat16)
    summed = {name: _weighted_sum(a.astype(g.dtype), scale) for name, a in each.items()}
    return {**summed, "w": summed["w"].T} if products.turned(x, g) else summed


def _weighted_sum(each: Array, scale: Array) -> Array:
    """The sum of what `_scaled` gives. On a graphics card it becomes part of the update; elsewhere a product is quicker."""
    if jax.default_backend() == "gpu":
        return _scaled(each, scale).sum(axis=0)
    kept = jnp.where(scale.reshape(scale.shape + (1,) * (each.ndim - 1)) > 0, each, 0.0)
    return jnp.tensordot(scale, kept, axes=1)


@jax.custom_vjp
def _affine(params: LayerParams, x: Array, bound: Array) -> Array:
    return affine("", params, x)


def _affine_backward(saved: tuple[LayerParams, Array, Array], g: Array) -> tuple[LayerParams, Array, Array]:
    """One number of each kind per example and channel: example gradients are small, whatever the image."""
    params, x, bound = saved
    each = {"scale": (g * x).sum(axis=(1, 2)), "shift": g.sum(axis=(1, 2))}
    scale = _scale(_squares(each), bound, False)
    summed = {name: _scaled(a, scale).sum(axis=0) for name, a in each.items()}
    return summed, g * params["scale"], jnp.zeros_like(bound)


_affine.defvjp(lambda params, x, bound: (_affine(params, x, bound), (params, x, bound)), _affine_backward)
