"""RMIA: a record's likelihood ratio, compared with those of population records (Zarifzadeh et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedveil.attacks.base import ONCE, Execution
from fedveil.attacks.inference.base import MembershipAttack, Shadows
from fedveil.attacks.observation import MembershipObservation

GAMMA = 1.0  # by how much a record's likelihood ratio must exceed that of a population record


@dataclass(frozen=True)
class RMIA(MembershipAttack):
    """Scores a record by the share of population records whose likelihood ratio its own exceeds.

    A record's ratio is p(x | model) / p(x). p(x) is the mean of what shadows with and shadows without the record give;
    for population records, which no shadow has, it is the mean over all shadows. Probabilities are those of the softmax.
    """

    shadows: Shadows = 4

    name: ClassVar[str] = "rmia"
    summary: ClassVar[str] = (
        "whether a record was trained on, by its likelihood ratio to population records (Zarifzadeh et al. 2024)"
    )
    fewest_shadows: ClassVar[int] = 2

    def run(self, observation: MembershipObservation, execution: Execution = ONCE) -> np.ndarray:
        from scipy.special import log_expit

        sure, inside = log_expit(observation.shadows), observation.inside
        expected = np.logaddexp(_log_mean(sure, inside), _log_mean(sure, ~inside)) - math.log(2.0)
        ratio = log_expit(observation.target) - expected
        everywhere = np.ones(observation.shadows_population.shape, bool)
        population = log_expit(observation.shadows_population)
        others = log_expit(observation.target_population) - _log_mean(population, everywhere)
        return np.searchsorted(np.sort(others), ratio - math.log(GAMMA), side="right") / len(others)


def _log_mean(logs: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """[records]: log of the mean of exp(logs) over the chosen shadows."""
    from scipy.special import logsumexp

    return logsumexp(logs, axis=0, b=chosen) - np.log(chosen.sum(axis=0))
