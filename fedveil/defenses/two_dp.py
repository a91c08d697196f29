"""2DP-FL: noise at the client and noise at the server (2dp-fl, Algorithm 1).

Client (lines 6 to 10): each example's gradient is clipped as a whole to G; one Gaussian noise of scale σ_k·G is added to
the batch sum, at each of the m local steps. Server (lines 13 and 14): the weighted mean of the models; before it goes out,
noise of scale σ·S/U, where U is the number of clients per round and S the most that one client can move its model,
S = η·m·G:

- `distinct`: every client receives its own noise;
- `same`: one draw for all;
- `none`: the plain model.

The paper averages models (`auto` aggregation takes fedavg), weighted by data size (`train.weights = "size"`). With `fedsgd`
the server's noise moves the clients but does not stay in the global model.

Sensitivity: one example changes the clipped batch sum by at most G. One client changes the mean by at most p·S, p its share
of the weights. `same` noise composes over rounds as usual. `distinct` does not: nearly the same mean comes back under
fresh noise, so receivers together, or one over time, can average it away; no certificate is given for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedveil.defenses.base import At, Defense, Setting
from fedveil.lazy import Lazy
from fedveil.privacy.events import Release

jax: Any = Lazy("jax")
clipping: Any = Lazy("fedveil.privacy.clip")
noises: Any = Lazy("fedveil.privacy.noise")


@dataclass(frozen=True)
class TwoDP(Defense):
    """Per-example clip and batch noise at the client, noise per receiver at the server."""

    clip: Annotated[float, Field(gt=0)] = 1.0  # G
    noise: Annotated[float, Field(ge=0)] = 1.0  # σ_k
    server_noise: Annotated[float, Field(ge=0)] = 1.0  # σ
    server_noise_mode: Literal["distinct", "same", "none"] = "distinct"
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-3

    name: ClassVar[str] = "2dp-fl"
    summary: ClassVar[str] = "batch noise at the client and noise in what each client receives (2dp-fl, Algorithm 1)"
    private: ClassVar[bool] = True
    averages_models: ClassVar[bool] = True

    def fills(self, stage: str) -> bool:
        noisy = self.server_noise_mode != "none" and self.server_noise > 0
        return stage == "example" or (stage == "broadcast" and noisy)

    def noised_stages(self) -> tuple[str, ...]:
        return ("example", "broadcast") if self.fills("broadcast") else ("example",)

    def example(self, each: Any, mask: Any, at: At) -> tuple[Any, Any]:
        clipped = clipping.clip_examples(each, self.clip, "flat")
        if not self.noise:
            return clipped, None
        like = jax.tree.map(lambda a: a[0], clipped)
        return clipped, noises.gaussian(at.key, like, self.noise * self.clip)

    def broadcast(self, params: Any, at: At) -> Any:
        key = at.shared if self.server_noise_mode == "same" else at.key
        return noises.add(params, noises.gaussian(key, params, self.server_deviation(at.setting, at.lr)))

    def server_deviation(self, setting: Setting, lr: Any) -> Any:
        """σ·S/U with S = η·m·G."""
        return self.server_noise * lr * setting.local_steps * self.clip / setting.per_round

    def events(self, setting: Setting) -> list[Release]:
        made = [
            Release(tap, "example", "gaussian", self.noise, "step")
            for tap in ("client", "server", "broadcast", "release")
        ]
        if self.fills("broadcast"):
            # One client moves the mean by at most p·S, and p ≤ max_weight / U where every chosen client answers.
            distinct = self.server_noise_mode == "distinct"
            reason = "fresh noise on nearly the same model in every round and for every receiver can be averaged away"
            z = self.server_noise / setting.max_weight
            made.append(
                Release("broadcast", "client", "gaussian", z, "round", not distinct, reason if distinct else "")
            )
        return made
