"""The audit's statistics: lower bounds on ε from an adversary's right and wrong guesses, and tests of the noise itself.

Each is wrong with probability at most `alpha`, by a separate proof:

- `one_run_*`: one run, many canaries, each put in by its own fair coin (Steinke, Nasr, Jagielski 2023, Theorem 5.2). The
  guesses depend on each other through the run, so a binomial interval for their rate would be false. What holds is a bound
  on the tail of the number of right guesses under any (ε, δ)-private mechanism.
- `f_dp_*`: the same run and guesses against a whole trade-off curve (Mahloujifar, Melis, Chaudhuri 2024), here that of
  μ-GDP. It has no δ to pay for, so it refutes more than the (ε, δ) bound does.
- `trials_*`: many independent runs with and without one canary. Error rates get Clopper–Pearson bounds, and
  (ε, δ) privacy bounds one error rate by the other.
- `scale_*`, `correlation_*`: noise that was realised, against its declared size and its declared independence.
"""

from __future__ import annotations

import math
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
    """An upper bound on the probability of this many right guesses under an (ε, δ)-private mechanism.

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

    The attacker guesses "in" above the mean score and "out" below, on the canaries farthest from the mean; the
    number of guesses is fixed beforehand (`SHARES`).
    """
    found = []
    for guesses, correct in _guesses(scores, included):
        epsilon = one_run_epsilon(len(scores), guesses, correct, delta, alpha / len(SHARES))
        found.append(OneRun(epsilon, guesses, correct))
    return max(found, key=lambda one: one.epsilon)


def _guesses(scores: np.ndarray, included: np.ndarray) -> list[tuple[int, int]]:
    """How many guesses were ventured and how many were right, for each of `SHARES`."""
    away = scores - scores.mean()
    farthest = np.argsort(-np.abs(away), kind="stable")
    right = ((away > 0) == included)[farthest]
    counts = [max(1, round(share * len(scores))) for share in SHARES]
    return [(guesses, int(right[:guesses].sum())) for guesses in counts]


# --- one run against a trade-off curve


@dataclass(frozen=True)
class Curve:
    """The outcome of one run tested against Gaussian trade-off curves: every μ up to `mu` is refuted."""

    mu: float
    p_value: float | None  # of the claimed μ
    guesses: int
    correct: int


def f_dp(scores: np.ndarray, included: np.ndarray, claim: float | None, alpha: float) -> Curve:
    """A lower bound on μ from one run and the p-value of a claimed μ, with the same guesses as `one_run`."""
    found = []
    for guesses, correct in _guesses(scores, included):
        share = alpha / len(SHARES)
        mu = f_dp_mu(len(scores), guesses, correct, share)
        p_value = f_dp_p_value(len(scores), guesses, correct, claim) * len(SHARES) if claim is not None else None
        found.append(Curve(mu, p_value, guesses, correct))
    return max(found, key=lambda one: one.mu)


def f_dp_refuted(canaries: int, guesses: int, correct: int, mu: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Whether a μ-GDP mechanism gives `correct` or more right guesses of `guesses` with probability below `alpha`.

    With q_i the probability of i right guesses, r = Σ_{i≥t} i·q_i/m and h = Σ_{i≥t} (c−i)·q_i/m: taking one right guess's
    coin back makes it a wrong one, so f-DP gives r_t ≤ 1 − f(h_{t−1}). If Σ_{i≥v} q_i were alpha, the least that the other
    q_i can be follows from v down; if they add up to more than 1, it was not. μ-GDP has 1 − f(x) = Φ(Φ⁻¹(x) + μ).
    """
    mu, alpha = np.broadcast_arrays(np.asarray(mu, float), np.asarray(alpha, float))
    right = alpha * correct / canaries
    wrong = alpha * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        least = np.maximum(special.ndtr(special.ndtri(np.minimum(right, 1.0)) - mu), wrong)
        right = right + i / (guesses - i) * (least - wrong)
        wrong = least
    return right + wrong >= guesses / canaries


def f_dp_p_value(canaries: int, guesses: int, correct: int, mu: float) -> float:
    """An upper bound on the probability of this many right guesses under a μ-GDP mechanism; on a grid, rounded up."""
    grid = np.append(np.logspace(-12.0, 0.0, 241)[:-1], 1.0)
    refuted = f_dp_refuted(canaries, guesses, correct, np.asarray(mu), grid)
    return float(grid[int(np.argmax(refuted))]) if refuted.any() else 1.0


def f_dp_mu(canaries: int, guesses: int, correct: int, alpha: float) -> float:
    """A lower bound on μ: the largest value of a grid such that it and all smaller ones are refuted; 0 if none is."""
    if not correct:
        return 0.0
    grid = np.linspace(0.0, 10.0, 1001)
    refuted = f_dp_refuted(canaries, guesses, correct, grid, np.asarray(alpha))
    return float(grid[int(np.argmin(refuted)) - 1]) if refuted[0] and not refuted.all() else float(10.0 * refuted.all())


# --- realised noise


def noise_upper(total: np.ndarray, count: np.ndarray, distribution: str, alpha: float) -> np.ndarray:
    """Upper bounds on noise scales: σ from sums of squares (Gaussian), b from sums of absolute values (Laplace).

    Each is too small with probability at most `alpha`: Σx²/σ² is χ² with `count` degrees, Σ|x|/b is Gamma(count).
    """
    if distribution == "laplace":
        return total / special.gammaincinv(count, alpha)
    return np.sqrt(total / (2.0 * special.gammaincinv(count / 2.0, alpha)))


def loss_ratio(sizes: np.ndarray, scales: np.ndarray, distribution: str, multiplier: float) -> float:
    """Contribution over noise, in units of what z allows: above 1 the noise is too small for the contribution.

    `sizes` [groups]: L2 norms (Gaussian) or L1 norms (Laplace) of the contribution in groups with these noise scales.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(sizes > 0, sizes / scales, 0.0)
    return float(multiplier * (each.sum() if distribution == "laplace" else np.sqrt(np.square(each).sum())))


def scale_p_value(
    sizes: np.ndarray, total: np.ndarray, count: np.ndarray, distribution: str, multiplier: float
) -> float:
    """How likely noise as small as this is at most, if the declared z holds for contributions `sizes` [units, groups].

    At level α every group's noise has an upper bound at α/groups; if even those are too small for a unit, z is refuted.
    """
    present = count > 0

    def refuted(alpha: float) -> bool:
        upper = noise_upper(total[present], count[present], distribution, alpha / present.sum())
        return any(loss_ratio(one[present], upper, distribution, multiplier) > 1.0 for one in sizes)

    exponents = np.arange(0.0, -301.0, -1.0)
    if not refuted(10.0 ** exponents[-1]):
        low, high = 0, len(exponents) - 1  # refuted at low at most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if refuted(10.0 ** exponents[middle]) else (low, middle)
        return float(10.0 ** exponents[low])
    return float(10.0 ** exponents[-1])


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """The correlation of two draws whose mean is known to be zero."""
    scale = math.sqrt(float(np.square(one).sum() * np.square(other).sum()))
    return float((one * other).sum()) / scale if scale else 0.0


def correlation_p_value(one: np.ndarray, other: np.ndarray, distribution: str) -> float:
    """The two-sided p-value of the correlation of two draws, if they are independent.

    Gaussian draws: Student's t with n − 1 degrees of freedom. Others: the number of equal signs, which is binomial for
    every symmetric distribution.
    """
    if distribution == "gaussian":
        r = min(1.0, abs(correlation(one, other)))
        degrees = one.size - 1
        return float(special.betainc(degrees / 2.0, 0.5, 1.0 - r * r)) if degrees else 1.0
    signs = np.sign(one) * np.sign(other)
    trials, more = int((signs != 0).sum()), int(max((signs > 0).sum(), (signs < 0).sum()))
    return min(1.0, 2.0 * float(special.bdtrc(more - 1, trials, 0.5))) if trials else 1.0


# --- independent trials


def clopper_pearson(count: np.ndarray | float, trials: int, alpha: float) -> np.ndarray:
    """Upper bounds on rates from `count` events in `trials`, each too small with probability at most `alpha`.

    By the beta quantile, for all counts at once: `scipy.stats.binomtest` takes one count at a time.
    """
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
    """The threshold with the largest expected bound for `trials` more trials, if scores are normal as in this pilot."""
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
    """The bound of independent trials: scores [n] without and [n] with the canary, which should raise them.

    The first tenth of the trials sets the threshold. Only the rest is counted, so the threshold does not depend on it.
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
