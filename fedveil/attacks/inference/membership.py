"""Whether a record was trained on: a game of fair coins, played on federations that the bench trains.

Every record that is asked about is given to each attacked federation by a fair coin of its own; all other records stay.
The attacker knows everything but those coins: the training, the partition, the records, and shadow federations that it
trains on choices of its own. It sees one model and scores each record (`evidence`). The bench alone holds the coins.

Shadows come in pairs that split the records between them, so that each record is in half of them. The attacked
federations' coins are independent of that and of each other, which is the setting of `accounting.statistics.one_run`: so
the scores bound ε from below, without any assumption on how records depend on each other through one training.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import log_expit

from fedveil.accounting import ledger, transcript
from fedveil.accounting.ledger import as_planned
from fedveil.attacks.adversaries import Inference
from fedveil.attacks.inference import roc, shadows, watch
from fedveil.attacks.inference.evidence import FEWEST, SCORES, Evidence
from fedveil.attacks.inference.outcome import Outcome
from fedveil.attacks.inference.shadows import Fleet, Progress, Sight
from fedveil.config import Config
from fedveil.core.errors import ConfigError
from fedveil.core.keys import Draws
from fedveil.data.dataset import Part
from fedveil.federation import prepare

if TYPE_CHECKING:
    from fedveil.federation import Federation

POPULATION = 2000  # held-out records that RMIA compares with, at most
LEVEL = 0.95  # of all bounds together


@dataclass(frozen=True)
class Game:
    """One game: what the attacker has of each attacked federation, and the coins, which only the bench looks at."""

    evidence: tuple[Evidence, ...]
    member: np.ndarray  # [federations, records] bool
    not_finite: int  # updates that were left out of the training of the attacked federations

    def scores(self, name: str) -> np.ndarray:
        """[federations, records]: the attack's scores, from the evidence alone."""
        return np.stack([SCORES[name](seen) for seen in self.evidence])


@dataclass(frozen=True)
class Certificate:
    """What the ledger certifies for the model that is seen: ε at δ for one record, or why there is no number."""

    epsilon: float | None
    delta: float
    unit: str
    reason: str


def attack(config: Config, settings: Inference, progress: Progress, draws: Draws | None = None) -> Outcome:
    """Trains the federations and the shadows, attacks, scores."""
    started = time.monotonic()
    federation = prepare(config, draws=draws)
    check(federation, settings)
    count = settings.shadows if FEWEST[settings.name] else 0
    game = play(federation, settings, config.attack.seeds, count, progress)
    scores = game.scores(settings.name)
    document = {
        "attack": settings.name,
        "seat": settings.seat,
        "tap": settings.stands_at,
        "rounds": federation.rounds,
        "records": game.member.shape[1],
        "shadows": count,
        "success_rate": None,
        **judge(scores, game.member, certificate(federation, settings.stands_at, game.not_finite)),
        **_losses(game),
        "seconds": time.monotonic() - started,
    }
    return Outcome(document, curves={settings.name: roc.mean_curve(scores, game.member)})


def check(federation: Federation, settings: Inference) -> None:
    """Refuses what cannot be played, and says what would help."""
    shadows.check(federation)
    if settings.seat == "active":
        watch.check_clients(federation, settings)
    fewest = FEWEST[settings.name]
    if settings.shadows < fewest:
        takes = f"{settings.name} compares shadows with and without a record: train at least {fewest}"
        raise ConfigError("attack.shadows", settings.shadows, takes)


def play(
    federation: Federation,
    settings: Inference,
    targets: int,
    count: int,
    progress: Progress = lambda done, total: None,
) -> Game:
    """Trains `targets` federations to attack and `count` shadows, all side by side, and asks them about the records."""
    base = federation.config.train.seed
    rows = asked_rows(federation, settings)
    member = fair_coins(base, targets, len(rows))
    chosen = np.concatenate([member, shadow_choices(base, count, len(rows))])
    given = np.ones((targets + count, len(federation.dataset.train)), bool)
    given[:, rows] = chosen
    seeds = [(base + number) % 2**32 for number in range(targets + count)]
    tap = settings.stands_at
    sight = Sight(tap, settings.victim) if settings.seat == "active" else Sight(tap)
    draws = [federation.simulator.draws.nth(number) for number in range(targets + count)]
    trained = Fleet(federation, seeds, draws, given).train(sight, progress)
    about = _ask(federation, trained.models, federation.dataset.train.take(rows))
    others = _ask(federation, trained.models, _population(federation))
    seen = [Evidence(about[t], about[targets:], chosen[targets:], others[t], others[targets:]) for t in range(targets)]
    return Game(tuple(seen), member, int(trained.not_finite[:targets].sum()))


def asked_rows(federation: Federation, settings: Inference) -> np.ndarray:
    """Rows of the training set that are asked about: of all that clients hold, or of the victim's."""
    partition = federation.partition
    who = [settings.victim] if settings.seat == "active" else range(partition.clients)
    held = np.unique(np.concatenate([partition.client(c) for c in who]))
    if len(held) < 2:
        raise ConfigError("attack.victim", settings.victim, "holds one record alone: there is nothing to compare")
    seed = federation.config.train.seed
    return np.sort(_generator(seed, 0).choice(held, min(settings.records, len(held)), replace=False))


def fair_coins(seed: int, federations: int, records: int) -> np.ndarray:
    """[federations, records] bool: independent fair coins, keyed by the federation."""
    made = [_generator(seed, 1, number).random(records) < 0.5 for number in range(federations)]
    if any(m.all() or not m.any() for m in made):
        takes = "all coins fell alike: ask about more records, or take another train.seed"
        raise ConfigError("attack.records", records, takes)
    return np.stack(made)


def shadow_choices(seed: int, count: int, records: int) -> np.ndarray:
    """[shadows, records] bool: every other shadow has just what the one before has not."""
    drawn = [_generator(seed, 2, number // 2).random(records) < 0.5 for number in range(count)]
    made = [~coins if number % 2 else coins for number, coins in enumerate(drawn)]
    return np.stack(made) if made else np.zeros((0, records), bool)


def _generator(seed: int, *purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, 0x6D656D62, *purpose])))


def _population(federation: Federation) -> Part:
    held = federation.dataset.held_out
    return held.take(np.arange(min(POPULATION, len(held))))


def _ask(federation: Federation, models: Any, part: Part) -> np.ndarray:
    """[federations, records]: how sure each model is of each record's label."""
    task = federation.simulator.task
    return shadows.confidences(task.model, models, part.x, part.y, scale=task.scale, dtype=task.dtype)


# --- against the coins


def certificate(federation: Federation, tap: str, not_finite: int = 0) -> Certificate:
    """The ledger's ε of a record that is there or not, for whoever stands at the tap.

    A row of the training set that several clients hold is there or not at all of them: the unit is then the image. A
    client receives one model more than there are rounds behind it. It is the certificate of the plan, with secret draws:
    the attacker of this game does not know the draws, even where they follow a seed.
    """
    task = federation.simulator.task
    delta = transcript.delta_of(task.defenses)
    unit = "example" if task.setting.copies == 1 else "image"
    if not_finite:
        return Certificate(None, delta, unit, "updates were left out for not being finite, and their noise with them")
    rounds = federation.rounds + (tap == "broadcast")
    planned = transcript.planned(task.defenses, as_planned(task.setting), rounds)
    row = ledger.certified(planned, tap, unit, delta, adjacency="add-remove")
    return Certificate(row.epsilon if row.certified else None, delta, unit, row.reason)


def judge(scores: np.ndarray, member: np.ndarray, proof: Certificate) -> dict[str, Any]:
    """The scores [federations, records] against the coins, and against what is certified."""
    group = np.repeat(np.arange(len(scores)), scores.shape[1])
    flat, inside = scores.ravel(), member.ravel()
    found = {
        **roc.summary(flat, inside, group),
        "epsilon_low": roc.epsilon_low(flat, inside, proof.delta, LEVEL, group),
        "delta": proof.delta,
        "epsilon": proof.epsilon,
        "unit": proof.unit,
        "adjacency": "add-remove",
        "account": proof.reason,
        "allowed_tpr": None,
        "beyond": None,
    }
    if proof.epsilon is not None:
        found["allowed_tpr"] = {f"{fpr:g}": float(roc.allowed_tpr(fpr, proof.epsilon, proof.delta)) for fpr in roc.FPRS}
        found["beyond"] = roc.excess(flat, inside, proof.epsilon, proof.delta, LEVEL, group=group)
    return found


def _losses(game: Game) -> dict[str, float]:
    """The mean loss of members and of the other records: how far the models have learnt by heart."""
    loss = -log_expit(np.stack([seen.target for seen in game.evidence]))
    return {"member_loss": float(loss[game.member].mean()), "other_loss": float(loss[~game.member].mean())}
