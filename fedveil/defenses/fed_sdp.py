"""Fed-SDP: per-client differential privacy (fed-cdp, Algorithm 1).

Each client trains as usual and clips its update layer by layer to C (lines 9 to 11). Gaussian noise of scale σ·C is added
at one of three places:

- `client`: by each client to its own update, before it leaves. Mean noise σC/√Kt.
- `server-each`: by the server, one draw for each update (line 13 as printed). Mean noise σC/√Kt.
- `server-sum`: by the server, once on the sum (what the paper's accountant presumes). Mean noise σC/Kt.

Lines 13 and 14 of the algorithm both divide by Kt; we average once.

Sensitivity: one client changes the sum by at most w·√M·C (layerwise, M layers) or w·C (flat), w its weight in the sum; the
server's noise is scaled by the largest weight, so that weighting by data size does not lower z. Server noise stands for the
nominal Kt, whatever the number of answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedveil.core.events import Release
from fedveil.core.lazy import Lazy
from fedveil.core.setting import Setting
from fedveil.defenses.base import At, Defense
from fedveil.mechanisms import schedule as schedules

clipping: Any = Lazy("fedveil.mechanisms.clip")
noises: Any = Lazy("fedveil.random.noise")

Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class FedSDP(Defense):
    """Clip each client's update, then noise at the client or at the server."""

    clip: Positive = 4.0  # C
    noise: Annotated[float, Field(ge=0)] = 6.0  # σ
    placement: Literal["server-sum", "server-each", "client"] = "server-sum"
    clip_scope: Literal["layerwise", "flat"] = "layerwise"
    clip_end: Positive | None = None
    schedule: schedules.Shape = "linear"
    noise_end: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    name: ClassVar[str] = "fed-sdp"
    summary: ClassVar[str] = "per-client clip of the update, noise at the client or the server (fed-cdp, Algorithm 1)"
    private: ClassVar[bool] = True

    def fills(self, stage: str) -> bool:
        return stage == "update" or (stage == "aggregate" and self.placement != "client")

    def noised_stages(self) -> tuple[str, ...]:
        return ("update" if self.placement == "client" else "aggregate",)

    def _bound(self, at: At) -> Any:
        return schedules.value(self.clip, self.clip_end, self.schedule, at.round, at.setting.rounds)

    def _deviation(self, at: At) -> Any:
        sigma = schedules.value(self.noise, self.noise_end, self.schedule, at.round, at.setting.rounds)
        return sigma * self._bound(at)

    def update(self, update: Any, at: At) -> Any:
        clipped = clipping.clip_one(update, self._bound(at), self.clip_scope)
        if self.placement != "client" or not self.noise:
            return clipped
        return noises.add(clipped, noises.gaussian(at.key, clipped, self._deviation(at)))

    def aggregate(self, total: Any, at: At) -> Any:
        if not self.noise:
            return total
        draws = at.setting.per_round if self.placement == "server-each" else 1
        deviation = self._deviation(at) * math.sqrt(draws) * at.setting.max_weight
        return noises.add(total, noises.gaussian(at.key, total, deviation))

    def events(self, setting: Setting) -> list[Release]:
        if not self.noise:
            return []
        # A schedule of the clip moves noise and sensitivity alike; one of the noise changes z from round to round.
        parts = math.sqrt(setting.layers if self.clip_scope == "layerwise" else 1)
        factor = math.sqrt(setting.per_round) / parts if self.placement == "server-each" else 1.0 / parts
        sigmas = schedules.every_round(self.noise, self.noise_end, self.schedule, setting.rounds)
        zs = tuple(sigma * factor for sigma in sigmas)
        z = min(zs, default=self.noise * factor)
        if self.placement == "client":
            return [Release("client", "client", "gaussian", z, "round", "update", zs, adds_up=True)]
        trust = ("the server is trusted: it sees clean updates and adds the noise",)
        return [Release("release", "client", "gaussian", z, "round", "aggregate", zs, on_sum=True, assumes=trust)]
