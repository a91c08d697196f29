"""Membership inference by loss: a model's loss is smaller on its training records (Yeom et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedveil.attacks.base import ONCE, Execution
from fedveil.attacks.inference.base import MembershipAttack
from fedveil.attacks.observation import MembershipObservation


@dataclass(frozen=True)
class LossThreshold(MembershipAttack):
    """Scores a record by minus its loss; needs no shadow model."""

    name: ClassVar[str] = "loss-threshold"
    summary: ClassVar[str] = "whether a record was trained on, by its loss (Yeom et al. 2018)"

    def run(self, observation: MembershipObservation, execution: Execution = ONCE) -> np.ndarray:
        from scipy.special import log_expit

        return log_expit(observation.target)
