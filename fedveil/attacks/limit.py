"""The time limit of an attack: `attack.seconds`, counted from its first observation on, compilation included."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

SECONDS = 60.0  # of `fedveil attack` and `fedveil.attack`, where `attack.seconds` is not set


@dataclass(frozen=True)
class Limit:
    """A time limit that counts from when it was made; without seconds there is none."""

    seconds: float | None
    deadline: float | None  # of `time.monotonic()`

    @property
    def over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    @property
    def left(self) -> float:
        """Seconds until the deadline, never below zero; infinite without one."""
        return math.inf if self.deadline is None else max(0.0, self.deadline - time.monotonic())


NO_LIMIT = Limit(None, None)


def limited(seconds: float | None) -> Limit:
    """A limit that begins now; None, 0 and inf are none."""
    if not seconds or math.isinf(seconds):
        return NO_LIMIT
    return Limit(seconds, time.monotonic() + seconds)
