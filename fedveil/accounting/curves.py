"""The trade-off curve of rounds, and their μ of Gaussian differential privacy, from the privacy loss distribution.

Both read δ(ε) at every grid point up to the ε that belongs to δ = 1e-10. Between grid points δ(ε) is linear in e^ε, so what
holds there follows from its ends. No central-limit figure is used: that one is not a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import signal

from fedveil.accounting import pld
from fedveil.accounting.accountants import Rounds
from fedveil.accounting.pld import UNIT, Array, Losses, Tilted, peak

LEAST = 1e-10  # the smallest δ that a curve describes
POINTS = 20_000  # values of ε at which μ is compared


def trade_off(rounds: Rounds, alphas: Sequence[float]) -> list[float]:
    """For each type I error α of a test for the unit, a lower bound on its type II error.

    f(α) = max over ε of 1 − δ − e^ε·α and e^(−ε)·(1 − δ − α), and 0 (Dong, Roth and Su 2022, Proposition 6), for tests in
    either direction.
    """
    found = profile(rounds)
    if found is None:
        return [0.0 for _ in alphas]
    epsilons, deltas = found
    steep = (1.0 - deltas - np.exp(epsilons) * alpha for alpha in alphas)
    flat = (np.exp(-epsilons) * (1.0 - deltas - alpha) for alpha in alphas)
    return [max(0.0, float(one.max()), float(other.max())) for one, other in zip(steep, flat, strict=True)]


def gdp_mu(rounds: Rounds) -> float | None:
    """The smallest μ, rounded up, for which the rounds are μ-GDP at every δ ≥ 1e-10; None where none is found.

    δ(ε) of the rounds may nowhere exceed δ of a Gaussian whose means are μ standard deviations apart. Each cell of the grid
    is cut into pieces. On each piece the rounds' δ at the left end is compared with the Gaussian's at the right end.
    """
    found = profile(rounds)
    if found is None or found[1][-1] >= LEAST:  # no grid, or failures alone exceed every δ that counts
        return None
    epsilons, deltas = _pieces(*found)
    used = deltas[:-1] >= LEAST
    left, right = deltas[:-1][used], epsilons[1:][used]

    def enough(mu: float) -> bool:
        return bool((pld.gaussian_delta(mu, right) >= left).all())

    if not len(left):
        return 0.0
    high = 1e-6
    while not enough(high):
        high *= 2.0
        if high > 1e4:
            return None
    low = high / 2.0
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _pieces(epsilons: Array, deltas: Array) -> tuple[Array, Array]:
    """More points between those of the grid, with δ linear in e^ε between."""
    parts = max(1, POINTS // len(epsilons))
    fine = np.linspace(epsilons[0], epsilons[-1], (len(epsilons) - 1) * parts + 1)
    cell = np.minimum(np.arange(len(fine)) // parts, len(epsilons) - 2)
    share = np.expm1(fine - epsilons[cell]) / np.expm1(epsilons[1] - epsilons[0])
    return fine, deltas[cell] + share * (deltas[cell + 1] - deltas[cell])


def profile(rounds: Rounds) -> tuple[Array, Array] | None:
    """ε at the grid points from 0 on, and δ(ε) from above, down to δ = 1e-10; None where no grid fits the noise."""
    rounds = tuple((one, times) for one, times in rounds if times > 0)
    made = pld.distribution(rounds, LEAST, 2.0) if rounds else None
    if made is None:
        return None if rounds else (np.array([0.0, 1.0]), np.zeros(2))
    fails = sum(one.fails * times for one, times in rounds)
    last = made.get_epsilon_for_delta(max(LEAST - fails, LEAST / 2.0))
    if not math.isfinite(last):
        return None
    count = math.ceil(last / made.grid) + 2
    deltas = np.max([_side(made, side, count) for side in made.sides], axis=0)
    return np.arange(count) * made.grid, np.minimum(1.0, np.minimum.accumulate(deltas) + fails)


def _side(made: Losses, side: int, count: int) -> Array:
    """δ in one direction: the least bound of all tilts that suit some ε of the range."""
    first = made.tilt_for_epsilon(side, 0.0)
    last = max(first, made.tilt_for_epsilon(side, (count - 1) * made.grid))
    tilts = 2.0 ** np.arange(math.log2(first), math.log2(last) + 1)
    return np.min([_deltas(made.tilted(side, float(tilt)), count) for tilt in tilts], axis=0)


def _deltas(one: Tilted, count: int) -> Array:
    """δ(i·grid) from above, for i < count, by two recursive sums over the losses from the largest down."""
    low, high = min(one.first, 0), max(one.first + len(one.probs), count)
    probs = np.zeros(high - low)
    probs[one.first - low : one.first - low + len(one.probs)] = one.probs
    decay = [math.exp(-rate * one.grid) for rate in (one.tilt, one.tilt + 1.0)]
    upper, lower = (signal.lfilter([1.0], [1.0, -rate], probs[::-1])[::-1] for rate in decay)
    rounding = 4.0 * UNIT * min(len(probs), 1.0 / (one.tilt * one.grid)) * upper
    inside = np.maximum(upper - lower, 0.0) + rounding + one.error * peak(one.tilt)
    at = np.arange(count)
    logs = one.log_mass - one.tilt * one.grid * at + np.log(inside[-low : count - low])
    return np.minimum(1.0, one.infinity + np.exp(np.minimum(logs, 1.0)))
