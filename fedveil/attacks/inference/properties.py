"""Property and membership from updates, as a study: who sees which updates, what is behind them, how well it was told.

Seat `active`: the update of one victim in every round, at the server or before it leaves. As in every study of this bench
the victim does in a round what it does when it is chosen, whether or not it is. The attacker's own examples are the
held-out part. Seat `passive-local`: the attacker is a client; of the difference of two models that it received one after
the other it takes its own share away, and what is left is the mean of the others' updates. Its examples are its own data.

Rounds are taken as they come: whether the examples behind an update have the trait is decided by the training's keyed
draws, which the bench can make again and the attacker cannot. Records that are asked about are the victim's (passive: any
other client's): as many that were used in the round as others that were not, so that only the round tells them apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fedveil.attacks.adversaries import Inference
from fedveil.attacks.inference import melis, property, replay, roc, several, watch
from fedveil.attacks.inference.melis import Seen, View
from fedveil.attacks.inference.outcome import Outcome
from fedveil.attacks.inference.property import Property
from fedveil.attacks.observe import AuxiliaryData
from fedveil.config import Config
from fedveil.core.errors import ConfigError
from fedveil.core.keys import Draws
from fedveil.federation import Federation, prepare
from fedveil.models.layers import Params
from fedveil.simulation import sampling
from fedveil.simulation.server import ServerState


@dataclass(frozen=True)
class Truth:
    """The bench's own: rows of the training set that are behind each update, and all that could be."""

    rows: tuple[np.ndarray, ...]
    pools: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Scored:
    """What the attacker said in one federation, beside what is true."""

    scores: np.ndarray  # [updates that have the trait, or have it not]
    has: np.ndarray  # likewise, bool
    record_areas: np.ndarray  # [updates with records on both sides]


def attack(
    config: Config, settings: Inference, progress: Callable[[int, int], None], draws: Draws | None = None
) -> Outcome:
    """Trains `attack.seeds` federations, watches every round of each, attacks, scores."""
    started = time.monotonic()
    first = prepare(config, draws=draws)
    rounds, seeds = several.rounds_watched(config, first), config.attack.seeds
    trait, done = check(config, first, settings), []
    for place in range(seeds):
        federation = several.federation(config, place, first.simulator.draws) if place else first
        view, truth = play(federation, settings, rounds, several.part(progress, place, seeds))
        check_own(view.own, trait, settings)
        done.append(score(federation, settings, trait, view, truth, seed=place))
    scores, has = np.concatenate([one.scores for one in done]), np.concatenate([one.has for one in done])
    group = np.repeat(np.arange(seeds), [len(one.scores) for one in done])
    document = {
        "attack": settings.name,
        "seat": settings.seat,
        "tap": settings.stands_at,
        "trait": trait.name,
        "rounds": rounds,
        "success_rate": None,
        **roc.summary(scores, has, group),
        **_of_records(done),
        "seconds": time.monotonic() - started,
    }
    return Outcome(document, curves={trait.name: roc.curve(scores, has)})


def check(config: Config, federation: Federation, settings: Inference) -> Property:
    """Refuses what cannot be played, and says what would help."""
    watch.check_clients(federation, settings)
    if settings.seat == "passive-local":
        if config.attack.victim is not None:
            takes = "is not read in the seat 'passive-local', where all others are seen together: leave it out"
            raise ConfigError("attack.victim", settings.victim, takes)
        if federation.config.train.late:
            takes = "what comes late is in the model of another round: attack a federation without, from this seat"
            raise ConfigError("train.late", federation.config.train.late, takes)
    elif config.attack.attacker is not None:
        takes = "is not read in the seat 'active', which is no client's: leave it out, or sit at 'passive-local'"
        raise ConfigError("attack.attacker", settings.attacker, takes)
    return property.parse(settings.trait, federation.dataset)


def check_own(own: AuxiliaryData, trait: Property, settings: Inference) -> None:
    """The attacker needs examples of both kinds."""
    have = trait.of_records(own.x, own.y)
    if have.any() and not have.all():
        return
    lacking = "none" if not have.any() else "only such"
    takes = f"of the {len(have)} examples that the attacker has, {lacking} have it: look for another"
    if settings.seat == "passive-local":
        takes += ", or let another client attack (attack.attacker, data.label_sets)"
    raise ConfigError("attack.trait", trait.name, takes)


# --- the bench: what is seen, and what is behind it


def play(
    federation: Federation,
    settings: Inference,
    rounds: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[View, Truth]:
    """Trains, and keeps what the attacker sees apart from what is true."""
    data, active = federation.dataset, settings.seat == "active"
    watched = list((_one_victim if active else _all_others)(federation, settings, rounds, progress))
    if not watched:
        takes = "no other client took part in any round that was watched: take more, or more rounds"
        raise ConfigError("train.per_round", federation.config.train.per_round, takes)
    seen, rows, pools = zip(*watched, strict=True)
    if active:
        own = AuxiliaryData(data.held_out.x.astype(np.float64) * data.scale, data.held_out.y)
    else:
        own = watch.examples_of(federation, settings.attacker)
    return View(tuple(seen), replay.rules_of(federation), own), Truth(tuple(rows), tuple(pools))


Watched = Iterator[tuple[Seen, np.ndarray, np.ndarray]]


def _one_victim(
    federation: Federation, settings: Inference, rounds: int, progress: Callable[[int, int], None]
) -> Watched:
    """The victim's update of every round, the rows behind it, and all that the victim has."""
    victim, held = settings.victim, federation.partition.client(settings.victim)
    for number, state in _states(federation, rounds, progress):
        received, update = _sent(federation, state, number, victim, settings.stands_at)
        yield Seen(number, received, replay.flat(update)), _rows(federation, number, victim), held


def _all_others(
    federation: Federation, settings: Inference, rounds: int, progress: Callable[[int, int], None]
) -> Watched:
    """The mean update of all clients but the attacker, the rows behind it, and all that those clients have."""
    me, simulator = settings.attacker, federation.simulator
    setting, factor = simulator.task.setting, simulator.rule.server_lr
    held = np.concatenate([federation.partition.client(c) for c in range(federation.partition.clients) if c != me])
    where = "client" if setting.secure_aggregation else "server"
    before: tuple[int, Params, np.ndarray, np.ndarray, int] | None = None
    for number, state in _states(federation, rounds, progress, after=True):
        received, mine = _sent(federation, state, number, me, where)
        if before is not None:
            last, model, own, rows, others = before
            change = (replay.flat(received) - replay.flat(model)) / factor - own
            if others:
                yield Seen(last, model, change * setting.per_round / others, others), rows, held
        cohort = simulator.cohort(state, number)
        there = int((cohort.clients == me).sum())
        own = replay.flat(mine) * simulator.weights[me] * there / setting.per_round
        taken = [
            _rows(federation, number, int(c), int(o))
            for c, o in zip(cohort.clients, cohort.occurrence, strict=True)
            if c != me
        ]
        rows = np.concatenate([np.zeros(0, int), *taken])
        before = number, received, own, rows, max(0, setting.per_round - there)


def _states(
    federation: Federation, rounds: int, progress: Callable[[int, int], None], after: bool = False
) -> Iterator[tuple[int, ServerState]]:
    """The state before each round and, where asked for, after the last."""
    for number, state in watch.states(federation, rounds, progress):
        if number < rounds or after:
            yield number, state


def _sent(federation: Federation, state: ServerState, number: int, client: int, tap: str) -> tuple[Params, Params]:
    """The model that a client received in a round, and its update as it is seen at a tap."""
    simulator = federation.simulator
    values = simulator.observe(state, number, client, frozenset({tap, "broadcast"}))
    values = jax.tree.map(np.array, values)  # a state's buffers are used again
    whole = tap == "server" and simulator.task.setting.aggregation == "fedavg"
    update = jax.tree.map(np.subtract, values[tap], values["broadcast"]) if whole else values[tap]
    return values["broadcast"], update


def _rows(federation: Federation, number: int, client: int, occurrence: int = 0) -> np.ndarray:
    """Rows of the training set that a client uses in a round, all its batches together."""
    simulator, rows = federation.simulator, federation.partition.client(client)
    drawn = sampling.client_batches(simulator.sampling, simulator.draws, number, client, occurrence, len(rows))
    return rows[np.concatenate(drawn)]


# --- against the truth


def score(
    federation: Federation, settings: Inference, trait: Property, view: View, truth: Truth, seed: int = 0
) -> Scored:
    """Plays the attack on one federation and compares."""
    data = federation.dataset
    have = trait.of_records(data.train.x * data.scale, data.train.y)  # [train]
    has = [trait.of_examples(have[rows]) for rows in truth.rows]
    kept = np.flatnonzero([one is not None for one in has])
    said = np.array([has[place] for place in kept], bool)
    if not len(said) or said.all() or not said.any():
        takes = (
            f"in {int(said.sum())} of {len(has)} rounds the examples behind the update have it, in "
            f"{len(said) - int(said.sum())} they have it not, and both are needed: smaller batches, fewer local steps, "
            "more rounds, or another"
        )
        raise ConfigError("attack.trait", trait.name, takes)
    scores = melis.property_scores(_only(view, kept), trait, seed)
    records, place, member = asked(federation, truth, settings.records, seed)
    found = melis.record_scores(view, records, place)
    areas = [roc.auc(found[place == at], member[place == at]) for at in np.unique(place)]
    return Scored(scores, said, np.array(areas))


def _only(view: View, places: Sequence[int] | np.ndarray) -> View:
    return View(tuple(view.seen[place] for place in places), view.rules, view.own)


def asked(
    federation: Federation, truth: Truth, most: int, seed: int = 0
) -> tuple[AuxiliaryData, np.ndarray, np.ndarray]:
    """Records to ask about, at most so many: the place of the update in question, and whether the record is behind it."""
    rng = np.random.default_rng([seed, 0x7265])
    side = max(1, most // (2 * len(truth.rows)))
    rows, place, member = [], [], []
    for at, (used, pool) in enumerate(zip(truth.rows, truth.pools, strict=True)):
        inside, outside = np.unique(used), np.setdiff1d(pool, used)
        count = min(side, len(inside), len(outside))
        if count:
            rows += [rng.choice(inside, count, replace=False), rng.choice(outside, count, replace=False)]
            place.append(np.full(2 * count, at))
            member.append(np.arange(2 * count) < count)
    if not rows:
        nothing = np.zeros(0, int)
        return AuxiliaryData(federation.dataset.train.x[:0], nothing), nothing, nothing.astype(bool)
    data, index = federation.dataset, np.concatenate(rows)
    records = AuxiliaryData(data.train.x[index].astype(np.float64) * data.scale, data.train.y[index])
    return records, np.concatenate(place), np.concatenate(member)


def _of_records(done: Sequence[Scored]) -> dict[str, Any]:
    """The area for "this record is behind this update": within each update, the mean over updates and federations.

    The interval is over federations, or over the updates of the one federation.
    """
    means = np.array([one.record_areas.mean() for one in done if len(one.record_areas)])
    if not len(means):
        return {"record_auc": None, "record_interval": None}
    values = means if len(means) > 1 else next(one.record_areas for one in done if len(one.record_areas))
    span = roc.mean_interval(values) if len(values) > 1 else None
    clipped = None if span is None else [max(0.0, span[0]), min(1.0, span[1])]
    return {"record_auc": float(means.mean()), "record_interval": clipped}
