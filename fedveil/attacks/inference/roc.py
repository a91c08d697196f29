"""ROC curves, their areas and true positive rates of membership scores, and the bounds that privacy puts on them.

Intervals are over groups where there are several (federations trained separately; Student's interval of their figures).
With one federation they are over its records (Hanley and McNeil for the area, Clopper and Pearson for rates), as if the
records were independent. Records of one federation share its training, so these intervals describe and prove nothing.

`epsilon_low` and `excess` do prove something. Each record was a member by its own fair coin. However the scores depend on
each other, privacy bounds the tail of the number of right guesses (`accounting.statistics`, one run). Federations
trained separately form one mechanism that sees each coin once, so their guesses are counted together.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import stats

from fedveil.accounting import statistics

FPRS = (0.001, 0.01, 0.1)  # the false positive rates at which true positives are reported


def curve(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False and true positive rates from (0, 0) to (1, 1), one point for each distinct score; both classes occur."""
    from sklearn.metrics import roc_curve

    false, true, _ = roc_curve(member, scores, drop_intermediate=False)
    return false, true


def mean_curve(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of several federations' curves at equal false positive rates: scores, member [federations, records]."""
    each = [curve(s, m) for s, m in zip(scores, member, strict=True)]
    grid = np.unique(np.concatenate([false for false, _ in each]))
    best = [true[np.searchsorted(false, grid, side="right") - 1] for false, true in each]
    return grid, np.mean(best, axis=0)


def auc(scores: np.ndarray, member: np.ndarray) -> float:
    """The probability that a member's score is above a non-member's; ties count half."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(member, scores))


def tpr_at(scores: np.ndarray, member: np.ndarray, fpr: float) -> float:
    """The largest true positive rate of a threshold whose false positive rate is at most `fpr`."""
    false, true = curve(scores, member)
    return float(true[false <= fpr + 1e-12].max())


def auc_interval(area: float, inside: int, outside: int, level: float = 0.95) -> tuple[float, float]:
    """Hanley and McNeil's interval of an area under the curve."""
    q1, q2 = area / (2 - area), 2 * area * area / (1 + area)
    spread = area * (1 - area) + (inside - 1) * (q1 - area**2) + (outside - 1) * (q2 - area**2)
    half = float(stats.norm.ppf(0.5 + level / 2)) * math.sqrt(max(spread, 0.0) / (inside * outside))
    return max(0.0, area - half), min(1.0, area + half)


def rate_interval(count: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval of a rate."""
    found = stats.binomtest(count, trials).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)


def mean_interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Student's interval of a mean."""
    # Not `stats.t.interval`, which returns NaN where all values are equal.
    half = float(stats.t.ppf(0.5 + level / 2, len(values) - 1) * stats.sem(values))
    return float(values.mean()) - half, float(values.mean()) + half


def share_interval(values: np.ndarray) -> list[float] | None:
    """Student's interval of a mean of shares, within [0, 1]; None for fewer than two values."""
    return _within_one(mean_interval(values)) if len(values) > 1 else None


def _within_one(span: tuple[float, float]) -> list[float]:
    return [max(0.0, span[0]), min(1.0, span[1])]


def summary(scores: np.ndarray, member: np.ndarray, group: np.ndarray | None = None) -> dict[str, Any]:
    """`auc` and `tpr_at_fpr` with their intervals: scores [n], member [n] bool, group [n] (one for each federation).

    With several groups, the figures are means over groups.
    """
    parts = _parts(scores, member, group)
    areas = np.array([auc(s, m) for s, m in parts])
    inside, outside = int(member.sum()), int((~member).sum())
    many = len(parts) > 1
    rates = {}
    for fpr in FPRS:
        each = np.array([tpr_at(s, m, fpr) for s, m in parts])
        rate = float(each.mean())
        span = mean_interval(each) if many else rate_interval(round(rate * inside), inside)
        rates[f"{fpr:g}"] = {"tpr": rate, "interval": _within_one(span)}
    area = float(areas.mean())
    span = mean_interval(areas) if many else auc_interval(area, inside, outside)
    return {
        "auc": area,
        "interval": _within_one(span),
        "tpr_at_fpr": rates,
        "members": inside,
        "others": outside,
        "federations": len(parts),
    }


def allowed_tpr(fpr: float | np.ndarray, epsilon: float, delta: float) -> np.ndarray:
    """The largest true positive rate that (ε, δ) privacy allows at a false positive rate.

    Both P[in] ≤ e^ε·P[out] + δ on "said in" and P[out] ≤ e^ε·P[in] + δ on "said out" bound it.
    """
    fpr = np.asarray(fpr, float)
    low = np.exp(min(epsilon, 700.0)) * fpr + delta
    high = 1.0 - np.exp(-epsilon) * (1.0 - delta - fpr)
    return np.clip(np.minimum(low, high), 0.0, 1.0)


def epsilon_low(
    scores: np.ndarray, member: np.ndarray, delta: float, level: float = 0.95, group: np.ndarray | None = None
) -> float:
    """A lower bound on ε, too large with probability at most 1 − level: scores [n], member [n] fair coins, group [n].

    Scores are replaced by their ranks within their group. The guesses are the records of highest and lowest rank.
    """
    return statistics.one_run(*_ranked(scores, member, group), delta, 1 - level).epsilon


def excess(
    scores: np.ndarray,
    member: np.ndarray,
    epsilon: float,
    delta: float,
    level: float = 0.95,
    fprs: tuple[float, ...] = FPRS,
    group: np.ndarray | None = None,
) -> dict[str, float]:
    """By how much the true positive rate exceeds, at each false positive rate, the largest that (ε, δ) privacy allows.

    The records of highest score are guessed to be members: n/2·(FPR + allowed TPR) of them, the number on the edge of
    what is allowed. From the right guesses the largest number is subtracted that privacy allows with a probability above
    (1 − level)/rates. The difference is divided by the number of members. If it is positive somewhere, either (ε, δ) does
    not hold or an event of probability at most 1 − level has happened. With too few guesses even all right ones are not
    too many, and the result is not positive.
    """
    ranks, coins = _ranked(scores, member, group)
    by_rank = coins[np.argsort(-ranks, kind="stable")]
    tail = (1 - level) / len(fprs)
    found = {}
    for fpr in fprs:
        guesses = round(len(coins) * (fpr + float(allowed_tpr(fpr, epsilon, delta))) / 2)
        most = _most_correct(len(coins), guesses, epsilon, delta, tail)
        found[f"{fpr:g}"] = (int(by_rank[:guesses].sum()) - most) / max(1, int(coins.sum()))
    return found


def _ranked(scores: np.ndarray, member: np.ndarray, group: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each score in its group, scaled to (−1/2, 1/2), and the membership flags in the same order; [n] each."""
    parts = _parts(scores, member, group)
    ranks = [(stats.rankdata(s) - (len(s) + 1) / 2) / len(s) for s, _ in parts]
    return np.concatenate(ranks), np.concatenate([m for _, m in parts])


def _most_correct(records: int, guesses: int, epsilon: float, delta: float, tail: float) -> int:
    """The largest number of right guesses that an (ε, δ)-private training gives with probability above `tail`."""
    low, high = 0, guesses  # `low` right guesses are not too many
    while low < high:
        middle = (low + high + 1) // 2
        if statistics.one_run_p_value(records, guesses, middle, epsilon, delta) > tail:
            low = middle
        else:
            high = middle - 1
    return low


def _parts(scores: np.ndarray, member: np.ndarray, group: np.ndarray | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Scores and coins of each group. Scores of different groups are never compared."""
    if group is None:
        return [(scores, member)]
    return [(scores[group == g], member[group == g]) for g in np.unique(group)]
