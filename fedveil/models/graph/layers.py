"""Layers by their PyTorch names and argument names: products, convolutions, pooling, normalisation, attention.

Images are channels first. A convolution is written as patches and one matrix product: every client has its own weights,
and a convolution primitive under `vmap` over weights would be a slow grouped convolution.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.models.layers import Array

Op = Callable[..., Any]
Sizes = int | Sequence[int]


def _each(value: Sizes, rank: int) -> tuple[int, ...]:
    """One number for each spatial axis."""
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * rank if len(given) == 1 else given


def linear(input: Array, weight: Array, bias: Array | None = None) -> Array:
    product = input @ weight.T
    return product if bias is None else product + bias


def addmm(self: Array, mat1: Array, mat2: Array, beta: float = 1, alpha: float = 1) -> Array:
    return beta * self + alpha * (mat1 @ mat2)


def matmul(self: Array, other: Array | None = None, mat2: Array | None = None) -> Array:
    right = mat2 if other is None else other
    assert right is not None
    return self @ right


def _windows(x: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Array:
    """The values under each position of a kernel: [n, channels, kernel values, *out]."""
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    outs = [(side - span) // s + 1 for side, span, s in zip(x.shape[2:], spans, stride, strict=True)]
    if min(outs) < 1:
        raise ConfigError("model", f"window {list(kernel)}", f"is larger than its input {list(x.shape[2:])}")
    taken = []
    for offset in itertools.product(*(range(k) for k in kernel)):
        window = [slice(None), slice(None)]
        for at, d, s, out in zip(offset, dilation, stride, outs, strict=True):
            window.append(slice(at * d, at * d + (out - 1) * s + 1, s))
        taken.append(x[tuple(window)])
    return jnp.stack(taken, axis=2)


def _padded(x: Array, sides: Sequence[tuple[int, int]], value: float = 0.0) -> Array:
    return jnp.pad(x, [(0, 0), (0, 0), *sides], constant_values=value) if any(map(any, sides)) else x


def convolution(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    """A convolution over one or two axes, with groups."""
    kernel = weight.shape[2:]
    steps, widths = _each(stride, len(kernel)), _each(dilation, len(kernel))
    if isinstance(padding, str):
        whole = [d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, widths, strict=True)]
        sides = [(total // 2, total - total // 2) for total in whole]
    else:
        sides = [(side, side) for side in _each(padding, len(kernel))]
    seen = _windows(_padded(input, sides), kernel, steps, widths)
    n, channels, outs = seen.shape[0], weight.shape[0], seen.shape[3:]
    patches = seen.reshape(n, groups, -1, math.prod(outs))
    filters = weight.reshape(groups, channels // groups, -1)
    product = jnp.einsum("ngkp,gok->ngop", patches, filters).reshape(n, channels, *outs)
    return product if bias is None else product + bias.reshape(-1, *(1,) * len(outs))


def _pool_sizes(kernel_size: Sizes, stride: Sizes | None, padding: Sizes, ceil_mode: bool, rank: int) -> Any:
    if ceil_mode:
        raise ConfigError("model", "a pooling layer with ceil_mode=True", "takes ceil_mode=False: pad the input")
    kernel = _each(kernel_size, rank)
    steps = _each(stride, rank) if stride not in (None, [], ()) else kernel
    return kernel, steps, [(side, side) for side in _each(padding, rank)]


def max_pool(
    self: Array,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Array:
    rank = self.ndim - 2
    kernel, steps, sides = _pool_sizes(kernel_size, stride, padding, ceil_mode, rank)
    return _windows(_padded(self, sides, -jnp.inf), kernel, steps, _each(dilation, rank)).max(axis=2)


def avg_pool(
    self: Array,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    rank = self.ndim - 2
    kernel, steps, sides = _pool_sizes(kernel_size, stride, padding, ceil_mode, rank)
    plain = (1,) * rank
    total = _windows(_padded(self, sides), kernel, steps, plain).sum(axis=2)
    if divisor_override is not None or count_include_pad or not any(map(any, sides)):
        return total / (divisor_override or math.prod(kernel))
    return total / _windows(_padded(jnp.ones_like(self), sides), kernel, steps, plain).sum(axis=2)


def _bins(side: int, outs: int) -> list[tuple[int, int]]:
    """The range of inputs that adaptive pooling combines into each output, as (start, end)."""
    return [(i * side // outs, -(-(i + 1) * side // outs)) for i in range(outs)]


def _sides(self: Array, output_size: Sizes) -> list[list[tuple[int, int]]]:
    asked = _each(output_size, self.ndim - 2)
    return [_bins(side, out or side) for side, out in zip(self.shape[2:], asked, strict=True)]


def adaptive_avg_pool(self: Array, output_size: Sizes) -> Array:
    """The mean of each bin, as one product with a constant matrix for each axis."""
    for axis, bins in enumerate(_sides(self, output_size), start=2):
        share = np.zeros((self.shape[axis], len(bins)))
        for at, (first, last) in enumerate(bins):
            share[first:last, at] = 1 / (last - first)
        self = jnp.moveaxis(jnp.moveaxis(self, axis, -1) @ jnp.asarray(share, self.dtype), -1, axis)
    return self


def adaptive_max_pool(self: Array, output_size: Sizes) -> list[Array]:
    for axis, bins in enumerate(_sides(self, output_size), start=2):
        parts = [jax.lax.slice_in_dim(self, *one, axis=axis).max(axis=axis) for one in bins]
        self = jnp.stack(parts, axis=axis)
    return [self]


def _normal(x: Array, axes: Sequence[int], eps: float) -> Array:
    apart = x - x.mean(axis=tuple(axes), keepdims=True)
    return apart * jax.lax.rsqrt(jnp.square(apart).mean(axis=tuple(axes), keepdims=True) + eps)


def _affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def group_norm(
    input: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Array:
    grouped = input.reshape(input.shape[0], num_groups, -1)
    channels = (-1, *(1,) * (input.ndim - 2))
    scale, shift = (None if one is None else one.reshape(channels) for one in (weight, bias))
    return _affine(_normal(grouped, (2,), eps).reshape(input.shape), scale, shift)


def layer_norm(
    input: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Array:
    return _affine(_normal(input, range(-len(normalized_shape), 0), eps), weight, bias)


def instance_norm(input: Array, weight: Any = None, bias: Any = None, eps: float = 1e-5, **more: Any) -> Array:
    if more.get("running_mean") is not None:
        takes = "keeps statistics across examples: set track_running_stats=False, or use GroupNorm"
        raise ConfigError("model", "InstanceNorm", takes)
    return group_norm(input, input.shape[1], weight, bias, eps)


def rms_norm(input: Array, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Array:
    axes = tuple(range(-len(normalized_shape), 0))
    least = np.finfo(np.dtype(input.dtype)).eps if eps is None else eps
    return _affine(input * jax.lax.rsqrt(jnp.square(input).mean(axis=axes, keepdims=True) + least), weight, None)


def embedding(weight: Array, indices: Array, padding_idx: int = -1, **ignored: Any) -> Array:
    return jnp.take(weight, indices.astype(jnp.int32), axis=0)


def attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    **more: Any,
) -> Array:
    if more.get("dropout_p"):
        raise ConfigError("model", "attention with dropout", "takes dropout_p = 0")
    scores = query @ jnp.swapaxes(key, -1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = jnp.where(jnp.tri(scores.shape[-2], scores.shape[-1], dtype=bool), scores, -jnp.inf)
    if attn_mask is not None:
        scores = jnp.where(attn_mask, scores, -jnp.inf) if attn_mask.dtype == bool else scores + attn_mask
    return jax.nn.softmax(scores, axis=-1) @ value


OPS: dict[str, Op] = {
    "linear": linear,
    "addmm": addmm,
    "matmul": matmul,
    "mm": matmul,
    "bmm": matmul,
    "conv1d": convolution,
    "conv2d": convolution,
    "max_pool1d": max_pool,
    "max_pool2d": max_pool,
    "avg_pool1d": avg_pool,
    "avg_pool2d": avg_pool,
    "adaptive_avg_pool1d": adaptive_avg_pool,
    "adaptive_avg_pool2d": adaptive_avg_pool,
    "adaptive_max_pool1d": adaptive_max_pool,
    "adaptive_max_pool2d": adaptive_max_pool,
    "group_norm": group_norm,
    "layer_norm": layer_norm,
    "instance_norm": instance_norm,
    "rms_norm": rms_norm,
    "embedding": embedding,
    "scaled_dot_product_attention": attention,
}
