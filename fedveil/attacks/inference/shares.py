"""Who is behind a change of the global model: every candidate's share in it, and what the shares of many rounds say.

The change c of a round is a sum of updates of those who took part, so c ≈ Σⱼ aⱼuⱼ + noise, where uⱼ is candidate j's update
made again (`replay`) and aⱼ is near a common size for those who took part and zero for the rest. Candidates' updates
are alike, so their products with c say little; what tells them apart is the joint regression. It is a Bayesian ridge in
which the ratio of noise to signal is the one of greatest marginal likelihood, round by round: with much noise it
becomes the inner products, without noise the least squares solution. The direction that all candidates have in common is
left out of both sides first.

What the regression says of one candidate, the others integrated out, is a normal likelihood of aⱼ; so there is a likelihood
ratio for "took part in this round", and one for "is there at all": a client that is there takes part in a share p of the
rounds, one that is not in none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RATIOS = np.logspace(-6, 6, 61)  # noise over signal that are tried, in units of the mean square of an update


@dataclass(frozen=True)
class Shares:
    """What one round says of each candidate's share: its mean [candidates] and variance [candidates] a posteriori, and
    the variance `prior` that shares have among candidates."""

    mean: np.ndarray
    variance: np.ndarray
    prior: float


def shares(updates: np.ndarray, change: np.ndarray) -> Shares:
    """The ridge regression of `change` [values] on `updates` [candidates, values], each taken at length one."""
    lengths = np.linalg.norm(updates, axis=1, keepdims=True)
    rows = updates.astype(np.float64) / np.where(lengths > 0, lengths, 1.0)
    common = rows.sum(axis=0)
    common /= max(float(np.linalg.norm(common)), 1e-30)
    rows = rows - np.outer(rows @ common, common)
    rest = change.astype(np.float64) - (change @ common) * common
    squares, axes = np.linalg.eigh(rows @ rows.T)
    kept = squares > 1e-9 * squares.max()
    squares, axes = squares[kept], axes[:, kept]
    along = (axes.T @ (rows @ rest)) / np.sqrt(squares)  # [kept] `rest` in the space of the updates
    outside = max(float(rest @ rest - along @ along), 1e-12 * float(rest @ rest))
    ratio, prior = _most_likely(squares, along, outside, len(change) - 1)
    mean = axes @ (along * np.sqrt(squares) / (squares + ratio))
    unseen = 1.0 - np.square(axes).sum(axis=1)  # of each candidate, where no update reaches
    inverse = np.square(axes) @ (1.0 / (squares + ratio)) + unseen / ratio
    return Shares(mean, prior * ratio * inverse, prior)


def _most_likely(squares: np.ndarray, along: np.ndarray, outside: float, values: int) -> tuple[float, float]:
    """(noise over signal, variance of shares) of the greatest marginal likelihood of the change."""
    ratios = RATIOS[:, None] * squares.mean()
    variances = ((along**2 / (squares + ratios)).sum(axis=1) + outside / ratios[:, 0]) / values
    empty = max(0, values - len(squares))
    likelihood = -0.5 * (
        np.log(squares + ratios).sum(axis=1) + empty * np.log(ratios[:, 0]) + values * np.log(variances)
    )
    best = int(likelihood.argmax())
    return float(ratios[best, 0]), float(variances[best])


def took_part(found: Shares, rate: float) -> np.ndarray:
    """[candidates] log-likelihood ratio of "took part in this round" to "did not"; `rate`: how many do, of all candidates.

    Shares are s for those who took part and 0 for the others, less their mean; then s² = prior / (rate·(1 − rate)).
    """
    size = np.sqrt(found.prior / (rate * (1 - rate)))
    known = np.maximum(1.0 / found.variance - 1.0 / found.prior, 0.0)  # precision without the prior
    return found.mean * size / found.variance - known * size**2 * (1 - 2 * rate) / 2


def is_there(rounds: np.ndarray, rate: float) -> np.ndarray:
    """[candidates] log-likelihood ratio of "is there, and takes part in a share `rate` of the rounds" to "is not there".

    `rounds` [rounds, candidates] are the ratios of `took_part`.
    """
    return np.logaddexp(np.log1p(-rate), np.log(rate) + rounds).sum(axis=0)
