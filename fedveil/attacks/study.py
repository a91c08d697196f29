"""The bench of reconstructions: observes a round of a federation at a tap, attacks, and scores against the truth.

The first clients of the federation are attacked, each on what it does in the chosen round. Its draws are keyed, so it does
there what it does in training, whether or not it is chosen. Clients whose batches differ in size (Poisson batches) are
attacked in groups of equal size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fedveil.attacks import taps
from fedveil.attacks.base import (
    AUXILIARY_DATA,
    LABELS,
    Execution,
    Progress,
    Reconstruction,
    ReconstructionAttack,
    check_tap,
    silent,
)
from fedveil.attacks.observation import GradientObservation
from fedveil.attacks.score import BELIEF, Scores, score
from fedveil.config import AttackConfig
from fedveil.core.errors import ConfigError
from fedveil.federation import Federation
from fedveil.simulation.server import ServerState

STEPS_SHOWN = (1, 2, 5, 10, 20, 50, 100, 200)  # iterations that pictures show, as far as the attack went


@dataclass(frozen=True)
class Group:
    """Attacks on gradients of equally many examples, and the truth behind them."""

    observation: GradientObservation
    truth_x: np.ndarray  # [attacks, examples, ...shape]
    truth_y: np.ndarray  # [attacks, examples]
    scores: Scores

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

    def as_dict(self) -> dict[str, Any]:
        """The JSON document."""
        head = {"attack": self.attack.name, "tap": self.tap, "round": self.round}
        return {**head, **pooled([group.scores for group in self.groups]), "compile_seconds": self.compile_seconds}


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


def run_on(attacked: Round, attack: ReconstructionAttack, bench: AttackConfig, progress: Progress = silent) -> Study:
    """Attacks a round, as the bench keys of `[attack]` say."""
    check_tap(attack, bench.at)
    federation, number = attacked.federation, attacked.number
    by_size = _victims(federation, number, bench)
    if not by_size:
        takes = "every batch of the round is empty: nothing to attack"
        raise ConfigError("train.batch", federation.config.train.batch, takes)
    total = bench.images * bench.seeds
    seeds, precision = tuple(range(bench.seeds)), federation.config.speed.precision
    execution = Execution(seeds, precision, lambda ended, _: progress(ended, total))
    groups: list[Group] = []
    for clients in by_size:
        most = bench.images - sum(len(group.observation) for group in groups)
        seen, x, y = attacked.observe(attack, clients, bench.at, most)
        done = attack.run(seen, execution)
        groups.append(Group(seen, x, y, score(done, x, y, bench.rule, federation.dataset.groups)))
    compiling = sum(group.reconstruction.compile_seconds for group in groups)
    return Study(attack, bench.at, number, tuple(groups), compiling)


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


def steps(study: Study, count: int, precision: str) -> tuple[np.ndarray, np.ndarray]:
    """The first attacks at several of their iterations: truth [n, ...shape], found [shown, n, ...shape].

    Each intermediate result comes from running the attack again with fewer iterations. Attacks that take another path when
    they have fewer iterations show the end only.
    """
    group = study.groups[0]
    few = first(group.observation, count)
    shorter = [short for n in STEPS_SHOWN if (short := study.attack.shortened(n)) is not None]
    frames = [short.run(few, Execution(precision=precision)).inputs[:, 0] for short in shorter]
    last = group.reconstruction.inputs[: len(few), 0]
    return group.truth_x[: len(few), 0], np.stack([*frames, last])
