"""Convolution and max-pooling as one step, for training: the same values as the layers one by one, fewer bytes moved.

Three things are left out that the plain layers compute: outputs in an odd last row or column, which pooling drops; the
activation of what does not win its window (max-pooling and an increasing activation commute, so the activation comes
after); and in the backward pass the search for the winner, which is kept from the forward pass as one byte. Where several
entries of a window are equal, the first of them gets the derivative, not a share each.

On a graphics card the first layer's output before pooling is never stored either (`first`): where an output looks at few
values, a sum of products that the compiler makes one kernel of is quicker than a matrix product. Where the network begins
with two such steps and products may be in bfloat16, both are computed by kernels of our own (`both`, `tiles.py`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedveil import compiler
from fedveil.models import kernels, tiles
from fedveil.models.layers import Activation, Array, Context, Conv, Layer, LayerParams, Params, Pool, Shape

FEW = 32  # values that an output looks at, at most, for `first`


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
            y = context.first(own, _padded(self.conv, x))
        else:
            rows, columns, channels = self.out_shape(x.shape[1:])
            seen = context.look(self.conv, x, 2 * rows, 2 * columns)
            flat = {**own, "w": own["w"].reshape(-1, channels)}
            y = max_pool(context.linear(self.name, flat, seen).reshape(-1, 2 * rows, 2 * columns, channels))
        return y if self.activation is None else self.activation.apply(params, y, context)


@dataclass(frozen=True)
class Pair:
    """Two such steps in a row."""

    first: ConvPool
    second: ConvPool

    @property
    def name(self) -> str:
        return ""

    def out_shape(self, shape: Shape) -> Shape:
        return self.second.out_shape(self.first.out_shape(shape))

    def init(self, key: Array, shape: Shape) -> Params:
        keys = jax.random.split(key)
        return {**self.first.init(keys[0], shape), **self.second.init(keys[1], self.first.out_shape(shape))}

    def apply(self, params: Params, x: Array, context: Context) -> Array:
        if context.pair is None or not by_tiles(self, x):
            return self.second.apply(params, self.first.apply(params, x, context), context)
        relus = (_is_relu(self.first.activation), _is_relu(self.second.activation))
        seen = _padded(self.first.conv, x)
        y = context.pair(relus, params[self.first.name], params[self.second.name], seen)
        activation = self.second.activation
        return y if activation is None or relus[1] else activation.apply(params, y, context)


def _is_relu(activation: Layer | None) -> bool:
    return isinstance(activation, Activation) and activation.kind == "relu"


def _padded(conv: Conv, x: Array) -> Array:
    p = conv.padding
    return jnp.pad(x, ((0, 0), (p, p), (p, p), (0, 0))) if p else x


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


@functools.cache
def paired(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The same, and where it begins with two such steps, a pair of them."""
    steps = fused(layers)
    match steps:
        case (ConvPool() as first, ConvPool() as second, *rest):
            return (Pair(first, second), *rest)
    return steps


# --- max-pooling that remembers who won


@jax.custom_vjp
def max_pool(y: Array) -> Array:
    """[batch, 2·rows, 2·columns, channels] → the largest of each 2×2 window."""
    return _winners(_corners(y))[0]


def _corners(y: Array) -> list[Array]:
    """The four entries of every window, each [batch, rows, columns, channels]."""
    batch, rows, columns, channels = y.shape
    windows = y.reshape(batch, rows // 2, 2, columns // 2, 2, channels)
    return [windows[:, :, i, :, j] for i, j in tiles.WINDOW]


def _winners(corners: list[Array]) -> tuple[Array, Array]:
    """The largest of four arrays, and which it was (the first of equals); not a number wins over all."""
    best, place = tiles.winners(corners)
    return best, place.astype(jnp.int8)


def unpool(g: Array, place: Array) -> Array:
    """[batch, rows, columns, channels] back to the windows: each entry where its winner stood, zero elsewhere."""
    batch, rows, columns, channels = g.shape
    corner = jnp.arange(4, dtype=place.dtype).reshape(1, 1, 2, 1, 2, 1)
    wide = jnp.where(place[:, :, None, :, None, :] == corner, g[:, :, None, :, None, :], 0.0)
    return wide.reshape(batch, 2 * rows, 2 * columns, channels)


max_pool.defvjp(lambda y: _winners(_corners(y)), lambda place, g: (unpool(g, place),))


# --- the first layer on a graphics card


@dataclass(frozen=True)
class Clip:
    """How examples' gradients are clipped: what cotangents are multiplied by first, and the bound then, given the bound;
    by which factor, given the square of a norm, that bound, the number of entries and whether gradients were rounded to
    bfloat16; and an array of examples' gradients times such factors."""

    limit: Callable[[Array, Any], tuple[Array, Array]]  # (bound, dtype) → bound, unit
    scale: Callable[..., Array]  # (squares, bound, entries, rounded)
    apply: Callable[[Array, Array], Array]


Saved = tuple[LayerParams, Array, Array, Array]


def on_card(conv: Conv, x: Array) -> bool:
    """Whether `first` is to be used for this layer: on a graphics card, in float32, for shapes that suit it."""
    return jax.default_backend() == "gpu" and x.dtype == jnp.float32 and suits(conv, x.shape[-1])


def suits(conv: Conv, inputs: int) -> bool:
    return conv.stride == 1 and _power(conv.channels) and conv.kernel**2 * inputs <= FEW


def _power(number: int) -> bool:
    return number & (number - 1) == 0


def first(params: LayerParams, x: Array) -> Array:
    """A convolution without padding, then max-pooling; `x` are the data, which nobody differentiates by."""
    return first_with(None, params, x, jnp.zeros((), x.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def first_with(clip: Clip | None, params: LayerParams, x: Array, bound: Array) -> Array:
    """`first` whose backward pass hands the gradients of the single examples [batch, ...], their squared norms and the
    bound to `clip`, where there is one, before they are summed."""
    return _forward(clip, params, x, bound)[0]


def _forward(clip: Clip | None, params: LayerParams, x: Array, bound: Array) -> tuple[Array, Saved]:
    best, place = _by_sums(params, x)
    return best, (params, x, place, bound)


def _by_sums(params: LayerParams, x: Array) -> tuple[Array, Array]:
    """The pooled output and the winners, by sums of products."""
    w = params["w"]
    kernel, _, inputs, _ = w.shape
    rows, columns = ((side - kernel + 1) // 2 for side in x.shape[1:3])
    sums = [jnp.zeros((), x.dtype)] * 4
    for corner, (a, b) in enumerate(tiles.WINDOW):
        for i, j, c in itertools.product(range(kernel), range(kernel), range(inputs)):
            seen = x[:, a + i :: 2, b + j :: 2, c][:, :rows, :columns, None]
            sums[corner] = sums[corner] + seen * w[i, j, c]
    best, place = _winners(sums)
    return best + params["b"] if "b" in params else best, place


def _backward(clip: Clip | None, saved: Saved, g: Array) -> tuple[LayerParams, Array, Array]:
    params, x, place, bound = saved
    most, unit = _limit(clip, bound, g)
    g = g * unit
    gradient, squares = kernels.first_layer(x, g, place, params["w"].shape[0])
    each: LayerParams = {"w": gradient}
    if "b" in params:
        each["b"] = g.sum(axis=(1, 2))
        squares = squares + jnp.square(each["b"]).sum(axis=1)
    if clip is not None:
        scales = clip.scale(squares, most, entries=_entries(params), rounded=False) / unit
        each = {name: clip.apply(a, scales) for name, a in each.items()}
    summed = {name: a.sum(axis=0) for name, a in each.items()}
    # Whoever asks for the derivative by the data all the same gets no number rather than a wrong one.
    return summed, jnp.full_like(x, jnp.nan), jnp.zeros_like(bound)


first_with.defvjp(_forward, _backward)


def _limit(clip: Clip | None, bound: Array, g: Array) -> tuple[Array, Array]:
    return clip.limit(bound, g.dtype) if clip else (bound, jnp.ones_like(bound))


def _entries(params: LayerParams) -> int:
    return sum(a.size for a in params.values())


# --- the first two layers on a graphics card

Relus = tuple[bool, bool]
SavedPair = tuple[LayerParams, LayerParams, Array, Array, Array, Array, Array]


def by_tiles(pair: Pair, x: Array) -> bool:
    """Whether `both` is to be used for these layers: where `first` is for the first, and shapes suit it."""
    return on_card(pair.first.conv, x) and suits_tiles(pair, x.shape[1:])


def suits_tiles(pair: Pair, shape: Shape) -> bool:
    conv, between = pair.second.conv, pair.first.out_shape(shape)
    rows, columns, channels = conv.out_shape(between)
    sizes = all(_power(size) and 16 <= size <= 128 for size in (between[-1], channels))
    simple = conv.stride == 1 and conv.padding == 0 and conv.kernel <= 3 and rows * columns <= tiles.MOST
    return sizes and simple and (pair.first.activation is None or _is_relu(pair.first.activation))


def both(relus: Relus, first: LayerParams, second: LayerParams, x: Array) -> Array:
    """Two convolutions with max-pooling and ReLU, or none; inputs of products after the first are in bfloat16."""
    return both_with(None, relus, first, second, x, jnp.zeros((), x.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def both_with(
    clip: Clip | None, relus: Relus, first: LayerParams, second: LayerParams, x: Array, bound: Array
) -> Array:
    """`both` whose backward pass hands example gradients to `clip`, where there is one, as that of `first_with` does."""
    return _both(clip, relus, first, second, x, bound)[0]


def _both(
    clip: Clip | None, relus: Relus, first: LayerParams, second: LayerParams, x: Array, bound: Array
) -> tuple[Array, SavedPair]:
    best, place = _by_sums(first, x)
    if relus[0]:
        best, place = tiles.rectified(best, place)
    # Kept from here: the compiler would compute the layer again for the backward pass.
    between, place = jax.lax.optimization_barrier((best.astype(jnp.bfloat16), place))  # type: ignore[no-untyped-call]
    y, after = tiles.pooled(between, second["w"].astype(between.dtype), second.get("b"), relus[1])
    # The backward pass reads the images once more: not gathered for it while the first layer waits for its own.
    return y, (first, second, compiler.after(x, y), place, between, after, bound)


def _both_backward(
    clip: Clip | None, relus: Relus, saved: SavedPair, g: Array
) -> tuple[LayerParams, LayerParams, Array, Array]:
    first, second, x, place, between, after, bound = saved
    most, unit = _limit(clip, bound, g)
    g = g * unit
    wide = unpool(g, after).astype(between.dtype)
    shift = jnp.where(after < tiles.INACTIVE, g, 0.0).sum(axis=(1, 2)) if "b" in second else None
    return (
        _first_gradient(clip, first, second, x, place, wide, most, unit),
        _second_gradient(clip, second, between, wide, shift, most, unit),
        jnp.full_like(x, jnp.nan),  # as that of `first_with`
        jnp.zeros_like(bound),
    )


def _first_gradient(
    clip: Clip | None,
    first: LayerParams,
    second: LayerParams,
    x: Array,
    place: Array,
    wide: Array,
    most: Array,
    unit: Array,
) -> LayerParams:
    """`wide`: the cotangents of the second layer times `unit`; `most`: the bound likewise."""
    weights = second["w"].astype(wide.dtype)
    scale = functools.partial(clip.scale, entries=_entries(first), rounded=False) if clip else _unscaled
    kernel = first["w"].shape[0]
    each, scales = tiles.first_by_example(wide, weights, place, x, kernel, "b" in first, most, scale)
    flat = (clip.apply(each, scales / unit) if clip else each).sum(axis=0)
    w = flat[: flat.shape[0] - ("b" in first)].reshape(first["w"].shape)
    return {"w": w, "b": flat[-1]} if "b" in first else {"w": w}


def _unscaled(square: Array, bound: Array) -> Array:
    return square


def _second_gradient(
    clip: Clip | None, second: LayerParams, between: Array, wide: Array, shift: Array | None, most: Array, unit: Array
) -> LayerParams:
    kernel = second["w"].shape[0]
    if clip is None:
        gradient: LayerParams = {"w": tiles.summed(between, wide, kernel)}
        return gradient if shift is None else {**gradient, "b": shift.sum(axis=0)}
    more = None if shift is None else jnp.square(shift).sum(axis=1)
    scale = functools.partial(clip.scale, entries=_entries(second), rounded=True)
    each, scales = tiles.by_example(between, wide, kernel, more, most, scale)
    alone: LayerParams = {"w": each} if shift is None else {"w": each, "b": shift}
    return {name: clip.apply(a, scales / unit).sum(axis=0) for name, a in alone.items()}


both_with.defvjp(_both, _both_backward)


def in_order(layers: tuple[Layer, ...], x: Array, total: Params) -> Params:
    """The same gradients; with `both`, those of later layers no sooner than the second's.

    Where they are updated with noise, which takes as long as the first two layers' gradients do, they would take the card
    before those; after, they are computed beside what is left of them.
    """
    match paired(layers):
        case (Pair() as pair, *_) if by_tiles(pair, x):
            own = (pair.first.name, pair.second.name)
            waited = total[pair.second.name]["w"]
            return {
                name: layer if name in own else {k: compiler.after(a, waited) for k, a in layer.items()}
                for name, layer in total.items()
            }
    return total
