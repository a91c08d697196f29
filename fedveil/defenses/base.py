"""What a defence is: a frozen dataclass that fills in only the stages of the round it changes.

The stages, in the order in which a round passes them:

| stage | where | what passes through |
|---|---|---|
| `select` | server, host | which clients take part |
| `broadcast` | per client | the model as this client receives it |
| `example` | client, each step | gradients of single examples, a leading axis over the batch |
| `batch` | client, each step | the sum of the example gradients |
| `update` | client | local model minus received model |
| `upload` | client | the message: the update (fedsgd) or the local model (fedavg) |
| `aggregate` | server | the weighted sum of the messages, as updates |
| `finish` | server | the new global model |

A stage that no defence fills in does not exist in the compiled round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax
    import numpy as np

STAGES = ("select", "broadcast", "example", "batch", "update", "upload", "aggregate", "finish")


@dataclass(frozen=True)
class Setting:
    """What is fixed for a whole run and known to everyone: the sizes a mechanism may depend on."""

    clients: int  # K
    per_round: int  # Kt
    rounds: int  # T
    batch: int  # B
    local_steps: int  # L, the most steps any client makes
    sampling: str
    batching: str
    aggregation: str
    weights: str
    secure_aggregation: bool = False  # the server sees sums only


@dataclass(frozen=True)
class At:
    """The point of the run a stage is called at: the setting, and numbers that are traced under jit."""

    setting: Setting
    key: jax.Array  # already narrowed to this stage at this round, client and step
    round: jax.Array | int
    lr: jax.Array | float
    divisor: jax.Array | float = 1.0  # what the sum at this stage is divided by afterwards


class Defense:
    """Base of all defences. Subclasses define the stages they change and leave the others alone."""

    name: str = ""

    def select(self, rng: np.random.Generator, at_round: int, setting: Setting) -> np.ndarray:
        raise NotImplementedError

    def broadcast(self, params: Any, at: At) -> Any:
        raise NotImplementedError

    def example(self, gradients: Any, mask: jax.Array, at: At) -> Any:
        raise NotImplementedError

    def batch(self, total: Any, at: At) -> Any:
        raise NotImplementedError

    def update(self, update: Any, at: At) -> Any:
        raise NotImplementedError

    def upload(self, message: Any, at: At) -> Any:
        raise NotImplementedError

    def aggregate(self, total: Any, at: At) -> Any:
        raise NotImplementedError

    def finish(self, params: Any, at: At) -> Any:
        raise NotImplementedError


def filters(defenses: Sequence[Defense], stage: str) -> list[Callable[..., Any]]:
    """The functions that fill in a stage, in the order of the defences; empty where nobody does."""
    if stage not in STAGES:
        raise ValueError(f"no stage is called {stage!r}")
    return [getattr(d, stage) for d in defenses if getattr(type(d), stage) is not getattr(Defense, stage)]
