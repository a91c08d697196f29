"""LIP: Laplace noise on fully connected layers by the relevance of their parameters (Liu et al. 2020; baseline of dpfl).

Layer-wise relevance propagation gives every parameter of a fully connected layer its importance (see `importance`); the
more important, the smaller its ε_j. Convolutions get no noise, which is what the attacks of dpfl's Figs 1 and 10 use.
`layers` noises the named layers instead, whatever they are, with ε divided evenly among them.

Clip and noise scale are those of `dpfl`, so that the two compare at equal ε: the update is clipped in L1 norm to `clip`,
the noise is Laplace of scale 2·η·clip/ε_j, η the learning rate of the first round.

No ε holds: layers without noise show their part of the update as it is, and the relevances come from private data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from fedveil.core.errors import ConfigError, unknown_name
from fedveil.core.events import Release
from fedveil.core.lazy import Lazy
from fedveil.core.setting import Setting
from fedveil.defenses.base import At, Defense, DefenseContext

jax: Any = Lazy("jax")
jnp: Any = Lazy("jax.numpy")
clipping: Any = Lazy("fedveil.mechanisms.clip")
noises: Any = Lazy("fedveil.random.noise")
importance: Any = Lazy("fedveil.defenses.importance")


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
        known = tuple(jax.eval_shape(context.model.init, jax.random.key(0)))
        for layer in self.layers or ():
            if layer not in known:
                raise unknown_name("defense.layers", layer, known)
        if self.layers is None and not importance.dense_layers(context.model):
            takes = "this model shows no fully connected layer: name the layers to noise, " + ", ".join(known)
            raise ConfigError("defense.layers", None, takes)
        return self.holding(context)

    def initial_memories(self, params: Any, clients: int) -> Any:
        """[clients, ...] for each noised parameter: its part of the budget, ε_j/ε."""
        if self.layers is None:
            return self.held.measure_clients(params, _sparing)
        chosen = dict.fromkeys(self.layers)
        even = jnp.full(clients, 1.0 / len(chosen), jax.tree.leaves(params)[0].dtype)
        return {layer: {k: jnp.copy(even) for k in params[layer]} for layer in chosen}

    def recall(self, stage: str, value: Any, memory: Any, at: At) -> tuple[Any, Any]:
        clipped = clipping.clip_l1(value, self.clip)
        unit = noises.laplace(at.key, clipped, 1.0)
        spread = 2.0 * at.setting.lr * self.clip
        noised = dict(clipped)
        for layer, shares in memory.items():
            scales = {k: spread / (self.epsilon * share) for k, share in shares.items()}
            noised[layer] = {k: a + scales[k] * unit[layer][k] for k, a in clipped[layer].items()}
        return noised, memory

    def events(self, setting: Setting) -> list[Release]:
        reason = "layers without noise show their part of the update as it is, and the noise follows private data"
        if self.layers is not None:
            reason = "layers without noise show their part of the update as it is; to noise all of them use dpfl"
        return [Release("server", "client", "laplace", 0.0, "round", "upload", covered=False, reason=reason)]


def _sparing(*measured: Any) -> Any:
    return importance.sparing_shares(importance.relevance(*measured))
