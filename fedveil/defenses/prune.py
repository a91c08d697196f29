"""Pruning: the share θ of smallest entries is dropped (cpl, Table 7; fed-cdp, Fig 5).

Communication-efficient protocols do it to save traffic. All layers share one threshold: of the n entries of a gradient
g exactly ⌊θn⌋ of smallest |g_j| become zero, the others pass unchanged (`sparse.py` says how ties are broken).

| stage | what is pruned | taps that see it pruned |
|---|---|---|
| `example` | every example's gradient, each by its own threshold | `example`; the later ones see sums of pruned gradients |
| `batch` | the batch gradient of every local step | `batch`; `client` and `server` see sums over the steps |
| `upload` | the update, once per round | `server`; `client` sees all of it |

What is dropped is lost; `dgc` sends it later. After Fed-CDP at stage `example` it prunes the gradients that were
clipped and noised, which is the order in Fig 5. At `upload` it needs `fedsgd`: a `fedavg` message is a model, and a
model with holes is not a sparse update.

It has no certificate and declares no privacy events: the entries that stay are exact, and which ones stay tells of the
data.
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
class Prune(Defense):
    """Drop the smallest entries."""

    share: Annotated[float, Field(ge=0, lt=1)] = 0.3  # θ
    stage: Literal["example", "batch", "upload"] = "upload"

    name: ClassVar[str] = "prune"
    summary: ClassVar[str] = "drops the share of smallest entries, one threshold over all layers (cpl, Table 7)"

    def fills(self, stage: str) -> bool:
        return stage == self.stage

    def effect(self, stage: str) -> Effect:
        return Effect.CONTRACTION

    def check(self, setting: Setting) -> None:
        if self.stage == "upload" and setting.aggregation == "fedavg":
            takes = "prune at stage 'upload' would cut holes into the model that fedavg sends: use fedsgd"
            raise ConfigError("train.aggregation", setting.aggregation, takes)

    def example(self, each: Any, mask: Any, at: StageContext) -> tuple[Any, Any]:
        import jax

        from fedveil.defenses import sparse

        return jax.vmap(lambda one: sparse.prune(one, self.share))(each), None

    def batch(self, total: Any, at: StageContext) -> Any:
        from fedveil.defenses import sparse

        return sparse.prune(total, self.share)

    def upload(self, message: Any, at: StageContext) -> Any:
        from fedveil.defenses import sparse

        return sparse.prune(message, self.share)
