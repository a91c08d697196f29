"""A privacy filter: a budget that holds even if each request is chosen after the answers to the earlier ones.

Composition by privacy loss distributions assumes mechanisms that are fixed beforehand. A server that sees an answer and
then chooses its next request can exceed δ: for a budget of δ = 1e-5 the tests show 1.9e-5. Rényi divergences at one order
that is fixed beforehand add up, also under full adaptivity (Feldman and Zrnic 2021): the budget holds as long as the sum
stays below a limit. The price is a larger ε than `pld` gives for the same rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from fedveil.accounting.accountants import Round

# Tenths up to 10, then integers that grow by about 3 %: around the best order ε hardly changes.
ORDERS = (*(1.0 + n / 10 for n in range(1, 90)), *sorted({round(10 * 1.03**n) for n in range(210)}))
ROUNDING = 1e-12  # relative margin for the rounding of sums
RESERVE = 1e-4  # share of δ for noise that is not quite the ideal (`Round.slip`)
LARGEST = 30.0  # ε of a budget for such noise


@dataclass(frozen=True)
class RenyiFilter:
    """A budget (ε, δ), and the Rényi order at which it is spent. The order depends on the budget alone.

    A request is answered only if `allows` is true for the costs of all requests so far and its own. Everything that is sent
    before then satisfies (ε, δ)-differential privacy, however requests are chosen.
    """

    epsilon_limit: float
    delta: float
    order: float
    limit: float  # the sum of divergences that the budget affords

    @classmethod
    def for_budget(cls, epsilon: float, delta: float) -> RenyiFilter:
        """The filter whose order affords the most Gaussian rounds: the largest limit per unit of order."""
        if not (epsilon > 0 and 0 < delta < 1):
            raise ValueError(f"a budget needs ε > 0 and 0 < δ < 1; got ε = {epsilon}, δ = {delta}")
        kept = delta * (1.0 - RESERVE)
        order = _best_order(epsilon, kept)
        return cls(epsilon, delta, order, max(0.0, epsilon - conversion(order, kept)))

    @classmethod
    def suiting(cls, epsilon: float, delta: float, slip: float) -> RenyiFilter:
        """The filter of a budget for rounds whose noise is `slip` from the ideal in all.

        A budget above `LARGEST` is smaller once there is such noise. Each of the two then has half of δ.
        """
        if epsilon <= LARGEST:
            return cls.for_budget(epsilon, delta)
        return cls.for_budget(LARGEST if slip > 0 else epsilon, delta / 2)

    def cost(self, one: Round) -> float:
        """The Rényi divergence of a round at the filter's order; infinite where none is known."""
        from fedveil.accounting import rdp

        if one.fails > 0:  # a failure costs δ, which a filter cannot take back
            return math.inf
        found = float(rdp.round_rdp(replace(one, fails=0.0, slip=0.0), (self.order,))[0])
        return found if math.isfinite(found) else math.inf

    def allows(self, costs: Iterable[float], slip: float = 0.0) -> bool:
        """Whether the budget affords all of these costs together; `slip` is the sum of that of their rounds.

        Total variations add up under adaptive choices too. Noise that is within τ of the ideal costs (1 + e^ε)·τ of δ.
        """
        reserve = RESERVE * self.delta / (1.0 + math.exp(min(self.epsilon_limit, 700.0)))
        return slip <= reserve and _total(costs) <= self.limit

    def epsilon(self, costs: Iterable[float]) -> float:
        """ε at the filter's δ of what was spent; infinite where a cost is."""
        spent = _total(costs)
        return 0.0 if spent == 0.0 else max(0.0, spent + conversion(self.order, self.delta * (1.0 - RESERVE)))


@lru_cache(maxsize=64)
def _best_order(epsilon: float, delta: float) -> float:
    return max(ORDERS, key=lambda alpha: (epsilon - conversion(alpha, delta)) / alpha)


def conversion(order: float, delta: float) -> float:
    """ε − divergence at an order: log(1 − 1/α) − log(δ·α)/(α − 1) (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    return math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0)


def _total(costs: Iterable[float]) -> float:
    kept = list(costs)
    if not all(cost >= 0.0 for cost in kept):
        raise ValueError("costs are Rényi divergences: none is negative or NaN")
    return math.inf if math.inf in kept else math.fsum(kept) * (1.0 + ROUNDING)
