"""The property game: have the examples behind an update a property, and which records are among them?

Adversary `active`: it sees the update of one victim in every round, at the server or before it leaves. The victim does in a
round what it does when it is chosen, whether or not it is. The attacker's examples are the held-out part.

Adversary `passive-local`: the attacker is a client. It takes the difference of two models that it received one after the
other and subtracts its own share; the rest is the mean of the others' updates. Its examples are its own data.

Whether the examples behind an update have the property follows from the draws of the training, which the bench can repeat
and the attacker cannot. The records that are asked about are the victim's (passive: any other client's): as many that were
used in the round as others that were not, so that only the round tells them apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fedveil.attacks.base import Execution, Progress, silent
from fedveil.attacks.games import observe
from fedveil.attacks.games.federations import Target, observed_rounds, part, states
from fedveil.attacks.games.outcome import Outcome, cut, head
from fedveil.attacks.inference import property, replay, roc
from fedveil.attacks.inference.base import PropertyAttack
from fedveil.attacks.inference.property import Property
from fedveil.attacks.limit import NO_LIMIT, Limit
from fedveil.attacks.observation import AuxiliaryData, ObservedUpdate, UpdateObservation
from fedveil.attacks.taps import drawn_rows, examples_as_seen, update_at
from fedveil.core.errors import ConfigError
from fedveil.federation import Federation
from fedveil.models.layers import Params
from fedveil.simulation.server import ServerState


@dataclass(frozen=True)
class Truth:
    """The bench's secret: the rows of the training set that each update was trained on, and all rows it could have been."""

    rows: tuple[np.ndarray, ...]
    pools: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Scored:
    """The attacker's answers on one federation, and the truth."""

    scores: np.ndarray  # [updates that have the property or lack it]
    has: np.ndarray  # likewise, bool
    record_areas: np.ndarray  # [updates with records on both sides] AUC of the records


def play(target: Target, attack: PropertyAttack, progress: Progress = silent) -> Outcome:
    """Trains `attack.seeds` federations, observes every round of each, attacks, scores."""
    started = time.monotonic()
    rounds, seeds, first = observed_rounds(target), target.seeds, target.first
    wanted, done, planned = check(first, attack), [], rounds
    for index, federation in enumerate(target.all()):
        told = part(progress, index, seeds)
        observation, truth = train(federation, attack, wanted, rounds, told, target.limit)
        if target.limit.over and index and observation.updates[-1].round + 1 < rounds:  # cut short
            break
        if target.limit.over:
            rounds = min(rounds, observation.updates[-1].round + 1)
        check_auxiliary(observation, attack)
        done.append(score(federation, attack, observation, truth, seed=index))
    scores, has = np.concatenate([one.scores for one in done]), np.concatenate([one.has for one in done])
    group = np.repeat(np.arange(len(done)), [len(one.scores) for one in done])
    document = {
        **head(attack),
        "property": wanted.name,
        "trait": wanted.name,  # the former name of `property`
        "rounds": rounds,
        "success_rate": None,
        **roc.summary(scores, has, group),
        **_of_records(done),
        "seconds": time.monotonic() - started,
    }
    left = cut(rounds=(rounds, planned), federations=(len(done), seeds))
    return Outcome(document, curves={wanted.name: roc.curve(scores, has)}, cut=left)


def check(federation: Federation, attack: PropertyAttack) -> Property:
    """Refuses a game that cannot be played, and says what would help; returns the property that is looked for."""
    observe.check_clients(federation, attack.position)
    if attack.adversary == "passive-local":
        if attack.victim is not None:
            takes = "is not read for adversary 'passive-local', where all others are seen together: leave it out"
            raise ConfigError("attack.victim", attack.victim, takes)
        if federation.config.train.late:
            takes = "late answers are in the model of another round: attack a federation without, as 'passive-local'"
            raise ConfigError("train.late", federation.config.train.late, takes)
    elif attack.attacker is not None:
        takes = "is not read for adversary 'active', which is no client: leave it out, or take 'passive-local'"
        raise ConfigError("attack.attacker", attack.attacker, takes)
    return property.parse(attack.property, federation.dataset)


def check_auxiliary(observation: UpdateObservation, attack: PropertyAttack) -> None:
    """Refuses an attacker that does not have examples of both kinds."""
    wanted, own = observation.property, observation.auxiliary
    have = wanted.of_records(own.x, own.y)
    if have.any() and not have.all():
        return
    lacking = "none" if not have.any() else "only such"
    takes = f"of the {len(have)} examples that the attacker has, {lacking} have it: look for another"
    if attack.adversary == "passive-local":
        takes += ", or let another client attack (attack.attacker, data.label_sets)"
    raise ConfigError("attack.property", wanted.name, takes)


# --- what is observed, and what is behind it


def train(
    federation: Federation,
    attack: PropertyAttack,
    wanted: Property,
    rounds: int,
    progress: Progress = silent,
    limit: Limit = NO_LIMIT,
) -> tuple[UpdateObservation, Truth]:
    """Trains, and keeps what the attacker sees apart from the truth. `score` adds what is asked."""
    data, active = federation.dataset, attack.adversary == "active"
    reached = states(federation, rounds, progress, limit)
    watched = list((_one_victim if active else _all_others)(federation, attack, rounds, reached))
    if not watched:
        takes = "no other client took part in any observed round: take more, or more rounds"
        raise ConfigError("train.per_round", federation.config.train.per_round, takes)
    seen, rows, pools = zip(*watched, strict=True)
    me = attack.position.attacker
    own = examples_as_seen(data, data.held_out) if active else observe.examples_of(federation, me)
    nothing = np.zeros(0, int)
    asked = AuxiliaryData(data.train.x[:0], nothing)
    observation = UpdateObservation(tuple(seen), observe.rules_of(federation), own, wanted, nothing, asked, nothing)
    return observation, Truth(tuple(rows), tuple(pools))


# An update, the rows behind it, all rows that could be.
Watched = Iterator[tuple[ObservedUpdate, np.ndarray, np.ndarray]]
Reached = Iterator[tuple[int, ServerState]]  # the state before each round, see `federations.states`


def _one_victim(federation: Federation, attack: PropertyAttack, rounds: int, reached: Reached) -> Watched:
    """The victim's update of every round, the rows behind it, and all that the victim has."""
    where = attack.position
    held = federation.partition.client(where.victim)
    for number, state in reached:
        if number < rounds:
            received, update = _sent(federation, state, number, where.victim, where.tap)
            yield ObservedUpdate(number, received, replay.flat(update)), _rows(federation, number, where.victim), held


@dataclass(frozen=True)
class _Round:
    """What the attacking client keeps of a round until it receives the next model."""

    number: int
    received: Params
    own: np.ndarray  # its share in the change of the model
    others: int  # the number of other clients that took part, as far as it knows
    rows: np.ndarray  # rows behind the others' updates: the bench's secret


def _all_others(federation: Federation, attack: PropertyAttack, rounds: int, reached: Reached) -> Watched:
    """The mean update of all clients but the attacker, the rows behind it, and all that those clients have."""
    me, simulator = attack.position.attacker, federation.simulator
    setting, factor = simulator.task.setting, simulator.rule.server_lr
    held = np.concatenate([federation.partition.client(c) for c in range(federation.partition.clients) if c != me])
    tap = "client" if setting.secure_aggregation else "server"
    last: _Round | None = None
    for number, state in reached:
        received, mine = _sent(federation, state, number, me, tap)
        if last is not None and last.others:
            change = (replay.flat(received) - replay.flat(last.received)) / factor - last.own
            update = change * setting.per_round / last.others
            yield ObservedUpdate(last.number, last.received, update, last.others), last.rows, held
        cohort = simulator.cohort(state, number)
        times = int((cohort.clients == me).sum())
        own = replay.flat(mine) * simulator.weights[me] * times / setting.per_round
        pairs = zip(cohort.clients, cohort.occurrence, strict=True)
        taken = [_rows(federation, number, int(c), int(o)) for c, o in pairs if c != me]
        rows = np.concatenate([np.zeros(0, int), *taken])
        last = _Round(number, received, own, max(0, setting.per_round - times), rows)


def _sent(federation: Federation, state: ServerState, number: int, client: int, tap: str) -> tuple[Params, Params]:
    """The model that a client received in a round, and its update as a tap shows it."""
    simulator = federation.simulator
    values = simulator.observe(state, number, client, frozenset({tap, "broadcast"}))
    values = jax.tree.map(np.array, values)  # copied, because the buffers of a state are reused
    return values["broadcast"], update_at(tap, values, simulator.task.setting.aggregation)


def _rows(federation: Federation, number: int, client: int, occurrence: int = 0) -> np.ndarray:
    """Rows of the training set that a client uses in a round, all its batches together."""
    return np.concatenate(drawn_rows(federation, number, client, occurrence))


# --- against the truth


def score(
    federation: Federation, attack: PropertyAttack, observation: UpdateObservation, truth: Truth, seed: int = 0
) -> Scored:
    """Runs the attack on one federation and compares its answers with the truth."""
    data, wanted = federation.dataset, observation.property
    have = wanted.of_records(data.train.x * data.scale, data.train.y)  # [train]
    has = [wanted.of_examples(have[rows]) for rows in truth.rows]
    clear = np.flatnonzero([one is not None for one in has])
    said = np.array([has[index] for index in clear], bool)
    if not len(said) or said.all() or not said.any():
        takes = (
            f"in {int(said.sum())} of {len(has)} rounds the examples behind the update have it, in "
            f"{len(said) - int(said.sum())} they have it not, and both are needed: smaller batches, fewer local steps, "
            "more rounds, or another"
        )
        raise ConfigError("attack.property", wanted.name, takes)
    records, which, member = asked_records(federation, truth, attack.records, seed)
    asked = replace(observation, asked=clear, records=records, record_update=which)
    found = attack.run(asked, Execution(seeds=(seed,)))
    areas = [roc.auc(found.records[which == at], member[which == at]) for at in np.unique(which)]
    return Scored(found.updates, said, np.array(areas))


def asked_records(
    federation: Federation, truth: Truth, most: int, seed: int = 0
) -> tuple[AuxiliaryData, np.ndarray, np.ndarray]:
    """At most `most` records to ask about, the index of the update in question, and whether the record is behind it."""
    rng = np.random.default_rng([seed, 0x7265])
    side = max(1, most // (2 * len(truth.rows)))
    rows, which, member = [], [], []
    for index, (used, pool) in enumerate(zip(truth.rows, truth.pools, strict=True)):
        inside, outside = np.unique(used), np.setdiff1d(pool, used)
        count = min(side, len(inside), len(outside))
        if count:
            rows += [rng.choice(inside, count, replace=False), rng.choice(outside, count, replace=False)]
            which.append(np.full(2 * count, index))
            member.append(np.arange(2 * count) < count)
    nothing = np.zeros(0, int)
    records = examples_as_seen(federation.dataset, federation.dataset.train, np.concatenate([nothing, *rows]))
    return records, np.concatenate([nothing, *which]), np.concatenate([nothing.astype(bool), *member])


def _of_records(done: Sequence[Scored]) -> dict[str, Any]:
    """The AUC of "this record is behind this update": within each update, then the mean over updates and federations.

    The interval is over federations, or over the updates of a single federation.
    """
    means = np.array([one.record_areas.mean() for one in done if len(one.record_areas)])
    if not len(means):
        return {"record_auc": None, "record_interval": None}
    values = means if len(means) > 1 else next(one.record_areas for one in done if len(one.record_areas))
    return {"record_auc": float(means.mean()), "record_interval": roc.share_interval(values)}
