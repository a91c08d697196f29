"""Client membership: did a client take part, from the models of all rounds (2dp-fl, section IV.C iii).

The game: each client of the federation is there by a fair coin of its own. Clients that are not there never answer, and
their data is used for nothing; who is drawn in a round, and what each client draws for itself, stays what it was. Under
Poisson sampling the server divides by the nominal number, so that the game is add-remove adjacency of one client, exactly;
under fixed sampling it divides by what arrived, and no account of that adjacency exists.

The attacker has the models that went out, one for each round, the rules of the training, and the records of every client it
is asked about (the usual assumption of a membership game). For each round it makes every candidate's local training again
and finds the candidate's share in the change of the model (`shares`). It knows neither the coins nor the cohorts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fedveil.accounting import ledger, transcript
from fedveil.accounting.ledger import as_planned
from fedveil.attacks.adversaries import Inference
from fedveil.attacks.inference import replay, roc, several, shares, watch
from fedveil.attacks.inference.membership import Certificate, judge
from fedveil.attacks.inference.outcome import Outcome
from fedveil.attacks.inference.replay import Rules
from fedveil.attacks.inference.watch import Sighting
from fedveil.attacks.observe import AuxiliaryData, span_of
from fedveil.config import Config
from fedveil.core.errors import ConfigError, RunError
from fedveil.core.keys import Draws
from fedveil.federation import Federation, prepare

FEWEST = 16  # candidates: with fewer, all coins may well fall alike


@dataclass(frozen=True)
class Guess:
    """What the attacker believes of each candidate."""

    there: np.ndarray  # [candidates] the larger, the likelier that it is there
    rounds: np.ndarray  # [rounds, candidates] likewise, that it took part in each round


@dataclass(frozen=True)
class Truth:
    """The bench's own: the coins, and who answered in which round."""

    there: np.ndarray  # [candidates] bool
    rounds: np.ndarray  # [rounds, candidates] bool


@dataclass(frozen=True)
class Game:
    """One federation that was trained, as the attacker and as the bench have it."""

    sighting: Sighting
    rules: Rules
    candidates: tuple[AuxiliaryData, ...]  # the records of each
    truth: Truth
    accuracy: float
    not_finite: int  # updates that were left out of a sum


def attack(
    config: Config, settings: Inference, progress: Callable[[int, int], None], draws: Draws | None = None
) -> Outcome:
    """Trains `attack.seeds` federations of clients that are there by coins, attacks each, scores."""
    started = time.monotonic()
    first = prepare(config, draws=draws)
    check(config, first, settings)
    rounds, seeds = several.rounds_watched(config, first), config.attack.seeds
    guesses, games = [], []
    for place in range(seeds):
        federation = several.federation(config, place, first.simulator.draws) if place else first
        game = play(federation, settings, rounds, several.part(progress, place, seeds))
        guesses.append(guess(game.sighting, game.rules, game.candidates, seed=place))
        games.append((game.truth, game.accuracy, game.not_finite))
    truths, accuracies, not_finite = zip(*games, strict=True)
    there, truth = np.stack([g.there for g in guesses]), np.stack([t.there for t in truths])
    document = {
        "attack": settings.name,
        "seat": settings.seat,
        "tap": settings.stands_at,
        "rounds": rounds,
        "clients": there.shape[1],
        "success_rate": None,
        **judge(there, truth, certificate(first, settings.stands_at, rounds, sum(not_finite))),
        **_by_round(guesses, truths),
        "accuracy": float(np.mean(accuracies)),
        "seconds": time.monotonic() - started,
    }
    return Outcome(document, curves={settings.name: roc.mean_curve(there, truth)})


def check(config: Config, federation: Federation, settings: Inference) -> None:
    """Refuses what cannot be played, and says what would help."""
    clients, receives = federation.partition.clients, settings.stands_at == "broadcast"
    if not receives and config.attack.attacker is not None:
        takes = (
            "is not read at tap 'release', where everyone sees the same: leave it out, or take attack.tap = 'broadcast'"
        )
        raise ConfigError("attack.attacker", config.attack.attacker, takes)
    if receives and settings.attacker >= clients:
        raise ConfigError("attack.attacker", settings.attacker, f"clients count from 0 to {clients - 1}")
    if clients - receives < FEWEST:
        takes = f"each client is there by a coin, and the attacker's own is known: takes at least {FEWEST + receives}"
        raise ConfigError("data.clients", clients, takes)


# --- the bench: the federation, trained with clients that are there by coins


def play(
    federation: Federation,
    settings: Inference,
    rounds: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Game:
    """Trains with those who are there, and keeps what the attacker sees apart from what is true."""
    simulator, clients = federation.simulator, federation.partition.clients
    there = coins(federation.config.train.seed, clients)
    asked = np.ones(clients, bool)
    if settings.stands_at == "broadcast":
        there[settings.attacker], asked[settings.attacker] = True, False
    if there[asked].all() or not there[asked].any():
        raise RunError("client-membership: all coins fell alike; take another train.seed, or more clients")
    simulator.present = there
    state, models, answered, not_finite = simulator.start(), [], np.zeros((rounds, clients), bool), 0
    for number in range(rounds):
        models.append(_seen(federation, state, number, settings))
        answered[number, simulator.cohort(state, number).clients] = True
        state, report = simulator.round(state, number)
        not_finite += int(report.summed.not_finite)
        progress(number + 1, rounds)
    models.append(_seen(federation, state, rounds, settings))
    own = watch.examples_of(federation, settings.attacker) if settings.stands_at == "broadcast" else None
    sighting = Sighting(
        simulator.task.model,
        tuple(models),
        tuple(range(rounds + 1)),
        federation.dataset.shape,
        federation.dataset.classes,
        span_of(federation),
        watch.terms_of(federation),
        own,
    )
    candidates = tuple(watch.examples_of(federation, int(client)) for client in np.flatnonzero(asked))
    truth = Truth(there[asked], answered[:, asked])
    accuracy, _ = simulator.evaluate(state.params)
    return Game(sighting, replay.rules_of(federation), candidates, truth, accuracy, not_finite)


def coins(seed: int, clients: int) -> np.ndarray:
    """[clients] bool: who is there, each by a fair coin of its own."""
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, 0x74686572])))
    return rng.random(clients) < 0.5


def _seen(federation: Federation, state: Any, number: int, settings: Inference) -> Any:
    """The model that goes out; copied, for a state's buffers are used again."""
    return jax.tree.map(np.array, watch.released(federation, state, number, settings))


# --- the attacker


def guess(sighting: Sighting, rules: Rules, candidates: Sequence[AuxiliaryData], seed: int = 0) -> Guess:
    """Scores each candidate by its share in the changes of the model; `seed` is of the attacker's own draws."""
    rng = np.random.default_rng([seed, 0x67756573])
    sizes = [len(one.y) for one in candidates]
    starts = np.cumsum([0, *sizes[:-1]]).astype(np.int32)
    together = AuxiliaryData(np.concatenate([c.x for c in candidates]), np.concatenate([c.y for c in candidates]))
    rate = sighting.terms.per_round / sighting.terms.clients  # at which a client that is there takes part
    found = []
    for place, (before, after) in enumerate(zip(sighting.models[:-1], sighting.models[1:], strict=True)):
        change = replay.flat(after) - replay.flat(before)
        if not np.isfinite(change).all() or not change.any():  # nothing was said in this round
            found.append(np.zeros(len(sizes)))
            continue
        index, mask, steps = replay.local_batches(rng, sizes, rules.law)
        batches = (index + starts[:, None, None], mask, steps)
        made = replay.updates(rules, before, together, batches, sighting.rounds[place])
        found.append(shares.took_part(shares.shares(made, change), rate / 2))
    each = np.stack(found)
    return Guess(shares.is_there(each, rate), each)


# --- against the coins


def certificate(federation: Federation, tap: str, rounds: int, not_finite: int = 0) -> Certificate:
    """The ledger's ε of a client that is there or not, for whoever has the models of so many rounds.

    A client receives one model more than there are rounds behind it.
    """
    task = federation.simulator.task
    delta = transcript.delta_of(task.defenses)
    if not_finite:
        return Certificate(
            None, delta, "client", "updates were left out for not being finite, and their noise with them"
        )
    seen = rounds + (tap == "broadcast")
    planned = transcript.planned(task.defenses, as_planned(task.setting), seen)
    row = ledger.certified(planned, tap, "client", delta, adjacency="add-remove")
    return Certificate(row.epsilon if row.certified else None, delta, "client", row.reason)


def _by_round(guesses: Sequence[Guess], truths: Sequence[Truth]) -> dict[str, Any]:
    """The area for "took part in this round", the mean over rounds in which some did and some did not."""
    means = []
    for one, truth in zip(guesses, truths, strict=True):
        areas = [roc.auc(s, t) for s, t in zip(one.rounds, truth.rounds, strict=True) if t.any() and not t.all()]
        means += [float(np.mean(areas))] if areas else []
    if not means:
        return {"round_auc": None, "round_interval": None}
    several = len(means) > 1
    span = roc.mean_interval(np.array(means)) if several else None
    clipped = None if span is None else [max(0.0, span[0]), min(1.0, span[1])]
    return {"round_auc": float(np.mean(means)), "round_interval": clipped}
