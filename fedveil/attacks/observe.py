"""What an attacker is handed: what a tap shows, and the capabilities granted besides. The truth is not here.

One observation holds many attacks that differ only in their gradient: a leading axis over the attacks runs through
`gradients` (and through `params` where every victim received a model of its own). `ids` names what is attacked, so that an
attack's random start depends on whom it attacks and not on its place in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedveil.attacks.gradients import from_update
from fedveil.core.errors import RunError
from fedveil.models.layers import Params, Shape
from fedveil.models.net import Model

if TYPE_CHECKING:
    from fedveil.federation import Federation
    from fedveil.simulation.server import ServerState

Tree = Any


@dataclass(frozen=True)
class AuxiliaryData:
    """Examples that the attacker holds itself, none of them attacked: for the inits `optimal` and `optimal-any`."""

    x: np.ndarray  # [held, ...shape]
    y: np.ndarray  # [held]


@dataclass(frozen=True)
class Observation:
    """Gradients of so many attacks, and what else the attacker knows."""

    model: Model
    params: Params  # the model they were computed on: one for all, or with a leading axis over the attacks
    gradients: Params  # [attacks, ...], mean over the examples behind each
    ids: np.ndarray  # [attacks] whom each attack is on
    shape: Shape  # of one example
    classes: int
    examples: int = 1  # behind each gradient
    own_params: bool = False  # params have the leading axis
    span: tuple[float, float] | None = (0.0, 1.0)  # what values inputs can have; None: any
    lr: float | None = None  # the victims' learning rate
    local_steps: int = 1  # the gradient is the mean of so many local steps
    order: tuple[tuple[int, ...], ...] | None = None  # which of the examples each local step used; None: all of them
    known_labels: np.ndarray | None = None  # [attacks, examples], where granted
    held_classes: int | None = None  # the victims hold examples of at most so many classes
    insider: AuxiliaryData | None = None

    def __post_init__(self) -> None:
        leaves, held = jax.tree.leaves(self.gradients), jax.tree.leaves(self.params)
        if str(jax.tree.structure(self.gradients)) != str(jax.tree.structure(self.params)):
            raise RunError("the gradients and the model's parameters have different layers")
        for gradient, param in zip(leaves, held, strict=True):
            own = param.shape if self.own_params else (len(self.ids), *param.shape)
            if gradient.shape != own:
                raise RunError(f"a gradient has shape {gradient.shape} where the parameters ask for {own}")
        if self.known_labels is not None and self.known_labels.shape != (len(self.ids), self.examples):
            asked = (len(self.ids), self.examples)
            raise RunError(f"known_labels has shape {self.known_labels.shape}; give {asked}: one for every example")

    def __len__(self) -> int:
        return len(self.ids)


def of_gradients(model: Model, params: Params, gradients: Tree, shape: Shape, classes: int, **more: Any) -> Observation:
    """An observation of your own gradients: one tree like `params`, or one with a leading axis over several attacks."""
    leaves, held = jax.tree.leaves(gradients), jax.tree.leaves(params)
    if leaves and held and np.ndim(leaves[0]) == np.ndim(held[0]) and not more.get("own_params", False):
        gradients = jax.tree.map(lambda g: np.asarray(g)[None], gradients)
    attacks = len(jax.tree.leaves(gradients)[0])
    more.setdefault("ids", np.arange(attacks))
    return Observation(model, params, gradients, shape=tuple(shape), classes=classes, **more)


# --- from a federation's taps -------------------------------------------------------------------------------------

GRADIENT_TAPS = ("example", "batch", "client", "server")


def from_tap(
    federation: Federation, state: ServerState, number: int, clients: Sequence[int], tap: str, **more: Any
) -> Observation:
    """What a tap shows of some clients in round `number`, as gradients, with the model that they received.

    `example`: one attack per example of the first local batch. `batch`: one per client, on its first batch. `client` and
    `server`: one per client, on its update divided by learning rate and steps; all its local batches are behind it, and
    the attacker knows how large they were. `more` are further capabilities (`known_labels`, `held_classes`, `insider`).
    """
    if tap not in GRADIENT_TAPS:
        takes = "the model that a client receives and the one that is published hold no single client's gradient"
        raise RunError(f"attack.tap: gradients are seen at {', '.join(GRADIENT_TAPS)}, not at {tap!r}: {takes}")
    simulator = federation.simulator
    task = simulator.task
    if tap in ("client", "server") and task.optimizer != "sgd":
        raise RunError(f"attack.tap: an update made by {task.optimizer} is no sum of gradients; attack the tap 'batch'")
    lr = simulator.task.setting.lr_at(number)
    drawn = [drawn_rows(federation, number, client) for client in clients]
    behind = [_sizes(tap, batches) for batches in drawn]
    if len(set(behind)) > 1:
        raise RunError("attack.clients: their batches have different sizes; attack them one after another")
    values = simulator.observe_many(state, number, [int(c) for c in clients], frozenset({tap, "broadcast"}))
    gradients = _as_gradients(tap, values, lr, task.setting.aggregation, len(drawn[0]))
    count = behind[0][0] if tap == "example" else 1
    received = values["broadcast"]
    own = any(not (a == a[:1]).all() for a in jax.tree.leaves(received))
    params = jax.tree.map(lambda a: np.repeat(a, count, axis=0) if own else a[0], received)
    order = _order(behind[0]) if tap in ("client", "server") else None
    more.setdefault("span", span_of(federation))
    return Observation(
        task.model,
        params,
        gradients,
        ids=np.concatenate([_ids(tap, client, count) for client in clients]),
        shape=federation.dataset.shape,
        classes=federation.dataset.classes,
        examples=1 if tap == "example" else sum(behind[0]),
        own_params=own,
        lr=lr,
        local_steps=len(behind[0]) if order is not None else 1,
        order=order,
        **more,
    )


def drawn_rows(federation: Federation, number: int, client: int) -> list[np.ndarray]:
    """Rows of the dataset in each local batch of a client: how many is seen by the attacker, which is the bench's."""
    from fedveil.simulation.sampling import client_batches

    simulator = federation.simulator
    rows = simulator.partition.client(int(client))
    drawn = client_batches(simulator.law, simulator.draws, number, int(client), 0, len(rows))
    return [rows[positions] for positions in drawn]


def span_of(federation: Federation) -> tuple[float, float] | None:
    """The range that inputs are known to have: [0, 1] for pixels and for one-hot attributes; of your own numbers, none."""
    data = federation.dataset
    named = federation.config.data.name != "file"
    pixels = data.train.x.dtype == np.uint8 or (named and len(data.shape) == 3)
    return (0.0, 1.0) if pixels or data.groups else None


def _sizes(tap: str, batches: list[np.ndarray]) -> tuple[int, ...]:
    return tuple(len(batch) for batch in (batches if tap in ("client", "server") else batches[:1]))


def _as_gradients(tap: str, values: dict[str, Tree], lr: float, aggregation: str, steps: int) -> Tree:
    """Gradients with a leading axis over the attacks; values have one over the clients."""
    if tap == "example":
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), values[tap][0])
    if tap == "batch":
        return values[tap][0]
    update = values[tap]
    if tap == "server" and aggregation == "fedavg":
        update = jax.tree.map(np.subtract, update, values["broadcast"])
    return from_update(update, lr, steps)


def _ids(tap: str, client: int, count: int) -> np.ndarray:
    """Examples of a client are told apart by their place in its batch."""
    return int(client) * 1000 + np.arange(count) if tap == "example" else np.array([int(client)])


def _order(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """Each local step on examples of its own; None for steps of different sizes, which cannot be simulated together."""
    if len(set(sizes)) > 1:
        return None
    starts = np.cumsum((0, *sizes[:-1]))
    return tuple(tuple(range(start, start + size)) for start, size in zip(starts.tolist(), sizes, strict=True))
