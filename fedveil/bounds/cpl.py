"""How fast gradient descent converges on a convex objective (cpl, Theorem 1 and its appendix).

For f convex, with an L-Lipschitz gradient and a minimiser x*, and steps x ← x − ∇f(x)/L, T steps from x⁰ leave

    f(x^T) − f(x*) ≤ 2L ‖x⁰ − x*‖² / T                                                                     (Eq. 1)

The statement holds; its step of 1/L is named only in the proof. Its Lemma 3 lacks a square and does not follow from
Eq. (5) alone: co-coercivity needs convexity too. The constant can be four times smaller (`gradient_descent`), and for a
quadratic the exact worst case is known (`quadratic`).

It does not cover the attack. The distance between gradients is not convex in the input, even for logistic regression on one
number: descent can stay on a plateau far above the bound, and two inputs can have the same gradient. The attack's own
optimiser (L-BFGS) and step are not those of the theorem either.
"""

from __future__ import annotations

from fedveil.core.errors import ConfigError


def gradient_descent_printed(smoothness: float, distance: float, steps: int) -> float:
    """Eq. (1): 2LR²/T, with L the gradient's Lipschitz constant and R = ‖x⁰ − x*‖."""
    _check(smoothness, distance, steps)
    return 2.0 * smoothness * distance**2 / steps


def gradient_descent(smoothness: float, distance: float, steps: int) -> float:
    """The same with its usual constant: LR²/(2T).

    Proof. A step falls by at least ‖∇f‖²/(2L) (smoothness), and f(x) − f* ≤ ⟨∇f(x), x − x*⟩ (convexity), so the next point
    x⁺ has f(x⁺) − f* ≤ ⟨∇f(x), x − x*⟩ − ‖∇f(x)‖²/(2L) = (L/2)(‖x − x*‖² − ‖x⁺ − x*‖²). The sum over T steps telescopes
    to at most LR²/2, and the last term is the smallest. No bound below LR²/(4T + 2) holds for all such f: on
    f(x) = Lδ|x| − Lδ²/2 (Lx²/2 within δ) with δ = R/(2T + 1) descent from R leaves just that.
    """
    _check(smoothness, distance, steps)
    return smoothness * distance**2 / (2.0 * steps)


def quadratic(smoothness: float, distance: float, steps: int) -> float:
    """The largest gap for a convex quadratic: LR²/(2(2T + 1)) · (2T/(2T + 1))^(2T).

    Proof. Along an eigenvector of eigenvalue h in [0, L] the error shrinks by 1 − h/L a step, so the gap is a mean of
    h(1 − h/L)^(2T) R²/2 over h, and h = L/(2T + 1) maximises it. A quadratic with that eigenvalue attains it.
    """
    _check(smoothness, distance, steps)
    odd = 2 * steps + 1
    return smoothness * distance**2 / (2.0 * odd) * ((odd - 1) / odd) ** (2 * steps)


def _check(smoothness: float, distance: float, steps: int) -> None:
    if smoothness < 0:
        raise ConfigError("smoothness", smoothness, "takes a Lipschitz constant from 0")
    if distance < 0:
        raise ConfigError("distance", distance, "takes a norm from 0")
    if steps < 1:
        raise ConfigError("steps", steps, "takes a whole number from 1")
