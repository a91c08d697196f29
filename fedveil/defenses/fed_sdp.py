"""Fed-SDP: per-client differential privacy (fed-cdp, Algorithm 1).

Each client trains as usual and clips its update layer by layer to C (lines 9 to 11). Gaussian noise of scale σ·C is added
in one of three ways:

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
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedveil.core.errors import ConfigError
from fedveil.core.events import Claim
from fedveil.core.setting import Setting
from fedveil.core.stage import Effect, StageContext
from fedveil.defenses.base import Arithmetic, Scheduled, integer_noise
from fedveil.mechanisms.mechanism import Clip, Mechanism, Placed, Shape

Positive = Annotated[float, Field(gt=0)]
Tree = Any


@dataclass(frozen=True)
class FedSDP(Scheduled):
    """Clip each client's update, then noise at the client or at the server."""

    clip: Positive = 4.0  # C
    noise: Annotated[float, Field(ge=0)] = 6.0  # σ
    placement: Literal["server-sum", "server-each", "client"] = "server-sum"
    clip_scope: Literal["layerwise", "flat"] = "layerwise"
    clip_end: Positive | None = None
    schedule: Shape = "linear"
    noise_end: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    arithmetic: Arithmetic = None  # of the noise

    name: ClassVar[str] = "fed-sdp"
    summary: ClassVar[str] = "per-client clip of the update, noise at the client or the server (fed-cdp, Algorithm 1)"
    private: ClassVar[bool] = True

    def fills(self, stage: str) -> bool:
        return stage == "update" or (stage == "aggregate" and self.placement != "client")

    def noised_stages(self) -> tuple[str, ...]:
        return ("update" if self.placement == "client" else "aggregate",)

    def effect(self, stage: str) -> Effect:
        # The clip alone, where the server adds the noise later.
        return Effect.CONTRACTION if stage == "update" and self.placement != "client" else Effect.MECHANISM

    def check(self, setting: Setting) -> None:
        if self.integer and self.placement != "client":
            takes = "is for clients' noise, and the server's is in floating point: set defense.placement = 'client'"
            raise ConfigError("defense.arithmetic", "integer", takes)

    def deployed(self) -> FedSDP:
        return integer_noise(self) if self.placement == "client" else self

    def mechanism(self, setting: Setting) -> Mechanism:
        """Clips an update to C. Adds noise σC to the update, or at the server to the weighted sum of a round."""
        clip = Clip(self.bound(setting), self.clip_scope)
        noise = self.multiplier(setting)
        if self.placement == "client":
            return Mechanism(clip, noise).on_grid(setting) if self.integer else Mechanism(clip, noise)
        draws = setting.per_round if self.placement == "server-each" else 1
        return Mechanism(clip, noise, spread=math.sqrt(draws) * setting.max_weight, weight=setting.max_weight)

    def mechanisms(self, setting: Setting) -> list[Placed]:
        if not self.noise:
            return []
        made = self.mechanism(setting)
        if self.placement == "client":
            return [Placed(made, "client", "client", "round", "update", "update", client_noise_sums=True)]
        trust = ("the server is trusted: it sees clean updates and adds the noise",)
        return [Placed(made, "release", "client", "round", "update", "aggregate", on_sum=True, assumes=trust)]

    def update(self, update: Tree, at: StageContext) -> Tree:
        mechanism = self.mechanism(at.setting)
        return mechanism.apply(update, at) if self.placement == "client" else mechanism.clip_one(update, at)

    def aggregate(self, total: Tree, at: StageContext) -> Tree:
        return self.mechanism(at.setting).add_noise(total, at)

    # --- what others ask

    def claims(self, setting: Setting) -> list[Claim]:
        if not self.noise:
            return []
        rate = min(1.0, setting.per_round / setting.clients)
        assumptions = (f"a Poisson sample of clients of rate q = Kt/K = {rate:.4g} in each of {{rounds}} rounds",)
        sampled = Claim(
            "release", "client", "", "sampled", sigma=self.noise, rate=rate, steps_per_round=1, assumptions=assumptions
        )
        if self.placement == "client":
            return [sampled]
        closed = "the paper counts leakage at the server as closed; here the server sees clean updates"
        return [sampled, replace(sampled, tap="server", reason=closed, rule="moments")]
