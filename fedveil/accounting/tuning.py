"""Paid-for tuning: run a mechanism a random number of times and release the best run (Papernot and Steinke 2022).

The number of runs K is secret, and drawn from a distribution that is fixed beforehand. "Best" may be judged by any score of
the released result. ε grows by little, but only because K is random; a fixed number of runs would cost more.
"""

from __future__ import annotations

import math

import numpy as np

from fedveil.accounting import rdp
from fedveil.accounting.accountants import Rounds
from fedveil.accounting.pld import Array


def tuned_epsilon(rounds: Rounds, delta: float, mean_repeats: float, shape: float) -> float | None:
    """ε at δ of the best of K runs, each made of these rounds; None where Rényi divergences give no bound.

    K has the mean `mean_repeats` ≥ 1. Its distribution is the truncated negative binomial of `shape` η ≥ 0 (1: geometric,
    0: logarithmic) or, with η infinite, Poisson; then nothing is released where K = 0.
    """
    if not (mean_repeats >= 1.0 and math.isfinite(mean_repeats) and shape >= 0.0):
        raise ValueError(f"needs mean_repeats ≥ 1 and shape ≥ 0; got {mean_repeats} and {shape}")
    rounds = tuple((one, times) for one, times in rounds if times > 0)
    left = delta - mean_repeats * sum(one.fails * times for one, times in rounds)  # a union bound over all runs
    if left <= 0:
        return None
    if not rounds:
        return 0.0
    once = rdp.divergences(rounds)
    if math.isinf(shape):
        return rdp.converted(_best_of_poisson(once, mean_repeats), left)
    if mean_repeats == 1.0:  # exactly one run
        return rdp.converted(once, left)
    return rdp.converted(_best_of_binomial(once, mean_repeats, shape), left)


def _best_of_binomial(once: Array, mean: float, shape: float) -> Array:
    """Theorem 2: ε'(λ) = ε(λ) + (1 + η)·min over λ̂ of [(1 − 1/λ̂)·ε(λ̂) + log(1/γ)/λ̂] + log(E[K])/(λ − 1)."""
    orders = np.asarray(rdp.ORDERS, dtype=float)
    stop = stopping_rate(mean, shape)
    second = (1.0 + shape) * float(np.min((1.0 - 1.0 / orders) * once - math.log(stop) / orders))
    return _monotone(once + second + math.log(mean) / (orders - 1.0))


def _best_of_poisson(once: Array, mean: float) -> Array:
    """Theorem 6: ε'(λ) = ε(λ) + E[K]·δ̂ + log(E[K])/(λ − 1), where one run is (log(1 + 1/(λ − 1)), δ̂)-private."""
    from dp_accounting.rdp import rdp_privacy_accountant as library

    orders = np.asarray(rdp.ORDERS, dtype=float)
    usable = np.isfinite(once)
    if not usable.any():
        return once
    hats = [library.compute_delta(orders[usable], once[usable], math.log1p(1.0 / (a - 1.0)))[0] for a in orders]
    return _monotone(once + mean * np.array(hats) + math.log(mean) / (orders - 1.0))


def _monotone(divergences: Array) -> Array:
    """A divergence is at most that of any larger order."""
    return np.minimum.accumulate(divergences[::-1])[::-1]


def stopping_rate(mean: float, shape: float) -> float:
    """γ of the truncated negative binomial with this mean, rounded down (which enlarges ε)."""
    if shape == 1.0:
        return 1.0 / mean
    low, high = math.log(1e-300), 0.0  # of log γ; the mean falls as γ grows
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _mean(middle, shape) >= mean else (low, middle)
    return math.exp(low)


def _mean(log_stop: float, shape: float) -> float:
    """E[K] = η·(1/γ − 1)/(1 − γ^η), and (1/γ − 1)/log(1/γ) for η = 0 (Definition 1)."""
    if log_stop > -1e-12:
        return 1.0
    scale = -log_stop if shape == 0.0 else -math.expm1(shape * log_stop) / shape
    return math.expm1(-log_stop) / scale
