"""NbAFL: noising before model aggregation (Wei et al. 2020; a baseline of 2dp-fl).

Clients clip their *model* to norm C and add Gaussian noise before they upload it; the server adds further noise before
it broadcasts, where the uploads' noise does not last for T rounds. With c = √(2 ln(1.25/δ)), m the smallest client's number
of examples, L the exposures of an upload that are budgeted for, N clients per round:

- uplink: standard deviation c·L·2C/(m·ε) on every upload;
- downlink: none up to T = L√N, then 2cC·√(T² − L²N)/(m·N·ε), one draw a round on the new model, the same for everyone.

An upload costs ε/L by these formulas, so that a client that takes part in every round has spent ε after L rounds. `stop`
ends the run there (2dp-fl, Fig 6(b): NbAFL exceeds ε = 20 at round 31 of 50).

C bounds the weights themselves. With the default of 10 a logistic regression on MNIST learns, with 1 it does not; a larger
network needs a larger C.

Sensitivity: a clipped model is as large as C whatever the number of examples, so a client changes its upload by up to C
(zero-out) or 2C (replace). The 2C/m of the formulas presumes that one example moves the trained model by 1/m of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from fedveil.core.errors import ConfigError
from fedveil.core.events import Claim
from fedveil.core.setting import Setting
from fedveil.core.stage import Effect, StageContext
from fedveil.defenses.base import Arithmetic, Defense, Dial, integer_noise
from fedveil.mechanisms.mechanism import Clip, Mechanism, Placed, Schedule


@dataclass(frozen=True)
class NbAFL(Defense):
    """Clip each client's model, noise at the client and, where it takes more, at the server."""

    clip: Annotated[float, Field(gt=0)] = 10.0  # C, on the weights
    epsilon: Annotated[float, Field(gt=0)] = 20.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    exposures: Annotated[int, Field(ge=1)] | None = None  # L; unset: as many as rounds
    stop: bool = False  # end after L rounds
    arithmetic: Arithmetic = None  # of the uploads' noise

    name: ClassVar[str] = "nbafl"
    summary: ClassVar[str] = "clip of the local model, noise before upload and before broadcast (NbAFL, Wei et al.)"
    private: ClassVar[bool] = True
    averages_models: ClassVar[bool] = True

    def noised_stages(self) -> tuple[str, ...]:
        return ("upload", "finish")

    def check(self, setting: Setting) -> None:
        if setting.aggregation != "fedavg":
            takes = "nbafl clips and averages models, not updates: set train.aggregation = 'fedavg'"
            raise ConfigError("train.aggregation", setting.aggregation, takes)
        if self.exposures is not None and self.exposures > setting.rounds:
            takes = f"an upload happens at most once in each of the {setting.rounds} rounds: lower it, or leave it out"
            raise ConfigError("defense.exposures", self.exposures, takes)
        if self.stop and self.exposures is None:
            takes = "without exposures the noise is for all rounds: set defense.exposures to the uploads that ε is for"
            raise ConfigError("defense.stop", True, takes)

    def last_round(self, setting: Setting) -> int | None:
        return self.exposures if self.stop else None

    def uplink(self, setting: Setting) -> float:
        """Standard deviation of the noise on an upload."""
        exposures = self.exposures or setting.rounds
        return self._c * exposures * 2.0 * self.clip / (setting.smallest * self.epsilon)

    def downlink(self, setting: Setting) -> float:
        """Standard deviation of the server's noise; zero where the uploads' noise is enough."""
        exposures, clients = self.exposures or setting.rounds, setting.per_round
        missing = setting.rounds**2 - exposures**2 * clients
        if missing <= 0:
            return 0.0
        return 2.0 * self._c * self.clip * math.sqrt(missing) / (setting.smallest * clients * self.epsilon)

    @property
    def _c(self) -> float:
        return math.sqrt(2.0 * math.log(1.25 / self.delta))

    def effect(self, stage: str) -> Effect:
        # The server's own noise only adds to the uploads': it is not counted on.
        return Effect.POST_PROCESSING if stage == "finish" else Effect.MECHANISM

    def mechanism(self, setting: Setting) -> Mechanism:
        """Flat clip C of the local model, noise on every upload."""
        made = Mechanism(Clip(Schedule(self.clip)), Schedule(self.uplink(setting) / self.clip))
        return made.on_grid(setting) if self.integer else made

    def deployed(self) -> NbAFL:
        return integer_noise(self)

    def mechanisms(self, setting: Setting) -> list[Placed]:
        return [
            Placed(self.mechanism(setting), "server", "client", "round", "upload", "upload", client_noise_sums=True)
        ]

    def upload(self, message: Any, at: StageContext) -> Any:
        return self.mechanism(at.setting).apply(message, at)

    def finish(self, params: Any, at: StageContext) -> Any:
        from fedveil.random import noise

        deviation = self.downlink(at.setting)
        return noise.add(params, noise.gaussian(at.key, params, deviation)) if deviation else params

    # --- what others ask

    def claims(self, setting: Setting) -> list[Claim]:
        reason = "takes 2C/m for the sensitivity of a model clipped to C, which is 2C; δ is not composed"
        return [
            Claim(tap, "client", reason, adjacency="replace", epsilon=self.epsilon, delta=self.delta)
            for tap in ("server", "release")
        ]

    def dial(self, unit: str) -> Dial:
        return Dial("epsilon", self.epsilon, rises=True)

    def clip_bounds(self) -> tuple[float, ...]:
        return (self.clip,)
