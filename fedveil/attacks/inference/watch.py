"""What an inference attacker is handed: models as its seat shows them, the terms of the training, and its own examples.

The federation is trained here, by the bench; the attacker gets a `Sighting` and nothing else. Which records the federation
was trained on, who took part and what the victim holds is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedveil.attacks.adversaries import Inference
from fedveil.attacks.observe import AuxiliaryData, span_of
from fedveil.core.errors import ConfigError
from fedveil.models.layers import Params, Shape
from fedveil.models.net import Model

if TYPE_CHECKING:
    from fedveil.federation import Federation
    from fedveil.simulation.server import ServerState

Tree = Any


@dataclass(frozen=True)
class Terms:
    """The training as every participant knows it."""

    clients: int
    per_round: int
    local_steps: int
    batch: int
    lr: float
    aggregation: str


@dataclass(frozen=True)
class Sighting:
    """Models that were seen, oldest first, and what else the attacker knows."""

    model: Model
    models: tuple[Params, ...]
    rounds: tuple[int, ...]  # rounds that were behind each
    shape: Shape
    classes: int
    span: tuple[float, float] | None
    terms: Terms
    own: AuxiliaryData | None = None  # the attacker's own examples, where it is a client
    received: tuple[Params, ...] = ()  # for seats that see local models: what each of them was trained from

    @property
    def last(self) -> Params:
        return self.models[-1]


def terms_of(federation: Federation) -> Terms:
    """What everyone knows of the training."""
    setting = federation.simulator.task.setting
    return Terms(
        setting.clients, setting.per_round, setting.local_steps, setting.batch, setting.lr, setting.aggregation
    )


def states(
    federation: Federation, rounds: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> Iterator[tuple[int, ServerState]]:
    """The state before each round and, last, after all of them: (0, …), (1, …), …, (rounds, …).

    A state is only good until the next one is asked for: its buffers are used again.
    """
    state = federation.simulator.start()
    for number in range(rounds):
        yield number, state
        state, _ = federation.simulator.round(state, number)
        progress(number + 1, rounds)
    yield rounds, state


def check_clients(federation: Federation, settings: Inference) -> None:
    """Refuses attackers and victims that there are not, and a server tap that shows sums only."""
    clients = federation.partition.clients
    for key in ("attacker", "victim"):
        if getattr(settings, key) >= clients:
            takes = f"clients count from 0 to {clients - 1}"
            raise ConfigError(f"attack.{key}", getattr(settings, key), takes)
    if settings.stands_at == "server" and federation.simulator.task.setting.secure_aggregation:
        hides = "shows sums only: train.secure_aggregation hides what single clients send"
        takes = f"{hides}; take tap 'client', or a passive seat"
        raise ConfigError("attack.tap", "server", takes)


def look(federation: Federation, state: ServerState, number: int, asked: Sequence[Inference]) -> tuple[Sighting, ...]:
    """What each seat shows with `number` rounds done: the model that goes out, or a local model of the round that begins.

    All clients that are looked at are computed together.
    """
    for settings in asked:
        check_clients(federation, settings)
    watched = [s for s in asked if s.stands_at != "release"]
    clients = sorted({_who(s) for s in watched})
    taps = frozenset({"broadcast", *(_where(s) for s in watched)})
    values = federation.simulator.observe_many(state, number, clients, taps) if clients else {}
    return tuple(_sighting(federation, state, number, s, values, clients) for s in asked)


def _who(settings: Inference) -> int:
    """The client whose model, sent or received, is seen."""
    return settings.victim if settings.seat == "active" else settings.attacker


def _where(settings: Inference) -> str:
    """The tap that shows it: a client's own model is at its own tap."""
    return "client" if settings.seat == "passive-local" else settings.stands_at


def _sighting(
    federation: Federation,
    state: ServerState,
    number: int,
    settings: Inference,
    values: dict[str, Tree],
    clients: Sequence[int],
) -> Sighting:
    received: tuple[Params, ...] = ()
    if settings.stands_at == "release":
        seen = jax.device_get(state.params)
    else:
        mine = {tap: jax.tree.map(lambda a: a[clients.index(_who(settings))], tree) for tap, tree in values.items()}
        seen = _model(federation, mine, _where(settings))
        received = () if settings.seat == "passive-global" else (mine["broadcast"],)
    insider = settings.seat == "passive-local" or settings.stands_at == "broadcast"
    return Sighting(
        federation.simulator.task.model,
        (seen,),
        (number,),
        federation.dataset.shape,
        federation.dataset.classes,
        span_of(federation),
        terms_of(federation),
        examples_of(federation, settings.attacker) if insider else None,
        received,
    )


def _model(federation: Federation, values: dict[str, Tree], tap: str) -> Params:
    """The model behind what a tap shows: received, sent whole, or received and moved by the update."""
    whole = tap == "server" and federation.simulator.task.setting.aggregation == "fedavg"
    return values[tap] if whole or tap == "broadcast" else jax.tree.map(np.add, values["broadcast"], values[tap])


def released(federation: Federation, state: ServerState, number: int, settings: Inference) -> Params:
    """The model that goes out after `number` rounds: as published, or as the attacker receives it."""
    if settings.stands_at == "release":
        return jax.device_get(state.params)
    return federation.simulator.observe(state, number, settings.attacker, frozenset({"broadcast"}))["broadcast"]


def examples_of(federation: Federation, client: int) -> AuxiliaryData:
    """A client's own examples as the model sees them."""
    rows, data = federation.partition.client(client), federation.dataset
    return AuxiliaryData(data.train.x[rows].astype(np.float64) * data.scale, data.train.y[rows])
