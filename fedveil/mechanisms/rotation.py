"""A random rotation that spreads a vector evenly over its coordinates, without padding.

Random signs and a Hadamard matrix, once on the first 2^k coordinates and once on the last; 2^k is the largest power of two
up to d. Both are orthogonal, so norms stay. Afterwards every coordinate has a share of about 1/2^k of the square, and few
bits hold a sum. The signs follow from a public key: privacy does not depend on them.

For arrays of NumPy (the server) and of JAX (a compiled round): the same signs in both.
"""

from __future__ import annotations

import math
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from fedveil.random.noise import threefry

SIGNS = 0x726F7461  # second half of every counter
Key = tuple[Any, Any]  # two words of 32 bits


def rotate(x: Any, key: Key, xp: ModuleType = np) -> Any:
    """[..., d] rotated."""
    size = block(x.shape[-1])
    first = _mixed(x[..., :size] * signs(key, size, 0, xp), xp)
    x = xp.concatenate([first, x[..., size:]], axis=-1)
    last = _mixed(x[..., -size:] * signs(key, size, 1, xp), xp)
    return xp.concatenate([x[..., :-size], last], axis=-1)


def back(x: Any, key: Key, xp: ModuleType = np) -> Any:
    """[..., d] before `rotate`."""
    size = block(x.shape[-1])
    last = _mixed(x[..., -size:], xp) * signs(key, size, 1, xp)
    x = xp.concatenate([x[..., :-size], last], axis=-1)
    first = _mixed(x[..., :size], xp) * signs(key, size, 0, xp)
    return xp.concatenate([first, x[..., size:]], axis=-1)


def block(values: int) -> int:
    """The largest power of two up to `values`."""
    return 1 << (values.bit_length() - 1)


def signs(key: Key, size: int, half: int, xp: ModuleType = np) -> Any:
    """[size] of ±1."""
    counters = xp.arange(size, dtype=xp.uint32)
    with np.errstate(over="ignore"):
        words, _ = threefry(key, counters, np.uint32(SIGNS + half))
    return 1.0 - 2.0 * (words & np.uint32(1)).astype(xp.float32)


def _mixed(x: Any, xp: ModuleType) -> Any:
    """[..., 2^k] times a Hadamard matrix over √2^k: as two products with smaller ones."""
    size = x.shape[-1]
    rows = 1 << (size.bit_length() // 2)
    left, right = _hadamard(rows), _hadamard(size // rows)
    exact = {} if xp is np else {"precision": "highest"}
    table = x.reshape(*x.shape[:-1], rows, size // rows)
    table = xp.matmul(table, right.astype(x.dtype), **exact)
    return xp.matmul(left.astype(x.dtype), table, **exact).reshape(x.shape)


@lru_cache(maxsize=32)
def _hadamard(size: int) -> np.ndarray:
    """Sylvester's matrix over √size: symmetric and orthogonal."""
    made = np.ones((1, 1))
    while len(made) < size:
        made = np.block([[made, made], [made, -made]])
    return made / math.sqrt(size)
