"""What the papers claim: their own rules on their own assumptions, repeated as `paper` rows and never certified.

For Fed-CDP and Fed-SDP (fed-cdp, Section V and Table VI) a step is a Gaussian of multiplier σ on a Poisson sample: of rate
q = B·Kt/N over the N distinct examples for Fed-CDP, of rate Kt/K for Fed-SDP; clip groups, placement and what an observer
knows of the cohort do not enter. Rules:

- `moments`: Rényi divergences at the orders below, ε = min over α of rdp + log(1/δ)/(α − 1), for one step more than was
  made. The extra step reproduces all twelve cells of Table VI. With accountant `pld`: the same rule without the extra step,
  computed tightly.
- `basic`, `advanced`, `optimal`: (ε₀, δ₀) of one Gaussian, amplified by q, then the sum (Definition 4), advanced
  composition (Dwork, Rothblum, Vadhan), and the exact composition of (ε₀, δ₀) mechanisms (Kairouz, Oh, Viswanath). Half of
  δ goes to the steps, half to the composition.
- `zcdp`: ρ = k·q²/(2σ²) and ε = ρ + 2√(ρ·log(1/δ)). It is in use for sampled steps, but holds only to leading order:
  zero-concentrated privacy has no amplification by sampling.
- `joint`: Fed-CDP's claim for a whole client by the billboard lemma. The lemma keeps the unit: it is the ε of one example.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from fedveil.accounting import accountants
from fedveil.accounting.accountants import Round
from fedveil.core.events import Claim

MOMENT_ORDERS = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512)
MARGIN = 100_000.0  # errors beyond 40 standard deviations that `optimal` counts: all of them up to so many steps
RULES = ("moments", "basic", "advanced", "optimal", "zcdp")
CLAIMED = (*RULES, "joint", "as-published")  # the rules of all rows that repeat a claim
CLAIM = "as published; not certified"


def rows(claims: Sequence[Claim], rounds: int, delta: float) -> Iterator[dict[str, Any]]:
    """The claims of a transcript after its rounds, as fields of ledger rows."""
    for claim in claims:
        if claim.sigma is None:
            own = delta if claim.delta is None else claim.delta
            reason = claim.reason if claim.epsilon is None else f"{CLAIM}: {claim.reason}"
            yield _row(claim.tap, claim.unit, claim.rule, claim.epsilon, own, reason, adjacency=claim.adjacency)
        else:
            yield from _of_sampled(claim, claim.sigma, rounds, delta)


def _of_sampled(claim: Claim, sigma: float, rounds: int, delta: float) -> Iterator[dict[str, Any]]:
    """The rows of a claim on sampled Gaussian noise: one for each rule, or one of the moments accountant with a remark."""
    steps = rounds * claim.steps_per_round
    printed = tuple(text.format(steps=steps, rounds=rounds) for text in claim.assumptions)
    assumptions = (*printed, condition(sigma, claim.rate))
    if claim.rule == "sampled":
        yield from _sampled(claim.unit, sigma, claim.rate, steps, delta, assumptions)
        return
    found = moments(sigma, claim.rate, steps, delta)
    reason = f"{CLAIM}: {claim.reason}"
    yield _row(claim.tap, claim.unit, claim.rule, found, delta, reason, assumptions=assumptions)


def condition(sigma: float, rate: float) -> str:
    """The paper's condition on the sampling rate (Definition 5), and whether this rate meets it.

    It belongs to the closed form of the bound; the numerical accountant, of which Table VI is made, does not need it.
    """
    most = 1.0 / (16.0 * sigma)
    kept = "holds" if rate < most else "does not hold"
    return f"q < 1/(16σ) = {most:.4g}, which the paper requires, {kept} for q = {rate:.4g}"


def _row(
    tap: str, unit: str, rule: str, epsilon: float | None, delta: float, reason: str, **other: Any
) -> dict[str, Any]:
    fields = {"accountant": "paper", "adjacency": "add-remove", "assumptions": (), "certified": False, **other}
    return {"tap": tap, "unit": unit, "rule": rule, "epsilon": epsilon, "delta": delta, "reason": reason, **fields}


# --- rules for sampled Gaussians


def _sampled(
    unit: str, sigma: float, rate: float, steps: int, delta: float, assumptions: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    for rule in RULES:
        claim = COMPOSE[rule](sigma, rate, steps, delta)
        yield _row("release", unit, rule, claim, delta, CLAIM, assumptions=assumptions)
    tight = moments_pld(sigma, rate, steps, delta)
    reason = "the paper's rule, computed tightly; not certified"
    yield _row("release", unit, "moments", tight, delta, reason, accountant="pld", assumptions=assumptions)


@lru_cache(maxsize=256)
def moments(sigma: float, rate: float, steps: int, delta: float) -> float | None:
    """The moments accountant as the paper used it: with one extra step and the classic conversion to (ε, δ)."""
    import numpy as np

    from fedveil.accounting import rdp

    cost = rdp.poisson_gaussian(sigma, rate, MOMENT_ORDERS)
    return _finite(np.min((steps + 1) * cost + math.log(1.0 / delta) / (np.asarray(MOMENT_ORDERS) - 1.0)))


@lru_cache(maxsize=256)
def moments_pld(sigma: float, rate: float, steps: int, delta: float) -> float | None:
    """The same sampled Gaussian steps, as many as were made, by privacy loss distributions."""
    one = Round(((1.0, sigma),), rate=rate, hidden=True)
    return accountants.epsilon(((one, steps),), delta, "pld")


def _one_step(sigma: float, rate: float, delta: float) -> tuple[float, float]:
    """(ε, δ) of one sampled Gaussian: the analytic Gaussian at δ/q, amplified to ε = log(1 + q(e^ε₀ − 1))."""
    import dp_accounting as dp

    inner = min(0.5, delta / rate)
    gaussian = float(dp.get_epsilon_gaussian(sigma, inner))
    if gaussian > 700.0:  # e^ε₀ is beyond any float, and 1 − q beside it is nothing
        return gaussian + math.log(rate), rate * inner
    return math.log1p(rate * math.expm1(gaussian)), rate * inner


def basic(sigma: float, rate: float, steps: int, delta: float) -> float | None:
    """Basic composition: k times the ε of one step at δ/k."""
    return _finite(steps * _one_step(sigma, rate, delta / steps)[0])


def advanced(sigma: float, rate: float, steps: int, delta: float) -> float | None:
    """ε₀√(2k·ln(1/δ')) + k·ε₀(e^ε₀ − 1), half of δ as δ'."""
    one, _ = _one_step(sigma, rate, delta / (2 * steps))
    if one > 700.0:  # e^ε₀ is beyond any float
        return None
    return _finite(one * math.sqrt(2 * steps * math.log(2.0 / delta)) + steps * one * math.expm1(one))


def optimal(sigma: float, rate: float, steps: int, delta: float) -> float | None:
    """The exact composition of k mechanisms that are (ε₀, δ₀) private: randomised response k times."""
    import numpy as np
    from scipy import special, stats

    one, per_step = _one_step(sigma, rate, delta / (2 * steps))
    left = 1.0 - (1.0 - delta) / (1.0 - per_step) ** steps
    # One response errs with probability 1/(1+e^ε₀); with j errors of k the loss is (k − 2j)·ε₀.
    wrong = float(special.expit(-one))
    # Numbers of errors further from the mean than 40 standard deviations and a margin have no probability.
    mean, reach = steps * wrong, 40.0 * math.sqrt(steps * wrong) + MARGIN
    errors = np.arange(max(0, math.floor(mean - reach)), min(steps, math.ceil(mean + reach)) + 1)
    losses = (steps - 2 * errors) * one
    chances = stats.binom.pmf(errors, steps, wrong)

    def exceeds(epsilon: float) -> bool:
        over = losses > epsilon
        return bool(np.sum(chances[over] * -np.expm1(epsilon - losses[over])) > left)

    low, high = 0.0, steps * one
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return _finite(high)


def zcdp(sigma: float, rate: float, steps: int, delta: float) -> float | None:
    """ρ = k·q²/(2σ²), ε = ρ + 2√(ρ·log(1/δ))."""
    rho = steps * rate**2 / (2 * sigma**2)
    return _finite(rho + 2 * math.sqrt(rho * math.log(1.0 / delta)))


COMPOSE: dict[str, Callable[[float, float, int, float], float | None]] = {
    "moments": moments,
    "basic": basic,
    "advanced": advanced,
    "optimal": optimal,
    "zcdp": zcdp,
}


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None
