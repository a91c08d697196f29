"""Schedules over rounds for a clip bound or a noise scale: functions of the round alone, never of data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from types import ModuleType

Shape = Literal["linear", "staircase", "exponential", "cosine"]
STAIRS = 5  # steps of the staircase


@dataclass(frozen=True)
class Schedule:
    """A value that is `start` in the first round and `end` in the last. Without an end it stays at `start`."""

    start: float
    end: float | None = None
    shape: Shape = "linear"
    rounds: int = 1

    @property
    def varies(self) -> bool:
        return self.end is not None and self.end != self.start and self.rounds > 1

    def at(self, round_: Any) -> Any:
        """The value in a round: a whole number, a numpy array of rounds, or a round that is traced under jit."""
        if not self.varies or self.end is None:
            return self.start
        xp = _arrays_of(round_)
        share = xp.minimum(round_ / (self.rounds - 1), 1.0)
        if self.shape == "exponential":
            return self.start * (self.end / self.start) ** share
        if self.shape == "cosine":
            share = (1.0 - xp.cos(math.pi * share)) / 2.0
        if self.shape == "staircase":
            share = xp.minimum(xp.floor(share * STAIRS), STAIRS - 1) / (STAIRS - 1)
        return self.start + (self.end - self.start) * share


def _arrays_of(round_: Any) -> ModuleType:
    """numpy for plain numbers, so that an account does not wait for JAX; else JAX's."""
    import numpy as np

    if isinstance(round_, int | np.integer | np.ndarray):
        return np
    import jax.numpy as jnp

    return jnp
