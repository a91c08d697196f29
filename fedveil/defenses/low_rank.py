"""Low-rank updates: each layer's weights are sent as the best matrix of a given rank (cpl, Section 2.1 and Table 7).

Communication-efficient protocols send the two factors of such a matrix, r·(m + n) values instead of m·n (Konečný et al.
2016). A layer's update is taken as a matrix [everything else, outputs]; of its singular value decomposition U S Vᵀ the r
largest singular values stay, which is the nearest matrix of that rank. Biases are sent as they are.

| stage | what is approximated | taps that see it |
|---|---|---|
| `example` | every example's gradient | `example`; the later ones see sums |
| `batch` | the batch gradient of every local step | `batch`; `client` and `server` see sums over the steps |
| `upload` | the update, once per round | `server`; `client` sees all of it |

It has no certificate. One example's gradient of a fully connected layer has rank 1 and passes unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedveil.core.errors import ConfigError
from fedveil.core.setting import Setting
from fedveil.core.stage import Effect, StageContext
from fedveil.defenses.base import Defense


@dataclass(frozen=True)
class LowRank(Defense):
    """Keep the largest singular values of each layer."""

    rank: Annotated[int, Field(ge=1)] = 1  # r
    stage: Literal["example", "batch", "upload"] = "upload"

    name: ClassVar[str] = "low-rank"
    summary: ClassVar[str] = "sends each layer as its nearest matrix of a given rank (cpl, Section 2.1)"

    def effect(self, stage: str) -> Effect:
        return Effect.POST_PROCESSING  # a decomposition rounds: it may enlarge a norm in the last digits

    def check(self, setting: Setting) -> None:
        if self.stage == "upload" and setting.aggregation == "fedavg":
            takes = "low-rank at stage 'upload' would approximate the model that fedavg sends: use fedsgd"
            raise ConfigError("train.aggregation", setting.aggregation, takes)

    def example(self, each: Any, mask: Any, at: StageContext) -> tuple[Any, Any]:
        import jax

        return jax.vmap(self._nearest)(each), None

    def batch(self, total: Any, at: StageContext) -> Any:
        return self._nearest(total)

    def upload(self, message: Any, at: StageContext) -> Any:
        return self._nearest(message)

    def _nearest(self, tree: Any) -> Any:
        import jax

        return jax.tree.map(lambda a: nearest(a, self.rank), tree)


def nearest(a: Any, rank: int) -> Any:
    """The nearest array of that rank, as a matrix [everything else, last axis]; vectors as they are."""
    import jax.numpy as jnp

    if a.ndim < 2 or rank >= min(a.size // a.shape[-1], a.shape[-1]):
        return a
    u, s, v = jnp.linalg.svd(a.reshape(-1, a.shape[-1]), full_matrices=False)
    return ((u[:, :rank] * s[:rank]) @ v[:rank]).reshape(a.shape).astype(a.dtype)
