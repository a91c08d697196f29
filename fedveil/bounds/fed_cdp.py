"""Fed-cdp's propositions: class frequencies under client sampling, and how far weights may be moved.

**Proposition 1.** A record that is drawn in two stages, a client and then one of its records, has each class as often as a
record drawn from all data: if all clients hold equally many records. It is a statement on single draws. The records of one
batch come from one client, so they are not a sample of all data, and amplification by q = B·Kt/N does not follow.

**Proposition 2 (Eqs. 5 to 8).** With scores g_j(x; w), label y and margins s_j = g_y − g_j over the other classes, a
move ξ of the weights keeps the decision for y whenever ‖ξ‖_u < min_j s_j / L_v, where L_v bounds ‖∇_w s_j‖_v for all
j and 1/u + 1/v = 1. Proof: from w to w + ξ a margin falls by at most L_v ‖ξ‖_u, by the mean value theorem and
Hölder's inequality.

Three points of the paper's text need care:

- It calls g_j a loss; the sign is right only for a score, of which the label's is the largest.
- It takes L_v from the gradient at the current weights. It must hold on the whole ball that ξ may reach: with ReLU units
  the gradient at one point may be zero where a small move is fatal. For a linear classifier the two are the same.
- With equality in Eq. (7) a margin may be zero, a tie; the decision is safe strictly below.

A linear classifier is a matrix [features + 1, classes], its last row the bias: the scores are (x, 1) @ weights.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from fedveil.core.errors import ConfigError

Floats = NDArray[np.float64]


def class_chances(held: ArrayLike) -> tuple[Floats, Floats]:
    """The chance of each class for a record of a random client, and the share of each class in all data.

    `held` [clients, classes] counts the records of every client, at least one each.
    """
    held = np.asarray(held, float)
    sizes = held.sum(axis=1, keepdims=True)
    if np.any(held < 0) or np.any(sizes == 0):
        raise ConfigError("held", float(held.min()), "takes counts from 0, and at least one record for each client")
    return (held / sizes).mean(axis=0), held.sum(axis=0) / held.sum()


def largest_distortion(margins: ArrayLike, lipschitz: ArrayLike) -> float:
    """The radius of Eq. (7), min_j s_j / L_v: any ‖ξ‖_u below it keeps the decision. Zero if it is already lost.

    `margins` holds s_j for every j ≠ y. `lipschitz` is one constant, or one for each margin (then the radius is larger);
    it must hold wherever w + ξ can be, not only at w.
    """
    margins, lipschitz = np.asarray(margins, float), np.asarray(lipschitz, float)
    if np.any(lipschitz < 0):
        raise ConfigError("lipschitz", float(lipschitz.min()), "takes constants from 0")
    if np.any(margins <= 0):
        return 0.0
    moving = lipschitz > 0  # a margin that no weight changes is never lost
    return float(np.min(np.where(moving, margins / np.where(moving, lipschitz, 1.0), np.inf), initial=np.inf))


def linear_margins(weights: ArrayLike, x: ArrayLike, label: int) -> Floats:
    """s_j = g_y − g_j for every other class j, in the order of the classes, for a linear classifier."""
    scores = _with_one(x) @ np.asarray(weights, float)
    return np.delete(scores[label] - scores, label)


def linear_lipschitz(x: ArrayLike, norm: float = 2.0) -> float:
    """L_v for a linear classifier at the input x, when ξ is measured in the u-norm `norm`: 2^(1/v) ‖(x, 1)‖_v.

    s_j is linear in the weights: its gradient is (x, 1) in column y, −(x, 1) in column j and zero elsewhere. So the
    constant is exact, the same for every j, and Proposition 2 is tight.
    """
    dual = dual_norm(norm)
    return float(2.0 ** (1.0 / dual) * np.linalg.norm(_with_one(x), dual))


def worst_distortion(x: ArrayLike, label: int, rival: int, classes: int, norm: float = 2.0) -> Floats:
    """The move of u-norm 1, [features + 1, classes], that takes most from the margin of `label` over `rival`: L_v.

    Hölder's inequality with equality: each entry as the gradient's to the power v − 1, against its sign.
    """
    gradient = np.zeros((np.size(x) + 1, classes))
    gradient[:, label], gradient[:, rival] = _with_one(x), -_with_one(x)
    dual = dual_norm(norm)
    if math.isinf(dual):  # u = 1: all in one largest entry
        move = np.zeros_like(gradient)
        index = np.unravel_index(np.argmax(np.abs(gradient)), gradient.shape)
        move[index] = np.sign(gradient[index])
        return -move
    scaled = gradient / np.abs(gradient).max()
    move = np.where(gradient == 0, 0.0, np.sign(gradient) * np.abs(scaled) ** (dual - 1.0))
    return -move / np.linalg.norm(move.ravel(), norm)


def chance_kept(radius: float, noise: float, dimension: int) -> float:
    """A lower bound on the chance that Gaussian noise on the weights (standard deviation `noise`) keeps the decision.

    P(‖ξ‖₂ < radius) = P(χ²_d < (radius / noise)²), for a radius in the 2-norm. The norm of the noise is close to
    noise·√d, so this says nothing once √d exceeds radius / noise, although most directions are harmless.
    """
    if noise < 0:
        raise ConfigError("noise", noise, "takes a standard deviation of at least 0")
    if noise == 0:
        return float(radius > 0)
    return float(stats.chi2.cdf((radius / noise) ** 2, dimension))


def linear_chance_kept(margins: ArrayLike, lipschitz: float, noise: float) -> float:
    """The same for a linear classifier: 1 − Σ_j Φ(−s_j / (noise·L₂)), exact with two classes, in any dimension.

    With noise, the margin over class j is normal with mean s_j and standard deviation noise·L₂. A union bound over all j
    gives the sum.
    """
    if noise <= 0 or lipschitz <= 0:
        raise ConfigError("noise, lipschitz", (noise, lipschitz), "takes numbers above 0")
    lost = stats.norm.cdf(-np.asarray(margins, float) / (noise * lipschitz))
    return max(0.0, 1.0 - float(np.sum(lost)))


def dual_norm(norm: float) -> float:
    """v with 1/u + 1/v = 1."""
    if norm < 1:
        raise ConfigError("norm", norm, "takes a number from 1 to math.inf")
    if norm == 1:
        return math.inf
    return 1.0 if math.isinf(norm) else norm / (norm - 1.0)


def _with_one(x: ArrayLike) -> Floats:
    return np.append(np.asarray(x, float), 1.0)
