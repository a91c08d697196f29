"""DSSGD: selective sharing of gradients (Shokri & Shmatikov 2015; a baseline of fed-cdp, Fig 4).

Of the n entries of a gradient only ⌈share·n⌉ are shared, the others are zero to everyone else: `largest` in magnitude
over all layers, or `random`, every set of that size equally likely and drawn afresh each time. With a `law` the shared
entries, and only they, carry noise of the given scale (the standard deviation of a Gaussian, the scale b of a Laplace
distribution), in units of an example's gradient, of the mean gradient (stage `batch`) or of the update (`upload`):

    g'_j = g_j + ξ_j for j shared, 0 else

docs/defenses/dssgd.md says what is left out of the method and what each tap shows. It has no certificate, with noise
neither: gradients are not bounded, and `largest` tells by its choice where they are large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedveil.core.errors import ConfigError
from fedveil.core.setting import Setting
from fedveil.core.stage import Effect, StageContext
from fedveil.defenses.base import Defense


@dataclass(frozen=True)
class DSSGD(Defense):
    """Share some coordinates, with or without noise."""

    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    pick: Literal["largest", "random"] = "largest"
    stage: Literal["example", "batch", "upload"] = "upload"
    law: Literal["none", "gaussian", "laplace"] = "none"
    scale: Annotated[float, Field(ge=0)] = 0.0

    name: ClassVar[str] = "dssgd"
    summary: ClassVar[str] = "shares a fraction of the coordinates, largest or random, with or without noise"

    def silenced(self) -> DSSGD:
        return replace(self, law="none", scale=0.0)

    def noised_stages(self) -> tuple[str, ...]:
        return (self.stage,) if self._noised else ()

    @property
    def _noised(self) -> bool:
        return self.law != "none" and self.scale > 0

    def effect(self, stage: str) -> Effect:
        return Effect.POST_PROCESSING if self._noised else Effect.CONTRACTION

    def check(self, setting: Setting) -> None:
        if self.law == "none" and self.scale > 0:
            raise ConfigError("defense.scale", self.scale, "no noise is drawn: set law to gaussian or laplace")
        if self.stage == "upload" and setting.aggregation == "fedavg":
            takes = "dssgd at stage 'upload' would cut holes into the model that fedavg sends: use fedsgd"
            raise ConfigError("train.aggregation", setting.aggregation, takes)

    def example(self, each: Any, mask: Any, at: StageContext) -> tuple[Any, Any]:
        import jax
        import jax.numpy as jnp

        def one(gradient: Any, present: Any, slot: Any) -> Any:
            selected = self._select(gradient, jax.random.fold_in(at.key, slot), self.scale)
            return jax.tree.map(lambda a: jnp.where(present, a, jnp.zeros((), a.dtype)), selected)

        return jax.vmap(one)(each, mask, jnp.arange(mask.shape[0])), None

    def batch(self, total: Any, at: StageContext) -> Any:
        return self._select(total, at.key, self.scale * at.divisor)

    def upload(self, message: Any, at: StageContext) -> Any:
        return self._select(message, at.key, self.scale)

    def _select(self, gradient: Any, key: Any, scale: Any) -> Any:
        import jax

        from fedveil.defenses import sparse
        from fedveil.random import noise

        pick_key, noise_key = jax.random.split(key)
        keep = sparse.shared(self.share, sparse.entries(gradient))
        drawn = self.pick == "random"
        chosen = sparse.random(pick_key, gradient, keep) if drawn else sparse.largest(gradient, keep)
        if self._noised:
            gradient = noise.add(gradient, noise.draw(self.law, noise_key, gradient, scale))
        return sparse.only(chosen, gradient)
