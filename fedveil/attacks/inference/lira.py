"""LiRA: a likelihood ratio from shadow models with and without a record (Carlini et al. 2022, online)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedveil.attacks.base import ONCE, Execution
from fedveil.attacks.inference.base import MembershipAttack, Shadows
from fedveil.attacks.observation import MembershipObservation

ENOUGH = 32  # shadows with and as many without a record, from which on a record has its own variance


@dataclass(frozen=True)
class LiRA(MembershipAttack):
    """Scores a record by the log-likelihood ratio of "trained on" against "not".

    Both are Gaussians fitted to the shadows with and without the record. With few shadows all records share a variance.
    """

    shadows: Shadows = 16

    name: ClassVar[str] = "lira"
    summary: ClassVar[str] = (
        "whether a record was trained on, by the likelihood of its loss among shadow federations (Carlini et al. 2022)"
    )
    fewest_shadows: ClassVar[int] = 4

    def run(self, observation: MembershipObservation, execution: Execution = ONCE) -> np.ndarray:
        inside = log_density(observation.target, observation.shadows, observation.inside)
        return inside - log_density(observation.target, observation.shadows, ~observation.inside)


def log_density(value: np.ndarray, among: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """[records]: log density of a value under the Gaussian of the chosen shadows [shadows, records], up to a constant."""
    count = chosen.sum(axis=0)
    mean = np.where(chosen, among, 0.0).sum(axis=0) / np.maximum(count, 1)
    squares = np.where(chosen, np.square(among - mean), 0.0).sum(axis=0)
    shared = squares.sum() / max(1, (count - 1).sum())
    variance = np.where(count >= ENOUGH, squares / np.maximum(count - 1, 1), shared)
    variance = np.maximum(variance, 1e-12)
    return -0.5 * (np.square(value - mean) / variance + np.log(variance))
