"""Gradient noise: zero-mean noise of a given size on the gradient (cpl, Table 8).

Independent noise ξ on every coordinate, Gaussian with standard deviation `scale` or Laplace with scale b = `scale`
(standard deviation √2·b), in gradient units; the table's G-10e-2 is `law = "gaussian"`, `scale = 0.01`. At stage `example`
it is scale/√B on the mean of a batch of B. As in the paper, the noise also enters local training.

Where no tap shows single examples, Gaussian noise on b of them is drawn once with √b times the standard deviation, which
is the same distribution. A sum of Laplace draws is not a Laplace draw, so every example gets its own draw.

It has no certificate: gradients are not clipped, so their sensitivity has no bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedveil.core.stage import Effect, StageContext
from fedveil.defenses.base import Defense


@dataclass(frozen=True)
class GradientNoise(Defense):
    """Noise of a fixed size, without a clip."""

    law: Literal["gaussian", "laplace"] = "gaussian"
    scale: Annotated[float, Field(ge=0)] = 0.01
    stage: Literal["example", "batch", "upload"] = "batch"

    name: ClassVar[str] = "gradient-noise"
    summary: ClassVar[str] = "Gaussian or Laplace noise on gradients that are not clipped (cpl, Table 8)"

    def effect(self, stage: str) -> Effect:
        return Effect.POST_PROCESSING

    def silenced(self) -> GradientNoise:
        return replace(self, scale=0.0)

    def noised_stages(self) -> tuple[str, ...]:
        return (self.stage,)

    def example(self, each: Any, mask: Any, at: StageContext) -> tuple[Any, Any]:
        import jax
        import jax.numpy as jnp

        def one(gradient: Any, present: Any, slot: Any) -> Any:
            noise = self._noise(jax.random.fold_in(at.key, slot), gradient, self.scale)
            return jax.tree.map(lambda a, n: a + jnp.where(present, n, jnp.zeros((), n.dtype)), gradient, noise)

        return jax.vmap(one)(each, mask, jnp.arange(mask.shape[0])), None

    def example_sum(self, each: Any, mask: Any, at: StageContext) -> Any:
        import jax
        import jax.numpy as jnp

        if self.law != "gaussian":
            return super().example_sum(each, mask, at)
        total = jax.tree.map(lambda g: g.sum(axis=0), each)
        dtype = jax.tree.leaves(total)[0].dtype
        return self._added(at.key, total, self.scale * jnp.sqrt(mask.sum().astype(dtype)))

    def batch(self, total: Any, at: StageContext) -> Any:
        # The stage sees the sum; the scale is meant for the mean.
        return self._added(at.key, total, self.scale * at.divisor)

    def upload(self, message: Any, at: StageContext) -> Any:
        return self._added(at.key, message, self.scale)

    def _added(self, key: Any, value: Any, scale: Any) -> Any:
        from fedveil.random import noise

        return noise.add(value, self._noise(key, value, scale))

    def _noise(self, key: Any, like: Any, scale: Any) -> Any:
        from fedveil.random import noise

        return noise.draw(self.law, key, like, scale)
