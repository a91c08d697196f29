"""`loud`: a clip of the update and Gaussian noise, both by the client."""

from dataclasses import dataclass
from typing import ClassVar

from fedveil.core.stage import Effect
from fedveil.defenses.base import Defense, Dial
from fedveil.mechanisms.mechanism import Clip, Mechanism, Placed, Schedule


@dataclass(frozen=True)
class Loud(Defense):
    """Clips each client's update and adds Gaussian noise to it."""

    clip: float = 1.0
    noise: float = 2.0

    name: ClassVar[str] = "loud"
    summary: ClassVar[str] = "clip and noise on the update"
    private: ClassVar[bool] = True

    def fills(self, stage):
        return stage == "update"

    def effect(self, stage):
        return Effect.MECHANISM

    def mechanism(self):
        return Mechanism(Clip(Schedule(self.clip)), Schedule(self.noise))

    def mechanisms(self, setting):
        return [Placed(self.mechanism(), "client", "client", "round", "update", "update", client_noise_sums=True)]

    def dial(self, unit):
        return Dial("noise", self.noise)

    def update(self, update, at):
        return self.mechanism().apply(update, at)
