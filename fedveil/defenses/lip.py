"""LIP: Laplace noise on fully connected layers by the relevance of their parameters (Liu et al. 2020; baseline of dpfl).

Layer-wise relevance propagation gives every parameter of a fully connected layer its importance (see `importance`); the
more important, the smaller its ε_j. Convolutions get no noise, which is what the attacks of dpfl's Figs 1 and 10 use.
With `layers`, the named layers of any kind get the noise instead, with ε divided evenly among them.

Clip and noise scale are those of `dpfl`, so that the two compare at equal ε: the update is clipped in L1 norm to `clip`,
the noise is Laplace of scale 2·η·clip/ε_j, η the learning rate of the first round.

It has no ε: layers without noise show their part of the update as it is, and the relevances come from private data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from fedveil.core.errors import ConfigError, unknown_name
from fedveil.core.events import Claim
from fedveil.core.setting import Setting
from fedveil.core.stage import Effect, StageContext
from fedveil.defenses.base import Defense, DefenseContext
from fedveil.mechanisms.mechanism import Clip, LayerLaplace, Placed, Schedule


@dataclass(frozen=True, eq=False)
class LIP(Defense):
    """Clip updates in L1; Laplace noise on fully connected layers by relevance, or on named layers evenly."""

    clip: Annotated[float, Field(gt=0)] = 1.0
    epsilon: Annotated[float, Field(gt=0)] = 10.0
    layers: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None

    name: ClassVar[str] = "lip"
    summary: ClassVar[str] = "noise on dense layers by relevance, none on convolutions (LIP, Liu et al.); no ε holds"
    stateful: ClassVar[bool] = True

    def fills(self, stage: str) -> bool:
        return stage == "upload"

    def noised_stages(self) -> tuple[str, ...]:
        return ("upload",)

    def check(self, setting: Setting) -> None:
        if setting.aggregation != "fedsgd":
            takes = "lip clips and noises updates, not models: set train.aggregation = 'fedsgd'"
            raise ConfigError("train.aggregation", setting.aggregation, takes)

    def prepare(self, context: DefenseContext) -> Defense:
        import jax

        from fedveil.defenses import importance

        known = tuple(jax.eval_shape(context.model.init, jax.random.key(0)))
        for layer in self.layers or ():
            if layer not in known:
                raise unknown_name("defense.layers", layer, known)
        if self.layers is None and not importance.dense_layers(context.model):
            takes = "this model shows no fully connected layer: name the layers to noise, " + ", ".join(known)
            raise ConfigError("defense.layers", None, takes)
        return self.holding(context)

    def initial_client_states(self, params: Any, clients: int) -> Any:
        """[clients, ...] for each noised parameter: its part of the budget, ε_j/ε."""
        import jax
        import jax.numpy as jnp

        if self.layers is None:
            return self.held.measure_clients(params, _sparing)
        chosen = dict.fromkeys(self.layers)
        even = jnp.full(clients, 1.0 / len(chosen), jax.tree.leaves(params)[0].dtype)
        return {layer: {k: jnp.copy(even) for k in params[layer]} for layer in chosen}

    def effect(self, stage: str) -> Effect:
        # Noise by relevance reads private data; noise on named layers reads nothing but what it is given.
        return Effect.READS_DATA if self.layers is None else Effect.POST_PROCESSING

    def mechanism(self, setting: Setting) -> LayerLaplace:
        """Clip of the whole update in L1 norm, Laplace noise by share of the budget, as in `dpfl`."""
        clip = Clip(Schedule(self.clip), norm="l1")
        return LayerLaplace(clip, Schedule(1.0), "laplace", budget=self.epsilon, lr=setting.lr)

    def mechanisms(self, setting: Setting) -> list[Placed]:
        reason = "layers without noise show their part of the update as it is, and the noise follows private data"
        if self.layers is not None:
            reason = "layers without noise show their part of the update as it is; to noise all of them use dpfl"
        return [Placed(self.mechanism(setting), "server", "client", "round", "upload", "upload", reason=reason)]

    def apply_with_state(self, stage: str, value: Any, state: Any, at: StageContext) -> tuple[Any, Any]:
        mechanism = self.mechanism(at.setting)
        return mechanism.noise_by_share(mechanism.clip_one(value, at), state, at), state

    def claims(self, setting: Setting) -> list[Claim]:
        reason = "per round and for the noised layers alone"
        return [Claim("server", "client", reason, adjacency="replace", epsilon=self.epsilon, delta=0.0)]

    def clip_bounds(self) -> tuple[float, ...]:
        return (self.clip,)


def _sparing(*measured: Any) -> Any:
    from fedveil.defenses import importance

    return importance.sparing_shares(importance.relevance(*measured))
