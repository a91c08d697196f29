"""The search's training: a plain loop over rounds, for a linear model and one local step, distributed as the engine's.

One local step of a linear model by all clients is one step on the sum of clipped example gradients, plus noise. The norm of
an example's gradient is the product of two norms, so a round is two matrix products. A round reads at most `SAMPLE`
records for its mean, whatever the size of the federation; the noise is that of the full size. What is printed as expected
accuracy never comes from here: the chosen settings are trained by the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedveil.advice.candidates import MOMENTUM

SAMPLE = 2000


@dataclass(frozen=True)
class Records:
    """Records as rows of floats, for a linear model with a bias."""

    x: np.ndarray  # [n, width] float32
    y: np.ndarray  # [n]
    x_held: np.ndarray  # records that no client holds, on which settings are compared
    y_held: np.ndarray
    classes: int


@dataclass(frozen=True)
class Recipe:
    """The numbers of a setting that the loop uses."""

    rounds: int
    clip: float
    lr: float
    noise: float  # standard deviation of the noise on the mean gradient of a round
    records: float  # expected records in a round


def accuracy(data: Records, recipe: Recipe, seed: int = 0) -> float:
    """The accuracy on held-out records after a training."""
    rng = np.random.default_rng(seed)
    width = data.x.shape[1]
    weights = np.zeros((width + 1, data.classes), np.float32)
    velocity = np.zeros_like(weights)
    count = int(max(1, min(SAMPLE, recipe.records, len(data.x))))
    for number in range(recipe.rounds):
        rows = rng.integers(len(data.x), size=count)
        mean = _clipped_mean(data.x[rows], data.y[rows], weights, recipe.clip)
        if recipe.noise:
            mean += recipe.noise * rng.standard_normal(mean.shape, np.float32)
        share = number / (recipe.rounds - 1) if recipe.rounds > 1 else 0.0
        velocity = MOMENTUM * velocity - recipe.lr * (1.0 - 0.9 * share) * mean
        weights += velocity
    scores = data.x_held @ weights[:-1] + weights[-1]
    return float((scores.argmax(axis=1) == data.y_held).mean())


def _clipped_mean(x: np.ndarray, y: np.ndarray, weights: np.ndarray, clip: float) -> np.ndarray:
    """The mean of the gradients of these records, each clipped: weights and bias together."""
    scores = x @ weights[:-1] + weights[-1]
    scores -= scores.max(axis=1, keepdims=True)
    errors = np.exp(scores)
    errors /= errors.sum(axis=1, keepdims=True)
    errors[np.arange(len(y)), y] -= 1.0
    norms = np.sqrt(np.square(errors).sum(axis=1) * (np.square(x).sum(axis=1) + 1.0))
    errors *= np.minimum(1.0, clip / np.maximum(norms, 1e-12))[:, None] / len(y)
    return np.concatenate([x.T @ errors, errors.sum(axis=0, keepdims=True)])
