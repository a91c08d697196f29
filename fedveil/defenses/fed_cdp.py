"""Fed-CDP: per-example differential privacy at every local step (fed-cdp, Algorithm 2), and Fed-CDP(decay).

Each example's gradient is clipped layer by layer to C (lines 8 to 12); Gaussian noise is added (line 14) at one of three
places. B is the batch size, Kt the clients per round; all noise below is on the *sum* over a client's batch:

| placement | noise on the batch sum | on the batch mean | closes |
|---|---|---|---|
| `example` | every example's gradient gets σC: √B·σC in all | σC/√B | the example tap and all after it |
| `batch` | σC | σC/B | the batch gradient, the update |
| `cohort` | σC/√Kt: the clients' noises add up to σC | σC/(B√Kt) | the aggregate, under secure aggregation, L = 1 |

The sum always carries noise of the nominal variance: an empty Poisson batch is noised, and neither a large nor a small one
can be told by its noise. `clip_end` makes it Fed-CDP(decay): the bound falls over the rounds (the paper: 6 to 2, linear).

Sensitivity: one example changes the clipped sum by at most √M·C (layerwise, M layers) or C (flat).

`clip_mode`: `fixed`; `lr` (the bound follows the learning rate, which is public); `median` (the median norm of the batch,
at most C). The median is computed from private data without noise, so no certificate covers it.
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

jax: Any = Lazy("jax")
jnp: Any = Lazy("jax.numpy")
clipping: Any = Lazy("fedveil.mechanisms.clip")
noises: Any = Lazy("fedveil.random.noise")

Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class FedCDP(Defense):
    """Clip every example's gradient, noise at every local step."""

    clip: Positive = 4.0  # C
    noise: Annotated[float, Field(ge=0)] = 6.0  # σ
    placement: Literal["example", "batch", "cohort"] = "example"
    clip_scope: Literal["layerwise", "flat"] = "layerwise"
    clip_mode: Literal["fixed", "median", "lr"] = "fixed"
    clip_end: Positive | None = None
    schedule: schedules.Shape = "linear"
    noise_end: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    name: ClassVar[str] = "fed-cdp"
    summary: ClassVar[str] = (
        "per-example clip and noise at every local step (fed-cdp, Algorithm 2; with clip_end: decay)"
    )
    private: ClassVar[bool] = True

    def fills(self, stage: str) -> bool:
        return stage == "example"

    def noised_stages(self) -> tuple[str, ...]:
        return ("example",)

    def _bound(self, at: At) -> Any:
        bound = schedules.value(self.clip, self.clip_end, self.schedule, at.round, at.setting.rounds)
        return bound * at.lr / at.setting.lr if self.clip_mode == "lr" else bound

    def _sigma(self, at: At) -> Any:
        return schedules.value(self.noise, self.noise_end, self.schedule, at.round, at.setting.rounds)

    def _bounds(self, each: Any, mask: Any, at: At) -> dict[str, Any]:
        """The bound of each layer: the same for all, or the batch's median norm where that is smaller."""
        bound = self._bound(at)
        if self.clip_mode != "median":
            return dict.fromkeys(each, bound)
        norms = clipping.layer_norms(each)
        if self.clip_scope == "flat":
            norms = dict.fromkeys(norms, jnp.sqrt(sum(jnp.square(n) for n in norms.values())))
        # An empty batch has no median: the largest bound stands in.
        medians = {name: jnp.nanmedian(jnp.where(mask & jnp.isfinite(n), n, jnp.nan)) for name, n in norms.items()}
        return {name: jnp.where(m > 0, jnp.minimum(m, bound), bound) for name, m in medians.items()}

    # --- the obvious way: gradients one by one (line by line as in the algorithm)

    def example(self, each: Any, mask: Any, at: At) -> tuple[Any, Any]:
        bounds = self._bounds(each, mask, at)
        clipped = clipping.clip_examples(each, bounds, self.clip_scope)
        if not self.noise:
            return clipped, None
        if self.placement != "example":
            return clipped, self._sum_noise(clipped, bounds, at)
        # Padding shows nothing, so the sum of what is shown carries the draws of present examples. `rest` makes it carry
        # exactly the draws of the B nominal slots: those of empty slots are added, those beyond the last taken back.
        size, width = at.setting.batch, mask.shape[0]
        slots = [self._one_noise(clipped, bounds, at, slot) for slot in range(max(size, width))]
        shown = jax.tree.map(lambda g, *n: _where(mask, g + jnp.stack(n[:width])), clipped, *slots)
        carried = jax.tree.map(lambda g, s: (s - g).sum(axis=0), clipped, shown)
        rest = jax.tree.map(lambda c, *n: sum(n[:size]) - c, carried, *slots)
        return shown, rest

    def example_sum(self, each: Any, mask: Any, at: At) -> Any:
        """Nobody sees single gradients: one draw of the same law on the clipped sum."""
        bounds = self._bounds(each, mask, at)
        clipped = clipping.clip_examples(each, bounds, self.clip_scope)
        total = jax.tree.map(lambda g: g.sum(axis=0), clipped)
        return noises.add(total, self._sum_noise(clipped, bounds, at)) if self.noise else total

    def _one_noise(self, clipped: Any, bounds: dict[str, Any], at: At, slot: int) -> Any:
        """σC for one example: a draw for the slot, in the shape of one gradient."""
        like = jax.tree.map(lambda a: a[0], clipped)
        return self._scaled_noise(jax.random.fold_in(at.key, slot), like, bounds, self._sigma(at))

    def _sum_noise(self, clipped: Any, bounds: dict[str, Any], at: At) -> Any:
        like = jax.tree.map(lambda a: a[0], clipped)
        return self._scaled_noise(at.key, like, bounds, self._sigma(at) * self._on_sum(at.setting))

    def _scaled_noise(self, key: Any, like: Any, bounds: dict[str, Any], sigma: Any) -> Any:
        unit = noises.gaussian(key, like, 1.0)
        return {name: {k: a * sigma * bounds[name] for k, a in layer.items()} for name, layer in unit.items()}

    def _on_sum(self, setting: Setting) -> float:
        """The noise on a batch sum, in units of σC."""
        if self.placement == "example":
            return math.sqrt(setting.batch)
        return 1.0 if self.placement == "batch" else 1.0 / math.sqrt(setting.per_round)

    # --- the fused way: one backward pass, one draw of the same law on the sum

    def example_bound(self, at: At) -> Any:
        return None if self.clip_scope == "flat" or self.clip_mode == "median" else self._bound(at)

    def example_on_sum(self, total: Any, at: At) -> Any:
        if not self.noise:
            return total
        deviation = self._sigma(at) * self._bound(at) * self._on_sum(at.setting)
        return noises.add(total, noises.gaussian(at.key, total, deviation))

    def events(self, setting: Setting) -> list[Release]:
        if not self.noise:
            return []
        # A schedule of the clip moves noise and sensitivity alike; one of the noise changes z from round to round.
        parts = math.sqrt(setting.layers if self.clip_scope == "layerwise" else 1)
        sigmas = schedules.every_round(self.noise, self.noise_end, self.schedule, setting.rounds)
        covered = self.clip_mode != "median"
        reason = "" if covered else "the clip bound is the median of private norms, computed without noise"

        def release(tap: str, factor: float, adds_up: bool) -> Release:
            zs = tuple(sigma * factor / parts for sigma in sigmas)
            z = min(zs, default=self.noise * factor / parts)
            return Release(
                tap, "example", "gaussian", z, "step", "example", zs, adds_up=adds_up, covered=covered, reason=reason
            )

        # With several local steps, or another optimiser than SGD, updates are no sums of noised gradients any more.
        linear = setting.local_steps == 1 and setting.optimizer == "sgd"
        at_client = release("client", self._on_sum(setting), linear)
        return [release("example", 1.0, False), at_client] if self.placement == "example" else [at_client]


def _where(mask: Any, a: Any) -> Any:
    """Zero where an example is padding."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, 0.0)
