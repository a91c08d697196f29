"""The bench: a federation's round is watched at a tap, attacked, and scored against the truth that only the bench knows.

The first clients of the federation are attacked, each on what it does in the chosen round; its draws are keyed, so it does
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

from fedveil.attacks import truth
from fedveil.attacks.catalog import ATTACKS, Settings
from fedveil.attacks.catalog import settings as make_settings
from fedveil.attacks.observe import AuxiliaryData, Observation, drawn_rows, from_tap
from fedveil.attacks.reconstruction.run import Reconstruction
from fedveil.attacks.run import attack
from fedveil.attacks.score import BELIEF, Scores, score
from fedveil.config import AttackConfig
from fedveil.core.errors import ConfigError
from fedveil.federation import Federation
from fedveil.simulation.server import ServerState

STEPS_SHOWN = (1, 2, 5, 10, 20, 50, 100, 200)  # iterations that pictures show, as far as the attack went


@dataclass(frozen=True)
class Group:
    """Attacks on gradients of equally many examples, with what was really behind them."""

    observation: Observation
    truth_x: np.ndarray  # [attacks, examples, ...shape]
    truth_y: np.ndarray  # [attacks, examples]
    scores: Scores

    @property
    def reconstruction(self) -> Reconstruction:
        return self.scores.reconstruction


@dataclass(frozen=True)
class Study:
    """A finished study."""

    settings: Settings
    tap: str
    round: int
    groups: tuple[Group, ...]
    compile_seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The JSON document."""
        head = {"attack": self.settings.name, "tap": self.tap, "round": self.round}
        return {**head, **pooled([group.scores for group in self.groups]), "compile_seconds": self.compile_seconds}


def run(
    federation: Federation,
    state: ServerState,
    number: int,
    asked: AttackConfig,
    progress: Callable[[int, int], None] = lambda ended, total: None,
) -> Study:
    """Attacks round `number` of a federation in the given state."""
    settings = make_settings(asked.name, **asked.given())
    check_tap(asked)
    by_size = _victims(federation, number, asked)
    if not by_size:
        raise ConfigError(
            "train.batch", federation.config.train.batch, "every batch of the round is empty: nothing to attack"
        )
    total = asked.images * asked.seeds
    groups: list[Group] = []
    for clients in by_size:
        observed = sum(len(g.observation) for g in groups)
        group = _attack_group(
            federation, state, number, asked, settings, clients, asked.images - observed, progress, total
        )
        groups.append(group)
    done = [group.reconstruction for group in groups]
    return Study(
        settings,
        asked.at,
        number,
        tuple(groups),
        sum(r.compile_seconds for r in done),
    )


def check_tap(asked: AttackConfig) -> None:
    """Refuses a tap at which this attack finds nothing to work on, and says what is missing."""
    taps = ATTACKS[asked.name].taps
    if asked.at not in taps:
        takes = f"{asked.name} needs the gradient or update of single clients, which is seen at {', '.join(taps)}"
        raise ConfigError("attack.tap", asked.at, f"{takes}; the models that go out show only their sum")


def _victims(federation: Federation, number: int, asked: AttackConfig) -> list[list[int]]:
    """The first clients that have something to attack, in groups of equal batches, as many as give so many gradients."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    found = 0
    for client in range(federation.partition.clients):
        batches = drawn_rows(federation, number, client)
        sizes = tuple(len(b) for b in (batches if asked.at in ("client", "server") else batches[:1]))
        if not any(sizes):
            continue
        groups[sizes].append(client)
        found += sizes[0] if asked.at == "example" else 1
        if found >= asked.images:
            return list(groups.values())
    short = f"takes at most {found} here: more clients (data.clients) have more"
    if found:
        raise ConfigError("attack.images", asked.images, short)
    return []


def _attack_group(
    federation: Federation,
    state: ServerState,
    number: int,
    asked: AttackConfig,
    settings: Settings,
    clients: list[int],
    most: int,
    progress: Callable[[int, int], None],
    total: int,
) -> Group:
    """Observes, attacks and scores some clients."""
    x, y = truth.of_tap(federation, number, clients, asked.at)
    x, y = x[:most], y[:most]
    granted: dict[str, Any] = {}
    if settings.init.startswith("optimal"):
        held = federation.dataset.held_out
        granted["insider"] = AuxiliaryData(held.x.astype(np.float64) * federation.dataset.scale, held.y)
    if federation.config.data.partition == "classes":
        granted["held_classes"] = federation.config.data.classes_per_client
    observation = first(from_tap(federation, state, number, clients, asked.at, **granted), most)
    if settings.label == "given":
        observation = replace(observation, known_labels=y)
    done = attack(
        observation,
        settings,
        seeds=range(asked.seeds),
        precision=federation.config.speed.precision,
        progress=lambda ended, _: progress(ended, total),
    )
    return Group(observation, x, y, score(done, x, y, asked.rule, federation.dataset.groups))


def first(observation: Observation, count: int) -> Observation:
    """The first attacks of an observation."""
    if len(observation) <= count:
        return observation
    gradients = jax.tree.map(lambda a: a[:count], observation.gradients)
    params = jax.tree.map(lambda a: a[:count], observation.params) if observation.own_params else observation.params
    return replace(observation, gradients=gradients, ids=observation.ids[:count], params=params)


def pooled(scores: list[Scores]) -> dict[str, Any]:
    """One summary of several groups: rates over all examples, counts and seconds added up."""
    parts = [one.summary() for one in scores]
    successes = np.concatenate([one.items.ssim[one.success] for one in scores])
    extra = {
        "ssim_of_successes": float(successes.mean()) if len(successes) and np.isfinite(successes).all() else None,
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
            made[key] = None  # groups differ in how many examples stand behind a gradient
        else:
            pairs = [(w, v) for w, v in zip(weights, values, strict=True) if v is not None]
            made[key] = sum(w * v for w, v in pairs) / sum(w for w, _ in pairs) if pairs else None
    return {**made, **extra}


def steps(study: Study, count: int, precision: str) -> tuple[list[int], np.ndarray, np.ndarray]:
    """The first attacks at several of their iterations: which, truth [n, ...shape], found [shown, n, ...shape].

    An optimiser that is stopped earlier stands where the same optimiser stood then, so each is simply run again with fewer
    iterations; where step lengths follow the number of iterations, only start and end are shown.
    """
    group = study.groups[0]
    few = first(group.observation, count)
    if few.known_labels is not None:
        few = replace(few, known_labels=few.known_labels[:count])
    whole = study.settings.iterations
    shown = [n for n in STEPS_SHOWN if n < whole] if study.settings.name != "aono" and not study.settings.decay else []
    frames = [attack(few, replace(study.settings, iterations=n), precision=precision).inputs[:, 0] for n in shown]
    last = group.reconstruction.inputs[: len(few), 0]
    return [*shown, whole], group.truth_x[: len(few), 0], np.stack([*frames, last])
