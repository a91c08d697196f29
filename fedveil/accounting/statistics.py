"""Lower bounds on ε from an attacker's right and wrong guesses, each with its own proof of confidence.

Two ways to be wrong with probability at most `alpha`, and never more:

- `one_run_*`: one run, many canaries, each put in by its own fair coin (Steinke, Nasr, Jagielski 2023, Theorem 5.2). The
  guesses depend on each other through the run, so a binomial interval for their rate would be false. What holds is a bound
  on the tail of the number of right guesses under any (ε, δ)-private mechanism.
- `trials_*`: many independent runs with and without one canary. Error rates get Clopper–Pearson bounds, and
  (ε, δ) privacy bounds one error rate by the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

# The shares of the canaries on which a guess is ventured, fixed beforehand; `alpha` is divided among them.
SHARES = (1.0, 0.25)

LARGEST = 60.0  # no number of canaries that fits a machine can show more


@dataclass(frozen=True)
class OneRun:
    """What one run showed: of `guesses` ventured, `correct` were right."""

    epsilon: float
    guesses: int
    correct: int


@dataclass(frozen=True)
class Trials:
    """What independent trials showed: how often the canary was seen where it was not, and missed where it was."""

    epsilon: float
    false_positive: float
    false_negative: float


# --- one run


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """At most how likely so many right guesses are under an (ε, δ)-private mechanism.

    With f(v) = P[Binomial(r, e^ε/(1+e^ε)) ≥ v]:  f(v) + 2·m·δ·max_i (f(v−i) − f(v))/i  for m canaries and r guesses.
    """
    rate = float(special.expit(epsilon))
    # f(v), f(v−1), …, f(0) = 1; beyond that f stays 1 and the quotient only falls.
    tails = np.append(special.betainc(np.arange(correct, 0, -1), guesses - np.arange(correct, 0, -1) + 1, rate), 1.0)
    steepest = float(((tails[1:] - tails[0]) / np.arange(1, correct + 1)).max()) if correct else 0.0
    return min(1.0, float(tails[0]) + 2.0 * canaries * delta * steepest)


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, alpha: float) -> float:
    """A lower bound on ε that is too large with probability at most `alpha`: an ε at which the p-value is no more.

    An (ε, δ)-private mechanism is (ε', δ)-private for every ε' ≥ ε, so any ε' that is refuted refutes all below it.
    """
    if not correct or one_run_p_value(canaries, guesses, correct, 0.0, delta) > alpha:
        return 0.0
    low, high = 0.0, LARGEST
    while high - low > 1e-4:
        middle = (low + high) / 2.0
        if one_run_p_value(canaries, guesses, correct, middle, delta) <= alpha:
            low = middle
        else:
            high = middle
    return low


def one_run(scores: np.ndarray, included: np.ndarray, delta: float, alpha: float) -> OneRun:
    """The bound of one run: `scores` [m] as the attacker sees them, `included` [m] the coins.

    The attacker guesses "in" above the mean score and "out" below, on the canaries farthest from the mean; how many
    guesses it ventures is fixed before (`SHARES`).
    """
    canaries = len(scores)
    away = scores - scores.mean()
    farthest = np.argsort(-np.abs(away), kind="stable")
    right = ((away > 0) == included)[farthest]
    found = []
    for share in SHARES:
        guesses = max(1, round(share * canaries))
        correct = int(right[:guesses].sum())
        epsilon = one_run_epsilon(canaries, guesses, correct, delta, alpha / len(SHARES))
        found.append(OneRun(epsilon, guesses, correct))
    return max(found, key=lambda one: one.epsilon)


# --- independent trials


def clopper_pearson(count: np.ndarray | float, trials: int, alpha: float) -> np.ndarray:
    """The upper bound on a rate of which `count` in `trials` were seen; too small with probability at most `alpha`."""
    count = np.asarray(count, float)
    bound = special.betaincinv(count + 1.0, np.maximum(trials - count, 1e-9), 1.0 - alpha)
    return np.where(count >= trials, 1.0, bound)


def trials_epsilon(
    false_positives: np.ndarray | float, false_negatives: np.ndarray | float, trials: int, delta: float, alpha: float
) -> np.ndarray:
    """Lower bound on ε from errors counted in `trials` without and as many with the canary; `alpha` covers both rates.

    (ε, δ) privacy: P[seen | there] ≤ e^ε·P[seen | not there] + δ, and the same for "not seen".
    """
    positive = clopper_pearson(false_positives, trials, alpha / 2.0)
    negative = clopper_pearson(false_negatives, trials, alpha / 2.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        seen = np.log(np.maximum(1.0 - delta - negative, 0.0)) - np.log(positive)
        unseen = np.log(np.maximum(1.0 - delta - positive, 0.0)) - np.log(negative)
    return np.maximum(np.maximum(seen, unseen), 0.0)


def best_threshold(without: np.ndarray, with_it: np.ndarray, trials: int, delta: float, alpha: float) -> float:
    """The threshold with the largest bound to be expected of `trials` more, were scores normal as in this pilot."""
    means = float(without.mean()), float(with_it.mean())
    spread = abs(means[1] - means[0])
    deviations = [max(float(s.std()), 1e-9 * spread, 1e-30) for s in (without, with_it)]
    if max(deviations) < 0.01 * spread:  # hardly any noise: no tail to look for
        return (means[0] + means[1]) / 2.0
    low = min(m - 5.0 * d for m, d in zip(means, deviations, strict=True))
    high = max(m + 5.0 * d for m, d in zip(means, deviations, strict=True))
    grid = np.linspace(low, high, 1000)
    positives = special.ndtr((means[0] - grid) / deviations[0]) * trials
    negatives = special.ndtr((grid - means[1]) / deviations[1]) * trials
    bounds = trials_epsilon(np.round(positives), np.round(negatives), trials, delta, alpha)
    return float(grid[bounds.argmax()])


def independent_trials(without: np.ndarray, with_it: np.ndarray, delta: float, alpha: float) -> Trials:
    """The bound of independent trials: scores [n] without and [n] with the canary, which is to raise them.

    The first tenth only sets the threshold, the rest is counted: so the threshold does not depend on what it is used on.
    """
    pilot = max(1, len(without) // 10)
    trials = len(without) - pilot
    threshold = best_threshold(without[:pilot], with_it[:pilot], trials, delta, alpha)
    positives = float((without[pilot:] > threshold).sum())
    negatives = float((with_it[pilot:] <= threshold).sum())
    epsilon = float(trials_epsilon(positives, negatives, trials, delta, alpha))
    return Trials(epsilon, positives / trials, negatives / trials)


# --- what could be shown at best


def one_run_reach(canaries: int, delta: float, alpha: float) -> float:
    """The bound if every guess were right: what no number of broken mechanisms can exceed."""
    return one_run_epsilon(canaries, canaries, canaries, delta, alpha / len(SHARES))


def trials_reach(multiplier: float, trials: int, delta: float, alpha: float) -> float:
    """The bound to be expected of a Gaussian mechanism of this noise multiplier, at its best threshold."""
    counted = trials - max(1, trials // 10)
    grid = np.linspace(-6.0, 6.0 + 1.0 / multiplier, 2000)
    positives = np.round(special.ndtr(-grid) * counted)
    negatives = np.round(special.ndtr(grid - 1.0 / multiplier) * counted)
    return float(trials_epsilon(positives, negatives, counted, delta, alpha).max())
