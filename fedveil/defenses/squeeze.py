"""Gradient squeezing: share only after M local iterations (cpl, Table 9).

It fills in no stage; it fixes the number of local steps, L = M. With one step of plain SGD the update is −η times the
mean gradient of one batch, which gradient matching inverts. With M steps it is a sum over M batches, each at another
point: w(M) − w(0) = −η Σ_{m<M} ∇ℓ(w(m); batch m). Gradients of single steps are as they were.

It has no certificate: the sum is exact, and an attacker may unroll the M steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedveil.core.errors import ConfigError
from fedveil.core.setting import Setting
from fedveil.defenses.base import Defense


@dataclass(frozen=True)
class Squeeze(Defense):
    """Several local steps before anything is shared."""

    steps: Annotated[int, Field(ge=1)] = 5  # M

    name: ClassVar[str] = "squeeze"
    summary: ClassVar[str] = "shares only after M local iterations: fixes train.local_steps (cpl, Table 9)"

    @property
    def fixed_local_steps(self) -> int:
        return self.steps

    def check(self, setting: Setting) -> None:
        if setting.local_steps != self.steps:
            takes = (
                f"squeeze shares after {self.steps} steps: set train.local_steps to {self.steps}, or squeeze's steps"
            )
            raise ConfigError("train.local_steps", setting.local_steps, takes)
