"""Labels read off the gradient of the last layer.

For cross-entropy, the last layer's gradient of one example is h ⊗ (p − y), with h ≥ 0 the features, p the predicted
probabilities: only the true class has a negative factor, so its column has the least sum. Where features can be negative
their sum may be too; the bias gradient, which is p − y, then gives the sign.

For several examples the column sums mix: Σ p − counts. The attacker has the model, so it estimates p from dummy inputs and
reads the counts off the difference. That is exact when predictions are constant, and good for an untrained model. Knowing
that a client holds few classes helps, which is what cpl relies on.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks.observation import GradientObservation
from fedveil.core.errors import RunError
from fedveil.models.layers import Activation, Dense
from fedveil.models.net import Net


def infer(observation: GradientObservation, dummies: np.ndarray | None = None) -> np.ndarray:
    """[attacks, examples] labels, in ascending order within an attack; `dummies` [n, ...shape] are random inputs."""
    weights, bias = _last_layer(observation)
    sums = weights.sum(axis=1)  # [attacks, classes]
    if observation.examples == 1:
        return _single(sums, bias, _features_are_positive(observation))[:, None]
    counts = _counts(observation, sums, bias, dummies)
    if observation.held_classes is not None:
        counts = _only_largest(counts, observation.held_classes)
    return np.stack([_greedy(row, observation.examples) for row in counts])


def _last_layer(observation: GradientObservation) -> tuple[np.ndarray, np.ndarray | None]:
    """Gradients of the layer that makes the logits: weights [attacks, inputs, classes], bias [attacks, classes]."""
    name = _logit_layer(observation)
    layer = observation.gradients[name]
    arrays = {key: np.asarray(value, np.float64) for key, value in layer.items()}
    weights = next(a for a in arrays.values() if a.ndim == 3)
    if weights.shape[2] != observation.classes:  # models from elsewhere may have the classes first
        weights = weights.swapaxes(1, 2)
    return weights, next((a for a in arrays.values() if a.ndim == 2), None)


def _logit_layer(observation: GradientObservation) -> str:
    if isinstance(observation.model, Net):
        last = observation.model.layers[-1]
        if isinstance(last, Dense):
            return last.name
    for name, layer in reversed(observation.gradients.items()):
        if any(np.ndim(a) == 3 and observation.classes in np.shape(a)[1:] for a in layer.values()):
            return name
    why = "the model has no last layer [inputs, classes]"
    raise RunError(f"labels cannot be inferred: {why}; grant them (label = 'given')")


def _features_are_positive(observation: GradientObservation) -> bool:
    """Whether the inputs of the last layer are known to be zero or positive."""
    model = observation.model
    if not isinstance(model, Net):
        return False
    kinds = [layer.kind for layer in model.layers if isinstance(layer, Activation)]
    return (kinds[-1] in ("relu", "sigmoid")) if kinds else observation.span is not None and observation.span[0] >= 0


def _single(sums: np.ndarray, bias: np.ndarray | None, positive: bool) -> np.ndarray:
    if positive:
        return sums.argmin(axis=1)
    if bias is not None:
        sign = np.sign((sums * bias).sum(axis=1))
    else:  # of p − y, the true class has the largest magnitude
        largest = np.abs(sums).argmax(axis=1)
        sign = -np.sign(sums[np.arange(len(sums)), largest])
    sign[sign == 0] = 1.0
    return (sign[:, None] * sums).argmin(axis=1)


def _counts(
    observation: GradientObservation, sums: np.ndarray, bias: np.ndarray | None, dummies: np.ndarray | None
) -> np.ndarray:
    """Estimated number of examples of each class [attacks, classes]."""
    if dummies is None:
        raise RunError("labels of several examples are inferred from the model's predictions: dummies are needed")
    p, features = _predictions(observation, dummies)
    if bias is None:
        bias = sums / np.maximum(features, 1e-12)[:, None]
    return observation.examples * (p - bias)


def _predictions(observation: GradientObservation, dummies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean prediction [attacks or 1, classes] and mean feature sum [attacks or 1] on the dummy inputs."""
    name = _logit_layer(observation)

    def one(params: dict) -> tuple[jax.Array, jax.Array]:
        logits = observation.model.apply(params, jnp.asarray(dummies))
        p = jax.nn.softmax(logits)
        # ∂logit₀/∂w[i, 0] is feature i: this holds for any model whose last layer is linear.
        slope = jax.grad(lambda w: observation.model.apply({**params, name: w}, jnp.asarray(dummies))[:, 0].mean())
        weights = next(a for a in slope(params[name]).values() if a.ndim == 2)
        return p.mean(axis=0), weights.sum()

    if observation.own_params:
        p, features = jax.vmap(one)(observation.params)
    else:
        p, features = jax.tree.map(lambda a: a[None], one(observation.params))
    return np.asarray(p, np.float64), np.asarray(features, np.float64)


def _only_largest(counts: np.ndarray, classes: int) -> np.ndarray:
    rank = np.argsort(np.argsort(-counts, axis=1), axis=1)  # 0 for the largest
    return np.where(rank < classes, counts, -np.inf)


def _greedy(counts: np.ndarray, examples: int) -> np.ndarray:
    """Labels whose counts add up: each example goes to the class with the largest remaining count."""
    left, found = counts.copy(), []
    for _ in range(examples):
        found.append(int(left.argmax()))
        left[found[-1]] -= 1.0
    return np.sort(np.array(found))
