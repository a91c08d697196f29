"""Matrix products of training, written for the machine at hand.

A dense layer's gradient on a small batch is a sum of a few outer products. On a graphics card a matrix product of so few
terms costs a kernel of its own; written out, it becomes part of the one that updates the weights.

Patches of a convolution are nine (or twenty-five) times as large as what they are made of, and moving them costs more than
multiplying them. `half_patches` keeps them in bfloat16: inputs of products are rounded to eight bits, sums stay in float32.
Gradients of single examples are stored in bfloat16 then, too. Their norms are those of the rounded numbers, which are what
is clipped and summed, and the clip leaves room for one more rounding: the bound holds whatever was rounded.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from fedveil.models import tiles
from fedveil.models.layers import Array, Conv, LayerParams

FEW = 8  # examples
THIN, LONG = 32, 512  # outputs and inputs of a thin product
NARROW = 32  # outputs of a convolution


def outer_sum(x: Array, g: Array) -> Array:
    """`x.T @ g`: [batch, inputs], [batch, outputs] → [inputs, outputs]."""
    if jax.default_backend() != "gpu" or x.shape[0] > FEW:
        return x.T @ g
    return functools.reduce(jnp.add, [a[:, None] * b[None, :] for a, b in zip(x, g, strict=True)])


def outer_room(x: Array) -> float:
    """How much less a bound has to be so that `outer_sum` keeps it.

    Accelerators round the inputs of float32 products: a GPU to TF32, each number by at most 2⁻¹¹ of it, others to
    bfloat16, by at most 2⁻⁹. An outer product then grows by twice that at most; as much again is left.
    """
    backend = jax.default_backend()
    if x.dtype == jnp.float64 or backend == "cpu" or (backend == "gpu" and x.shape[0] <= FEW):
        return 1.0
    return 1.0 - (2.0**-9 if backend == "gpu" else 2.0**-7)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 2, 3))
def half_patches(conv: Conv, x: Array, rows: int, columns: int) -> Array:
    """`conv.patches` in bfloat16; their derivatives are added up in the type of `x`."""
    return conv.patches(x.astype(jnp.bfloat16), rows, columns)


def _patches_backward(conv: Conv, rows: int, columns: int, x: Array, g: Array) -> tuple[Array]:
    _, back = jax.vjp(lambda v: conv.patches(v, rows, columns), x)
    (dx,) = back(g.astype(x.dtype))
    return (dx,)


half_patches.defvjp(lambda conv, x, rows, columns: (half_patches(conv, x, rows, columns), x), _patches_backward)


def product(x: Array, w: Array) -> Array:
    """`x @ w`, made in the type of `x`, summed in that of `w`."""
    if _in_parts(x, w):
        return tiles.thin(x, w)
    return x @ w if x.dtype == w.dtype else jnp.matmul(x, w.astype(x.dtype), preferred_element_type=w.dtype)


def product_and_squares(x: Array, w: Array) -> tuple[Array, Array | None]:
    """`product`, and the squared norms of the rows of `x` where they cost nothing."""
    return tiles.thin_and_squares(x, w) if _in_parts(x, w) else (product(x, w), None)


def _in_parts(x: Array, w: Array) -> bool:
    return jax.default_backend() == "gpu" and is_thin(x, w)


def is_thin(x: Array, w: Array) -> bool:
    """Whether this is a long sum for few rows and columns: a card's own product would leave most of it idle."""
    single = x.dtype == w.dtype == jnp.float32
    return single and x.ndim == 2 and x.shape[0] <= FEW and w.shape[1] <= THIN and x.shape[1] >= LONG


def back_product(x: Array, w: Array, g: Array) -> Array:
    """The derivative of `product` by `x`, in the type of `x`."""
    return g @ w.T if x.dtype == w.dtype else jnp.matmul(g.astype(x.dtype), w.T.astype(x.dtype))


def by_example(x: Array, g: Array) -> Array:
    """[batch, positions, inputs], [batch, positions, outputs] → each example's gradient [batch, inputs, outputs], or with
    the last two axes turned where `turned` says so.

    In the type of `x`; the sums over positions are made in float32 at least.
    """
    order = "bmk" if turned(x, g) else "bkm"
    return jnp.einsum(f"bpk,bpm->{order}", x, g.astype(x.dtype), preferred_element_type=x.dtype)


def turned(x: Array, g: Array) -> bool:
    """Whether example gradients are made as [outputs, inputs]: a CPU takes 0.4 to 0.7 of the time where inputs are more."""
    return jax.default_backend() == "cpu" and x.shape[-1] > g.shape[-1]


def quick_linear(name: str, params: LayerParams, x: Array) -> Array:
    """`linear` for training."""
    return _linear(params, x)


@jax.custom_vjp
def _linear(params: LayerParams, x: Array) -> Array:
    y = product(x, params["w"])
    return y + params["b"] if "b" in params else y


def _backward(saved: tuple[LayerParams, Array], g: Array) -> tuple[LayerParams, Array]:
    params, x = saved
    gradient = {"w": (outer_sum if x.ndim == 2 else _summed)(x, g)}
    if "b" in params:
        gradient["b"] = g.sum(axis=tuple(range(g.ndim - 1)))
    return gradient, back_product(x, params["w"], g)


def _summed(x: Array, g: Array) -> Array:
    """The sum of what `by_example` gives [inputs, outputs], as one product; that takes a CPU longer than gradients one by
    one and their sum where outputs are few, since XLA then turns the inputs."""
    if turned(x, g) and g.shape[-1] <= NARROW:
        return by_example(x, g).sum(axis=0).T
    return jnp.einsum("bpk,bpm->km", x, g.astype(x.dtype), preferred_element_type=g.dtype)


_linear.defvjp(lambda params, x: (_linear(params, x), (params, x)), _backward)
