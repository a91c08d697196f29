"""Cryptographic randomness for deployments: ChaCha20 keyed with bytes from the operating system, as a kind of JAX key.

A simulation draws from keys of 64 bits (`core.keys.Draws`). A deployed node draws from `fresh_key()`: 256 bits from
`os.urandom`, used for one round and never stored. These keys work wherever JAX keys do: `fold_in` and `split` derive a new
key by ChaCha20 as a pseudo-random function, and random bits are its key stream (RFC 8439).

`gaussian` and `laplace` compute each number from several draws. A single float32 draw takes few values, which its last bits
would reveal (Holohan and Braghin, 2021).
"""

from __future__ import annotations

import math
import os
from functools import cache
from typing import Any

import jax
import jax.extend.random as extended
import jax.numpy as jnp
import numpy as np

Array = jax.Array

State = tuple[Array, ...]  # 16 words

NAME = "fedveil-chacha20"
_SIGMA = np.frombuffer(b"expand 32-byte k", np.uint32)
# The purpose of a block, in the first word of its nonce: no derived key is ever part of a stream of random bits.
_STREAM, _FOLD, _SPLIT = 0, 1, 2


@jax.jit
def blocks(key: Array, counter: Array, nonce: Array) -> Array:
    """ChaCha20 blocks [n, 16] of uint32 for a key [8], counters [n] and a nonce [3]."""
    words = (*jnp.asarray(_SIGMA), *key, counter, *nonce)
    start = tuple(jnp.broadcast_to(word, counter.shape).astype(jnp.uint32) for word in words)
    mixed = jax.lax.fori_loop(0, 10, lambda _, state: _double_round(state), start)
    return jnp.stack([first + last for first, last in zip(start, mixed, strict=True)], axis=1)


def _double_round(state: State) -> State:
    """Four quarter rounds on the columns of the 4 × 4 words, four on the diagonals."""
    words = list(state)
    for shift in (0, 1):
        for column in range(4):
            indices = [4 * row + (column + shift * row) % 4 for row in range(4)]
            for index, word in zip(indices, _quarter(*(words[index] for index in indices)), strict=True):
                words[index] = word
    return tuple(words)


def _quarter(a: Array, b: Array, c: Array, d: Array) -> State:
    for first, second in ((16, 12), (8, 7)):
        a = a + b
        d = _rotate(d ^ a, first)
        c = c + d
        b = _rotate(b ^ c, second)
    return a, b, c, d


def _rotate(word: Array, bits: int) -> Array:
    return (word << jnp.uint32(bits)) | (word >> jnp.uint32(32 - bits))


# --- as a kind of JAX key


def _seed(seed: Array) -> Array:
    """Refuses seeds: 64 bits are no secret, so keys of this kind come from `fresh_key` only."""
    raise TypeError("keys of this kind are made by fedveil.random.secure.fresh_key, not from a seed")


def _fold_in(key: Array, data: Any) -> Array:
    nonce = jnp.stack([jnp.uint32(_FOLD), jnp.asarray(data).astype(jnp.uint32), jnp.uint32(0)])
    return blocks(key, jnp.zeros(1, jnp.uint32), nonce)[0, :8]


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    count = math.prod(shape)
    nonce = jnp.array([_SPLIT, 0, 0], jnp.uint32)
    return blocks(key, jnp.arange(count, dtype=jnp.uint32), nonce)[:, :8].reshape(*shape, 8)


def _random_bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    """The key stream as unsigned numbers of `width` bits."""
    count = math.prod(shape)
    words = math.ceil(count * width / 32)
    made = math.ceil(words / 16)
    if made >= 2**32:
        raise ValueError("one key gives at most 2^32 blocks: draw in parts")
    nonce = jnp.array([_STREAM, 0, 0], jnp.uint32)
    stream = blocks(key, jnp.arange(made, dtype=jnp.uint32), nonce).reshape(-1)
    if width == 32:
        return stream[:count].reshape(shape)
    if width == 64:
        pairs = stream[: 2 * count].reshape(-1, 2).astype(jnp.uint64)
        return ((pairs[:, 0] << jnp.uint64(32)) | pairs[:, 1]).reshape(shape)
    kind = {8: jnp.uint8, 16: jnp.uint16}[width]
    return jax.lax.bitcast_convert_type(stream, kind).reshape(-1)[:count].reshape(shape)


@cache
def _kind() -> Any:
    return extended.define_prng_impl(
        key_shape=(8,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in, name=NAME, tag="chacha20"
    )


def key_of(secret: bytes) -> Array:
    """The key of 32 bytes."""
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(secret, "<u4").astype(np.uint32)), impl=_kind())


def fresh_key() -> Array:
    """A new key: 32 bytes of the operating system's randomness."""
    return key_of(os.urandom(32))


# --- noise


def gaussian(key: Array, count: int, dtype: Any) -> Array:
    """Standard normal numbers: half the sum of four draws."""
    return jax.random.normal(key, (4, count), dtype).sum(axis=0) / 2


def laplace(key: Array, count: int, dtype: Any) -> Array:
    """Laplace numbers of scale 1: the sum of two products of standard normals, a·b + c·d."""
    a, b, c, d = jax.random.normal(key, (4, count), dtype)
    return a * b + c * d
