"""DPFL: Laplace noise by layer importance, active client selection, fine-tuning on public data (dpfl, Algorithms 1 to 3).

Three parts, each of which can be switched off alone:

- **noise** (Algorithm 2, lines 11 to 17): the update is clipped to α; layer i gets Laplace noise of scale Δf/ε_i, Δf = 2ηα
  as printed, η the learning rate of the first round. `clip_norm`: α bounds the L1 norm of the update (Eq. 2 as printed)
  or each of its values (the note below Eq. 2: -α ≤ ∇g ≤ α). `allocation`: ε_i = ε·PoGZ_i/ΣPoGZ (Eq. 3; PoGZ is measured
  once at each client, see `importance`), ε_i ∝ 1/PoGZ_i (`inverse`; the contributions: "more budgets will be allocated to
  less important layers"), or ε/M for each of M layers (`even`).
- **selection** (Algorithm 1): drop the α1·K clients of smallest value v = (n_k/n)·loss, draw (1 − α3)·m of the others with
  probability ∝ exp(α2·v), the rest uniformly from all that are left, dropped ones included. A client's v is that of its
  last round; one not seen yet has the largest, so that everyone is seen first.
- **fine-tuning** (Algorithm 3, line 11): one epoch on the server's public set after each round, by the local optimiser.

Server step: `mean` of the noised updates; or `as-printed` (line 10), η·Σ(n_k/n)·update with n over *all* clients, which
scales by η a weight difference that has η in it already and divides by those who did not take part.

Sensitivity: one client changes its update by up to α (zero-out) or 2α (replace) in L1 norm, over all layers together. So
one upload costs max_i ε_i/η (replace), not ε: the printed Δf has an η too many, and the layers' budgets need not be added.
With `value`, d values change by up to 2α each, so the L1 norm by 2αd: one upload costs d times as much.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedveil.core.errors import ConfigError
from fedveil.core.events import Claim
from fedveil.core.setting import Setting
from fedveil.core.stage import Effect, StageContext
from fedveil.defenses.base import Defense, DefenseContext, Dial, Refusal
from fedveil.mechanisms.mechanism import Clip, LayerLaplace, Placed, Schedule

if TYPE_CHECKING:
    import numpy as np

Share = Annotated[float, Field(ge=0, le=1)]

# Section V-A: 3,000 of CIFAR-10's 10,000 test images, 1,000 of those of MNIST and Fashion-MNIST.
PUBLIC_SHARES = {"cifar10": 0.3}
PUBLIC_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class DPFL(Defense):
    """Clip updates in L1, Laplace noise by layer; choose clients by loss; fine-tune on public data."""

    clip: Annotated[float, Field(gt=0)] = 1.0  # α
    clip_norm: Literal["l1", "value"] = "l1"
    epsilon: Annotated[float, Field(gt=0)] = 10.0
    allocation: Literal["pogz", "inverse", "even"] = "pogz"
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None  # share of a client's data that PoGZ is measured on
    selection: Literal["active", "uniform"] = "active"
    alpha1: Annotated[float, Field(ge=0, lt=1)] = 0.3
    alpha2: Annotated[float, Field(ge=0)] = 0.01
    alpha3: Share = 0.1
    finetune: bool = True
    public: Annotated[float, Field(gt=0, lt=1)] | None = None  # share of the test part
    server_step: Literal["mean", "as-printed"] = "mean"
    public_only: bool = False  # baseline: nobody takes part, the server trains on the public set

    name: ClassVar[str] = "dpfl"
    summary: ClassVar[str] = "Laplace noise by layer importance, clients chosen by loss, public fine-tuning (dpfl)"
    private: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    reads_losses: ClassVar[bool] = True

    def fills(self, stage: str) -> bool:
        return {
            "select": self.public_only or self.selection == "active",
            "upload": True,
            "aggregate": self.server_step == "as-printed",
            "finish": self.finetune,
        }.get(stage, False)

    def noised_stages(self) -> tuple[str, ...]:
        return ("upload",)

    def check(self, setting: Setting) -> None:
        if setting.aggregation != "fedsgd":
            takes = "dpfl clips and noises updates, not models: set train.aggregation = 'fedsgd'"
            raise ConfigError("train.aggregation", setting.aggregation, takes)
        if self.public_only and not self.finetune:
            raise ConfigError("defense.public_only", True, "trains by fine-tuning alone: set defense.finetune = true")
        if self.validation and not self.measures:
            takes = "only PoGZ is measured on it: set defense.allocation = 'pogz' or 'inverse', or leave it out"
            raise ConfigError("defense.validation", self.validation, takes)

    @property
    def measures(self) -> bool:
        """Whether the budgets follow PoGZ, measured on private data."""
        return self.allocation != "even"

    @property
    def counts_values(self) -> bool:
        return self.clip_norm == "value"

    # --- before training

    def public_share(self, dataset: str) -> float:
        if not self.finetune:
            return 0.0
        return PUBLIC_SHARES.get(dataset, PUBLIC_SHARE) if self.public is None else self.public

    def prepare(self, context: DefenseContext) -> Defense:
        from fedveil.models.net import Net

        public = context.dataset.public
        if self.finetune and (public is None or not len(public)):
            takes = "this dataset has no examples to spare for a public set: set defense.finetune = false"
            raise ConfigError("defense.finetune", self.finetune, takes)
        if self.measures and not isinstance(context.model, Net):
            takes = "PoGZ needs the outputs of layers, which only named models show: set defense.allocation = 'even'"
            raise ConfigError("defense.allocation", self.allocation, takes)
        if self.validation and int(context.partition.length.min()) < 2:
            takes = "a client holds a single example, which cannot be cut in two: leave it out"
            raise ConfigError("defense.validation", self.validation, takes)
        return self.holding(context)

    def initial_client_states(self, params: Any, clients: int) -> Any:
        """[clients] for each layer: its part of the budget, ε_i/ε."""
        import jax
        import jax.numpy as jnp

        from fedveil.defenses import importance

        if not self.measures or self.public_only:
            one = jax.tree.leaves(params)[0]
            return {layer: jnp.full(clients, 1.0 / len(params), one.dtype) for layer in params}
        pogz = self.held.measure_clients(params, importance.pogz, self.validation or 0.0)
        return importance.shares_of_budget(pogz, self.allocation == "inverse")

    # --- Algorithm 1

    def select(
        self, rng: np.random.Generator, at_round: int, setting: Setting, losses: np.ndarray | None
    ) -> np.ndarray:
        import numpy

        if self.public_only:
            return numpy.zeros(0, numpy.int64)
        assert losses is not None
        sizes = self.held.partition.length
        values = numpy.where(numpy.isnan(losses), numpy.inf, sizes / sizes.sum() * losses)
        return choose(rng, values, setting.per_round, self.alpha1, self.alpha2, self.alpha3)

    # --- Algorithm 2, after the local steps

    def effect(self, stage: str) -> Effect:
        if stage == "upload":
            return Effect.READS_DATA if self.measures else Effect.MECHANISM
        return Effect.POST_PROCESSING  # a public factor; training on public data

    def mechanism(self, setting: Setting) -> LayerLaplace:
        """Clips the update to α, in L1 norm or value by value, and adds Laplace noise of scale 2ηα/ε_i to layer i."""
        clip = Clip(Schedule(self.clip), norm=self.clip_norm)
        return LayerLaplace(clip, Schedule(1.0), "laplace", budget=self.epsilon, lr=setting.lr)

    def mechanisms(self, setting: Setting) -> list[Placed]:
        reason = ""
        if self.public_only:
            reason = "no client takes part: nothing of theirs is shown, and nothing is accounted"
        elif self.measures:
            reason = "the noise of each layer follows private data (PoGZ), so no ε holds"
        active = self.selection == "active"
        leak = ("clients report their losses without noise, and selection reads them: that is not in this account",)
        placed = Placed(
            self.mechanism(setting), "server", "client", "round", "upload", "upload",
            every_round=active, reason=reason, assumes=leak if active else (),
        )  # fmt: skip
        return [placed]

    def apply_with_state(self, stage: str, value: Any, state: Any, at: StageContext) -> tuple[Any, Any]:
        mechanism = self.mechanism(at.setting)
        return mechanism.noise_by_share(mechanism.clip_one(value, at), state, at), state

    # --- Algorithm 3, lines 10 and 11

    def aggregate(self, total: Any, at: StageContext) -> Any:
        import jax

        # The sum has weights n_k/mean(n) (train.weights = "size") or 1; either way 1/K makes them n_k/n, or its mean.
        factor = at.lr / at.setting.clients * at.divisor  # the server divides by `divisor` afterwards
        return jax.tree.map(lambda t: t * factor, total)

    def finish(self, params: Any, at: StageContext) -> Any:
        """One epoch over the public set, in a fresh order, by the local optimiser and its learning rate."""
        return self.held.public_epoch(params, at)

    # --- what others ask

    def claims(self, setting: Setting) -> list[Claim]:
        reason = "per round, with a sensitivity that has the learning rate in it twice; rounds are not composed"
        if self.clip_norm == "value":
            reason += "; takes the bound of one value for that of the whole update"
        return [Claim("server", "client", reason, adjacency="replace", epsilon=self.epsilon, delta=0.0)]

    def dial(self, unit: str) -> Dial:
        return Dial("epsilon", self.epsilon, rises=True)

    def clip_bounds(self) -> tuple[float, ...]:
        return (self.clip,)

    def refuses_deployment(self, summed: bool = False) -> Refusal | None:
        if not self.public_only:
            return None
        return Refusal("public_only", True, "asks no node for anything: run it with 'fedveil train'")

    def node_part(self) -> Defense:
        """The defence without fine-tuning on public data, which only the server does."""
        return replace(self, finetune=False)


def choose(
    rng: np.random.Generator, values: np.ndarray, per_round: int, alpha1: float, alpha2: float, alpha3: float
) -> np.ndarray:
    """Clients by Algorithm 1 from their values [clients], infinite for those not seen yet.

    Drawing one by one without replacement, with probability ∝ exp(α2·v), is the same as taking those of largest
    α2·v + Gumbel noise; so large values do no harm. Ties are broken at random.
    """
    import numpy

    clients = len(values)
    dropped = int(alpha1 * clients + 1e-9)
    uniform = int(alpha3 * per_round + 0.5)
    by_value = min(per_round - uniform, clients - dropped)  # where too few are left, the rest is drawn uniformly
    alive = numpy.lexsort((rng.random(clients), values))[dropped:]
    unseen = numpy.isinf(values[alive])
    noise = rng.gumbel(size=len(alive))
    score = numpy.where(unseen, 0.0, alpha2 * numpy.where(unseen, 0.0, values[alive])) + noise
    first = alive[numpy.lexsort((-score, ~unseen))[:by_value]]
    others = numpy.setdiff1d(numpy.arange(clients), first)
    return numpy.concatenate([first, rng.choice(others, per_round - by_value, replace=False)])
