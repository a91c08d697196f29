"""A reconstruction study: every attack of an observation, for every seed, as one batch of optimisations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks.catalog import Settings
from fedveil.attacks.observe import Observation
from fedveil.attacks.optim.slots import ENDINGS
from fedveil.attacks.reconstruction import inits, labels, scheduler
from fedveil.attacks.reconstruction.objective import Job, Problem, pose, weights

Tree = Any
DUMMIES = 64  # inputs of the attacker's own that labels of batches are inferred with


@dataclass(frozen=True)
class Reconstruction:
    """What the attacker got, attack by attack: the observation's attacks for the first seed, then for the next."""

    attack: np.ndarray  # [attacks] place in the observation
    seed: np.ndarray  # [attacks]
    inputs: np.ndarray  # [attacks, examples, ...shape], in the known range of values
    labels: np.ndarray  # [attacks, examples]
    objective: np.ndarray  # [attacks] the least that was reached
    distance: np.ndarray  # [attacks] squared L2 gradient distance there
    iterations: np.ndarray  # [attacks] made, of the start that was kept
    evaluations: np.ndarray  # [attacks] gradients of gradients computed, all starts together
    ending: np.ndarray  # [attacks] why it ended, a name of `lanes.ENDINGS`
    trace: np.ndarray  # [attacks, iterations + 1] squared gradient distance as iterations opened, NaN after the end
    seconds: float  # all attacks together, without compiling
    compile_seconds: float

    def __len__(self) -> int:
        return len(self.attack)


def reconstruct(
    observation: Observation,
    settings: Settings,
    *,
    seeds: Sequence[int] = (0,),
    precision: str = "float32",
    width: int | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda ended, total: None,
    watch: Callable[[np.ndarray, np.ndarray, scheduler.Sight], int] | None = None,
) -> Reconstruction:
    """Runs an attack on everything observed, once per seed.

    `width` and `workers` (lanes in a block, blocks at a time) change the speed and nothing else. `progress` is called with
    the attacks that have ended and their number. `watch` sees attacks on their way: inputs and labels as they would be
    read out now, and where each stands (`attack` counts tries); it returns how many evaluations to make before it looks
    again, which changes the speed and nothing else.
    """
    with jax.enable_x64(precision == "float64"), jax.default_matmul_precision("highest"):
        problem = pose(observation, settings)
        tries = settings.restarts + 1
        keys = [
            (int(identity), int(seed), restart)
            for seed in seeds
            for identity in observation.ids
            for restart in range(tries)
        ]
        at = np.array([a for _ in seeds for a in range(len(observation)) for _ in range(tries)])
        guessed = _labels(observation, settings, precision)
        starts = _starts(problem, settings, observation, guessed[at], keys, precision)
        jobs, shared = _jobs(problem, observation, guessed, at, precision)
        programs = scheduler.programs_for(problem, precision)
        compiled, started = programs.seconds, time.monotonic()
        ended = scheduler.run(
            programs,
            shared,
            starts,
            jobs,
            settings,
            width=width,
            workers=workers,
            progress=lambda n: progress(n, len(keys)),
            watch=None if watch is None else lambda s: watch(*_read_out(problem, s.z, guessed[at[s.attack]]), s),
        )
        compiling = programs.seconds - compiled
        seconds = time.monotonic() - started - compiling
    best = _best_of(ended, tries)
    chosen = [ended[i] for i in best]
    inputs, found = _read_out(problem, np.stack([e.z for e in chosen]), guessed[at[best]])
    spent = np.array([e.evaluations for e in ended]).reshape(-1, tries).sum(axis=1)
    return Reconstruction(
        attack=at[best],
        seed=np.array([keys[i][1] for i in best]),
        inputs=inputs,
        labels=found,
        objective=np.array([e.value for e in chosen]),
        distance=np.array([e.distance for e in chosen]),
        iterations=np.array([e.iterations for e in chosen]),
        evaluations=spent,
        ending=np.array([ENDINGS[e.status] for e in chosen]),
        trace=np.stack([e.trace for e in chosen]),
        seconds=seconds,
        compile_seconds=compiling,
    )


def _labels(observation: Observation, settings: Settings, dtype: str) -> np.ndarray:
    """[attacks, examples] labels that are fixed from the start; zeros where they are optimised."""
    if settings.label == "joint":
        return np.zeros((len(observation), observation.examples), int)
    if settings.label == "given":
        assert observation.known_labels is not None
        return np.asarray(observation.known_labels)
    dummies = jax.random.uniform(jax.random.key(0, impl="threefry2x32"), (DUMMIES, *observation.shape), dtype)
    return labels.infer(observation, np.asarray(dummies))


def _starts(
    problem: Problem,
    settings: Settings,
    observation: Observation,
    guessed: np.ndarray,
    keys: list[tuple[int, int, int]],
    dtype: str,
) -> np.ndarray:
    z = inits.starts(settings.init, observation, guessed, keys, settings.file, dtype).reshape(len(keys), -1)
    if not problem.joint:
        return z
    logits = inits.label_logits(keys, problem.examples * problem.classes, dtype)
    return np.concatenate([z, logits], axis=1)


def _jobs(
    problem: Problem, observation: Observation, guessed: np.ndarray, at: np.ndarray, dtype: str
) -> tuple[Job, Tree]:
    """What belongs to each attack, and the parameters that all share (None where each has its own)."""

    def rows(tree: Tree) -> Tree:
        return jax.tree.map(lambda a: np.asarray(a, dtype)[at], tree)

    q = np.eye(problem.classes, dtype=dtype)[guessed[at]]
    own = rows(observation.params) if observation.own_params else None
    shared = None if observation.own_params else jax.tree.map(lambda a: jnp.asarray(a, dtype), observation.params)
    weight = weights(problem.settings, observation.gradients).astype(dtype)[at]
    return Job(rows(observation.gradients), q, weight, own), shared


def _best_of(ended: list[scheduler.Ended], tries: int) -> np.ndarray:
    """Of each attack's starts, the one with the least objective: the attacker's own criterion."""
    values = np.array([e.value for e in ended]).reshape(-1, tries)
    return np.arange(len(values)) * tries + values.argmin(axis=1)


def _read_out(problem: Problem, z: np.ndarray, guessed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    inputs = z[:, : problem.content].reshape(-1, problem.examples, *problem.shape)
    if problem.span is not None:
        inputs = np.clip(inputs, *problem.span)
    if problem.joint:
        guessed = z[:, problem.content :].reshape(-1, problem.examples, problem.classes).argmax(axis=2)
    return inputs, guessed
