"""Gaussian and Laplace noise for simulations, drawn for all arrays of a tree in one call.

One draw for the whole tree costs one random stream instead of one per array, in time and in compilation. Its parts are as
independent of each other as separate draws.

In float32, normal numbers are drawn in pairs: both words of each random block are used, where `jax.random.normal` uses one
of two. In a private step, most of the draw is Threefry's twenty rounds. One block gives two 32-bit words, and the
Box-Muller transform turns them into two independent normal numbers: half the rounds for the same distribution, with tails
as far as 32 bits reach (6.7 standard deviations; 23 bits end at 5.4).

A deployment's keys (`random.secure`) draw from there: the same distributions from a cryptographic source.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.random import integers, secure

Array = jax.Array
Tree = Any
Sampler = Callable[[Array, Tree, Array | float], Tree]  # (key, like, standard deviation) → noise

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
STREAM = 0x6E6F6973  # second half of every counter: differs from the counters that JAX derives keys and bits with
TURNS = 2
SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)  # polynomials in φ² on ±π/4, to float32's precision
COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)

_sampler: ContextVar[Sampler | None] = ContextVar("sampler", default=None)


# --- noise for a tree


def gaussian(key: Array, like: Tree, std: Array | float) -> Tree:
    """Independent normal noise in the shape of `like`."""
    dtype = jax.tree.leaves(like)[0].dtype
    if is_secure(key):
        return shaped(like, std * secure.gaussian(key, _count(like), dtype))
    if dtype != jnp.float32 or jax.random.key_impl(key) != "threefry2x32":
        return shaped(like, std * jax.random.normal(key, (_count(like),), dtype))
    replaced = _sampler.get()
    return replaced(key, like, std) if replaced else shaped(like, std * normal(key, _count(like)))


@contextlib.contextmanager
def drawn_by(sampler: Sampler) -> Iterator[None]:
    """Within it, `sampler` draws the normal noise of float32 arrays: another order of the same stream, for speed."""
    token = _sampler.set(sampler)
    try:
        yield
    finally:
        _sampler.reset(token)


def laplace(key: Array, like: Tree, scale: Array | float) -> Tree:
    """Independent Laplace noise in the shape of `like`."""
    dtype = jax.tree.leaves(like)[0].dtype
    if is_secure(key):
        return shaped(like, scale * secure.laplace(key, _count(like), dtype))
    return shaped(like, scale * jax.random.laplace(key, (_count(like),), dtype))


def rounded_gaussian(key: Array, like: Tree, sigma: float) -> Tree:
    """Independent rounded normal numbers, int32, in the shape of `like`."""
    return shaped(like, integers.rounded_gaussian(key, (_count(like),), sigma))


def quick(key: Array) -> Array:
    """A key of the quick generator, for coins that need not be secret."""
    words = jax.random.bits(key, (2,), jnp.uint32)
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def is_secure(key: Array) -> bool:
    """Whether a key is of the kind that `random.secure` makes. The answer is known while tracing."""
    return "chacha20" in str(key.dtype)


def draw(distribution: str, key: Array, like: Tree, scale: Array | float) -> Tree:
    """Independent noise of a distribution by its name, `gaussian` or `laplace`."""
    return gaussian(key, like, scale) if distribution == "gaussian" else laplace(key, like, scale)


def add(tree: Tree, noise: Tree) -> Tree:
    return jax.tree.map(jnp.add, tree, noise)


def _count(like: Tree) -> int:
    return sum(math.prod(a.shape) for a in jax.tree.leaves(like))


def shaped(like: Tree, drawn: Array) -> Tree:
    """`like` filled from a vector of numbers, array by array."""
    leaves, structure = jax.tree.flatten(like)
    ends = list(itertools.accumulate(math.prod(a.shape) for a in leaves))
    parts = [part.reshape(a.shape) for a, part in zip(leaves, jnp.split(drawn, ends[:-1]), strict=True)]
    return jax.tree.unflatten(structure, parts)


# --- normal numbers in pairs


def normal(key: Array, count: int) -> Array:
    """`count` independent standard normal numbers in float32: the first of each pair, then the second of each."""
    drawn = _in_turns(jax.random.key_data(key), (count + 1) // 2)
    return jnp.concatenate([jnp.real(drawn), jnp.imag(drawn)])[:count]


def normal_pairs(key: Array, counters: Array) -> tuple[Array, Array]:
    """The two normal numbers of each counter; `key` [2] is the data of a Threefry key."""
    return box_muller(*threefry(key, counters, np.uint32(STREAM)))


@partial(jax.jit, static_argnums=1, inline=True)  # where it is called by itself, one program for each number of blocks
def _in_turns(key: Array, blocks: int) -> Array:
    """The pairs as complex numbers, in a loop of two turns.

    XLA on a CPU computes every output of a fused loop by itself, and sees through barriers: two halves of the numbers
    cost four draws of each block. A complex number is one output, and XLA does not unroll a loop of two turns: 0.6 of the
    time.
    """
    size = -(-blocks // TURNS)

    def turn(number: Array, drawn: Array) -> Array:
        start = number * size
        counters = start.astype(jnp.uint32) + jax.lax.iota(jnp.uint32, size)
        return jax.lax.dynamic_update_slice(drawn, jax.lax.complex(*normal_pairs(key, counters)), (start,))

    return jax.lax.fori_loop(0, TURNS, turn, jnp.zeros(TURNS * size, jnp.complex64))[:blocks]


def threefry(key: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011) of the counters (low, high), for arrays of JAX or of NumPy."""
    words = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(PARITY))
    a, b = low + words[0], high + words[1]
    for group in range(5):
        for turn in ROTATIONS[group % 2]:
            a = a + b
            b = a ^ ((b << np.uint32(turn)) | (b >> np.uint32(32 - turn)))
        a = a + words[(group + 1) % 3]
        b = b + words[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def uniform(key: Array, shape: tuple[int, ...], low: float, high: float) -> Array:
    """The numbers of `jax.random.uniform`, drawn by NumPy where the key is known: no program is compiled for each shape.

    XLA takes 0.25 s to compile a draw of another shape, most of the start of a small training. Equal to the last bit on a
    CPU: XLA fuses the product and the sum, so they are computed in double precision and rounded once.
    """
    known = not isinstance(key, jax.core.Tracer) and jax.random.key_impl(key) == "threefry2x32"
    if not known or jnp.result_type(float) != jnp.float32:
        return jax.random.uniform(key, shape, minval=low, maxval=high)
    count = math.prod(shape)
    with np.errstate(over="ignore"):
        words = threefry(
            np.asarray(jax.random.key_data(key)), np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32)
        )
    unit = ((words[0] ^ words[1]) >> np.uint32(9) | np.uint32(0x3F800000)).view(np.float32) - np.float32(1.0)
    first, last = np.float32(low), np.float32(high)
    scaled = unit.astype(np.float64) * np.float64(last - first) + np.float64(first)
    return jnp.asarray(np.maximum(first, scaled.astype(np.float32)).reshape(shape))


def box_muller(first: Array, second: Array) -> tuple[Array, Array]:
    """Two independent normal numbers from two uniform words.

    The radius comes from the first word. Of the second, two bits choose the side of the square and thirty the angle
    within ±π/4 of it, where short polynomials give sine and cosine.
    """
    uniform = first.astype(jnp.float32) * jnp.float32(2.0**-32) + jnp.float32(2.0**-33)
    radius = jnp.sqrt(-2.0 * jnp.log(uniform))
    angle = (second.astype(jnp.int32) >> 2).astype(jnp.float32) * jnp.float32(math.pi / 2**31)
    square = angle * angle
    sine = angle + angle * square * _polynomial(SINE, square)
    cosine = 1.0 - 0.5 * square + square * square * _polynomial(COSINE, square)
    cosine = jnp.where((second & 2) == 2, -cosine, cosine)
    swapped = (second & 1) == 1
    return radius * jnp.where(swapped, sine, cosine), radius * jnp.where(swapped, cosine, sine)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    total = jnp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + jnp.float32(c)
    return total
