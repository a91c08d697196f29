"""Gaussian noise in whole numbers: a normal number rounded to the nearest integer, drawn from random bits by comparison.

The distribution is that of round(N) with N normal, mean zero and standard deviation σ. For an integer x, x + round(N) is
round(x + N): what is released is post-processing of the Gaussian mechanism, so every bound for that mechanism holds, also
those for samples. docs/integer-noise.md has the proofs.

No floating-point number is drawn. The probabilities P(|round(N)| ≤ k) are computed with 192 bits and kept with 127: a draw
compares 127 random bits with them and takes one more for the sign. What that and the cut at 13.2σ change is bounded by
`slip`, in total variation for each number drawn; an account takes it off δ.

A sum of t such numbers, each of standard deviation s, is not round(N) of the sum's variance, but close to the rounding of a
Gaussian with more noise: `sum_slip` bounds by how much.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import jax

BITS = 192  # of a fixed-point number while the table is made
KEPT = 127  # bits of a threshold
CUT = 13.2  # standard deviations; P(|N| > 13.2σ) < 2⁻¹²⁹
WORDS = (96, 64, 32, 0)  # where the words of a threshold begin, the most significant first
SMALLEST, LARGEST = 2.0, 2.0**17  # σ
MOST = 10**6  # numbers in a sum
ONE = 1 << BITS


# --- the table


@lru_cache(maxsize=16)
def thresholds(sigma: float) -> np.ndarray:
    """[4, n] words of 32 bits, the most significant first: number k is 2¹²⁸·P(|round(N)| ≤ k), rounded down to even."""
    masses = _masses(sigma)
    total, below, made = sum(masses), 0, []
    for mass in masses[:-1]:
        below += mass
        made.append((below << KEPT) // total << 1)
    words = np.empty((4, len(made)), np.uint32)
    for row, shift in enumerate(WORDS):
        words[row] = [threshold >> shift & 0xFFFFFFFF for threshold in made]
    words.setflags(write=False)
    return words


def _masses(sigma: float) -> list[int]:
    """P(|round(N)| = k) up to a factor, in fixed point, for k from 0 to the cut.

    The integral of exp(−(k + t)²/2σ²) over |t| ≤ ½ is exp(−k²/2σ²) times a power series in (k/σ²)². The first factor
    follows from k to k + 1 by two products.
    """
    if not SMALLEST <= sigma <= LARGEST:
        raise ValueError(f"σ = {sigma:g} is outside of {SMALLEST:g} to {LARGEST:g}")
    last = cut(sigma)
    inverse = 1 / Fraction(sigma) ** 2
    v = _fixed(inverse)
    series = _series(inverse, last)
    ratio, quotient = _exponential(inverse / 2), _exponential(inverse)
    height, masses = ONE, list[int]()
    for k in range(last + 1):
        x = (k * v) ** 2 >> BITS
        value = 0
        for coefficient in reversed(series):
            value = (value * x >> BITS) + coefficient
        masses.append((height * value >> BITS) << (k > 0))
        height = height * ratio >> BITS
        ratio = ratio * quotient >> BITS
    return masses


def cut(sigma: float) -> int:
    """The largest number that is drawn."""
    return math.ceil(CUT * sigma) + 1


def _series(inverse: Fraction, last: int) -> list[int]:
    """The coefficients of (k/σ²)^(2j): 1/(2j)! times the integral of t^(2j)·exp(−t²/2σ²) over |t| ≤ ½."""
    made, largest = list[int](), float(last * inverse) ** 2
    j, size = 0, 1.0
    while size > 2.0**-BITS:
        total, term, i = Fraction(0), Fraction(1), 0
        while abs(float(term)) * 0.25**i > 2.0 ** -(BITS + 8):
            total += term * Fraction(1, 4) ** i / (2 * j + 2 * i + 1)
            i += 1
            term = Fraction(_fixed(term * -inverse / (2 * i)), ONE)
        coefficient = total * Fraction(1, 4) ** j / math.factorial(2 * j)
        made.append(_fixed(coefficient))
        size = float(coefficient) * largest**j
        j += 1
    return made


def _exponential(x: Fraction) -> int:
    """exp(−x) for 0 ≤ x ≤ ½, in fixed point."""
    total, term, n, number = ONE, ONE, 0, _fixed(x)
    while term:
        n += 1
        term = (term * number >> BITS) // n
        total += -term if n % 2 else term
    return total


def _fixed(x: Fraction) -> int:
    return (x.numerator << BITS) // x.denominator


# --- draws


def rounded_gaussian(key: jax.Array, shape: tuple[int, ...], sigma: float) -> jax.Array:
    """Independent draws of round(N) as int32, from a key of any kind; σ is known when the draw is compiled."""
    import jax
    import jax.numpy as jnp

    words = jax.random.bits(key, (len(WORDS), *shape), jnp.uint32)
    size = _below(jnp.asarray(thresholds(sigma)), words)
    return jnp.where(words[-1] & 1 == 1, -size, size)


def _below(table: jax.Array, words: jax.Array) -> jax.Array:
    """How many thresholds are at most the number that the words spell: a binary search on the first word, then on all.

    Thresholds that share a first word are searched by the others. That is rare in the middle, and the whole tail.
    """
    import jax
    import jax.numpy as jnp

    first = jnp.searchsorted(table[0], words[0], side="left").astype(jnp.int32)
    end = jnp.searchsorted(table[0], words[0], side="right").astype(jnp.int32)

    def step(bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low + high) // 2
        at_most = table[-1][middle] <= words[-1]
        for row in reversed(range(1, len(WORDS) - 1)):
            own = table[row][middle]
            at_most = (own < words[row]) | ((own == words[row]) & at_most)
        open_ = low < high
        return jnp.where(open_ & at_most, middle + 1, low), jnp.where(open_ & ~at_most, middle, high)

    found, _ = jax.lax.while_loop(lambda bounds: (bounds[0] < bounds[1]).any(), step, (first, end))
    return found


# --- how far from the ideal


def slip(sigma: float) -> float:
    """A bound on the total variation between a number as it is drawn and round(N)."""
    # Each threshold is off by 2⁻¹²⁷ and by the errors of the fixed-point arithmetic, which are smaller; then the cut.
    return (cut(sigma) + 2) * 2.0**-126 + 2.0**-129


def sum_slip(s: float, count: int) -> float:
    """A bound on the total variation between a sum of `count` numbers round(x_k + N_k) and a rounded Gaussian mechanism.

    N_k is normal with standard deviation s, x_k any real number. The mechanism is round(Σ x_k + Σ N_k + V) with V
    independent of the x_k: post-processing of Gaussian noise of standard deviation √count·s on the sum.
    """
    if count == 1:
        return 0.0
    if not (s >= SMALLEST and 1 < count <= MOST):
        return 1.0
    return _sum_bound(s, count)


def _sum_bound(s: float, count: int) -> float:
    """Theorem 2 of docs/integer-noise.md."""
    log = math.log(4.0 * count) - 2.0 * (math.pi * s) ** 2 * (1.0 - 1.0 / count)
    if log >= 0.0:
        return 1.0
    # Every probability differs by at most exp(log), and beyond `reach` there is no more than that.
    reach = count / 2.0 + s * math.sqrt(-2.0 * count * log)
    return min(1.0, (2.0 * reach + 2.0) * math.exp(log))
