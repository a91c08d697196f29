"""The engine of gradient matching: every attack of an observation, for every seed, as one batch of optimisations."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks.base import ONCE, Execution, Reconstruction
from fedveil.attacks.observation import GradientObservation
from fedveil.attacks.optim.slots import ENDINGS, LATE
from fedveil.attacks.reconstruction import inits, labels, scheduler
from fedveil.attacks.reconstruction.matching import GradientMatching
from fedveil.attacks.reconstruction.objective import Job, Problem, pose, weights

Tree = Any
Origin = jax.Array | np.ndarray | None
DUMMIES = 64  # random inputs with which labels of batches are inferred


def reconstruct(
    observation: GradientObservation, settings: GradientMatching, execution: Execution = ONCE
) -> Reconstruction:
    """Attacks everything observed, once per seed.

    `execution.progress` is called with the number of ended attacks and of all. `execution.monitor` sees attacks on their
    way: inputs and labels as they would be read out now, and a `scheduler.Snapshot` (whose `attack` counts starts). It
    returns the number of evaluations until its next call, which changes the speed and nothing else, or a
    `scheduler.Order`, which may also end attacks. Attacks that the deadline left no time for are not in the result.
    """
    precision = execution.precision
    with jax.enable_x64(precision == "float64"), jax.default_matmul_precision("highest"):
        problem = pose(observation, settings)
        plan = _plan(observation, settings, execution.seeds)
        guessed = _labels(observation, settings, precision)
        work = _work(problem, settings, observation, guessed, plan, precision)
        programs = scheduler.programs_for(problem, precision)
        compiled, started = programs.seconds, time.monotonic()
        ended = scheduler.run(programs, work, _running(problem, guessed, plan, work.jobs.origin, execution))
        compiling = programs.seconds - compiled
        seconds = time.monotonic() - started - compiling
    result = partial(_result, problem, plan, guessed, work.jobs.origin)
    shorter = [[None if e is None else e.earlier[i] for e in ended] for i in range(len(execution.limits))]
    earlier = tuple(result(one) for one in shorter)
    return replace(result(ended), seconds=seconds, compile_seconds=compiling, earlier=earlier)


def _result(
    problem: Problem,
    plan: _Plan,
    guessed: np.ndarray,
    origin: Origin,
    ended: Sequence[scheduler.Ended | None],
) -> Reconstruction:
    """What was rebuilt: of each attack the start with the least objective, which is the attacker's own criterion."""
    begun = np.array([e is not None for e in ended]).reshape(-1, plan.tries)
    made = [_NOT_BEGUN if e is None else e for e in ended]
    values = np.array([e.value for e in made]).reshape(-1, plan.tries)
    least = np.where(begun, np.minimum(values, np.finfo(float).max), np.inf).argmin(axis=1)
    best = (np.arange(len(values)) * plan.tries + least)[begun.any(axis=1)]
    chosen = [made[i] for i in best]
    origins = None if origin is None else origin[best]
    inputs, found = _read_out(problem, np.stack([e.z for e in chosen]), guessed[plan.attack[best]], origins)
    return Reconstruction(
        attack=plan.attack[best],
        seed=np.array([plan.keys[i][1] for i in best]),
        inputs=inputs,
        labels=found,
        objective=values.ravel()[best],
        distance=np.array([e.distance for e in chosen]),
        iterations=np.array([e.iterations for e in chosen]),
        evaluations=np.array([e.evaluations for e in made]).reshape(-1, plan.tries).sum(axis=1)[begun.any(axis=1)],
        ending=np.array([ENDINGS[e.status] for e in chosen]),
        trace=np.stack([e.trace for e in chosen]),
        seconds=0.0,
        compile_seconds=0.0,
        not_started=int((~begun.any(axis=1)).sum()),
    )


_NOT_BEGUN = scheduler.Ended(np.zeros(0), np.inf, np.inf, LATE, 0, 0, 0, np.zeros(0))


@dataclass(frozen=True)
class _Plan:
    """All starts: for each seed and attack, `tries` of them one after the other."""

    keys: list[tuple[int, int, int]]  # (victim, seed, restart) of each start
    attack: np.ndarray  # [starts] index in the observation
    tries: int


def _plan(observation: GradientObservation, settings: GradientMatching, seeds: Sequence[int]) -> _Plan:
    tries = settings.restarts + 1
    starts = list(itertools.product(seeds, range(len(observation)), range(tries)))
    keys = [(int(observation.ids[a]), int(seed), restart) for seed, a, restart in starts]
    return _Plan(keys, np.array([a for _, a, _ in starts]), tries)


def _running(
    problem: Problem, guessed: np.ndarray, plan: _Plan, origin: Origin, execution: Execution
) -> scheduler.Running:
    """The scheduler's part of `execution`: its callbacks see starts as flat vectors."""
    monitor, total = execution.monitor, len(plan.keys)

    def look(shot: scheduler.Snapshot) -> scheduler.Order | int:
        assert monitor is not None
        origins = None if origin is None else origin[shot.attack]
        seen = _read_out(problem, shot.z, guessed[plan.attack[shot.attack]], origins)
        answer: scheduler.Order | int = monitor(*seen, shot)
        return answer

    return scheduler.Running(
        execution.width,
        execution.workers,
        progress=lambda ended: execution.progress(ended, total),
        monitor=None if monitor is None else look,
        deadline=execution.deadline,
        limits=execution.limits,
    )


def _labels(observation: GradientObservation, settings: GradientMatching, dtype: str) -> np.ndarray:
    """[attacks, examples] labels that are fixed from the start; zeros where they are optimised."""
    if settings.label == "joint":
        return np.zeros((len(observation), observation.examples), int)
    if settings.label == "given":
        assert observation.known_labels is not None
        return np.asarray(observation.known_labels)
    dummies = jax.random.uniform(jax.random.key(0, impl="threefry2x32"), (DUMMIES, *observation.shape), dtype)
    return labels.infer(observation, np.asarray(dummies))


def _work(
    problem: Problem,
    settings: GradientMatching,
    observation: GradientObservation,
    guessed: np.ndarray,
    plan: _Plan,
    dtype: str,
) -> scheduler.Work:
    """The starting points, what belongs to each start, and the parameters that all share."""
    z = inits.starts(settings, observation, guessed[plan.attack], plan.keys, dtype).reshape(len(plan.keys), -1)
    origin = None
    if problem.geometric:
        origin, z = z, np.concatenate([np.ones_like(z), np.zeros_like(z)], axis=1)
    if problem.joint:
        logits = inits.label_logits(plan.keys, problem.examples * problem.classes, dtype)
        z = np.concatenate([z, logits], axis=1)

    def rows(tree: Tree) -> Tree:
        return jax.tree.map(lambda a: np.asarray(a, dtype)[plan.attack], tree)

    q = np.eye(problem.classes, dtype=dtype)[guessed[plan.attack]]
    own = rows(observation.params) if observation.own_params else None
    shared = None if observation.own_params else jax.tree.map(lambda a: jnp.asarray(a, dtype), observation.params)
    weight = weights(problem.settings, observation.gradients).astype(dtype)[plan.attack]
    return scheduler.Work(z, Job(rows(observation.gradients), q, weight, own, origin), shared, settings)


def _read_out(problem: Problem, z: np.ndarray, guessed: np.ndarray, origin: Origin) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels from the optimised vectors z."""
    found = problem.inputs(z, origin)
    inputs = found if problem.span is None else np.clip(found, *problem.span)
    return inputs, problem.label_logits(z).argmax(axis=2) if problem.joint else guessed
