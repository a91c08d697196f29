"""2DP-FL: noise at the client and noise at the server (2dp-fl, Algorithm 1).

Client (lines 6 to 10): each example's gradient is clipped as a whole to G; one Gaussian noise of scale σ_k·G is added to
the batch sum, at each of the m local steps. σ_k is `noise`, times the client's own factor if there are `noise_factors`.
Server (lines 13 and 14): the weighted mean of the models; before it goes out, noise of scale σ·S/U, where U is the number
of clients per round and S the most that one client can move its model, S = η·m·G:

- `distinct`: every client receives its own noise;
- `same`: one draw for all;
- `none`: the plain model.

`omega` and `epsilon`: both multipliers are then times σ = ω·√(T·ln(1/δ))/ε, the scale in the proof of Theorem 6. The paper
leaves ω undefined, so this σ has no claim on ε but the paper's; the account is that of the σ.

The paper averages models (`auto` aggregation takes fedavg), weighted by data size (`train.weights = "size"`). With `fedsgd`
the server's noise moves the clients but does not stay in the global model.

Sensitivity: one example changes the clipped batch sum by at most G. One client changes the mean by at most p·S, p its share
of the weights. `same` noise composes over rounds as usual. `distinct` does not: nearly the same mean comes back under
fresh noise, so receivers together, or one over time, can average it away; no certificate is given for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedveil.core.errors import ConfigError
from fedveil.core.events import Claim
from fedveil.core.setting import Setting
from fedveil.core.stage import Effect, StageContext
from fedveil.defenses.base import Arithmetic, Defense, Dial, Refusal, integer_noise
from fedveil.mechanisms.mechanism import BroadcastNoise, ClientMechanism, Clip, Mechanism, Placed, Schedule

if TYPE_CHECKING:
    import jax

Tree = Any
Factor = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class TwoDP(Defense):
    """Per-example clip and batch noise at the client, noise per receiver at the server."""

    clip: Annotated[float, Field(gt=0)] = 1.0  # G
    noise: Annotated[float, Field(ge=0)] = 1.0  # σ_k
    noise_factors: Annotated[tuple[Factor, ...], Field(strict=False, min_length=1)] | None = None  # σ_k/noise by client
    server_noise: Annotated[float, Field(ge=0)] = 1.0  # σ
    server_noise_mode: Literal["distinct", "same", "none"] = "distinct"
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    omega: Factor | None = None  # ω of Theorem 6
    epsilon: Factor | None = None  # ε of Theorem 6
    arithmetic: Arithmetic = None  # of the clients' noise

    name: ClassVar[str] = "2dp-fl"
    summary: ClassVar[str] = "batch noise at the client and noise in what each client receives (2dp-fl, Algorithm 1)"
    private: ClassVar[bool] = True
    averages_models: ClassVar[bool] = True

    def fills(self, stage: str) -> bool:
        noisy = self.server_noise_mode != "none" and self.server_noise > 0
        return stage == "example" or (stage == "broadcast" and noisy)

    def noised_stages(self) -> tuple[str, ...]:
        return ("example", "broadcast") if self.fills("broadcast") else ("example",)

    def effect(self, stage: str) -> Effect:
        return Effect.MECHANISM

    def check(self, setting: Setting) -> None:
        if (self.omega is None) != (self.epsilon is None):
            key = "omega" if self.omega is None else "epsilon"
            raise ConfigError(
                f"defense.{key}", None, "ω and ε give σ together: set both defense.omega and defense.epsilon"
            )

    def sigma(self, setting: Setting) -> float:
        """σ of Theorem 6, by which both multipliers are multiplied; 1 without an ω."""
        if self.omega is None or self.epsilon is None:
            return 1.0
        return self.omega * math.sqrt(setting.rounds * math.log(1.0 / self.delta)) / self.epsilon

    # --- its mechanisms

    def at_client(self, setting: Setting) -> Mechanism:
        """Flat clip G of each example's gradient, noise σ_k·G on the batch sum."""
        clip, noise = Clip(Schedule(self.clip)), Schedule(self.noise * self.sigma(setting))
        factors = self.noise_factors
        made = ClientMechanism(clip, noise, factors=factors) if factors else Mechanism(clip, noise)
        return made.on_grid(setting) if self.integer and self.noise else made

    def deployed(self) -> TwoDP:
        return integer_noise(self)

    def at_server(self, setting: Setting) -> BroadcastNoise:
        """Noise σ·S/U on the model that goes out."""
        # A mean of B clipped gradients is at most G; of a Poisson batch, which may hold all N_i, at most G·N_i/B.
        largest = max((size for size, _ in setting.sizes), default=setting.batch)
        excess = max(1.0, largest / setting.batch) if setting.batching == "poisson" else 1.0
        return BroadcastNoise(
            Clip(Schedule(self.clip)),
            Schedule(self.server_noise * self.sigma(setting)),
            steps=setting.local_steps,
            receivers=setting.per_round,
            share=setting.share,
            excess=excess,
        )

    def mechanisms(self, setting: Setting) -> list[Placed]:
        made = []
        if self.noise:
            linear = setting.local_steps == 1 and setting.optimizer == "sgd"
            client = self.at_client(setting)
            made.append(Placed(client, "client", "example", "step", "example", "example", client_noise_sums=linear))
        if self.fills("broadcast"):
            server, reason = self.at_server(setting), self._why_not(setting)
            placed = Placed(server, "broadcast", "client", "round", "example", "broadcast", on_sum=True, reason=reason)
            made.append(placed)
        return made

    def example(self, each: Tree, mask: jax.Array, at: StageContext) -> tuple[Tree, Tree | None]:
        import jax

        mechanism = self.at_client(at.setting)
        clipped = mechanism.clip.examples(each, mechanism.clip.bounds(each, mask, at))
        if not self.noise:
            return clipped, None
        like = jax.tree.map(lambda a: a[0], clipped)
        if self.integer:
            rest = mechanism.in_units(mechanism.integer_noise(like, at), like, at)
            return mechanism.in_units(mechanism.rounded(clipped, at), clipped, at), rest
        return clipped, mechanism.noise(like, at)

    def example_sum(self, each: Tree, mask: jax.Array, at: StageContext) -> Tree:
        if not (self.integer and self.noise):
            return super().example_sum(each, mask, at)
        mechanism = self.at_client(at.setting)
        return mechanism.noised_sum(mechanism.clip.examples(each, mechanism.clip.bounds(each, mask, at)), at)

    def broadcast(self, params: Tree, at: StageContext) -> Tree:
        key = at.shared if self.server_noise_mode == "same" else at.key
        return self.at_server(at.setting).add_noise(params, at, key)

    def _why_not(self, setting: Setting) -> str:
        """Why the server's noise does not compose over rounds; empty where it does."""
        if self.server_noise_mode == "distinct":
            factor = averaging_factor(setting.per_round, setting.rounds)
            return (
                "every receiver gets fresh noise on nearly the same model in every round: one that averages what it gets "
                f"over {setting.rounds} rounds divides z by {factor:.3g} at least, all receivers together by "
                f"{setting.per_round**0.5:.3g}"
            )
        if setting.optimizer != "sgd":
            return f"the clip of gradients does not bound a local step of {setting.optimizer}"
        stays = setting.aggregation == "fedavg" and setting.sampling == "fixed" and setting.plain_server
        if not stays or setting.dropout or setting.late:
            return (
                "the noise does not stay whole in the global model, which comes back under fresh noise: that takes "
                "fedavg, fixed sampling, no lost or late clients, server_lr = 1 and no server momentum"
            )
        return ""

    # --- what others ask

    def claims(self, setting: Setting) -> list[Claim]:
        reason = "the paper's constant from ε to σ is left undefined: no ε follows from its text"
        if self.omega is not None:
            reason = (
                f"the ε of Theorem 6's σ, whose constant ω the paper leaves undefined: {self.omega:g} is the config's"
            )
        return [Claim("client", "example", reason, epsilon=self.epsilon, delta=self.delta if self.epsilon else None)]

    def refuses_deployment(self, summed: bool = False) -> Refusal | None:
        """Refuses `omega`: a node's limits read the noise from the config, but here it follows from the rounds."""
        takes = (
            "a node's limits read the noise from the config: set defense.noise to σ, and leave omega and epsilon out"
        )
        return None if self.omega is None else Refusal("omega", self.omega, takes)

    def dial(self, unit: str) -> Dial:
        if unit == "client":
            return Dial("server_noise", self.server_noise)
        return Dial("noise", self.noise)

    def silenced(self) -> TwoDP:
        return replace(self, noise=0.0, server_noise=0.0)

    def clip_bounds(self) -> tuple[float, ...]:
        return (self.clip,)

    def noise_levels(self) -> tuple[float, ...]:
        return (self.noise * min(self.noise_factors or (1.0,)),)


def averaging_factor(receivers: int, rounds: int) -> float:
    """By how much averaging over rounds lowers z under `distinct` noise, for a contribution to the first round.

    In round t a receiver sees the mean model, which has collected t times the mean of the receivers' noises (variance 1/U
    each), plus a separate noise of variance 1, which in turn enters the next mean. What it learns of a shift that stays
    in the model is 1ᵀΣ⁻¹1, against 1 for a single noise. Models that learn from what they receive are not in this count.
    """
    import numpy

    rounds = min(rounds, 300)  # it grows no more by then
    step = numpy.arange(rounds)
    covariance = numpy.minimum.outer(step, step) / receivers + 1.0 / receivers
    numpy.fill_diagonal(covariance, step / receivers + 1.0)
    ones = numpy.ones(rounds)
    return float(numpy.sqrt(ones @ numpy.linalg.solve(covariance, ones)))
