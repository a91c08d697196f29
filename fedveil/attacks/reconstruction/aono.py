"""A fully connected first layer reveals its input in closed form (Aono et al. 2017).

Its weight gradient is x ⊗ δ and its bias gradient δ: every unit's column, divided by its bias gradient, is the input. All
units together are solved by least squares, which is exact for one example and gives most weight to the units with most
signal where the gradient was noised or pruned. With several examples a unit's quotient is a mixture of those that reach it.
The quotients that differ most are returned; where a unit is reached by one example only (ReLU), that example is exact.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedveil.attacks.base import ONCE, Execution, Reconstruction, ReconstructionAttack
from fedveil.attacks.observation import GradientObservation
from fedveil.attacks.reconstruction.matching import GradientMatching
from fedveil.core.errors import ConfigError
from fedveil.core.system import Lazy
from fedveil.models.layers import Dense, Flatten, Params
from fedveil.models.net import Net

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax, jnp = Lazy("jax"), Lazy("jax.numpy")


@dataclass(frozen=True)
class Aono(ReconstructionAttack):
    """Solves the first layer; draws nothing, so every seed gives the same."""

    name: ClassVar[str] = "aono"
    summary: ClassVar[str] = "a fully connected first layer, solved in closed form (Aono et al. 2017)"

    def run(self, observation: GradientObservation, execution: Execution = ONCE) -> Reconstruction:
        return solve(observation, execution.seeds)


def first_layer(observation: GradientObservation) -> tuple[np.ndarray, np.ndarray]:
    """Weight gradient [attacks, inputs, units] and bias gradient [attacks, units] of the layer that reads the input."""
    model, why = observation.model, "aono needs a model whose first layer is fully connected, with biases"
    if not isinstance(model, Net):
        raise ConfigError("attack.name", "aono", f"{why}; this model's layers are not known")
    layer = next((layer for layer in model.layers if not isinstance(layer, Flatten)), None)
    if not isinstance(layer, Dense) or not layer.bias:
        raise ConfigError("attack.name", "aono", f"{why}: take cpl for convolutions")
    own = observation.gradients[layer.name]
    return np.asarray(own["w"], np.float64), np.asarray(own["b"], np.float64)


def solve(observation: GradientObservation, seeds: tuple[int, ...] = (0,)) -> Reconstruction:
    """The inputs in closed form, repeated for every seed."""
    from fedveil.attacks.reconstruction import labels

    started = time.monotonic()
    weights, biases = first_layer(observation)
    found = np.stack([_inputs(w, b, observation.examples) for w, b in zip(weights, biases, strict=True)])
    found = found.reshape(len(observation), observation.examples, *observation.shape)
    if observation.span is not None:
        found = np.clip(found, *observation.span)
    dummies = np.asarray(jax.random.uniform(jax.random.key(0), (64, *observation.shape)))
    guessed = labels.infer(observation, dummies)
    distance = _distance(observation, found, guessed)
    attacks = len(observation)
    ending = np.where(np.isfinite(found).reshape(attacks, -1).all(axis=1), "converged", "failed")
    every, none = np.tile(np.arange(attacks), len(seeds)), np.zeros(attacks * len(seeds), int)
    return Reconstruction(
        attack=every,
        seed=np.repeat(np.asarray(seeds), attacks),
        inputs=np.nan_to_num(found)[every],
        labels=guessed[every],
        objective=distance[every],
        distance=distance[every],
        iterations=none,
        evaluations=none,
        ending=ending[every],
        trace=distance[every, None],
        seconds=time.monotonic() - started,
        compile_seconds=0.0,
    )


def _inputs(w: np.ndarray, b: np.ndarray, examples: int) -> np.ndarray:
    """[examples, inputs] from one attack's first layer: w [inputs, units], b [units]."""
    strength = float(b @ b)
    if not strength > 0:
        return np.zeros((examples, w.shape[0]))
    if examples == 1:
        return (w @ b / strength)[None]
    reached = np.flatnonzero(np.abs(b) > 1e-6 * math.sqrt(strength))
    quotients = (w[:, reached] / b[reached]).T  # [units, inputs]
    chosen = [int(np.abs(b[reached]).argmax())]
    for _ in range(examples - 1):
        apart = np.square(quotients[:, None] - quotients[chosen]).sum(axis=2).min(axis=1)
        chosen.append(int(apart.argmax()))
    return quotients[chosen]


def _distance(observation: GradientObservation, found: np.ndarray, guessed: np.ndarray) -> np.ndarray:
    """Squared gradient distance [attacks] of what was found: the same criterion as for the other attacks."""
    from fedveil.attacks.reconstruction.objective import Job, evaluate, pose

    problem = pose(observation, GradientMatching())

    def array(tree: Params) -> Params:
        return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)

    q = jax.nn.one_hot(guessed, observation.classes)
    own = array(observation.params) if observation.own_params else None
    job = Job(array(observation.gradients), q, jnp.ones(len(observation)), own)
    z = jnp.asarray(np.nan_to_num(found).reshape(len(observation), -1), jnp.float32)
    shared = None if observation.own_params else array(observation.params)
    return np.asarray(jax.jit(lambda job, z: evaluate(problem, shared, job, z)[1])(job, z), np.float64)
