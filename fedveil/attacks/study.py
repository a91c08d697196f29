"""The bench of reconstructions: observes a round of a federation at a tap, attacks, and scores against the truth.

The first clients of the federation are attacked, each on what it does in the chosen round. Its draws are keyed, so it does
there what it does in training, whether or not it is chosen. Clients whose batches differ in size (Poisson batches) are
attacked in groups of equal size.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fedveil.attacks import taps, verdict
from fedveil.attacks.base import (
    AUXILIARY_DATA,
    LABELS,
    Execution,
    LiveProgress,
    Progress,
    Reconstruction,
    ReconstructionAttack,
    check_tap,
    silent,
)
from fedveil.attacks.guess import Guess, guess
from fedveil.attacks.limit import NO_LIMIT, Limit
from fedveil.attacks.observation import GradientObservation
from fedveil.attacks.score import BELIEF, Scores, assigned, rule_for, score
from fedveil.attacks.watch import Watch
from fedveil.config import AttackConfig
from fedveil.core.errors import ConfigError
from fedveil.federation import Federation
from fedveil.simulation.server import ServerState

KNOWN = 256  # held-out examples that guesses are taken from
STEPS_SHOWN = (1, 2, 5, 10, 20, 50, 100, 200)  # iterations that pictures show, as far as the attack went


@dataclass(frozen=True)
class Group:
    """Attacks on gradients of equally many examples, and the truth behind them."""

    observation: GradientObservation
    truth_x: np.ndarray  # [attacks, examples, ...shape]
    truth_y: np.ndarray  # [attacks, examples]
    scores: Scores
    guess: Guess
    earlier: tuple[Scores, ...] = ()  # of the attacks as they stood at each of `attack.limits`

    @property
    def reconstruction(self) -> Reconstruction:
        return self.scores.reconstruction


@dataclass(frozen=True)
class Study:
    """A finished study."""

    attack: ReconstructionAttack
    tap: str
    round: int
    groups: tuple[Group, ...]
    compile_seconds: float
    planned: int  # attacks that were asked for
    limit: Limit = NO_LIMIT
    iterations: tuple[int, ...] = ()  # `attack.limits`

    def as_dict(self) -> dict[str, Any]:
        """The JSON document."""
        head = {"attack": self.attack.name, "tap": self.tap, "round": self.round}
        document = {
            **head,
            **pooled([group.scores for group in self.groups]),
            "compile_seconds": self.compile_seconds,
            **self.counts(),
            **self.guesses(),
        }
        if self.iterations:
            document["limits"] = {str(most): self._at(index) for index, most in enumerate(self.iterations)}
        return {**document, "verdict": verdict.of_reconstruction(document)}

    def _at(self, index: int) -> dict[str, Any]:
        """The scores at one of the limits; seconds are those of the whole study."""
        found = pooled([group.earlier[index] for group in self.groups])
        return {key: value for key, value in found.items() if not key.startswith("seconds")}

    def counts(self) -> dict[str, Any]:
        """How many attacks were made, how each group of them ended, and why the study stopped."""
        endings = np.concatenate([group.reconstruction.ending for group in self.groups])
        started = len(endings)
        hopeless, late = int((endings == "hopeless").sum()), int((endings == "time limit").sum())
        attacks = {
            "planned": self.planned,
            "started": started,
            "finished": started - hopeless - late,
            "hopeless": hopeless,
            "unfinished": late,
            "not_started": self.planned - started,
        }
        stopped = "time limit" if late or started < self.planned else "hopeless" if hopeless == started else "done"
        return {
            "attacks": attacks,
            "stopped": stopped,
            "limit": self.limit.seconds,
            "rebuilt": int(sum(group.scores.success.sum() for group in self.groups)),
            "examples": int(sum(group.scores.success.size for group in self.groups)),
            "victims": int(sum(len(np.unique(group.reconstruction.attack)) for group in self.groups)),
        }

    def guesses(self) -> dict[str, Any]:
        """What a guess reaches that saw nothing: in content, and in labels."""
        rates = [group.guess.rate for group in self.groups if group.guess.rate is not None]
        truth = np.concatenate([group.truth_y.ravel() for group in self.groups])
        return {
            "guess_rate": float(np.mean(rates)) if rates else None,
            "label_guess_rate": float(np.unique(truth, return_counts=True)[1].max() / len(truth)),
        }


Change = Callable[[GradientObservation], GradientObservation]


def unchanged(seen: GradientObservation) -> GradientObservation:
    return seen


@dataclass(frozen=True)
class Round:
    """A round of a federation that is attacked. `change` turns an observation into what the attacker is handed."""

    federation: Federation
    state: ServerState  # before the round
    number: int
    change: Change = unchanged
    examples: int | None = None  # the number of examples per gradient that are scored, where `change` reduces it

    def observe(
        self, attack: ReconstructionAttack, clients: list[int], tap: str, most: int | None = None
    ) -> tuple[GradientObservation, np.ndarray, np.ndarray]:
        """What the attack is handed of some clients, at most `most` gradients; and the truth, inputs and labels."""
        x, y = taps.truth_at_tap(self.federation, self.number, clients, tap)
        x, y = x[:most, : self.examples], y[:most, : self.examples]
        granted: dict[str, Any] = {}
        dataset, data = self.federation.dataset, self.federation.config.data
        if AUXILIARY_DATA in attack.capabilities():
            granted["auxiliary"] = taps.examples_as_seen(dataset, dataset.held_out)
        if data.partition == "classes":
            granted["held_classes"] = data.classes_per_client
        seen = taps.from_tap(self.federation, self.state, self.number, clients, tap, **granted)
        seen = self.change(seen if most is None else first(seen, most))
        if LABELS in attack.capabilities():
            seen = replace(seen, known_labels=y)
        return seen, x, y


def run_on(
    attacked: Round,
    attack: ReconstructionAttack,
    bench: AttackConfig,
    progress: Progress = silent,
    limit: Limit = NO_LIMIT,
) -> Study:
    """Attacks a round, as the bench keys of `[attack]` say, as long as the limit allows."""
    check_tap(attack, bench.at)
    iterations = _limits(attack, bench)
    federation, number = attacked.federation, attacked.number
    by_size = _victims(federation, number, bench)
    if not by_size:
        takes = "every batch of the round is empty: nothing to attack"
        raise ConfigError("train.batch", federation.config.train.batch, takes)
    total = bench.images * bench.seeds
    known = taps.examples_as_seen(federation.dataset, federation.dataset.held_out, slice(KNOWN)).x
    groups: list[Group] = []
    if isinstance(progress, LiveProgress):
        progress.limit(limit.deadline)
    for clients in by_size:
        most = bench.images - sum(len(group.observation) for group in groups)
        if groups and (limit.over or most < 1):  # a group of many examples may leave nothing to the later ones
            break
        ended = sum(len(group.reconstruction) for group in groups)
        seen, x, y = attacked.observe(attack, clients, bench.at, most)
        guessed = guess(x, y, known, rule_for(bench.rule, x.shape[2:]))
        execution = Execution(
            tuple(range(bench.seeds)),
            federation.config.speed.precision,
            _counting(progress, ended, total),
            monitor=None if limit.deadline is None else Watch(x, attack.tries, guessed.match, progress),
            deadline=limit.deadline,
            limits=iterations,
        )
        done = attack.run(seen, execution)
        scored = [score(one, x, y, bench.rule, federation.dataset.groups) for one in (done, *done.earlier)]
        groups.append(Group(seen, x, y, scored[0], guessed, tuple(scored[1:])))
    compiling = sum(group.reconstruction.compile_seconds for group in groups)
    return Study(attack, bench.at, number, tuple(groups), compiling, total, limit, iterations)


def _limits(attack: ReconstructionAttack, bench: AttackConfig) -> tuple[int, ...]:
    """`attack.limits`, refused where an attack with fewer iterations would take another path."""
    for most in bench.limits or ():
        if attack.shortened(most) is None:
            takes = f"takes numbers below attack.iterations, and no attack.decay; {most} does not fit"
            raise ConfigError("attack.limits", list(bench.limits or ()), takes)
    return tuple(bench.limits or ())


def _counting(progress: Progress, before: int, total: int) -> Progress:
    """The progress of all groups, from that of one group after `before` finished starts."""
    return lambda ended, of: progress(before + ended, max(total, before + of))


def state_before(federation: Federation, number: int) -> ServerState:
    """The server's state before round `number`, trained up to it."""
    state = federation.simulator.start()
    for done in range(number):
        state, _ = federation.simulator.round(state, done)
    return state


def _victims(federation: Federation, number: int, bench: AttackConfig) -> list[list[int]]:
    """The first clients that have something to attack, in groups of equal batches, until there are enough gradients."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    found = 0
    for client in range(federation.partition.clients):
        batches = taps.drawn_rows(federation, number, client)
        sizes = taps.sizes_behind(bench.at, batches)
        if not any(sizes):
            continue
        groups[sizes].append(client)
        found += sizes[0] if bench.at == "example" else 1
        if found >= bench.images:
            return list(groups.values())
    if found:
        takes = f"takes at most {found} here: more clients (data.clients) have more"
        raise ConfigError("attack.images", bench.images, takes)
    return []


def first(observation: GradientObservation, count: int) -> GradientObservation:
    """The first attacks of an observation."""
    if len(observation) <= count:
        return observation
    gradients = jax.tree.map(lambda a: a[:count], observation.gradients)
    params = jax.tree.map(lambda a: a[:count], observation.params) if observation.own_params else observation.params
    labels = None if observation.known_labels is None else observation.known_labels[:count]
    ids = observation.ids[:count]
    return replace(observation, gradients=gradients, ids=ids, params=params, known_labels=labels)


def pooled(scores: list[Scores]) -> dict[str, Any]:
    """One summary of several groups: rates over all examples, sums of counts and seconds."""
    parts = [one.summary() for one in scores]
    successes = np.concatenate([one.items.ssim[one.success] for one in scores])
    errors = np.concatenate([one.items.mse[one.success] for one in scores])
    extra = {
        "ssim_of_successes": float(successes.mean()) if len(successes) and np.isfinite(successes).all() else None,
        "mse_of_successes": float(errors.mean()) if len(errors) else None,
        "rmse_of_successes": float(np.sqrt(errors).mean()) if len(errors) else None,
        "published_rule": f"squared gradient distance below {BELIEF:g}",
    }
    if len(parts) == 1:
        return {**parts[0], **extra}
    weights = np.array([one.success.size for one in scores], float)
    made: dict[str, Any] = {}
    for key in parts[0]:
        values = [part[key] for part in parts]
        if key in ("seconds", "images", "failed"):
            made[key] = sum(values)
        elif key in ("rule", "seeds"):
            made[key] = values[0]
        elif key in ("iterations_min", "iterations_max"):
            known = [v for v in values if v is not None]
            made[key] = (min if key.endswith("min") else max)(known) if known else None
        elif key == "interval":
            made[key] = None  # groups differ in the number of examples behind a gradient
        else:
            pairs = [(w, v) for w, v in zip(weights, values, strict=True) if v is not None]
            made[key] = sum(w * v for w, v in pairs) / sum(w for w, _ in pairs) if pairs else None
    return {**made, **extra}


def in_time(
    attacks: Iterable[ReconstructionAttack], seen: GradientObservation, execution: Execution
) -> list[Reconstruction]:
    """The results of attacks on the same observation, up to the first that does not end before the deadline."""
    done: list[Reconstruction] = []
    for attack in attacks:
        if execution.deadline is not None and time.monotonic() >= execution.deadline:
            break
        found = attack.run(seen, execution)
        if found.not_started or (found.ending == "time limit").any():
            break
        done.append(found)
    return done


def steps(study: Study, count: int, precision: str, limit: Limit = NO_LIMIT) -> tuple[np.ndarray, np.ndarray]:
    """The first attacks at several of their iterations: truth [n, ...shape], found [shown, n, ...shape].

    Each intermediate result comes from running the attack again with fewer iterations. Attacks that take another path when
    they have fewer iterations show the end only.
    """
    group = study.groups[0]
    done = group.reconstruction
    which = done.attack[done.of_first_seed][:count]
    few = first(group.observation, int(which.max()) + 1)
    shorter = [short for n in STEPS_SHOWN if (short := study.attack.shortened(n)) is not None]
    execution = Execution(precision=precision, deadline=limit.deadline)
    frames = [found.inputs[which, 0] for found in in_time(shorter, few, execution)]
    return group.truth_x[which, 0], np.stack([*frames, done.inputs[: len(which), 0]])


def victims(study: Study) -> tuple[np.ndarray, np.ndarray]:
    """Every attacked example and what the first seed's attack made of it, [n, ...shape] each.

    Where several examples are behind one gradient, each result is paired with the true example that it fits best.
    """
    pairs = []
    for group in study.groups:
        done = group.reconstruction
        once = done.of_first_seed
        truth = np.asarray(group.truth_x[done.attack[once]], float)
        found, _ = assigned(done.inputs[once].astype(np.float64), done.labels[once], truth)
        pairs.append([values.reshape(-1, *values.shape[2:]) for values in (truth, found)])
    return np.concatenate([truth for truth, _ in pairs]), np.concatenate([found for _, found in pairs])
