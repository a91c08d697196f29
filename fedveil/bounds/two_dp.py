"""The theorems of 2dp-fl (Theorems 1 to 6), with constants that can be computed for softmax regression.

A model is a matrix [features + 1, classes], its last row the bias; F(x, w) = softmax((x, 1) @ w). The loss is −log F_y plus
(ridge/2)‖w‖²: the paper's Eqs. (1) and (2) lack the minus. All norms are Frobenius norms. `classes` holds the examples of
each class, [examples, features]: the paper's E_{x|y=i}, the same for every client. Clients differ in their label shares p^k
alone; where the examples within a class differ too, Theorems 2 and 3 do not hold.

docs/bounds.md has the proofs and says what holds as printed (2 and 3, but for an index) and what does not (1, 4, 5, 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from fedveil.core.errors import ConfigError

Floats = NDArray[np.float64]
_ZERO = 1e-10  # singular values below this share of the largest count as zero


# --- constants of softmax regression


def class_gradients(weights: ArrayLike, classes: Sequence[ArrayLike], ridge: float = 0.0) -> Floats:
    """∇_w E_{x|y=i}[−log F_i(x, w)] + ridge·w for each class i: [classes, features + 1, classes]."""
    w = np.asarray(weights, float)
    gradients = []
    for label, examples in enumerate(classes):
        x = _with_ones(examples)
        residual = special.softmax(x @ w, axis=1)  # [examples, classes]
        residual[:, label] -= 1.0
        gradients.append(x.T @ residual / len(x) + ridge * w)
    return np.stack(gradients)


def steepest(weights: ArrayLike, classes: Sequence[ArrayLike], ridge: float = 0.0) -> float:
    """g_max(w): the largest norm among the class gradients at w. Theorem 2 needs the norm, not the largest entry."""
    return float(np.linalg.norm(class_gradients(weights, classes, ridge), axis=(1, 2)).max())


def class_smoothness(classes: Sequence[ArrayLike], ridge: float = 0.0) -> Floats:
    """α_{x|y=i}, a Lipschitz constant of each class gradient: half the largest eigenvalue of E[(x, 1)(x, 1)ᵀ], plus ridge.

    The Hessian is E[(diag f − f fᵀ) ⊗ (x, 1)(x, 1)ᵀ] with f = F(x, w), and diag f − f fᵀ has no eigenvalue above 1/2.
    """
    moments = [_with_ones(x).T @ _with_ones(x) / len(np.asarray(x)) for x in classes]
    return np.array([np.linalg.eigvalsh(m)[-1] / 2.0 for m in moments]) + ridge


def contraction(lr: float, least: float, most: float) -> float:
    """The factor by which a step w − η∇L(w) can enlarge the distance of two models.

    The eigenvalues of the Hessian of L are in [least, most].
    """
    return max(abs(1.0 - lr * least), abs(1.0 - lr * most))


def mean_norm(noise: float, dimension: int) -> float:
    """E‖N‖ for N ~ N(0, noise²·I): noise·√2·Γ((d+1)/2)/Γ(d/2), near noise·√d. Theorems 4 and 6 take it as 0."""
    half = dimension / 2.0
    return noise * math.sqrt(2.0) * math.exp(special.gammaln(half + 0.5) - special.gammaln(half))


# --- Theorem 1: a preimage from another model


def preimage(weights: ArrayLike, probabilities: ArrayLike) -> Floats:
    """C⁻¹(y, w): the shortest input to which softmax regression gives these class probabilities (nearest, if none does)."""
    slopes, offset = _centred(weights)
    scores = np.log(np.asarray(probabilities, float))
    return np.linalg.pinv(slopes, rcond=_ZERO) @ (scores - scores.mean() - offset)


def preimage_error(x: ArrayLike, weights: ArrayLike, distance: float) -> float:
    """Theorem 1 for softmax regression: how far x' = C⁻¹(C(x, w), w') can be from x, where ‖w − w'‖ = `distance`.

        ‖x − x'‖² ≤ ‖x − Πx‖² + λ² ‖w − w'‖²,    λ = √(‖x‖² + 1) / σ_min

    `weights` is the attacker's w'; Π projects on what w' sees of an input, σ_min is the smallest non-zero singular value of
    its centred slopes. The paper has λ ‖w − w'‖ for a Lipschitz C, but it is the inverse that must be Lipschitz; and it
    exists only with at least features + 1 classes: otherwise the part x − Πx stays hidden even from w' = w.
    """
    x = np.asarray(x, float)
    slopes, _ = _centred(weights)
    _, values, rows = np.linalg.svd(slopes, full_matrices=False)
    seen = values > _ZERO * values[0]
    if not seen.any():  # the same answer for every input: the shortest preimage is 0
        return float(np.linalg.norm(x))
    hidden = x - rows[seen].T @ (rows[seen] @ x)
    constant = math.sqrt(x @ x + 1.0) / values[seen].min()
    return math.hypot(float(np.linalg.norm(hidden)), constant * distance)


# --- Theorems 2 and 3: how far models drift apart


def growth_printed(shares: ArrayLike, smoothness: ArrayLike, lr: float) -> float:
    """b^k = 1 + η Σ_i p^k(y=i) α_{x|y=i}, for any smooth loss. For a convex one `contraction` does, and is at most 1."""
    return 1.0 + lr * float(np.dot(shares, smoothness))


def clients_distance(
    start: float, growth: float, lr: float, shares_u: ArrayLike, shares_v: ArrayLike, steepest_u: Sequence[float]
) -> float:
    """Theorem 3, Eq. (14): a bound on ‖w^u − w^v‖ after m local steps from models that are `start` apart.

        b^m · start + η Σ_i |p^u(y=i) − p^v(y=i)| · Σ_l b^l g_max(w^u_{m−1−l})

    `growth` is b of client v; `steepest_u` holds g_max(w^u) before each of the m steps, in order.
    """
    powers = growth ** np.arange(len(steepest_u))
    apart = float(np.abs(np.asarray(shares_u, float) - np.asarray(shares_v, float)).sum())
    return growth ** len(steepest_u) * start + lr * apart * float(powers @ np.asarray(steepest_u, float)[::-1])


def federated_distance(
    sizes: ArrayLike,
    starts: Sequence[float],
    growths: Sequence[float],
    lr: float,
    shares: Sequence[ArrayLike],
    target: int,
    steepest_target: Sequence[float],
) -> float:
    """Theorem 2, Eq. (8): a bound on ‖w^f − w^j‖, the mean of Theorem 3 over clients k with weights n^k/|D| (u = j, v = k).

    `starts` holds ‖w^j − w^k‖ before the round. Eq. (8) prints g_max at w^j_{m(T−1−l)}, models of earlier rounds that do
    not exist for m > T; its proof has w^j_{mT−1−l}, the models of this round, and so has this.
    """
    weights = np.asarray(sizes, float) / np.sum(sizes)
    each = [
        clients_distance(start, growth, lr, shares[target], other, steepest_target)
        for start, growth, other in zip(starts, growths, shares, strict=True)
    ]
    return float(weights @ np.array(each))


# --- Theorem 4: what the server's noise changes


def server_noise_drift(noise: float, dimension: int, rounds: int, shrink: float) -> float:
    """A bound on E‖ŵ_T − w̃_T‖, the federated model with and without noise at the server: E‖N‖ Σ_{t=1..T} shrink^t.

    `shrink` is the clients' `contraction`. The paper has 0 here: it takes E‖N‖ as 0 because E N is.
    """
    return mean_norm(noise, dimension) * float(np.sum(shrink ** np.arange(1, rounds + 1)))


# --- Theorems 5 and 6: descent under noise


@dataclass(frozen=True)
class Descent:
    """One step of gradient descent: η, and the constants of the loss. γ₁, γ₂, γ₃ are the paper's."""

    lr: float  # η
    smoothness: float  # μ: the gradient's Lipschitz constant
    convexity: float  # τ: the constant of strong convexity, hence of the PL inequality, Eq. (7)

    def __post_init__(self) -> None:
        if not 0 < self.convexity <= self.smoothness:
            takes = f"takes a number above 0, up to smoothness = {self.smoothness}"
            raise ConfigError("convexity", self.convexity, takes)
        if self.lr <= 0:
            raise ConfigError("lr", self.lr, "takes a number above 0")

    @property
    def gamma1(self) -> float:
        return -self.lr + self.smoothness * self.lr**2 / 2.0

    @property
    def gamma2(self) -> float:
        return 1.0 + self.smoothness * self.lr

    @property
    def gamma3(self) -> float:
        return self.smoothness / 2.0

    @property
    def rate(self) -> float:
        """1 + 2τγ₁: the share of the gap to the optimum that remains after a step without noise."""
        return 1.0 + 2.0 * self.convexity * self.gamma1


def step_change_printed(step: Descent, gradient: float, noise_mean: float, noise_square: float) -> float:
    """Theorem 5, Eq. (18): γ₁‖∇L‖² + γ₂ E‖N‖ ‖∇L‖ + γ₃ E‖N‖², said to bound E|L(w_{t+1}) − L(w_t)|.

    It bounds the change with its sign, but not its absolute value: without noise and with γ₁ < 0 it is negative.
    """
    return step.gamma1 * gradient**2 + step.gamma2 * noise_mean * gradient + step.gamma3 * noise_square


def step_change(step: Descent, gradient: float, noise_square: float) -> float:
    """A bound on E L(w_{t+1}) − L(w_t): γ₁‖∇L‖² + γ₃ E‖N‖². The noise has mean zero, so no term in E‖N‖ is needed."""
    return step.gamma1 * gradient**2 + step.gamma3 * noise_square


def step_change_absolute(step: Descent, gradient: float, noise_mean: float, noise_square: float) -> float:
    """A bound on E|L(w_{t+1}) − L(w_t)|: Eq. (18) with η instead of −η in γ₁."""
    return step_change_printed(step, gradient, noise_mean, noise_square) + 2.0 * step.lr * gradient**2


def gap_printed(step: Descent, rounds: int, start: float, noise: float) -> float:
    """Theorem 6, Eqs. (23) and (29): (1 + 2τγ₁)^T C₀ + γ₃σ²/(2τγ₁), said to bound E L(ŵ_T) − L*, for η < 2/μ.

    It does not: γ₁ < 0 turns the noise into a gain. `noise` is σ of the model noise; the paper's ω is nowhere defined.
    """
    _small(step)
    return step.rate**rounds * start + step.gamma3 * noise**2 / (2.0 * step.convexity * step.gamma1)


def gap(
    step: Descent,
    rounds: int,
    start: float,
    dimension: int,
    sizes: ArrayLike,
    noise: float,
    server: float = 0.0,
    same: bool = False,
) -> float:
    """A corrected Theorem 6: a bound on E L(ŵ_T) − L* for η < 2/μ, every client taking one full-batch step a round.

        r^T (C₀ + μdς²/2) + (1 − r^T) γ₃V/(−2τγ₁) + μdς²/2,    V = d(σ² ΣP_k² + ρ²ς² ΣP_k²),    r = 1 + 2τγ₁

    `start` is C₀ = L(w_0) − L*; `sizes` give P_k = n^k/|D|; `noise` is σ, the standard deviation of the noise
    that each client adds to its model (η times that of its gradient's noise). `server` is ς, that of the noise in each
    broadcast, drawn per client. With `same` all clients receive one draw, and ς² is not divided. ρ < 1 is the clients'
    contraction. τ and μ must hold for every client's loss.
    """
    _small(step)
    squares = float(np.square(np.asarray(sizes, float) / np.sum(sizes)).sum())
    shrink = contraction(step.lr, step.convexity, step.smoothness)
    variance = dimension * (noise**2 * squares + (shrink * server) ** 2 * (1.0 if same else squares))
    blur = step.smoothness * dimension * server**2 / 2.0
    left = step.rate**rounds
    settled = step.gamma3 * variance / (-2.0 * step.convexity * step.gamma1)
    return left * (start + blur) + (1.0 - left) * settled + blur


def gap_large_step(step: Descent, gradient: float, noise_square: float) -> float:
    """Theorem 6, Eq. (24), for η > 2/μ: (1/(2τ) + γ₁) G² + γ₃ E‖N‖², with E‖∇L(w_{T−1})‖² ≤ G².

    One step from wherever the model is, whose gap is at most G²/(2τ). The paper has σ² instead of E‖N‖².
    """
    return (0.5 / step.convexity + step.gamma1) * gradient**2 + step.gamma3 * noise_square


def _small(step: Descent) -> None:
    if step.gamma1 >= 0:
        raise ConfigError("lr", step.lr, f"takes less than 2/smoothness = {2.0 / step.smoothness:.6g}")


def _with_ones(x: ArrayLike) -> Floats:
    x = np.asarray(x, float)
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)


def _centred(weights: ArrayLike) -> tuple[Floats, Floats]:
    """Slopes [classes, features] and offset [classes], each less its mean over classes: softmax sees no common shift."""
    w = np.asarray(weights, float)
    w = w - w.mean(axis=1, keepdims=True)
    return w[:-1].T, w[-1]
