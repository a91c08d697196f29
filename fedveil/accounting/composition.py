"""What accountants compose: a `Round`, and mixtures over the coins that decide what a round does.

A `Round` says how often a round uses a unit and behind how much noise. All its coins are independent of the data, so an
account may reveal them to the observer: the privacy loss of a round is then a mixture over the outcomes, and rounds
compose. Where a coin stays secret (`hidden`, `subset`), sampling amplifies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mixture = tuple[tuple[float, float], ...]  # (probability, value); the probabilities sum to one
Terms = tuple[tuple[float, int], ...]  # (probability, multiple of the unit's bound)
ALWAYS: Mixture = ((1.0, 1.0),)

TAIL = 1e-13  # probability of outcomes that are left out of a mixture and added to δ


@dataclass(frozen=True)
class Round:
    """What one round does to one unit of protection, under zero-out or add/remove unless `replace`.

    In a round the unit takes part `counts` times (a mixture: 0 or 1 for one record, more for the copies of an image). Each
    time it passes `steps` mechanisms, and each uses it with probability `rate`. The observer sees that coin unless it is
    `hidden`.
    `noise` is z, the noise standard deviation over the sensitivity; it is a mixture where it depends on who else took part.
    With `together`, all participations enter one sum and their contributions add up against one noise; otherwise each has
    its own noise.
    """

    noise: Mixture
    steps: int = 1
    rate: float = 1.0
    hidden: bool = False
    counts: Mixture = ALWAYS
    together: bool = False
    law: Literal["gaussian", "laplace"] = "gaussian"
    replace: bool = False
    subset: tuple[int, int] | None = None  # (size, drawn): a secret subset of fixed size; replace adjacency
    fails: float = 0.0  # probability per round of outcomes that are left out; it is taken off δ


Rounds = tuple[tuple[Round, int], ...]  # (round, how often)


def binomial(count: int, rate: float) -> Mixture:
    """The number of successes of `count` independent coins; all outcomes."""
    if rate >= 1.0:
        return ((1.0, float(count)),)
    if count == 1:  # the usual case, without the slow import
        return ((1.0 - rate, 0.0), (rate, 1.0))
    from scipy import stats

    values = range(count + 1)
    return tuple((float(p), float(v)) for p, v in zip(stats.binom.pmf(values, count, rate), values, strict=True))


def hypergeometric(total: int, marked: int, drawn: int) -> Mixture:
    """The number of marked elements in a subset of fixed size, drawn without replacement."""
    from scipy import stats

    values = range(max(0, drawn - (total - marked)), min(marked, drawn) + 1)
    chances = stats.hypergeom.pmf(values, total, marked, drawn)
    return tuple((float(p), float(v)) for p, v in zip(chances, values, strict=True))


def without_tail(mixture: Mixture) -> tuple[Mixture, float]:
    """The mixture without its unlikely large values, and the probability of those."""
    kept, gone = list(mixture), 0.0
    while len(kept) > 1 and gone + kept[-1][0] <= TAIL:
        gone += kept.pop()[0]
    left = 1.0 - gone
    return tuple((p / left, v) for p, v in kept), gone


def in_bins(mixture: Mixture, bins: int = 12) -> Mixture:
    """The mixture with few values: each is rounded down to the smallest of its bin, which can only lower noise."""
    if len(mixture) <= bins:
        return mixture
    # The lowest bins hold very unlikely values, so that the other bins start near the bulk.
    made: list[tuple[float, float]] = []
    shares = [1e-9, 1e-6, 1e-3]
    chance, first = 0.0, mixture[0][1]
    for p, value in mixture:
        if chance > 0 and chance + p > (shares[0] if shares else 1.0 / (bins - 4)):
            made.append((chance, first))
            chance, first, shares = 0.0, value, shares[1:]
        chance += p
    made.append((chance, first))
    return tuple(made)
