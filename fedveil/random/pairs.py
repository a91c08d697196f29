"""Normal numbers in pairs: both words of each random block are used, where `jax.random.normal` uses one of two.

In a defended step the draw of the noise is bound by arithmetic, and most of that is Threefry's twenty rounds. One block
gives two 32-bit words, and Box and Muller's transform makes two independent normal numbers of them: half the rounds for
the same law, and tails that reach as far as 32 bits do (6.7 deviations; 23 bits end at 5.4).

For simulations. A deployment's noise comes from `random.secure`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
OWN = 0x6E6F6973  # second half of every counter: apart from the counters that JAX derives keys and bits with
TURNS = 2
SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)  # of φ², on ±π/4, to float32's precision
COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


def suits(key: Array, dtype: Any) -> bool:
    """Whether these numbers can be drawn so: in float32, with a key of Threefry."""
    return bool(dtype == jnp.float32) and jax.random.key_impl(key) == "threefry2x32"


def normal(key: Array, count: int) -> Array:
    """`count` independent standard normal numbers in float32: the first of each pair, then the second of each."""
    drawn = _in_turns(jax.random.key_data(key), (count + 1) // 2)
    return jnp.concatenate([jnp.real(drawn), jnp.imag(drawn)])[:count]


def neighbours(key: Array, start: int, count: int) -> Array:
    """`count` independent standard normal numbers of a stream in which the two of a pair lie side by side, from number
    `start` on, which is even.

    For compilers that make several neighbours in one thread, as on graphics cards: joined with what reads them, a block is
    drawn once for both, and the numbers are never stored.
    """
    number = jax.lax.iota(jnp.uint32, count)
    first, second = _drawn(jax.random.key_data(key), (number >> 1) + jnp.uint32(start // 2))
    return jnp.where((number & 1) == 0, first, second)


def _drawn(key: Array, counters: Array) -> tuple[Array, Array]:
    return box_muller(*threefry(key, counters, OWN))


def _in_turns(key: Array, blocks: int) -> Array:
    """The pairs as complex numbers, in two turns of a loop.

    XLA on a CPU computes every output of a fused loop by itself, and looks through barriers: two halves of the numbers cost
    four draws of each block. A complex number is one output, and nobody looks into a loop of two turns: 0.6 of the time.
    """
    size = -(-blocks // TURNS)

    def turn(number: Array, drawn: Array) -> Array:
        start = number * size
        counters = start.astype(jnp.uint32) + jax.lax.iota(jnp.uint32, size)
        return jax.lax.dynamic_update_slice(drawn, jax.lax.complex(*_drawn(key, counters)), (start,))

    return jax.lax.fori_loop(0, TURNS, turn, jnp.zeros(TURNS * size, jnp.complex64))[:blocks]


def threefry(key: Array, low: Array, high: int) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011) of the counters (low, high)."""
    words = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY))
    a, b = low + words[0], jnp.uint32(high) + words[1]
    for group in range(5):
        for turn in ROTATIONS[group % 2]:
            a = a + b
            b = a ^ ((b << jnp.uint32(turn)) | (b >> jnp.uint32(32 - turn)))
        a = a + words[(group + 1) % 3]
        b = b + words[(group + 2) % 3] + jnp.uint32(group + 1)
    return a, b


def box_muller(first: Array, second: Array) -> tuple[Array, Array]:
    """Two independent normal numbers of two uniform words.

    The radius comes from the first; of the second, two bits choose the side of the square, thirty the angle within ±π/4
    of it, where short polynomials give sine and cosine.
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
