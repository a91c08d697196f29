"""Gradient observations from the taps of a federation, and the truth behind them, which only the bench may use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedveil.attacks.gradients import from_update
from fedveil.attacks.observation import AuxiliaryData, GradientObservation
from fedveil.core.errors import RunError

if TYPE_CHECKING:
    from fedveil.data.dataset import Dataset, Part
    from fedveil.federation import Federation
    from fedveil.simulation.server import ServerState

Tree = Any
GRADIENT_TAPS = ("example", "batch", "client", "server")
UPDATE_TAPS = ("client", "server")  # these show the result of all local steps


def from_tap(
    federation: Federation, state: ServerState, number: int, clients: Sequence[int], tap: str, **more: Any
) -> GradientObservation:
    """What a tap shows of some clients in round `number`, as gradients, with the model that they received.

    `example`: one attack per example of the first local batch. `batch`: one per client, on its first batch. `client` and
    `server`: one per client, on its update divided by learning rate and steps; all its local batches are behind it, and
    the attacker knows their sizes. `more` are further capabilities (`known_labels`, `held_classes`, `auxiliary`).
    """
    if tap not in GRADIENT_TAPS:
        takes = "the model that a client receives and the one that is published hold no single client's gradient"
        raise RunError(f"attack.tap: gradients are seen at {', '.join(GRADIENT_TAPS)}, not at {tap!r}: {takes}")
    simulator = federation.simulator
    task = simulator.task
    if tap in UPDATE_TAPS and task.optimizer != "sgd":
        raise RunError(f"attack.tap: an update made by {task.optimizer} is no sum of gradients; attack the tap 'batch'")
    lr = simulator.task.setting.lr_at(number)
    drawn = [drawn_rows(federation, number, client) for client in clients]
    behind = [sizes_behind(tap, batches) for batches in drawn]
    if len(set(behind)) > 1:
        raise RunError("attack.clients: their batches have different sizes; attack them one after another")
    values = simulator.observe_many(state, number, [int(c) for c in clients], frozenset({tap, "broadcast"}))
    gradients = _as_gradients(tap, values, lr, task.setting.aggregation, len(drawn[0]))
    count = behind[0][0] if tap == "example" else 1
    received = values["broadcast"]
    own = any(not (a == a[:1]).all() for a in jax.tree.leaves(received))
    params = jax.tree.map(lambda a: np.repeat(a, count, axis=0) if own else a[0], received)
    # The victims' names: examples of a client differ by their index in its batch.
    ids = [int(c) * 1000 + np.arange(count) if tap == "example" else np.array([int(c)]) for c in clients]
    order = _order(behind[0]) if tap in UPDATE_TAPS else None
    more.setdefault("span", span_of(federation))
    return GradientObservation(
        task.model,
        params,
        gradients,
        ids=np.concatenate(ids),
        shape=federation.dataset.shape,
        classes=federation.dataset.classes,
        examples=1 if tap == "example" else sum(behind[0]),
        own_params=own,
        lr=lr,
        local_steps=len(behind[0]) if order is not None else 1,
        order=order,
        **more,
    )


def truth_at_tap(
    federation: Federation, number: int, clients: Sequence[int], tap: str
) -> tuple[np.ndarray, np.ndarray]:
    """The truth behind `from_tap`: inputs [attacks, examples, ...shape] as the model saw them, labels [attacks, examples].

    For the bench alone: no attack may call this.
    """
    rows = []
    for client in clients:
        batches = drawn_rows(federation, number, client)
        if tap == "example":
            rows += [np.array([row]) for row in batches[0]]
        else:
            rows.append(np.concatenate(batches) if tap in UPDATE_TAPS else batches[0])
    held = examples_as_seen(federation.dataset, federation.dataset.train, np.stack(rows))
    return held.x, held.y


def examples_as_seen(dataset: Dataset, part: Part, rows: np.ndarray | slice = slice(None)) -> AuxiliaryData:
    """Rows of a part of the dataset, scaled as the model sees them."""
    return AuxiliaryData(part.x[rows].astype(np.float64) * dataset.scale, part.y[rows])


def drawn_rows(federation: Federation, number: int, client: int, occurrence: int = 0) -> list[np.ndarray]:
    """The training rows in each local batch of a client. The attacker knows their number; only the bench knows which."""
    from fedveil.simulation.sampling import client_batches

    simulator = federation.simulator
    rows = simulator.partition.client(int(client))
    drawn = client_batches(simulator.sampling, simulator.draws, number, int(client), occurrence, len(rows))
    return [rows[positions] for positions in drawn]


def span_of(federation: Federation) -> tuple[float, float] | None:
    """The known range of inputs: [0, 1] for pixels and for one-hot attributes; none for a caller's own numbers."""
    data = federation.dataset
    named = federation.config.data.name != "file"
    pixels = data.train.x.dtype == np.uint8 or (named and len(data.shape) == 3)
    return (0.0, 1.0) if pixels or data.groups else None


def sizes_behind(tap: str, batches: list[np.ndarray]) -> tuple[int, ...]:
    """The sizes of the local batches that a tap shows: all of them in an update, else the first."""
    return tuple(len(batch) for batch in (batches if tap in UPDATE_TAPS else batches[:1]))


def _as_gradients(tap: str, values: dict[str, Tree], lr: float, aggregation: str, steps: int) -> Tree:
    """Gradients with a leading axis over the attacks; values have one over the clients."""
    if tap == "example":
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), values[tap][0])
    if tap == "batch":
        return values[tap][0]
    return from_update(update_at(tap, values, aggregation), lr, steps)


def update_at(tap: str, values: dict[str, Tree], aggregation: str) -> Tree:
    """The update that a client's message shows: under fedavg the server receives a whole model."""
    whole = tap == "server" and aggregation == "fedavg"
    return jax.tree.map(np.subtract, values[tap], values["broadcast"]) if whole else values[tap]


def _order(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """The examples of each local step; None for steps of different sizes, which cannot be simulated together."""
    if len(set(sizes)) > 1:
        return None
    starts = np.cumsum((0, *sizes[:-1]))
    return tuple(tuple(range(start, start + size)) for start, size in zip(starts.tolist(), sizes, strict=True))
