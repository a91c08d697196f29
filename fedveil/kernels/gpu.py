"""The first convolutions and the noise of a training step on a GPU, and the order in which a GPU runs kernels.

Every function computes what the plain code computes, up to rounding. They exist for speed alone:

- `first`: a first convolution with max-pooling. Its output before pooling is never stored: where an output reads few
  values, a sum of products that the compiler fuses into one kernel is faster than a matrix product.
- `both`: two convolutions with max-pooling by Pallas kernels, where products may be in bfloat16.
- `joined_gaussian`: noise that the compiler fuses with the update.
- `after`, `in_order`: one operation starts after another one.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.kernels import clipping, pallas
from fedveil.kernels.clipping import ConvPool, FusedContext
from fedveil.mechanisms import clip
from fedveil.mechanisms.clip import factor, scaled
from fedveil.models.layers import Activation, Array, Context, Layer, LayerParams, Params, Shape
from fedveil.random import noise

Tree = Any

# --- order


def after(a: Array, b: Array) -> Array:
    """`a` unchanged. On a GPU, operations that use the result start after `b` is computed.

    The compiler chooses the order of concurrent kernels, and a small change anywhere changes it: steps under Fed-CDP on
    an H200 took 128 to 136 µs for that reason alone, and take 119 with an order set by hand. The value does not depend on
    `b`: all 32 bits of one entry of `b` are shifted out, which XLA does not recognise. Only keys and 32-bit numbers can be
    ordered.
    """
    if jax.default_backend() != "gpu":
        return a
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(after(jax.random.key_data(a), b), impl=jax.random.key_impl(a))
    if a.dtype.itemsize != 4:
        return a
    bits = jax.lax.bitcast_convert_type(b.ravel()[0].astype(jnp.float32), jnp.uint32)
    nothing = jax.lax.shift_right_logical(bits, jnp.uint32(32))
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(a, jnp.uint32) ^ nothing, a.dtype)


def in_order(layers: tuple[Layer, ...], x: Array, total: Params) -> Params:
    """The same gradients. With `both`, those of later layers are not ready before those of the second layer.

    Later layers are updated with noise, which takes as long as the first two layers' gradients. Without an order these
    updates would occupy the GPU first. With it they run beside the last part of those gradients.
    """
    match paired(layers):
        case (Pair() as pair, *_) if suits_both(pair, x):
            own = (pair.first.name, pair.second.name)
            waited = total[pair.second.name]["w"]
            return {
                name: layer if name in own else {k: after(a, waited) for k, a in layer.items()}
                for name, layer in total.items()
            }
    return total


# --- noise


def joined_gaussian(key: Array, like: Tree, std: Array | float) -> Tree:
    """Independent normal noise in the shape of `like`, for float32 and Threefry keys.

    Each array's noise is fused with the operation that reads it, so it is never stored. The numbers differ from those of
    `noise.gaussian` for the same key: the two numbers of a pair are neighbours, and each array starts with a new pair.
    """
    leaves, structure = jax.tree.flatten(like)
    sizes = [math.prod(a.shape) for a in leaves]
    starts = itertools.accumulate((size + size % 2 for size in sizes[:-1]), initial=0)
    parts = [
        std * neighbours(key, start, size).reshape(a.shape)
        for a, size, start in zip(leaves, sizes, starts, strict=True)
    ]
    return jax.tree.unflatten(structure, parts)


def neighbours(key: Array, start: int, count: int) -> Array:
    """`count` standard normal numbers of a stream, from number `start` (even) on.

    The two numbers of a pair are neighbours in the stream. A GPU computes several neighbours in one thread, so that each
    random block is drawn once for both.
    """
    number = jax.lax.iota(jnp.uint32, count)
    first, second = noise.normal_pairs(jax.random.key_data(key), (number >> 1) + jnp.uint32(start // 2))
    return jnp.where((number & 1) == 0, first, second)


# --- the first layer


Saved = tuple[LayerParams, Array, Array, Array]


def first(params: LayerParams, x: Array, bound: Array | None = None) -> Array:
    """A convolution without padding, then max-pooling. With a bound, the backward pass clips each example.

    `x` are the data. Differentiating with respect to them returns NaN: this path has no such derivative.
    """
    return _first(bound is not None, params, x, jnp.zeros((), x.dtype) if bound is None else bound)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _first(clips: bool, params: LayerParams, x: Array, bound: Array) -> Array:
    return _first_forward(clips, params, x, bound)[0]


def _first_forward(clips: bool, params: LayerParams, x: Array, bound: Array) -> tuple[Array, Saved]:
    best, winner = _by_sums(params, x)
    return best, (params, x, winner, bound)


def _by_sums(params: LayerParams, x: Array) -> tuple[Array, Array]:
    """The pooled output and the winners, by sums of products."""
    w = params["w"]
    kernel, _, inputs, _ = w.shape
    rows, columns = ((side - kernel + 1) // 2 for side in x.shape[1:3])
    sums = [jnp.zeros((), x.dtype)] * 4
    for corner, (a, b) in enumerate(clipping.WINDOW):
        for i, j, c in itertools.product(range(kernel), range(kernel), range(inputs)):
            seen = x[:, a + i :: 2, b + j :: 2, c][:, :rows, :columns, None]
            sums[corner] = sums[corner] + seen * w[i, j, c]
    best, winner = clipping.first_winners(sums)
    return best + params["b"] if "b" in params else best, winner


def _first_backward(clips: bool, saved: Saved, g: Array) -> tuple[LayerParams, Array, Array]:
    params, x, winner, bound = saved
    most, unit = _limit(clips, bound, g)
    g = g * unit
    gradient, squares = pallas.first_layer(x, g, winner, params["w"].shape[0])
    each: LayerParams = {"w": gradient}
    if "b" in params:
        each["b"] = g.sum(axis=(1, 2))
        squares = squares + jnp.square(each["b"]).sum(axis=1)
    if clips:
        factors = _factors(squares, most, _entries(params), rounded=False) / unit
        each = {name: _widened(a, factors) for name, a in each.items()}
    summed = {name: a.sum(axis=0) for name, a in each.items()}
    return summed, jnp.full_like(x, jnp.nan), jnp.zeros_like(bound)


_first.defvjp(_first_forward, _first_backward)


def _limit(clips: bool, bound: Array, g: Array) -> tuple[Array, Array]:
    """The clip bound, scaled to the units of the norms, and the factor that scales cotangents to these units."""
    return clip.limit(bound, g.dtype) if clips else (bound, jnp.ones_like(bound))


def _factors(squares: Array, most: Array, entries: int, rounded: bool) -> Array:
    """The clip factors of gradients of `entries` numbers with these squared norms, in units of `clip.limit`.

    Squares may have been added in any order. `rounded`: gradients were rounded to bfloat16, which needs a margin.
    """
    margin = clip.room_for(entries + 2, squares.dtype) * (clipping.MARGIN_BF16 if rounded else 1.0)
    return factor(jnp.sqrt(squares), most * margin)


def _widened(a: Array, scale: Array) -> Array:
    """`scaled` in float32 or float64."""
    return scaled(a.astype(jnp.promote_types(a.dtype, jnp.float32)), scale)


def _entries(params: LayerParams) -> int:
    return sum(a.size for a in params.values())


# --- the first two layers


@dataclass(frozen=True)
class Pair:
    """Two steps of convolution and max-pooling in a row."""

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
        if not isinstance(context, FusedContext) or not suits_both(self, x):
            return self.second.apply(params, self.first.apply(params, x, context), context)
        relus = (_is_relu(self.first.activation), _is_relu(self.second.activation))
        seen = clipping.padded(self.first.conv, x)
        y = both(relus, params[self.first.name], params[self.second.name], seen, context.bound)
        activation = self.second.activation
        return y if activation is None or relus[1] else activation.apply(params, y, context)


def _is_relu(activation: Layer | None) -> bool:
    return isinstance(activation, Activation) and activation.kind == "relu"


@functools.cache
def paired(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """`clipping.merged`, and where it begins with two `ConvPool` steps, a pair of them."""
    steps = clipping.merged(layers)
    match steps:
        case (ConvPool() as first, ConvPool() as second, *rest):
            return (Pair(first, second), *rest)
    return steps


Relus = tuple[bool, bool]
SavedPair = tuple[LayerParams, LayerParams, Array, Array, Array, Array, Array]


def suits_both(pair: Pair, x: Array) -> bool:
    """Whether `both` computes these layers: where `first` computes the first one, and the shapes suit the kernels."""
    return clipping.suits_gpu(pair.first.conv, x) and suits_kernels(pair, x.shape[1:])


def suits_kernels(pair: Pair, shape: Shape) -> bool:
    """Whether layers and shapes suit the Pallas kernels of two convolutions."""
    conv, between = pair.second.conv, pair.first.out_shape(shape)
    rows, columns, channels = conv.out_shape(between)
    sizes = all(clipping.is_power_of_two(size) and 16 <= size <= 128 for size in (between[-1], channels))
    simple = conv.stride == 1 and conv.padding == 0 and conv.kernel <= 3 and rows * columns <= pallas.MOST_OUTPUTS
    return sizes and simple and (pair.first.activation is None or _is_relu(pair.first.activation))


def both(relus: Relus, first: LayerParams, second: LayerParams, x: Array, bound: Array | None = None) -> Array:
    """Two convolutions with max-pooling, each followed by ReLU or nothing. With a bound, the backward pass clips each
    example layer by layer. Inputs of products after the first layer are in bfloat16."""
    return _both(bound is not None, relus, first, second, x, jnp.zeros((), x.dtype) if bound is None else bound)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _both(clips: bool, relus: Relus, first: LayerParams, second: LayerParams, x: Array, bound: Array) -> Array:
    return _both_forward(clips, relus, first, second, x, bound)[0]


def _both_forward(
    clips: bool, relus: Relus, first: LayerParams, second: LayerParams, x: Array, bound: Array
) -> tuple[Array, SavedPair]:
    best, winner = _by_sums(first, x)
    if relus[0]:
        best, winner = pallas.rectified(best, winner)
    # Without a barrier the compiler would compute the layer again for the backward pass.
    between, winner = jax.lax.optimization_barrier((best.astype(jnp.bfloat16), winner))  # type: ignore[no-untyped-call]
    y, second_winner = pallas.pooled(between, second["w"].astype(between.dtype), second.get("b"), relus[1])
    # The backward pass reads the images again. They are gathered for it after the first layer has read its own.
    return y, (first, second, after(x, y), winner, between, second_winner, bound)


def _both_backward(
    clips: bool, relus: Relus, saved: SavedPair, g: Array
) -> tuple[LayerParams, LayerParams, Array, Array]:
    first, second, x, winner, between, second_winner, bound = saved
    most, unit = _limit(clips, bound, g)
    g = g * unit
    cotangent = clipping.unpool(g, second_winner).astype(between.dtype)
    bias = jnp.where(second_winner < pallas.INACTIVE, g, 0.0).sum(axis=(1, 2)) if "b" in second else None
    limits = (most, unit) if clips else None
    return (
        _first_gradient(first, second, (x, winner, cotangent), limits),
        _second_gradient(second, between, cotangent, bias, limits),
        jnp.full_like(x, jnp.nan),  # no derivative with respect to the data, as in `first`
        jnp.zeros_like(bound),
    )


Limits = tuple[Array, Array] | None  # the clip bound and the factor on cotangents; None without a clip


def _first_gradient(
    first: LayerParams, second: LayerParams, saved: tuple[Array, Array, Array], limits: Limits
) -> LayerParams:
    """`saved`: the data, the first layer's winners, the cotangent of the second layer's outputs."""
    x, winner, cotangent = saved
    weights, kernel = second["w"].astype(cotangent.dtype), first["w"].shape[0]
    most, unit = limits or (jnp.zeros((), jnp.float32), None)
    scale: pallas.Scale = functools.partial(_factors, entries=_entries(first), rounded=False)
    if unit is None:
        scale = lambda square, bound: square  # noqa: E731
    each, factors = pallas.first_by_example(cotangent, weights, winner, x, kernel, "b" in first, most, scale)
    flat = (each if unit is None else _widened(each, factors / unit)).sum(axis=0)
    w = flat[: flat.shape[0] - ("b" in first)].reshape(first["w"].shape)
    return {"w": w, "b": flat[-1]} if "b" in first else {"w": w}


def _second_gradient(
    second: LayerParams, between: Array, cotangent: Array, bias: Array | None, limits: Limits
) -> LayerParams:
    kernel = second["w"].shape[0]
    if limits is None:
        gradient: LayerParams = {"w": pallas.summed(between, cotangent, kernel)}
        return gradient if bias is None else {**gradient, "b": bias.sum(axis=0)}
    most, unit = limits
    more = None if bias is None else jnp.square(bias).sum(axis=1)
    scale = functools.partial(_factors, entries=_entries(second), rounded=True)
    each, factors = pallas.by_example(between, cotangent, kernel, more, most, scale)
    alone: LayerParams = {"w": each} if bias is None else {"w": each, "b": bias}
    return {name: _widened(a, factors / unit).sum(axis=0) for name, a in alone.items()}


_both.defvjp(_both_forward, _both_backward)
