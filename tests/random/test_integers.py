"""Rounded Gaussian noise: its table, its draws, and exact small cases of what it certifies."""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction

import jax
import numpy as np
import pytest
from scipy import special, stats

from fedveil.accounting import accountants
from fedveil.accounting.accountants import Round
from fedveil.random import integers, secure

TINY = 1e-14  # rounding of float64 in a sum of probabilities


def pmf(sigma: float, last: int, mean: float = 0.0) -> np.ndarray:
    """P(round(mean + N) = k) for k from −last to last."""
    edges = (np.arange(-last, last + 2) - 0.5 - mean) / sigma
    low, high = edges[:-1], edges[1:]
    return np.where(low > 0, special.ndtr(-low) - special.ndtr(-high), special.ndtr(high) - special.ndtr(low))


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


# --- the table


def exact_erf(x: Fraction, bits: int = 700) -> Fraction:
    """erf by its power series: another way than the table's."""
    one = 1 << bits
    square = (x * x).numerator * one // (x * x).denominator
    term = x.numerator * one // x.denominator
    total, n = term, 0
    while abs(term) > 1:
        n += 1
        term = -term * square // one // n
        total += term // (2 * n + 1)
    pi = Fraction(3141592653589793238462643383279502884197169399375105820974944592307816406286208998628034825, 10**90)
    scale = Fraction(math.isqrt(int(4 / pi * (1 << 400))), 1 << 200)
    return Fraction(total, one) * scale


@pytest.mark.parametrize("sigma", [2.0, 5.3, 201.7])
def test_thresholds_are_those_of_a_gaussian_to_120_bits(sigma: float) -> None:
    words = integers.thresholds(sigma)
    root = Fraction(math.isqrt(2 << 400), 1 << 200)
    for k in {0, 1, 2, int(sigma), int(3 * sigma), int(6 * sigma), words.shape[1] - 1}:
        found = sum(int(words[row, k]) << shift for row, shift in enumerate(integers.WORDS))
        wanted = exact_erf((Fraction(k) + Fraction(1, 2)) / (Fraction(sigma) * root)) * 2**128
        assert abs(found - wanted) <= 2**128 * Fraction(integers.slip(sigma)) / 10


def test_the_search_counts_thresholds_exactly() -> None:
    table = integers.thresholds(40.0)
    whole = [sum(int(table[r, k]) << s for r, s in enumerate(integers.WORDS)) for k in range(table.shape[1])]
    tried = [
        0,
        1,
        2**128 - 1,
        *(t + step for t in whole for step in (-2, -1, 0, 1, 2)),
        *(t ^ 1 << 40 for t in whole),
        *(t ^ 1 << 80 for t in whole),
    ]
    tried = [t for t in tried if 0 <= t < 2**128]
    words = np.array([[t >> s & 0xFFFFFFFF for t in tried] for s in integers.WORDS], np.uint32)
    found = np.asarray(integers._below(jax.numpy.asarray(table), jax.numpy.asarray(words)))
    assert found.tolist() == [bisect_right(whole, t) for t in tried]


def test_sigma_outside_of_the_tables_is_refused() -> None:
    for sigma in (0.0, 1.9, 2.0**18, math.nan):
        with pytest.raises(ValueError, match="outside"):
            integers.thresholds(sigma)


# --- the draws


@pytest.mark.parametrize("kind", ["secure", "keyed"])
@pytest.mark.parametrize("sigma", [2.0, 30.0])
def test_draws_follow_the_distribution(kind: str, sigma: float) -> None:
    key = secure.key_of(bytes(range(32))) if kind == "secure" else jax.random.key(5)
    drawn = np.asarray(integers.rounded_gaussian(key, (200_000,), sigma))
    last = int(4 * sigma)
    counts = np.bincount(np.clip(drawn, -last - 1, last + 1) + last + 1, minlength=2 * last + 3)
    inner = pmf(sigma, last)
    tail = (1.0 - inner.sum()) / 2.0
    expected = np.concatenate([[tail], inner, [tail]]) * len(drawn)
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 1e-4


def test_a_wrong_sigma_would_be_noticed() -> None:
    drawn = np.asarray(integers.rounded_gaussian(jax.random.key(1), (200_000,), 30.0)).astype(float)
    spread = math.sqrt(30.0**2 + 1.0 / 12.0)
    assert abs(drawn.std() / spread - 1.0) < 4.0 / math.sqrt(2 * 200_000)
    assert abs(drawn.mean()) < 4.0 * spread / math.sqrt(200_000)


def test_draws_depend_on_the_key_alone() -> None:
    key = secure.key_of(bytes(32))
    whole = jax.jit(lambda k: integers.rounded_gaussian(k, (50, 3), 9.0))(key)
    assert (np.asarray(whole) == np.asarray(integers.rounded_gaussian(key, (50, 3), 9.0))).all()
    other = integers.rounded_gaussian(secure.key_of(bytes(31) + b"\1"), (50, 3), 9.0)
    assert (np.asarray(whole) != np.asarray(other)).mean() > 0.8


# --- what it certifies, in cases that are small enough to compute


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize(("sigma", "moved"), [(2.0, 1), (5.0, 7), (20.0, 13)])
def test_one_number_is_as_private_as_the_gaussian(sigma: float, moved: int, epsilon: float) -> None:
    last = int(14 * sigma) + moved
    p = pmf(sigma, last)
    found = max(hockey_stick(p[moved:], p[:-moved], epsilon), hockey_stick(p[:-moved], p[moved:], epsilon))
    z = sigma / moved
    certified = special.ndtr(0.5 / z - epsilon * z) - math.exp(epsilon) * special.ndtr(-0.5 / z - epsilon * z)
    assert found <= certified + TINY
    assert found > 0.8 * certified - 1e-6  # the bound is tight: rounding hides little


@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_a_sampled_number_costs_at_most_what_the_accountant_says(rate: float) -> None:
    sigma, moved, delta = 6.0, 5, 1e-3
    last = 100
    p, q = pmf(sigma, last), (1 - rate) * pmf(sigma, last) + rate * pmf(sigma, last, moved)
    certified = accountants.epsilon(((Round(((1.0, sigma / moved),), rate=rate, hidden=True), 1),), delta, "pld")
    assert certified is not None
    assert max(hockey_stick(p, q, certified), hockey_stick(q, p, certified)) <= delta


def test_two_numbers_of_a_vector_depend_on_the_norm_alone() -> None:
    sigma, delta = 4.0, 1e-4
    one, other, none = pmf(sigma, 70, 3.0), pmf(sigma, 70, 4.0), pmf(sigma, 70)
    p, q = np.outer(one, other).ravel(), np.outer(none, none).ravel()
    certified = accountants.epsilon(((Round(((1.0, sigma / 5.0),)), 1),), delta, "pld")
    assert certified is not None
    assert delta * 0.7 < hockey_stick(p, q, certified - 0.01) + 1e-6
    assert max(hockey_stick(p, q, certified), hockey_stick(q, p, certified)) <= delta


def summed(sigma: float, means: list[float], last: int) -> np.ndarray:
    """The distribution of Σ round(x_k + N_k) on −last to last, by convolution."""
    total = np.array([1.0])
    for mean in means:
        total = np.convolve(total, pmf(sigma, last, mean))
    middle = len(total) // 2
    return total[middle - last : middle + last + 1]


def rounded_sum(sigma: float, means: list[float], last: int) -> np.ndarray:
    """The distribution of round(Σ x_k + Σ N_k + V), V a sum of one uniform number less: on a fine grid."""
    fine, count = 2000, len(means)
    grid = np.arange(-fine * (last + count), fine * (last + count) + 1) / fine
    spread = sigma * math.sqrt(count)
    uniform = np.ones(fine + 1)
    uniform[[0, -1]] = 0.5
    density = np.exp(-((grid - sum(means)) ** 2) / (2 * spread**2)) / (spread * math.sqrt(2 * math.pi))
    for _ in range(count):
        density = np.convolve(density, uniform / fine, mode="same")
    found: np.ndarray = density[fine * count :: fine][: 2 * last + 1]
    return found


@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_sum_is_close_to_the_rounded_gaussian_and_the_bound_is_not_empty(count: int) -> None:
    s, last = 0.8, 40  # so little noise that float64 shows the difference
    means = [0.0, 0.1, 0.05, -0.1, 0.1, 0.15][:count]
    apart = np.abs(summed(s, means, last) - rounded_sum(s, means, last)).sum() / 2
    bound = integers._sum_bound(s, count)
    assert apart <= bound < 1.0
    assert apart > bound / 1e4


def test_a_sum_with_the_least_noise_is_closer_than_any_account_can_tell() -> None:
    assert integers.sum_slip(integers.SMALLEST, 2) < 1e-13
    assert integers.sum_slip(integers.SMALLEST, 100) < 1e-28
    assert integers.sum_slip(1.9, 100) == 1.0
    assert integers.sum_slip(1.0, 1) == 0.0


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_a_sum_is_as_private_as_all_of_its_noise(epsilon: float) -> None:
    s, count, moved, last = 2.0, 4, 3.0, 90
    p, q = summed(s, [moved, 0, 0, 0], last), summed(s, [0.0, 0, 0, 0], last)
    found = max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
    z = s * math.sqrt(count) / moved
    certified = special.ndtr(0.5 / z - epsilon * z) - math.exp(epsilon) * special.ndtr(-0.5 / z - epsilon * z)
    assert found <= certified + (1.0 + math.exp(epsilon)) * integers.sum_slip(s, count) + TINY
    assert found > 0.8 * certified
