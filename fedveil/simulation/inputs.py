"""What a round's compiled programs receive, as named arrays.

Each class is a JAX pytree, so that programs, `vmap` axes and callers use the names of the fields and no argument order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax

from fedveil.models.layers import Array, Params
from fedveil.simulation.microbatches import Microbatches
from fedveil.simulation.sampling import Batches

Tree = Any

# The sampling modules work without JAX; their arrays enter programs from here on.
jax.tree_util.register_dataclass(Batches)
jax.tree_util.register_dataclass(Microbatches)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RoundInputs:
    """What all clients of a round share."""

    params: Params  # the server's model
    x: Any  # [examples, ...] the dataset as it is stored (images as bytes)
    y: Any  # [examples] labels
    key: Array  # of the round
    number: Any  # of the round, from 0
    lr: Any  # learning rate


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClientInputs:
    """One client in a round. In a chunk of clients every array has a leading axis over them."""

    client: Any  # id
    occurrence: Any  # 0, or 1, 2, … for a client drawn again in the same cohort
    batches: Batches | Microbatches
    weight: Any = 1.0  # of its message; 0 for padding
    late: Any = False  # whether the message arrives one round late
    state: Tree = field(default_factory=dict)  # what stateful defences keep of this client
    rows: Any = None  # [width] rows of the dataset that it holds, where a defence measures its data
    present: Any = None  # [width] False for padding of `rows`


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RoundContext:
    """The round as one client sees it: its own key, the key that all clients share, and the round's numbers."""

    key: Array
    shared: Array
    round: Any
    lr: Any
    client: Any = None  # its id, where a stage may depend on it
    medians: Any = None  # see `core.stage.StageContext`


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """One local batch, padded to a fixed width."""

    x: Array  # [width, ...] as stored
    y: Array  # [width]
    mask: Any  # [width] False for padding


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClientResult:
    """What one client's round gives."""

    message: Tree  # as a difference to the server's model
    loss: Array  # mean of the batch losses
    state: Tree  # what stateful defences now keep of this client
