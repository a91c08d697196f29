"""Model inversion: the common features of a class, from a model that has learnt it (2dp-fl, sections IV.B and VI.A).

The attacker has a model: its own (`passive-local`), the one that goes out (`passive-global`) or the victim's (`active`). It
computes x = C⁻¹(y, w), an input that the model takes for the class y. Two ways:

- `ascent`: maximise log p(y | x) − ‖x‖²/2 − tv·TV(x) by Adam from a nearly blank input, kept in the span that inputs are
  known to have. The square is a standard normal prior: without it every pixel runs to the edge of the span, whatever its
  weight, and what was learnt drowns in what was never trained. It also makes the result independent of the step length.
- `closed`, for logistic regression p = softmax(Wᵀx + b): with W̄ and b̄ centred over the classes, since a softmax sees
  differences of logits alone, x = W̄(W̄ᵀW̄)⁺(t̄ − b̄) is the shortest input whose class probabilities are exactly those of
  the target, `CONFIDENCE` for y and the rest shared evenly, t the logarithm of these. It is then stretched to the span.

The attacker computes every class, or those that it was told to; which of them the victim holds, only the bench knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedveil.attacks.adversaries import Inference
from fedveil.attacks.inference import several
from fedveil.attacks.inference.inversion_score import (
    Truth,
    noise_pictures,
    score_classes,
    stretched,
    summary,
    truth_of,
)
from fedveil.attacks.inference.outcome import Outcome
from fedveil.attacks.inference.watch import Sighting, check_clients, look, states
from fedveil.attacks.reconstruction.regularise import total_variation
from fedveil.config import Config
from fedveil.core.errors import ConfigError
from fedveil.core.keys import Draws
from fedveil.federation import Federation
from fedveil.models.layers import Array, Dense, Flatten, Params, Shape
from fedveil.models.net import Model, Net

FAINT = 0.01  # the start, as a share of the span: at zero itself a network without biases has no gradient
CONFIDENCE = 0.99  # that the closed form asks of the model
AT_ONCE = 16  # federations whose inputs are computed together

Progress = Callable[[int, int], None]


# --- the attack: from what the seat shows, and nothing else -------------------------------------------------------


def invert(sightings: Sequence[Sighting], classes: Sequence[int], settings: Inference) -> np.ndarray:
    """[federations, classes, ...shape] float64: an input of each class, from the last model of each sighting.

    All sightings are of the same network. A model that is not finite gives blank inputs.
    """
    first = sightings[0]
    models = jax.tree.map(lambda *each: np.stack(each), *[seen.last for seen in sightings])
    usable = np.stack([np.isfinite(a).reshape(len(a), -1).all(axis=1) for a in jax.tree.leaves(models)]).all(axis=0)
    models = jax.tree.map(lambda a: np.where(usable.reshape(-1, *[1] * (a.ndim - 1)), a, 0), models)
    found = METHODS[settings.method](first, models, np.asarray(classes, np.int32), settings)
    return np.where(usable.reshape(-1, *[1] * (found.ndim - 1)), found, 0.0)


def ascent(seen: Sighting, models: Params, classes: np.ndarray, settings: Inference) -> np.ndarray:
    """Gradient ascent for all classes of all federations (models [federations, ...]) in one program."""
    precision = jax.tree.leaves(models)[0].dtype
    how = _Ascent(seen.model, tuple(seen.shape), seen.span, settings.iterations, settings.lr, settings.tv)
    with jax.enable_x64(precision == np.float64), jax.default_matmul_precision("highest"):
        return np.asarray(_ascend_all(how, models, classes), np.float64)


@dataclass(frozen=True)
class _Ascent:
    """All that is the same for every class and federation: static under jit."""

    model: Model
    shape: Shape
    span: tuple[float, float] | None
    iterations: int
    lr: float
    tv: float


@partial(jax.jit, static_argnums=0)
def _ascend_all(how: _Ascent, models: Params, labels: Array) -> Array:
    each = jax.vmap(partial(_ascend, how), in_axes=(None, 0))
    return jax.lax.map(lambda params: each(params, labels), models, batch_size=AT_ONCE)


def _ascend(how: _Ascent, params: Params, label: Array) -> Array:
    """The input of one class under one model; steps shrink to nothing, so that Adam comes to rest."""
    low, high = how.span if how.span is not None else (-np.inf, np.inf)

    def loss(x: Array) -> Array:
        value = -jax.nn.log_softmax(how.model.apply(params, x[None])[0])[label] + jnp.sum(x * x) / 2
        return value + how.tv * total_variation(x[None, None])[0] if how.tv else value

    def step(_: int, at: tuple[Array, Any]) -> tuple[Array, Any]:
        x, memory = at
        moved, memory = adam.update(jax.grad(loss)(x), memory)
        return jnp.clip(x + moved, low, high), memory

    adam = optax.adam(optax.linear_schedule(how.lr, 0.0, how.iterations))
    faint = np.clip(0.0, low, high) + FAINT * (high - low if how.span is not None else 1.0)
    start = jnp.full(how.shape, faint, jax.tree.leaves(params)[0].dtype)
    return jax.lax.fori_loop(0, how.iterations, step, (start, adam.init(start)))[0]


def closed(seen: Sighting, models: Params, classes: np.ndarray, settings: Inference) -> np.ndarray:
    """Logistic regression solved for its input, then stretched to the span."""
    layer = models[next(iter(models))]
    solved = np.stack(
        [
            solve(np.asarray(w, np.float64), np.asarray(b, np.float64), classes)
            for w, b in zip(layer["w"], layer["b"], strict=True)
        ]
    ).reshape(-1, len(classes), *seen.shape)
    if seen.span is None:
        return solved
    low, high = seen.span
    return low + (high - low) * np.stack([[stretched(x) for x in each] for each in solved])


def solve(w: np.ndarray, b: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """[classes, inputs]: the shortest x with softmax(wᵀx + b) as asked; w [inputs, labels], b [labels]."""
    labels = len(b)
    wanted = np.full((len(classes), labels), (1 - CONFIDENCE) / (labels - 1))
    wanted[np.arange(len(classes)), classes] = CONFIDENCE
    logits = np.log(wanted)
    centred = w - w.mean(axis=1, keepdims=True)
    missing = logits - logits.mean(axis=1, keepdims=True) - (b - b.mean())
    return missing @ np.linalg.pinv(centred)


def is_logistic(model: Model) -> bool:
    """Whether a model is one dense layer on its input, and nothing else."""
    if not isinstance(model, Net):
        return False
    rest = [layer for layer in model.layers if not isinstance(layer, Flatten)]
    return len(rest) == 1 and isinstance(rest[0], Dense) and rest[0].bias


METHODS: dict[str, Callable[[Sighting, Params, np.ndarray, Inference], np.ndarray]] = {
    "ascent": ascent,
    "closed": closed,
}


# --- the bench: trains, hands out what the seat shows, scores ------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One federation: what each seat saw of it, the model it began with, and what the victim holds."""

    seed: int
    seen: tuple[Sighting, ...]  # one for each of the settings asked
    start: Sighting
    truth: Truth
    accuracy: float  # of the global model, on the held-out part


def attack(config: Config, settings: Inference, progress: Progress, draws: Draws | None = None) -> Outcome:
    """Trains `attack.seeds` federations, inverts their models and scores what was recovered."""
    started = time.monotonic()
    check_keys(config, settings)
    cases = list(gather(config, [settings], progress, draws))
    found, scores = judge(cases, settings, 0)
    first = cases[0]
    document = {
        "attack": settings.name,
        "seat": settings.seat,
        "tap": settings.stands_at,
        "round": first.seen[0].rounds[-1],
        "method": settings.method,
        "success_rate": None,
        **summary(scores),
        "controls": controls(cases, settings),
        "accuracy": float(np.mean([case.accuracy for case in cases])),
        "federations": len(cases),
        "seconds": time.monotonic() - started,
    }
    if len(first.seen[0].shape) != 3:
        return Outcome(document)
    shown = wanted_classes(first, settings)
    rows = (first.truth.means(shown), np.stack([stretched(x) for x in found[0]]))
    return Outcome(document, rows, ("class mean of the victim", f"recovered, {settings.seat}"))


def check_keys(config: Config, settings: Inference) -> None:
    """Refuses keys that the method would not read."""
    if settings.method == "ascent":
        return
    for key in ("iterations", "lr", "tv"):
        if key in config.attack.model_fields_set:
            takes = f"is not read by method '{settings.method}': leave it out"
            raise ConfigError(f"attack.{key}", getattr(config.attack, key), takes)


def check(federation: Federation, settings: Inference) -> None:
    """Refuses a model, a client, a class or a regulariser that there is not, before anything is trained."""
    check_clients(federation, settings)
    if settings.method == "closed" and not is_logistic(federation.simulator.task.model):
        takes = "solves logistic regression alone: set model.name to 'logistic', or take 'ascent'"
        raise ConfigError("attack.method", "closed", takes)
    if settings.tv and len(federation.dataset.shape) != 3:
        raise ConfigError("attack.tv", settings.tv, "is for images: leave it out for attributes")
    held = truth_of(federation, settings.victim).classes
    for label in settings.classes or ():
        if label not in held:
            takes = (
                f"client {settings.victim} holds {', '.join(map(str, held))}: there is nothing to compare others with"
            )
            raise ConfigError("attack.classes", label, takes)


def gather(
    config: Config,
    asked: Sequence[Inference],
    progress: Progress = lambda done, total: None,
    draws: Draws | None = None,
) -> Iterable[Case]:
    """Trains the federations one after the other and looks at each from all seats that are asked for.

    `draws`: those of the first federation, where it is a run that is attacked.
    """
    count, data = config.attack.seeds, None
    draws = draws or Draws.of(config.train.noise_seed)
    for place in range(count):
        federation = several.federation(config, place, draws, dataset=data)
        data = federation.dataset
        for settings in asked:
            check(federation, settings)
        rounds = _rounds(federation, config.attack.round)
        first = jax.device_get(federation.simulator.start().params)
        count_up = partial(_count_up, progress, place * rounds, count * rounds)
        for number, state in states(federation, rounds, count_up):
            if number == rounds:
                seen = look(federation, state, rounds, asked)
                accuracy = federation.simulator.evaluate(state.params)[0]
        start = replace(seen[0], models=(first,), rounds=(0,), received=())
        yield Case(federation.config.train.seed, seen, start, truth_of(federation, asked[0].victim), accuracy)


def _count_up(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    progress(before + done, total)


def _rounds(federation: Federation, asked: int | None) -> int:
    if asked is None:
        return federation.rounds
    if asked > federation.rounds:
        raise ConfigError("attack.round", asked, f"takes 0 to {federation.rounds}, the rounds that are trained")
    return asked


def wanted_classes(case: Case, settings: Inference) -> tuple[int, ...]:
    """The classes that are scored: those asked for, or all that the victim holds."""
    return tuple(settings.classes) if settings.classes else case.truth.classes


def judge(
    cases: Sequence[Case], settings: Inference, place: int | None
) -> tuple[list[np.ndarray], list[list[dict[str, Any]]]]:
    """For each federation the inputs recovered of the scored classes, and a score of each of these.

    `place` says which of the sightings is attacked; None: the model that each federation began with.
    """
    sightings = [case.start if place is None else case.seen[place] for case in cases]
    classes = tuple(settings.classes or range(sightings[0].classes))
    every = invert(sightings, classes, settings)
    found, scores = [], []
    for case, seen, inputs in zip(cases, sightings, every, strict=True):
        wanted = wanted_classes(case, settings)
        kept = inputs[[classes.index(label) for label in wanted]]
        found.append(kept)
        scores.append(score_classes(kept, answers(seen, kept), wanted, case.truth))
    return found, scores


def answers(seen: Sighting, inputs: np.ndarray) -> np.ndarray:
    """The class that the attacked model gives to each input."""
    dtype = jax.tree.leaves(seen.last)[0].dtype
    with jax.enable_x64(dtype == np.float64):
        return np.asarray(seen.model.apply(seen.last, jnp.asarray(inputs, dtype)).argmax(axis=1))


def controls(cases: Sequence[Case], settings: Inference) -> dict[str, dict[str, Any]]:
    """What the scores are where nothing was learnt: the same attack on the untrained model, noise, a blank picture."""
    shapes = [(len(wanted_classes(case, settings)), *case.start.shape) for case in cases]
    made = {
        "untrained": judge(cases, settings, None)[1],
        "noise": [_alone(c, settings, noise_pictures(c.seed, s)) for c, s in zip(cases, shapes, strict=True)],
        "blank": [_alone(c, settings, np.zeros(s)) for c, s in zip(cases, shapes, strict=True)],
    }
    keys = ("ssim", "mse", "recognised_rate")
    return {name: {key: summary(scores)[key] for key in keys} for name, scores in made.items()}


def _alone(case: Case, settings: Inference, inputs: np.ndarray) -> list[dict[str, Any]]:
    """Scores of pictures that no model was asked for."""
    wanted = wanted_classes(case, settings)
    return score_classes(inputs, answers(case.start, inputs), wanted, case.truth)
