"""Measurements of dpfl: one noised epoch on a trained model, the time that noise takes, attacks on some of the layers."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.config import for_attack, load
from fedveil.models.layers import Array, Params
from fedveil.models.net import Model
from fedveil.recipes.cell import Job

Result = dict[str, Any]
SHOWN = (0, 1, 10, 30, 100, 300, 1000)  # iterations at which a trace of the attack's loss is read


# --- Table II


def noised_epoch(job: Job) -> Result:
    """Accuracy of a trained model after one more epoch whose update is clipped and noised (dpfl, Table II).

    The config is one client that holds everything. It is trained to the accuracy `target`, or to the end of its rounds; the
    weight difference of one more epoch is clipped to `clip`, in L1 norm or by `clip_norm`, and noised with ε divided among
    the layers by PoGZ, by its inverse, or evenly. PoGZ is taken on the public set; `validation`: on the training examples
    that the client does not hold. Accuracy is the mean over `draws` of the noise.
    """
    from fedveil.core.stage import StageContext
    from fedveil.defenses.dpfl import DPFL

    federation, params, update = _trained(job.settings, float(job.options["target"]))
    simulator, options = federation.simulator, job.options
    shares = _shares(federation, params, bool(options.get("validation")))
    setting = simulator.task.setting
    bound, norm = float(options["clip"]), options.get("clip_norm", "l1")
    mechanism = DPFL(clip=bound, clip_norm=norm, epsilon=float(options["epsilon"])).mechanism(setting)

    def point(draw: int) -> StageContext:
        return StageContext(setting, jax.random.key(draw), jax.random.key(draw), 0, setting.lr)

    moved = jax.tree.map(jnp.add, params, mechanism.clip_one(update, point(0)))

    def accuracy(parts: dict[str, float], draw: int) -> float:
        return simulator.evaluate(mechanism.noise_by_share(moved, parts, point(draw)))[0]

    draws = range(int(options["draws"]))
    found = {name: float(np.mean([accuracy(parts, draw) for draw in draws])) for name, parts in shares.items()}
    return {
        "baseline_accuracy": simulator.evaluate(params)[0],
        "clipped_accuracy": simulator.evaluate(moved)[0],
        **found,
        "promotion": found["pogz"] / found["even"] - 1.0,
        "inverse_promotion": found["inverse"] / found["even"] - 1.0,
        "update_l1": float(sum(np.abs(a).sum() for a in jax.tree.leaves(update))),
        "update_largest": max(float(np.abs(a).max()) for a in jax.tree.leaves(update)),
        "shares": shares["pogz"],
    }


def _shares(federation: Any, params: Params, validation: bool) -> dict[str, dict[str, float]]:
    """Each layer's part of ε by PoGZ (Eq. 3), by its inverse, and evenly."""
    from fedveil.defenses import importance

    task, part = federation.simulator.task, federation.dataset.public
    if validation:
        free = np.ones(len(federation.dataset.train), bool)
        free[federation.partition.client(0)] = False
        part = federation.dataset.train.take(np.flatnonzero(free))
    x = jnp.asarray(part.x).astype(task.dtype) * federation.dataset.scale
    pogz = importance.pogz(task.model, params, x, jnp.asarray(part.y), jnp.ones(len(x), bool))
    ways = {"pogz": importance.shares_of_budget(pogz), "inverse": importance.shares_of_budget(pogz, inverse=True)}
    measured = {way: {name: float(share) for name, share in shares.items()} for way, shares in ways.items()}
    return {**measured, "even": dict.fromkeys(params, 1.0 / len(params))}


@lru_cache(maxsize=1)
def _trained(settings: tuple[str, ...], target: float) -> tuple[Any, Params, Params]:
    """A federation, its model once it has reached the accuracy, and what one more epoch adds to it."""
    from fedveil.federation import prepare

    federation = prepare(load(None, list(settings)))
    simulator = federation.simulator
    state, number = simulator.start(), 0
    while number < federation.rounds:
        state, _ = simulator.round(state, number)
        number += 1
        if simulator.evaluate(state.params)[0] >= target:
            break
    before = jax.device_get(state.params)
    state, _ = simulator.round(state, number)
    after = jax.device_get(state.params)
    return federation, jax.tree.map(jnp.asarray, before), jax.tree.map(lambda a, b: jnp.asarray(a - b), after, before)


# --- Table IV


def noise_time(job: Job) -> Result:
    """Milliseconds that a client takes to clip and noise one update. Measuring the importances is not included."""
    from fedveil.core.stage import StageContext
    from fedveil.federation import prepare

    simulator = prepare(load(None, list(job.settings))).simulator
    task, state = simulator.task, simulator.start()
    defense = task.defenses[0]
    memory = jax.tree.map(lambda a: a[0], state.clients["0"])

    @jax.jit
    def noised(update: Params, key: Array) -> Params:
        at = StageContext(task.setting, key, key, 0, task.setting.lr)
        return defense.apply_with_state("upload", update, memory, at)[0]

    times = []
    for draw in range(int(job.options["repeats"]) + 1):
        key = jax.random.key(draw)
        begun = time.monotonic()
        for leaf in jax.tree.leaves(noised(state.params, key)):
            leaf.block_until_ready()
        times.append((time.monotonic() - begun) * 1e3)
    kept = times[1:]  # the first one compiles
    return {"milliseconds": float(np.median(kept)), "low": float(min(kept)), "high": float(max(kept))}


# --- Figs 1 and 7 to 10


@dataclass(frozen=True, eq=False)
class Looked:
    """A network of which an attacker matches some layers only: the others are constants, `held`."""

    model: Model
    held: Params

    def init(self, key: Array) -> Params:
        return {name: own for name, own in self.model.init(key).items() if name not in self.held}

    def apply(self, params: Params, x: Array) -> Array:
        return self.model.apply({**self.held, **params}, x)


def attack_layers(job: Job) -> Result:
    """A study of reconstructions with the attack's loss along the way; `layers`: those whose gradients are matched.

    `loss` holds the median over the attacks of the squared gradient distance as an iteration opens; an attack that has
    ended keeps its last value.
    """
    from fedveil.attacks.reconstruction.matching import GradientMatching
    from fedveil.attacks.study import Round, run_on
    from fedveil.federation import prepare

    config = for_attack(load(None, list(job.settings)))
    attack, layers = config.attack.make(), tuple(job.options.get("layers") or ())
    assert isinstance(attack, GradientMatching)
    federation = prepare(config, trainable=False)
    state = federation.simulator.start()
    attacked = Round(federation, state, 0, lambda seen: only(seen, layers) if layers else seen)
    done = run_on(attacked, attack, config.attack)
    trace = np.concatenate([group.reconstruction.trace for group in done.groups])
    skipped = ("round", "compile_seconds")
    document = {key: value for key, value in done.as_dict().items() if key not in skipped}
    return {**document, "loss": losses(trace, attack.iterations)}


def only(seen: Any, layers: tuple[str, ...]) -> Any:
    """An observation of the gradients of some layers; the whole model stays known."""
    held = {name: own for name, own in seen.params.items() if name not in layers}
    return replace(
        seen,
        model=Looked(seen.model, held),
        params={name: seen.params[name] for name in layers},
        gradients={name: seen.gradients[name] for name in layers},
    )


def losses(trace: np.ndarray, iterations: int) -> dict[str, float]:
    """Median over the attacks of the loss at a few iterations and at the end; trace [attacks, iterations + 1]."""
    known = trace.copy()
    for column in range(1, known.shape[1]):
        ended = np.isnan(known[:, column])
        known[ended, column] = known[ended, column - 1]
    at = [number for number in SHOWN if number < iterations]
    return {**{str(n): float(np.median(known[:, n])) for n in at}, "end": float(np.median(known[:, iterations]))}
