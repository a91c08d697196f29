"""The objective of gradient matching: a distance of gradients plus regularisers, of one flat vector per attack."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks import gradients
from fedveil.attacks.observation import GradientObservation
from fedveil.attacks.reconstruction import passes, regularise
from fedveil.attacks.reconstruction.distance import DISTANCES, squared
from fedveil.attacks.reconstruction.matching import GradientMatching
from fedveil.core.errors import ConfigError
from fedveil.models.layers import Array, Params, Shape
from fedveil.models.net import Model, Net

Tree = Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Job:
    """The constants of each attack; every array has a leading axis over the attacks."""

    target: Params  # the observed gradients
    q: Array  # [attacks, examples, classes] label weights; unread where labels are optimised
    weight: Array  # [attacks] of the distance in the objective
    params: Params | None  # the victims' models, where they differ
    origin: Array | np.ndarray | None = None  # [attacks, content] the start, where the geometric form is optimised


@dataclass(frozen=True)
class Problem:
    """What all attacks have in common; static under jit."""

    model: Model
    shape: Shape
    classes: int
    examples: int
    settings: GradientMatching
    span: tuple[float, float] | None
    steps: int = 1  # local steps to simulate
    lr: float = 0.0  # of those
    order: tuple[tuple[int, ...], ...] | None = None

    @property
    def joint(self) -> bool:
        return self.settings.label == "joint"

    @property
    def geometric(self) -> bool:
        return self.settings.form == "geometric"

    @property
    def content(self) -> int:
        """The number of values in an attack's inputs."""
        return self.examples * math.prod(self.shape)

    @property
    def size(self) -> int:
        """The number of optimised values: the inputs, and the logits of the labels where these are optimised too."""
        return self._free + (self.examples * self.classes if self.joint else 0)

    @property
    def _free(self) -> int:
        """The number of optimised values that give the inputs: in the geometric form w and b of each."""
        return self.content * (2 if self.geometric else 1)

    def inputs(self, z: Any, origin: Any = None) -> Any:
        """[attacks, examples, ...shape] of the optimised vectors z; in the geometric form w·(origin − b)."""
        flat = z[:, : self.content]
        if self.geometric:
            flat = flat * (origin - z[:, self.content : self._free])
        return flat.reshape(-1, self.examples, *self.shape)

    def label_logits(self, z: Any) -> Any:
        """[attacks, examples, classes], where labels are optimised too."""
        return z[:, self._free :].reshape(-1, self.examples, self.classes)


def pose(observation: GradientObservation, settings: GradientMatching) -> Problem:
    """The optimisation problem for an observation. Raises an error for settings that the observation does not support."""
    if settings.tv > 0 and len(observation.shape) != 3:
        takes = f"is for images; examples have shape {observation.shape}: set it to 0"
        raise ConfigError("attack.tv", settings.tv, takes)
    if settings.label == "given" and observation.known_labels is None:
        raise ConfigError("attack.label", "given", "the attacker was granted no labels: set it to 'infer' or 'joint'")
    seen = observation
    posed = Problem(seen.model, seen.shape, seen.classes, seen.examples, _compiled_part(settings), seen.span)
    if settings.reading != "simulated":
        return posed
    if seen.lr is None:
        raise ConfigError("attack.reading", "simulated", "needs the victims' learning rate among the capabilities")
    return replace(posed, steps=seen.local_steps, lr=seen.lr, order=seen.order)


def _compiled_part(settings: GradientMatching) -> GradientMatching:
    """The settings without those that only decide where attacks start and when they end.

    Studies that differ only in these share one program, whatever the class of the attack.
    """
    shared = GradientMatching(**{f.name: getattr(settings, f.name) for f in fields(GradientMatching)})
    label = "joint" if settings.label == "joint" else "infer"
    room = max(512, 1 << settings.iterations.bit_length()) - 1  # for the trace, in few sizes
    started = replace(shared, init="", file=None, restarts=0, label=label)
    return replace(started, iterations=room, stop=None, plateau=None)


def weights(settings: GradientMatching, target: Params) -> np.ndarray:
    """The distance's weight [attacks], because L-BFGS has absolute tolerances.

    Where the model already classifies an example well, its gradient is short, and the attack would stop early, far from it.
    So the squared distance is measured in units of the gradient's length if that is below 1. For small differences
    ‖Δ‖², the cosine distance is up to ‖Δ‖²/(2‖g‖²), and the divergence of the softmax of n values ‖Δ‖²/(2n): with
    L-BFGS these two are brought to the same scale.
    """
    flat = [np.asarray(a, np.float64).reshape(len(a), -1) for a in jax.tree.leaves(target)]
    length = np.sum([np.square(a).sum(axis=1) for a in flat], axis=0)
    length = np.where(np.isfinite(length) & (length > 0), length, 1.0)
    short = 1.0 / np.minimum(1.0, length)
    if settings.distance == "l2":
        return short
    if settings.optimizer == "lbfgs" and settings.distance in ("cosine", "entropy"):
        return 2.0 * short * (length if settings.distance == "cosine" else sum(a.shape[1] for a in flat))
    return np.ones(len(length))


def evaluate(problem: Problem, shared: Params | None, job: Job, z: Array) -> tuple[Array, Array, Array]:
    """Objective [attacks], squared gradient distance [attacks], gradient of the objective [attacks, size] at z."""
    settings = problem.settings
    x, to_form = jax.vjp(lambda z: problem.inputs(z, job.origin), z) if problem.geometric else (problem.inputs(z), None)
    q, to_logits = jax.vjp(lambda z: jax.nn.softmax(problem.label_logits(z)) if problem.joint else job.q, z)
    found, pull = _gradients(problem, shared, job, x, q)
    distance, back = jax.vjp(lambda found: DISTANCES[settings.distance](found, job.target), found)
    slope, label_slope = pull(back(job.weight)[0])
    apart = distance if settings.distance == "l2" else squared(found, job.target)
    value = job.weight * distance
    if settings.tv > 0 or settings.alpha > 0:
        more, also = _regularised(problem, shared, job, x)
        value, slope = value + more, slope + also
    if to_form is not None:
        flat = to_form(slope)[0]
        return value, apart, flat + to_logits(label_slope)[0] if problem.joint else flat
    flat = slope.reshape(z.shape[0], -1)
    if problem.joint:
        flat = jnp.pad(flat, ((0, 0), (0, problem.size - problem.content))) + to_logits(label_slope)[0]
    return value, apart, flat


def _gradients(problem: Problem, shared: Params | None, job: Job, x: Array, q: Array) -> tuple[Params, passes.Pull]:
    params = job.params if shared is None else shared
    assert params is not None
    if problem.steps > 1:
        rules: dict[str, Any] = {"lr": problem.lr, "steps": problem.steps, "order": problem.order}
        return gradients.of_local_steps(problem.model, params, shared is None, x, q, **rules)
    if isinstance(problem.model, Net) and passes.fits(problem.model):
        return passes.gradients(problem.model, params, x, q)
    return gradients.of_any_model(problem.model, params, shared is None, x, q)


def _regularised(problem: Problem, shared: Params | None, job: Job, x: Array) -> tuple[Array, Array]:
    settings = problem.settings

    def terms(x: Array) -> Array:
        total = jnp.zeros(x.shape[0], x.dtype)
        if settings.tv > 0:
            total = total + settings.tv * regularise.total_variation(x)
        if settings.alpha > 0:
            params = job.params if shared is None else shared
            assert params is not None
            logits = jax.vmap(problem.model.apply, in_axes=(0 if shared is None else None, 0))(params, x)
            total = total + settings.alpha * regularise.label_term(logits, job.q)
        return total

    value, back = jax.vjp(terms, x)
    return value, back(jnp.ones_like(value))[0]
