"""Convolution and max-pooling as one step, for training: the same values as the layers one by one, fewer bytes moved.

Three things are left out that the plain layers compute: outputs in an odd last row or column, which pooling drops; the
activation of what does not win its window (max-pooling and an increasing activation commute, so the activation comes
after); and in the backward pass the search for the winner, which is kept from the forward pass as one byte. Where several
entries of a window are equal, the first of them gets the derivative, not a share each.

On a graphics card the first layer's output before pooling is never stored either (`first`): where an output looks at few
values, a sum of products that the compiler makes one kernel of is quicker than a matrix product.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fedveil.models import kernels
from fedveil.models.layers import Activation, Array, Context, Conv, Layer, LayerParams, Params, Pool, Shape

FEW = 32  # values that an output looks at, at most, for `first`
WINDOW = ((0, 0), (0, 1), (1, 0), (1, 1))


@dataclass(frozen=True)
class ConvPool:
    """A convolution, max-pooling over 2×2, then the activation."""

    conv: Conv
    activation: Layer | None

    @property
    def name(self) -> str:
        return self.conv.name

    def out_shape(self, shape: Shape) -> Shape:
        return Pool().out_shape(self.conv.out_shape(shape))

    def init(self, key: Array, shape: Shape) -> Params:
        return self.conv.init(key, shape)

    def apply(self, params: Params, x: Array, context: Context) -> Array:
        own = params[self.name]
        if context.first is not None and on_card(self.conv, x):
            p = self.conv.padding
            y = context.first(own, jnp.pad(x, ((0, 0), (p, p), (p, p), (0, 0))) if p else x)
        else:
            rows, columns, channels = self.out_shape(x.shape[1:])
            seen = context.look(self.conv, x, 2 * rows, 2 * columns)
            flat = {**own, "w": own["w"].reshape(-1, channels)}
            y = max_pool(context.linear(self.name, flat, seen).reshape(-1, 2 * rows, 2 * columns, channels))
        return y if self.activation is None else self.activation.apply(params, y, context)


@functools.cache
def fused(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers with every convolution, activation and max-pooling in a row made one; all activations here increase."""
    out: list[Layer] = []
    rest = list(layers)
    while rest:
        conv = rest[0]
        between = len(rest) > 1 and isinstance(rest[1], Activation)
        pool = rest[1 + between] if len(rest) > 1 + between else None
        if isinstance(conv, Conv) and isinstance(pool, Pool) and pool.kind == "max":
            out.append(ConvPool(conv, rest[1] if between else None))
            rest = rest[2 + between :]
        else:
            out.append(rest.pop(0))
    return tuple(out)


# --- max-pooling that remembers who won


@jax.custom_vjp
def max_pool(y: Array) -> Array:
    """[batch, 2·rows, 2·columns, channels] → the largest of each 2×2 window."""
    return _winners(_corners(y))[0]


def _corners(y: Array) -> list[Array]:
    """The four entries of every window, each [batch, rows, columns, channels]."""
    batch, rows, columns, channels = y.shape
    windows = y.reshape(batch, rows // 2, 2, columns // 2, 2, channels)
    return [windows[:, :, i, :, j] for i, j in WINDOW]


def _winners(corners: list[Array]) -> tuple[Array, Array]:
    """The largest of four arrays, and which it was (the first of equals); not a number wins over all."""
    best = functools.reduce(jnp.maximum, corners)
    a, b, c, _ = corners
    place = jnp.where(a == best, 0, jnp.where(b == best, 1, jnp.where(c == best, 2, 3)))
    return best, place.astype(jnp.int8)


def unpool(g: Array, place: Array) -> Array:
    """[batch, rows, columns, channels] back to the windows: each entry where its winner stood, zero elsewhere."""
    batch, rows, columns, channels = g.shape
    corner = jnp.arange(4, dtype=place.dtype).reshape(1, 1, 2, 1, 2, 1)
    wide = jnp.where(place[:, :, None, :, None, :] == corner, g[:, :, None, :, None, :], 0.0)
    return wide.reshape(batch, 2 * rows, 2 * columns, channels)


max_pool.defvjp(lambda y: _winners(_corners(y)), lambda place, g: (unpool(g, place),))


# --- the first layer on a graphics card

Clip = Callable[[LayerParams, Array, Array], LayerParams]
Saved = tuple[LayerParams, Array, Array, Array]


def on_card(conv: Conv, x: Array) -> bool:
    """Whether `first` is to be used for this layer: on a graphics card, in float32, for shapes that suit it."""
    return jax.default_backend() == "gpu" and x.dtype == jnp.float32 and suits(conv, x.shape[-1])


def suits(conv: Conv, inputs: int) -> bool:
    power = conv.channels & (conv.channels - 1) == 0
    return conv.stride == 1 and power and conv.kernel**2 * inputs <= FEW


def unclipped(each: LayerParams, squares: Array, bound: Array) -> LayerParams:
    return each


def first(params: LayerParams, x: Array) -> Array:
    """A convolution without padding, then max-pooling; `x` are the data, which nobody differentiates by."""
    return first_with(unclipped, params, x, jnp.zeros((), x.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def first_with(clip: Clip, params: LayerParams, x: Array, bound: Array) -> Array:
    """`first` whose backward pass hands the gradients of the single examples [batch, ...], their squared norms and the
    bound to `clip` before they are summed."""
    return _forward(clip, params, x, bound)[0]


def _forward(clip: Clip, params: LayerParams, x: Array, bound: Array) -> tuple[Array, Saved]:
    """The pooled output and the winners, by sums of products."""
    w = params["w"]
    kernel, _, inputs, _ = w.shape
    rows, columns = ((side - kernel + 1) // 2 for side in x.shape[1:3])
    sums = [jnp.zeros((), x.dtype)] * 4
    for corner, (a, b) in enumerate(WINDOW):
        for i, j, c in itertools.product(range(kernel), range(kernel), range(inputs)):
            seen = x[:, a + i :: 2, b + j :: 2, c][:, :rows, :columns, None]
            sums[corner] = sums[corner] + seen * w[i, j, c]
    best, place = _winners(sums)
    return best + params["b"] if "b" in params else best, (params, x, place, bound)


def _backward(clip: Clip, saved: Saved, g: Array) -> tuple[LayerParams, Array, Array]:
    params, x, place, bound = saved
    gradient, squares = kernels.first_layer(x, g, place, params["w"].shape[0])
    each: LayerParams = {"w": gradient}
    if "b" in params:
        each["b"] = g.sum(axis=(1, 2))
        squares = squares + jnp.square(each["b"]).sum(axis=1)
    summed = {name: a.sum(axis=0) for name, a in clip(each, squares, bound).items()}
    # Whoever asks for the derivative by the data all the same gets no number rather than a wrong one.
    return summed, jnp.full_like(x, jnp.nan), jnp.zeros_like(bound)


first_with.defvjp(_forward, _backward)
