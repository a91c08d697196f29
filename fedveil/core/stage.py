"""The point of a run at which a stage is called, and what a filter at a stage may do to a guarantee."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from fedveil.core.setting import Setting

if TYPE_CHECKING:
    import jax

# The stages that a value passes after it was computed from data, in this order. `broadcast` is the next round's.
STAGES = ("example", "batch", "update", "upload", "aggregate", "finish", "broadcast")


class Effect(Enum):
    """What a filter may do to a privacy guarantee that was given before it."""

    MECHANISM = "clips and adds calibrated noise"
    CONTRACTION = "reads its input alone and never enlarges its norm"
    POST_PROCESSING = "reads its input, public values and fresh coins"
    READS_DATA = "reads private data besides its input"


class Point(Protocol):
    """A point of the run: what a mechanism's scale and sensitivity may depend on."""

    @property
    def setting(self) -> Setting: ...

    @property
    def round(self) -> Any: ...  # a number, an array of rounds, or traced under jit

    @property
    def lr(self) -> Any: ...


@dataclass(frozen=True)
class AccountPoint:
    """A point at which an account evaluates a mechanism: plain numbers, or arrays over rounds, and no keys."""

    setting: Setting
    round: Any
    lr: Any


@dataclass(frozen=True)
class StageContext:
    """Where in the run a stage is called: the setting, keys, and numbers that are traced under jit."""

    setting: Setting
    key: jax.Array  # already narrowed to this stage at this round, client and step
    shared: jax.Array  # the same for all clients of the round, not narrowed: fold in another number before use
    round: jax.Array | int
    lr: jax.Array | float
    divisor: jax.Array | float = 1.0  # what the sum at this stage is divided by afterwards
    open: bool = False  # whether the tap `example` is open: every example then needs separate noise
    client: jax.Array | int | None = None  # the client whose stage it is; None at the server's stages
    medians: Any = None  # of the client's gradient norms at the round's model, by layer, where a defence asks for them
