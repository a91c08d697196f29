"""Operations that rearrange, join, cut or reduce arrays, by their PyTorch names and argument names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.core.errors import ConfigError
from fedveil.models.layers import Array

Op = Callable[..., Any]


def reshape(self: Array, shape: Sequence[int] | None = None, size: Sequence[int] | None = None) -> Array:
    return self.reshape(tuple(size if shape is None else shape))  # type: ignore[arg-type]


def flatten(self: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    first, last = start_dim % self.ndim, end_dim % self.ndim
    shape = self.shape
    return self.reshape(*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])


def unflatten(self: Array, dim: int, sizes: Sequence[int]) -> Array:
    dim %= self.ndim
    return self.reshape(*self.shape[:dim], *sizes, *self.shape[dim + 1 :])


def squeeze(self: Array, dim: int | Sequence[int] | None = None) -> Array:
    axes = range(self.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(self, tuple(axis for axis in axes if self.shape[axis] == 1))


def expand(self: Array, size: Sequence[int], implicit: bool = False) -> Array:
    known = (1,) * (len(size) - self.ndim) + self.shape
    return jnp.broadcast_to(self, [old if new == -1 else new for old, new in zip(known, size, strict=True)])


def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    return jnp.concatenate([one for one in tensors if one.shape != (0,)], axis=dim)


def cut(self: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    window = [slice(None)] * self.ndim
    window[dim] = slice(start, end, step)
    return self[tuple(window)]


def select(self: Array, dim: int, index: int) -> Array:
    return jnp.take(self, index, axis=dim, mode="wrap")


def split(self: Array, split_size: int | Sequence[int] = 0, dim: int = 0, split_sizes: Any = None) -> list[Array]:
    sizes = split_sizes if split_sizes is not None else split_size
    total = self.shape[dim]
    if isinstance(sizes, int):
        ends = list(range(sizes, total, sizes))
    else:
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    return list(jnp.split(self, ends, axis=dim))


def chunk(self: Array, chunks: int, dim: int = 0) -> list[Array]:
    return split(self, -(-self.shape[dim] // chunks), dim)


def pad(self: Array, pad: Sequence[int], value: float | None = None, mode: str = "constant") -> Array:
    """PyTorch lists the last dimension first."""
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    widths = [(0, 0)] * self.ndim
    for i in range(len(pad) // 2):
        widths[self.ndim - 1 - i] = (pad[2 * i], pad[2 * i + 1])
    if any(side < 0 for pair in widths for side in pair):
        raise ConfigError("model", f"pad({list(pad)})", "takes widths from 0: cut with a slice")
    if mode == "constant":
        return jnp.pad(self, widths, constant_values=value or 0.0)
    return jnp.pad(self, widths, mode=names[mode])


def _reduced(function: Callable[..., Array]) -> Op:
    def reduce(self: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
        axes = None if dim is None or dim == [] else dim if isinstance(dim, int) else tuple(dim)
        return function(self, axis=axes, keepdims=keepdim)

    return reduce


def variance(
    self: Array, dim: Any = None, correction: Any = None, keepdim: bool = False, unbiased: bool = True
) -> Array:
    axes = None if dim is None else dim if isinstance(dim, int) else tuple(dim)
    less = (1 if unbiased else 0) if correction is None else correction
    return jnp.var(self, axis=axes, ddof=less, keepdims=keepdim)


def largest(self: Array, dim: int, keepdim: bool = False) -> list[Array]:
    return [jnp.max(self, axis=dim, keepdims=keepdim), jnp.argmax(self, axis=dim, keepdims=keepdim)]


def item(self: Sequence[Any], index: int) -> Any:
    return self[index]


OPS: dict[str, Op] = {
    "reshape": reshape,
    "view": reshape,
    "_unsafe_view": reshape,
    "flatten": flatten,
    "unflatten": unflatten,
    "squeeze": squeeze,
    "unsqueeze": lambda self, dim: jnp.expand_dims(self, dim),
    "permute": lambda self, dims: jnp.transpose(self, dims),
    "transpose": lambda self, dim0, dim1: jnp.swapaxes(self, dim0, dim1),
    "t": lambda self: self.T,
    "expand": expand,
    "repeat": lambda self, repeats: jnp.tile(self, repeats),
    "cat": cat,
    "stack": lambda tensors, dim=0: jnp.stack(tensors, axis=dim),
    "slice": cut,
    "select": select,
    "split": split,
    "split_with_sizes": split,
    "chunk": chunk,
    "flip": lambda self, dims: jnp.flip(self, dims),
    "pad": pad,
    "constant_pad_nd": pad,
    "mean": _reduced(jnp.mean),
    "sum": _reduced(jnp.sum),
    "amax": _reduced(jnp.max),
    "amin": _reduced(jnp.min),
    "var": variance,
    "max": largest,
    "softmax": lambda self, dim, dtype=None: jax.nn.softmax(self, axis=dim),
    "_softmax": lambda self, dim, half_to_float=False: jax.nn.softmax(self, axis=dim),
    "log_softmax": lambda self, dim, dtype=None: jax.nn.log_softmax(self, axis=dim),
    "_log_softmax": lambda self, dim, half_to_float=False: jax.nn.log_softmax(self, axis=dim),
    "getitem": item,
}
