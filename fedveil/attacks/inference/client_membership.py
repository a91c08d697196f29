"""Client membership: every candidate's share in the changes of the global model (2dp-fl, section IV.C iii).

For each round the attacker makes every candidate's local training again (`replay`). The change c of the round is a sum of
the updates of those who took part, so c ≈ Σⱼ aⱼuⱼ + noise, where uⱼ is candidate j's replayed update and aⱼ is near a
common size for those who took part and zero for the rest. Candidates' updates are alike, so their products with c say
little; the joint regression tells them apart. It is a Bayesian ridge whose ratio of noise to signal maximises the marginal
likelihood, round by round: with much noise it becomes the inner products, without noise the least squares solution. The
direction that all candidates have in common is removed from both sides first.

With the other candidates integrated out, the regression gives a normal likelihood of aⱼ. So there is a likelihood ratio for
"took part in this round", and one for "is in the federation": a client in it takes part in a share p of the rounds, any
other client in none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedveil.attacks.base import ONCE, Execution
from fedveil.attacks.inference import replay
from fedveil.attacks.inference.base import ParticipationAttack, ParticipationScores
from fedveil.attacks.observation import AuxiliaryData, ParticipationObservation

RATIOS = np.logspace(-6, 6, 61)  # candidates for noise over signal, in units of the mean square of an update


@dataclass(frozen=True)
class ClientMembership(ParticipationAttack):
    """Scores each candidate by its share in the changes of the model."""

    name: ClassVar[str] = "client-membership"
    summary: ClassVar[str] = "whether a client took part, from the models of all rounds (2dp-fl, section IV.C)"

    def run(self, observation: ParticipationObservation, execution: Execution = ONCE) -> ParticipationScores:
        rng = np.random.default_rng([execution.seeds[0], 0x67756573])
        released, rules, candidates = observation.released, observation.rules, observation.candidates
        sizes = [len(one.y) for one in candidates]
        starts = np.cumsum([0, *sizes[:-1]]).astype(np.int32)
        together = AuxiliaryData(np.concatenate([c.x for c in candidates]), np.concatenate([c.y for c in candidates]))
        rate = released.terms.per_round / released.terms.clients  # at which a client in the federation takes part
        found = []
        for number, (before, after) in enumerate(zip(released.models[:-1], released.models[1:], strict=True)):
            change = replay.flat(after) - replay.flat(before)
            if not np.isfinite(change).all() or not change.any():  # this round says nothing
                found.append(np.zeros(len(sizes)))
                continue
            drawn = replay.local_batches(rng, sizes, rules.batches)
            batches = replace(drawn, index=drawn.index + starts[:, None, None])
            made = replay.updates(rules, before, together, batches, number)
            found.append(took_part(shares(made, change), rate / 2))
        each = np.stack(found)
        return ParticipationScores(is_present(each, rate), each)


@dataclass(frozen=True)
class Shares:
    """The posterior of each candidate's share in one round."""

    mean: np.ndarray  # [candidates]
    variance: np.ndarray  # [candidates]
    prior: float  # the variance of shares among candidates


def shares(updates: np.ndarray, change: np.ndarray) -> Shares:
    """The ridge regression of `change` [values] on `updates` [candidates, values], each scaled to length one."""
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
    unseen = 1.0 - np.square(axes).sum(axis=1)  # of each candidate, outside the span of the updates
    inverse = np.square(axes) @ (1.0 / (squares + ratio)) + unseen / ratio
    return Shares(mean, prior * ratio * inverse, prior)


def _most_likely(squares: np.ndarray, along: np.ndarray, outside: float, values: int) -> tuple[float, float]:
    """The noise-to-signal ratio and the variance of shares that maximise the marginal likelihood of the change."""
    ratios = RATIOS[:, None] * squares.mean()
    variances = ((along**2 / (squares + ratios)).sum(axis=1) + outside / ratios[:, 0]) / values
    empty = max(0, values - len(squares))
    likelihood = -0.5 * (
        np.log(squares + ratios).sum(axis=1) + empty * np.log(ratios[:, 0]) + values * np.log(variances)
    )
    best = int(likelihood.argmax())
    return float(ratios[best, 0]), float(variances[best])


def took_part(found: Shares, rate: float) -> np.ndarray:
    """[candidates] log-likelihood ratio of "took part in this round" to "did not"; a share `rate` of all candidates does.

    Shares are s for those who took part and 0 for the others, minus their mean; then s² = prior / (rate·(1 − rate)).
    """
    size = np.sqrt(found.prior / (rate * (1 - rate)))
    known = np.maximum(1.0 / found.variance - 1.0 / found.prior, 0.0)  # precision without the prior
    return found.mean * size / found.variance - known * size**2 * (1 - 2 * rate) / 2


def is_present(rounds: np.ndarray, rate: float) -> np.ndarray:
    """[candidates] log-likelihood ratio of "takes part in a share `rate` of the rounds" to "is not in the federation".

    `rounds` [rounds, candidates] are the ratios of `took_part`.
    """
    return np.logaddexp(np.log1p(-rate), np.log(rate) + rounds).sum(axis=0)
