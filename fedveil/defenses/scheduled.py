"""What defences share whose clip bound and noise multiplier may follow a schedule over the rounds."""

from __future__ import annotations

import dataclasses
from typing import Self

from fedveil.core.setting import Setting
from fedveil.defenses.base import Defense, Dial
from fedveil.mechanisms.schedule import Schedule, Shape


class Scheduled(Defense):
    """A defence with the keys `clip`, `clip_end`, `noise`, `noise_end` and `schedule`."""

    clip: float
    clip_end: float | None
    noise: float
    noise_end: float | None
    schedule: Shape

    def bound(self, setting: Setting) -> Schedule:
        """C by round."""
        return Schedule(self.clip, self.clip_end, self.schedule, setting.rounds)

    def multiplier(self, setting: Setting) -> Schedule:
        """σ by round."""
        return Schedule(self.noise, self.noise_end, self.schedule, setting.rounds)

    def dial(self, unit: str) -> Dial:
        return Dial("noise", self.noise)

    def turned(self, dial: Dial, value: float) -> Self:
        end = None if self.noise_end is None else self.noise_end * value / (self.noise or 1.0)
        return dataclasses.replace(self, noise=value, noise_end=end)  # type: ignore[type-var]

    def silenced(self) -> Self:
        return dataclasses.replace(self, noise=0.0, noise_end=None)  # type: ignore[type-var]

    def clip_bounds(self) -> tuple[float, ...]:
        return (self.clip,) if self.clip_end is None else (self.clip, self.clip_end)

    def noise_levels(self) -> tuple[float, ...]:
        return (self.noise,) if self.noise_end is None else (self.noise, self.noise_end)
