"""The membership game: was a record trained on? Fair coins decide, and the attack guesses them.

Each record that is asked about is given to each attacked federation by a fair coin; all other records stay. The attacker
knows everything but those coins: the training, the partition, the records, and shadow federations that it trains on its
own choices of records. It sees one model and scores each record. The bench alone holds the coins.

Shadows come in pairs that split the records between them, so that each record is in half of them. The coins of the attacked
federations are independent of that and of each other, which is the setting of `accounting.statistics.one_run`. So the
scores bound ε from below, without any assumption on how records depend on each other through one training.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from scipy.special import log_expit

from fedveil.accounting import ledger, transcript
from fedveil.accounting.ledger import as_planned
from fedveil.attacks.base import Progress, silent
from fedveil.attacks.games import observe, shadows
from fedveil.attacks.games.federations import Target
from fedveil.attacks.games.outcome import Outcome, cut, head
from fedveil.attacks.games.shadows import Fleet, ObservedModel, OutOfTime
from fedveil.attacks.inference import roc
from fedveil.attacks.inference.base import MembershipAttack
from fedveil.attacks.limit import NO_LIMIT, Limit
from fedveil.attacks.observation import MembershipObservation
from fedveil.core.errors import ConfigError
from fedveil.core.keys import generator
from fedveil.data.dataset import Part

if TYPE_CHECKING:
    from fedveil.federation import Federation

POPULATION = 2000  # the most held-out records to compare with
LEVEL = 0.95  # of all bounds together
PURPOSE = 0x6D656D62  # keeps the coins apart from all else that follows a seed


@dataclass(frozen=True)
class Game:
    """One game: what the attacker sees of each attacked federation, and the coins, which only the bench may use."""

    observations: tuple[MembershipObservation, ...]
    member: np.ndarray  # [federations, records] bool
    not_finite: int  # updates that were left out of the training of the attacked federations
    shadows: int = 0  # that were trained

    def scores(self, attack: MembershipAttack) -> np.ndarray:
        """[federations, records]: the attack's scores, from the observations alone."""
        return np.stack([attack.run(seen) for seen in self.observations])


@dataclass(frozen=True)
class Certificate:
    """What the ledger certifies for the observed model: ε at δ for one unit, or the reason why there is no number."""

    epsilon: float | None
    delta: float
    unit: str
    reason: str


def play(target: Target, attack: MembershipAttack, progress: Progress = silent) -> Outcome:
    """Trains the federations and the shadows, runs the attack, scores."""
    started = time.monotonic()
    federation, tap = target.first, attack.position.tap
    check(federation, attack)
    game = train(federation, attack, target.seeds, progress, target.limit)
    scores = game.scores(attack)
    # How far the models have memorised members.
    loss = -log_expit(np.stack([seen.target for seen in game.observations]))
    losses = {"member_loss": float(loss[game.member].mean()), "other_loss": float(loss[~game.member].mean())}
    document = {
        **head(attack),
        "rounds": federation.rounds,
        "records": game.member.shape[1],
        "shadows": game.shadows,
        "success_rate": None,
        **judge(scores, game.member, certificate(federation, tap, not_finite=game.not_finite)),
        **losses,
        "seconds": time.monotonic() - started,
    }
    left = cut(shadows=(game.shadows, attack.shadow_count), federations=(len(game.member), target.seeds))
    return Outcome(document, curves={attack.name: roc.mean_curve(scores, game.member)}, cut=left)


def check(federation: Federation, attack: MembershipAttack) -> None:
    """Refuses a game that cannot be played, and says what would help."""
    shadows.check(federation)
    if attack.adversary == "active":
        observe.check_clients(federation, attack.position)
    if attack.shadow_count < attack.fewest_shadows:
        takes = f"{attack.name} compares shadows with and without a record: train at least {attack.fewest_shadows}"
        raise ConfigError("attack.shadows", attack.shadow_count, takes)


def train(
    federation: Federation,
    attack: MembershipAttack,
    targets: int,
    progress: Progress = silent,
    limit: Limit = NO_LIMIT,
) -> Game:
    """Trains `targets` federations to attack and the attack's shadows, all side by side, and queries their models.

    The limit may leave shadows, and then attacked federations but the first, untrained.
    """
    base, count = federation.config.train.seed, attack.shadow_count
    rows = asked_rows(federation, attack)
    member = fair_coins(base, targets, len(rows))
    chosen = np.concatenate([member, shadow_choices(base, count, len(rows))])
    given = np.ones((targets + count, len(federation.dataset.train)), bool)
    given[:, rows] = chosen
    seeds = [(base + number) % 2**32 for number in range(targets + count)]
    where = attack.position
    model = ObservedModel(where.tap, where.victim) if where.adversary == "active" else ObservedModel(where.tap)
    draws = [federation.simulator.draws.nth(number) for number in range(targets + count)]
    trained = Fleet(federation, seeds, draws, given).train(model, progress, limit)
    attacked, used = _usable(trained.numbers, attack, targets, limit)
    place = np.searchsorted(trained.numbers, np.concatenate([attacked, used]))
    models = jax.tree.map(lambda a: a[place], trained.models)
    member, chosen, targets = member[attacked], chosen[np.concatenate([attacked, used])], len(attacked)
    about = _query(federation, models, federation.dataset.train.take(rows))
    held = federation.dataset.held_out
    others = _query(federation, models, held.take(np.arange(min(POPULATION, len(held)))))
    shadow = slice(targets, None)
    pairs = zip(about[:targets], others[:targets], strict=True)
    seen = [MembershipObservation(a, about[shadow], chosen[shadow], o, others[shadow]) for a, o in pairs]
    return Game(tuple(seen), member, int(trained.not_finite[place[:targets]].sum()), len(used))


def _usable(trained: np.ndarray, attack: MembershipAttack, targets: int, limit: Limit) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the attacked federations that were trained, and of the shadows whose pair was."""
    attacked, shadow = trained[trained < targets], trained[trained >= targets]
    last = targets + attack.shadow_count - 1
    partner = targets + ((shadow - targets) ^ 1)  # the last of an odd number has none
    used = shadow[np.isin(partner, shadow) | ((shadow == last) & (partner > last))]
    if not len(attacked) or len(used) < min(attack.fewest_shadows, attack.shadow_count):
        takes = (
            f"ended the training of the federations, and {attack.name} needs at least {attack.fewest_shadows} shadows"
        )
        raise OutOfTime(
            f"attack.seconds: {limit.seconds:g} s {takes}: allow more time, fewer train.rounds or data.clients"
        )
    return attacked, used


def asked_rows(federation: Federation, attack: MembershipAttack) -> np.ndarray:
    """Rows of the training set that are asked about: of all that clients hold, or of the victim's."""
    partition, where = federation.partition, attack.position
    clients = [where.victim] if where.adversary == "active" else range(partition.clients)
    held = np.unique(np.concatenate([partition.client(c) for c in clients]))
    if len(held) < 2:
        raise ConfigError("attack.victim", where.victim, "holds one record alone: there is nothing to compare")
    seed = federation.config.train.seed
    return np.sort(generator(seed, PURPOSE, 0).choice(held, min(attack.records, len(held)), replace=False))


def fair_coins(seed: int, federations: int, records: int) -> np.ndarray:
    """[federations, records] bool: independent fair coins, keyed by the federation."""
    made = [generator(seed, PURPOSE, 1, number).random(records) < 0.5 for number in range(federations)]
    if any(m.all() or not m.any() for m in made):
        takes = "all coins fell alike: ask about more records, or take another train.seed"
        raise ConfigError("attack.records", records, takes)
    return np.stack(made)


def shadow_choices(seed: int, count: int, records: int) -> np.ndarray:
    """[shadows, records] bool: every second shadow has exactly the records that the one before lacks."""
    drawn = [generator(seed, PURPOSE, 2, number // 2).random(records) < 0.5 for number in range(count)]
    made = [~coins if number % 2 else coins for number, coins in enumerate(drawn)]
    return np.stack(made) if made else np.zeros((0, records), bool)


def _query(federation: Federation, models: Any, part: Part) -> np.ndarray:
    """[federations, records]: the log odds that each model gives to each record's label."""
    task = federation.simulator.task
    return shadows.confidences(task.model, models, part.x, part.y, scale=task.scale, dtype=task.dtype)


# --- against the coins


def certificate(
    federation: Federation, tap: str, rounds: int | None = None, *, unit: str | None = None, not_finite: int = 0
) -> Certificate:
    """The ledger's ε of a unit that is present or absent, against an adversary at the tap who saw some or all rounds.

    The unit is by default a record. A row that several clients hold is present or absent at all of them, so the unit is
    then the image. A client receives one model more than there are finished rounds. The certificate is that of the plan
    with secret draws, because the attacker of this game does not know the draws, even where they follow a seed.
    """
    task = federation.simulator.task
    delta = transcript.delta_of(task.defenses)
    unit = unit or ("example" if task.setting.copies == 1 else "image")
    if not_finite:
        return Certificate(None, delta, unit, "updates were left out for not being finite, and their noise with them")
    seen = (federation.rounds if rounds is None else rounds) + (tap == "broadcast")
    planned = transcript.planned(task.defenses, as_planned(task.setting), seen)
    row = ledger.certified(planned, tap, unit, delta, adjacency="add-remove")
    return Certificate(row.epsilon if row.certified else None, delta, unit, row.reason)


def judge(scores: np.ndarray, member: np.ndarray, proof: Certificate) -> dict[str, Any]:
    """Compares the scores [federations, records] with the coins, and with what is certified."""
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
