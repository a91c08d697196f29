"""DGC: pruning that remembers (deep gradient compression, Lin et al. 2018; the compressed protocol of cpl, Table 7).

Each client keeps a memory m of what it has not sent yet, zero at first, from step to step and from round to round. With
a new value v (the mean gradient of a batch, or the update of a round):

    a = v + m;   send the n − ⌊θn⌋ entries of largest |a_j|;   m = the other entries of a

So nothing is lost: all that was sent plus the memory is the sum of all values. One threshold holds for all layers, as in
`prune`. A client whose answer is lost or not finite keeps its old memory. docs/defenses/dgc.md says what is left out of the
method and what each tap shows.

It has no certificate: a message also holds parts of earlier rounds, and its norm is not bounded by a clip that came before.
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
class DGC(Defense):
    """Send the largest entries, remember the rest."""

    share: Annotated[float, Field(ge=0, lt=1)] = 0.3  # θ
    stage: Literal["example", "batch", "upload"] = "upload"

    name: ClassVar[str] = "dgc"
    summary: ClassVar[str] = "prunes, and sends what was dropped once it has grown large enough (cpl, Table 7)"
    stateful: ClassVar[bool] = True

    def fills(self, stage: str) -> bool:
        return stage == self.stage

    def check(self, setting: Setting) -> None:
        if self.stage == "example":
            takes = "examples are not sent, so nothing of them can be sent later: takes batch or upload, or use prune"
            raise ConfigError("defense.stage", self.stage, takes)
        if self.stage == "upload" and setting.aggregation == "fedavg":
            takes = "dgc at stage 'upload' would cut holes into the model that fedavg sends: use fedsgd"
            raise ConfigError("train.aggregation", setting.aggregation, takes)

    def effect(self, stage: str) -> Effect:
        """Post-processing: its state only holds values that it received earlier. A node keeps it for one config only."""
        return Effect.POST_PROCESSING

    def initial_client_state(self, params: Any) -> Any:
        import jax
        import jax.numpy as jnp

        return jax.tree.map(jnp.zeros_like, params)

    def apply_with_state(self, stage: str, value: Any, state: Any, at: StageContext) -> tuple[Any, Any]:
        import jax

        from fedveil.defenses import sparse

        # Batches may differ in size, so what is remembered of them are means. At `upload` the divisor is 1.
        whole = jax.tree.map(lambda v, m: v / at.divisor + m, value, state)
        count = sparse.entries(whole)
        chosen = sparse.largest(whole, count - sparse.dropped(self.share, count))
        sent = jax.tree.map(lambda a: a * at.divisor, sparse.only(chosen, whole))
        return sent, sparse.without(chosen, whole)
