"""Fed-CDP: per-example differential privacy at every local step (fed-cdp, Algorithm 2), and Fed-CDP(decay).

Each example's gradient is clipped layer by layer to C (lines 8 to 12); Gaussian noise is added (line 14) in one of three
ways. B is the batch size, Kt the clients per round; all noise below is on the *sum* over a client's batch:

| placement | noise on the batch sum | on the batch mean | closes |
|---|---|---|---|
| `example` | every example's gradient gets σC: √B·σC in all | σC/√B | the example tap and all after it |
| `batch` | σC | σC/B | the batch gradient, the update |
| `cohort` | σC/√Kt: the clients' noises add up to σC | σC/(B√Kt) | the aggregate, under secure aggregation, L = 1 |

The sum always carries noise of the nominal variance: an empty Poisson batch is noised too, and the noise does not reveal
the size of a batch. `clip_end` makes it Fed-CDP(decay): the bound falls over the rounds (the paper: 6 to 2, linear).

Sensitivity: one example changes the clipped sum by at most √M·C (layerwise, M layers) or C (flat).

`clip_mode`: `fixed`; `lr` (the bound follows the learning rate, which is public); `median` (the median norm of the batch,
at most C); `client-median` (the median norm over the client's own examples at the round's model, at most C: Section IV-C).
Medians are computed from private data without noise, so no certificate covers them.
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
from fedveil.defenses.base import Arithmetic, Refusal, Scheduled, integer_noise
from fedveil.mechanisms.mechanism import Clip, Mechanism, Placed, Shape

if TYPE_CHECKING:
    import jax

Positive = Annotated[float, Field(gt=0)]
Tree = Any
SLOTS = 0x736C6F74  # keeps the draws of slots apart from the draw for their sum


@dataclass(frozen=True)
class FedCDP(Scheduled):
    """Clip every example's gradient, noise at every local step."""

    clip: Positive = 4.0  # C
    noise: Annotated[float, Field(ge=0)] = 6.0  # σ
    placement: Literal["example", "batch", "cohort"] = "example"
    clip_scope: Literal["layerwise", "flat"] = "layerwise"
    clip_mode: Literal["fixed", "median", "client-median", "lr"] = "fixed"
    clip_end: Positive | None = None
    schedule: Shape = "linear"
    noise_end: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    arithmetic: Arithmetic = None  # of the noise

    name: ClassVar[str] = "fed-cdp"
    summary: ClassVar[str] = (
        "per-example clip and noise at every local step (fed-cdp, Algorithm 2; with clip_end: decay)"
    )
    private: ClassVar[bool] = True

    def fills(self, stage: str) -> bool:
        return stage == "example"

    def noised_stages(self) -> tuple[str, ...]:
        return ("example",)

    @property
    def _by_median(self) -> bool:
        return self.clip_mode in ("median", "client-median")

    @property
    def measures_clients(self) -> bool:  # type: ignore[override]
        return self.clip_mode == "client-median"

    def effect(self, stage: str) -> Effect:
        return Effect.READS_DATA if self._by_median else Effect.MECHANISM

    def check(self, setting: Setting) -> None:
        if self.integer and self._by_median:
            takes = "takes a clip bound that is public, and the median is not: set defense.clip_mode = 'fixed'"
            raise ConfigError("defense.arithmetic", "integer", takes)

    def deployed(self) -> FedCDP:
        return self if self._by_median else integer_noise(self)

    # --- its mechanisms

    def on_example(self, setting: Setting) -> Mechanism:
        """Clip C and noise σC for one example."""
        return self._with_spread(setting, 1.0)

    def on_sum(self, setting: Setting) -> Mechanism:
        """The same clip, and the noise that a client's batch sum carries."""
        spread = {"example": math.sqrt(setting.batch), "batch": 1.0, "cohort": 1.0 / math.sqrt(setting.sharers)}
        return self._with_spread(setting, spread[self.placement], setting.sums and self.sums_integers(setting))

    def _with_spread(self, setting: Setting, spread: float, summed: bool = False) -> Mechanism:
        clip = Clip(self.bound(setting), self.clip_scope, follows_lr=self.clip_mode == "lr", median=self._by_median)
        made = Mechanism(clip, self.multiplier(setting), spread=spread)
        return made.on_grid(setting, summed) if self.integer else made

    def mechanisms(self, setting: Setting) -> list[Placed]:
        if not self.noise:
            return []
        reason = ""
        if self._by_median:
            reason = "the clip bound is the median of private norms, computed without noise"
        # With several local steps, or another optimiser than SGD, updates are no sums of noised gradients any more.
        linear = setting.local_steps == 1 and setting.optimizer == "sgd"
        single = self.placement == "example"
        at_client = Placed(
            self.on_sum(setting), "client", "example", "step", "example", "example",
            on_each=single, client_noise_sums=linear, reason=reason,
        )  # fmt: skip
        if not single:
            return [at_client]
        assumes = ("the run is made with this tap open: every example of a batch then carries noise of its own",)
        at_example = Placed(
            self.on_example(setting), "example", "example", "step", "example", "example",
            on_each=True, reason=reason, assumes=assumes,
        )  # fmt: skip
        return [at_example, at_client]

    # --- the obvious way: gradients one by one (line by line as in the algorithm)

    def example(self, each: Tree, mask: jax.Array, at: StageContext) -> tuple[Tree, Tree | None]:
        import jax
        import jax.numpy as jnp

        bounds, clipped = self._clipped(each, mask, at)
        if not self.noise:
            return clipped, None
        if self.integer:
            return self._in_integers(clipped, mask, at)
        whole = self.on_sum(at.setting).noise(_first(clipped), at, bounds=bounds)
        if self.placement != "example":
            return clipped, whole
        noises = self._by_slot(clipped, whole, bounds, mask.shape[0], at)
        shown = jax.tree.map(lambda g, n: _where(mask, g + n), clipped, noises)
        # The sum carries the draws of the B nominal slots: those of empty slots are added here. Slots beyond them appear
        # in a large Poisson batch. Nobody sees their noise unless the tap is open: it then stays in the sum, since the
        # sum less what the tap shows would otherwise be their clean gradients.
        nominal = jnp.arange(mask.shape[0]) < at.setting.batch
        counted = mask & nominal if at.open else mask
        rest = jax.tree.map(lambda w, n: w - _where(counted, n).sum(axis=0), whole, noises)
        return shown, rest

    def example_sum(self, each: Tree, mask: jax.Array, at: StageContext) -> Tree:
        """Nobody sees single gradients: one draw of the same distribution on the clipped sum."""
        import jax

        from fedveil.random import noise

        bounds, clipped = self._clipped(each, mask, at)
        if self.integer and self.noise:
            return self.on_sum(at.setting).noised_sum(clipped, at)
        total = jax.tree.map(lambda g: g.sum(axis=0), clipped)
        if not self.noise:
            return total
        return noise.add(total, self.on_sum(at.setting).noise(_first(clipped), at, bounds=bounds))

    def _clipped(self, each: Tree, mask: jax.Array, at: StageContext) -> tuple[dict[str, Any], Tree]:
        clip = self.on_example(at.setting).clip
        if self.measures_clients and at.medians is None:
            takes = "needs the client's whole data in every round, which only training in simulation has"
            raise ConfigError("defense.clip_mode", self.clip_mode, takes)
        bounds = clip.bounds(each, mask, at if self.measures_clients else replace(at, medians=None))
        return bounds, clip.examples(each, bounds)

    def _by_slot(self, clipped: Tree, whole: Tree, bounds: dict[str, Any], width: int, at: StageContext) -> Tree:
        """The noise of each slot of the batch [width, ...]: draws of standard deviation σC; the first B add up to `whole`.

        `whole` is drawn once and moves the model. The tap shows the same draw divided among the slots:
        n_i = w_i − mean(w) + whole/B with independent w_i. So the tap does not release the gradients a second time.
        """
        import jax
        import jax.numpy as jnp

        size = at.setting.batch
        key = jax.random.fold_in(at.key, SLOTS)
        one = self.on_example(at.setting)

        def draw(slot: jax.Array) -> Tree:
            return one.noise(_first(clipped), at, jax.random.fold_in(key, slot), bounds)

        own = jax.vmap(draw)(jnp.arange(max(size, width)))

        def shared(w: jax.Array, total: jax.Array) -> jax.Array:
            nominal = w[:size] - w[:size].mean(axis=0) + total / size
            return jnp.concatenate([nominal, w[size:]])[:width]

        return jax.tree.map(shared, own, whole)

    def integer_sum(self, each: Tree, mask: jax.Array, at: StageContext) -> Tree:
        """The clipped sum with its noise in grid widths, int32: what a node sends into a sum of nodes."""
        _, clipped = self._clipped(each, mask, at)
        return self.on_sum(at.setting).noised_integers(clipped, at)

    def sums_integers(self, setting: Setting) -> bool:
        placed_once = self.placement != "example" and setting.local_steps == 1 and setting.optimizer == "sgd"
        return self.integer and self.noise > 0 and placed_once and setting.batching == "poisson"

    def _in_integers(self, clipped: Tree, mask: jax.Array, at: StageContext) -> tuple[Tree, Tree]:
        """Example gradients and the rest of their sum, in whole numbers; at placement `example` each has its own noise."""
        import jax
        import jax.numpy as jnp

        mechanism = (self.on_example if self.placement == "example" else self.on_sum)(at.setting)
        whole = mechanism.rounded(clipped, at)
        if self.placement != "example":
            return mechanism.in_units(whole, clipped, at), self._rest(whole, clipped, at)
        slots = jnp.arange(max(at.setting.batch, mask.shape[0]))
        key = jax.random.fold_in(at.key, SLOTS)
        own = jax.vmap(lambda slot: mechanism.integer_noise(_first(whole), at, jax.random.fold_in(key, slot)))(slots)
        # Every example that is there carries its own noise, and so does every nominal slot that is empty.
        empty = (slots < at.setting.batch) & ~jnp.pad(mask, (0, len(slots) - len(mask)))
        shown = jax.tree.map(lambda q, n: _where(mask, q + n[: len(mask)]), whole, own)
        rest = jax.tree.map(lambda n: _where(empty, n).sum(axis=0, dtype=jnp.int32), own)
        return mechanism.in_units(shown, clipped, at), mechanism.in_units(rest, _first(clipped), at)

    def _rest(self, whole: Tree, clipped: Tree, at: StageContext) -> Tree:
        """What is added to the sum of rounded gradients: the noise, and what rounding to the grid's step changes."""
        import jax
        import jax.numpy as jnp

        mechanism = self.on_sum(at.setting)
        assert mechanism.grid is not None
        step = mechanism.grid.step

        def rest(a: jax.Array, n: jax.Array) -> jax.Array:
            total = a.sum(axis=0, dtype=jnp.int32)
            return mechanism.in_steps(total + n) * step - total

        made = jax.tree.map(rest, whole, mechanism.integer_noise(_first(whole), at))
        return mechanism.in_units(made, _first(clipped), at)

    # --- the fused way: one backward pass, one draw of the same distribution on the sum

    def example_bound(self, at: StageContext) -> Any:
        if self.clip_scope == "flat" or self._by_median or self.integer:
            return None
        return self.on_sum(at.setting).clip.at(at)

    def example_on_sum(self, total: Tree, at: StageContext) -> Tree:
        return self.on_sum(at.setting).add_noise(total, at)

    # --- what others ask

    def claims(self, setting: Setting) -> list[Claim]:
        if not self.noise:
            return []
        examples = setting.examples or setting.clients * setting.smallest
        rate = min(1.0, setting.batch * setting.per_round / examples)
        assumptions = (f"a global Poisson sample of rate q = B·Kt/N = {rate:.4g} at each of {{steps}} steps",)
        sampled = Claim(
            "release",
            "example",
            "",
            "sampled",
            sigma=self.noise,
            rate=rate,
            steps_per_round=setting.local_steps,
            assumptions=assumptions,
        )
        keeps = "joint differential privacy keeps the unit, one example; it says nothing of a whole client"
        return [sampled, replace(sampled, unit="client", reason=keeps, rule="joint")]

    def refuses_deployment(self, summed: bool = False) -> Refusal | None:
        if self.measures_clients:
            takes = "needs every gradient of the client's data in every round: use 'fixed' on real machines"
            return Refusal("clip_mode", self.clip_mode, takes)
        if self.placement != "cohort" or summed:
            return None
        takes = (
            "is noise for a sum, by secure aggregation over a quorum: set train.secure_aggregation = true and "
            "train.quorum, or use 'example' or 'batch'"
        )
        return Refusal("placement", "cohort", takes)


def _first(each: Tree) -> Tree:
    """One example's gradient, for its shape."""
    import jax

    return jax.tree.map(lambda a: a[0], each)


def _where(mask: jax.Array, a: jax.Array) -> jax.Array:
    """Zero where an example is padding."""
    import jax.numpy as jnp

    return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, jnp.zeros((), a.dtype))
