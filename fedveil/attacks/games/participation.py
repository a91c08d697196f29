"""The participation game: did a client take part, from the models of all rounds (2dp-fl, section IV.C iii)?

Each client is in the federation by a fair coin. Absent clients never answer, and their data is not used. Who is drawn in a
round, and what each client draws for itself, does not change. Under Poisson sampling the server divides by the nominal
number, so the game is exactly add-remove adjacency of one client; under fixed sampling it divides by the number of
answers, and no account of that adjacency exists.

The attacker has the models that went out, one for each round, the rules of the training, and the records of every
candidate (the usual assumption of a membership game). It knows neither the coins nor the cohorts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.attacks.base import Execution, Progress, silent
from fedveil.attacks.games.federations import Target, observed_rounds, part
from fedveil.attacks.games.membership import certificate, judge
from fedveil.attacks.games.observe import examples_of, model_observation, released, rules_of
from fedveil.attacks.games.outcome import Outcome, cut, head
from fedveil.attacks.inference import roc
from fedveil.attacks.inference.base import ParticipationAttack, ParticipationScores
from fedveil.attacks.limit import NO_LIMIT, Limit
from fedveil.attacks.observation import ParticipationObservation
from fedveil.core.errors import ConfigError, RunError
from fedveil.core.keys import generator
from fedveil.federation import Federation
from fedveil.simulation.learning import of_attacked

FEWEST = 16  # candidates: with fewer, all coins may well fall alike


@dataclass(frozen=True)
class Truth:
    """The bench's secret: the coins, and who answered in which round."""

    present: np.ndarray  # [candidates] bool
    rounds: np.ndarray  # [rounds, candidates] bool


@dataclass(frozen=True)
class Game:
    """One trained federation: what the attacker sees, and the truth."""

    observation: ParticipationObservation
    truth: Truth
    accuracy: float
    not_finite: int  # updates that were left out of a sum


def play(target: Target, attack: ParticipationAttack, progress: Progress = silent) -> Outcome:
    """Trains `attack.seeds` federations of clients that are present by coins, attacks each, scores."""
    started = time.monotonic()
    first, tap = target.first, attack.position.tap
    check(first, attack)
    rounds, guesses, games = observed_rounds(target), [], []
    planned = rounds
    for index, federation in enumerate(target.all()):
        game = train(federation, attack, rounds, part(progress, index, target.seeds), target.limit)
        if index and len(game.truth.rounds) < rounds:  # cut short by the time limit
            break
        rounds = len(game.truth.rounds)
        guesses.append(attack.run(game.observation, Execution(seeds=(index,))))
        games.append((game.truth, game.accuracy, game.not_finite))
    truths, accuracies, not_finite = zip(*games, strict=True)
    guessed, present = np.stack([g.present for g in guesses]), np.stack([t.present for t in truths])
    document = {
        **head(attack),
        "rounds": rounds,
        "clients": guessed.shape[1],
        "success_rate": None,
        **judge(guessed, present, certificate(first, tap, rounds, unit="client", not_finite=sum(not_finite))),
        **_by_round(guesses, truths),
        **of_attacked(accuracies, first.dataset.held_out.y),
        "seconds": time.monotonic() - started,
    }
    left = cut(rounds=(rounds, planned), federations=(len(games), target.seeds))
    return Outcome(document, curves={attack.name: roc.mean_curve(guessed, present)}, cut=left)


def check(federation: Federation, attack: ParticipationAttack) -> None:
    """Refuses a game that cannot be played, and says what would help."""
    clients, receives = federation.partition.clients, attack.position.tap == "broadcast"
    if not receives and attack.attacker is not None:
        takes = (
            "is not read at tap 'release', where everyone sees the same: leave it out, or take attack.tap = 'broadcast'"
        )
        raise ConfigError("attack.attacker", attack.attacker, takes)
    if receives and attack.position.attacker >= clients:
        raise ConfigError("attack.attacker", attack.position.attacker, f"clients count from 0 to {clients - 1}")
    if clients - receives < FEWEST:
        takes = f"each client is present by a coin, and the attacker knows its own: takes at least {FEWEST + receives}"
        raise ConfigError("data.clients", clients, takes)


def train(
    federation: Federation,
    attack: ParticipationAttack,
    rounds: int,
    progress: Progress = silent,
    limit: Limit = NO_LIMIT,
) -> Game:
    """Trains with the clients that are present; keeps what the attacker sees apart from the truth.

    When the limit is over, the rounds made so far are all there is, at least one.
    """
    simulator, clients, where = federation.simulator, federation.partition.clients, attack.position
    receives = where.tap == "broadcast"
    present = coins(federation.config.train.seed, clients)
    asked = np.ones(clients, bool)
    if receives:
        present[where.attacker], asked[where.attacker] = True, False
    if present[asked].all() or not present[asked].any():
        raise RunError(f"{attack.name}: all coins fell alike; take another train.seed, or more clients")
    simulator = simulator.variant(present=present)
    state, models, answered, not_finite = simulator.start(), [], np.zeros((rounds, clients), bool), 0
    for number in range(rounds):
        if number and limit.over:
            rounds, answered = number, answered[:number]
            break
        models.append(released(federation, state, number, where))
        answered[number, simulator.cohort(state, number).clients] = True
        state, report = simulator.round(state, number)
        not_finite += int(report.summed.not_finite)
        progress(number + 1, rounds)
    models.append(released(federation, state, rounds, where))
    own = examples_of(federation, where.attacker) if receives else None
    seen = model_observation(federation, tuple(models), tuple(range(rounds + 1)), own)
    candidates = tuple(examples_of(federation, int(client)) for client in np.flatnonzero(asked))
    observation = ParticipationObservation(seen, rules_of(federation), candidates)
    truth = Truth(present[asked], answered[:, asked])
    accuracy, _ = simulator.evaluate(state.params)
    return Game(observation, truth, accuracy, not_finite)


def coins(seed: int, clients: int) -> np.ndarray:
    """[clients] bool: the clients that are present, each by a fair coin."""
    return generator(seed, 0x74686572).random(clients) < 0.5


def _by_round(guesses: Sequence[ParticipationScores], truths: Sequence[Truth]) -> dict[str, Any]:
    """The AUC of "took part in this round": the mean over rounds in which some did and some did not."""
    means = []
    for one, truth in zip(guesses, truths, strict=True):
        areas = [roc.auc(s, t) for s, t in zip(one.rounds, truth.rounds, strict=True) if t.any() and not t.all()]
        means += [float(np.mean(areas))] if areas else []
    mean = float(np.mean(means)) if means else None
    return {"round_auc": mean, "round_interval": roc.share_interval(np.array(means))}
