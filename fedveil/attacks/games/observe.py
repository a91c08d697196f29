"""What an adversary sees of a federation: models as its position shows them, and a client's own examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedveil.attacks.adversaries import Position
from fedveil.attacks.inference.replay import LocalRules
from fedveil.attacks.observation import AuxiliaryData, ModelObservation, TrainingTerms
from fedveil.attacks.taps import examples_as_seen, span_of
from fedveil.core.errors import ConfigError
from fedveil.models.layers import Params

if TYPE_CHECKING:
    from fedveil.federation import Federation
    from fedveil.simulation.server import ServerState

Tree = Any


def rules_of(federation: Federation) -> LocalRules:
    """What everyone knows of how a client trains: its defences clip and drop, but add no noise."""
    simulator = federation.simulator
    silenced = tuple(quiet for d in simulator.task.defenses if (quiet := d.silenced()) is not None)
    task = replace(simulator.task, defenses=silenced, scale=1.0)
    lrs = tuple(simulator.task.setting.lr_at(number) for number in range(federation.rounds))
    return LocalRules(task, simulator.sampling, lrs)


def check_clients(federation: Federation, where: Position) -> None:
    """Refuses client numbers that do not exist, and a server tap that shows sums only."""
    clients = federation.partition.clients
    for key in ("attacker", "victim"):
        if getattr(where, key) >= clients:
            takes = f"clients count from 0 to {clients - 1}"
            raise ConfigError(f"attack.{key}", getattr(where, key), takes)
    if where.tap == "server" and federation.simulator.task.setting.secure_aggregation:
        hides = "shows sums only: train.secure_aggregation hides what single clients send"
        takes = f"{hides}; take tap 'client', or a passive adversary"
        raise ConfigError("attack.tap", "server", takes)


def observe(
    federation: Federation, state: ServerState, number: int, positions: Sequence[Position]
) -> tuple[ModelObservation, ...]:
    """What each position shows after `number` rounds: the model that goes out, or a local model of the next round.

    All observed clients are computed together.
    """
    for where in positions:
        check_clients(federation, where)
    watched = [where for where in positions if where.tap != "release"]
    clients = sorted({where.client for where in watched})
    taps = frozenset({"broadcast", *(where.shown_at for where in watched)})
    values = federation.simulator.observe_many(state, number, clients, taps) if clients else {}
    found = []
    received: tuple[Params, ...]
    for where in positions:
        if where.tap == "release":
            seen, received = jax.device_get(state.params), ()
        else:
            index = clients.index(where.client)
            seen, received = _local(federation, {tap: _at(tree, index) for tap, tree in values.items()}, where)
        is_client = where.adversary == "passive-local" or where.tap == "broadcast"
        own = examples_of(federation, where.attacker) if is_client else None
        found.append(model_observation(federation, (seen,), (number,), own, received))
    return tuple(found)


def model_observation(
    federation: Federation,
    models: tuple[Params, ...],
    rounds: tuple[int, ...],
    auxiliary: AuxiliaryData | None = None,
    received: tuple[Params, ...] = (),
) -> ModelObservation:
    """Models of a federation, with what everyone knows about it."""
    data, task = federation.dataset, federation.simulator.task
    terms = TrainingTerms(**{f.name: getattr(task.setting, f.name) for f in fields(TrainingTerms)})
    known = data.shape, data.classes, span_of(federation), terms
    return ModelObservation(task.model, models, rounds, *known, auxiliary, received)


def _at(tree: Tree, index: int) -> Tree:
    return jax.tree.map(lambda a: a[index], tree)


def _local(federation: Federation, values: dict[str, Tree], where: Position) -> tuple[Params, tuple[Params, ...]]:
    """The model behind what a tap shows: received, sent whole, or received and moved by the update."""
    tap, aggregation = where.shown_at, federation.simulator.task.setting.aggregation
    whole = tap == "broadcast" or (tap == "server" and aggregation == "fedavg")
    seen = values[tap] if whole else jax.tree.map(np.add, values["broadcast"], values[tap])
    return seen, () if where.adversary == "passive-global" else (values["broadcast"],)


def released(federation: Federation, state: ServerState, number: int, where: Position) -> Params:
    """A copy of the model after `number` rounds: as released, or as the attacker receives it as a client."""
    if where.tap == "release":
        seen = jax.device_get(state.params)
    else:
        taps = frozenset({"broadcast"})
        seen = federation.simulator.observe(state, number, where.attacker, taps)["broadcast"]
    return jax.tree.map(np.array, seen)  # copied, because the buffers of a state are reused


def examples_of(federation: Federation, client: int) -> AuxiliaryData:
    """A client's own examples as the model sees them."""
    return examples_as_seen(federation.dataset, federation.dataset.train, federation.partition.client(client))
