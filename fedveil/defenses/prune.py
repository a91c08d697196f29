"""Pruning: the share θ of smallest entries is dropped (cpl, Table 7; fed-cdp, Fig 5).

All layers share one threshold: of the n entries of a gradient g exactly ⌊θn⌋ of smallest |g_j| become zero, the others pass
unchanged (`sparse.py` says how ties are broken). At stage `example` every example's gradient has its own threshold; after
Fed-CDP that prunes gradients which were clipped and noised, as in Fig 5. What is dropped is lost; `dgc` sends it later.

It has no certificate: the entries that stay are exact, and which ones stay tells of the data.
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
