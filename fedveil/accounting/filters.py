"""A privacy filter: a budget that holds although each request is chosen after the answers to those before it.

Composition of privacy loss distributions holds for mechanisms that are fixed beforehand. A server that sends its next
config after it has seen an answer breaks that assumption. Sums of Rényi divergences at one order do not need it: they may
be spent adaptively until the sum reaches the limit of that order (Feldman and Zrnic 2021). The order is fixed by the
budget alone, before anything is seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedveil.accounting.composition import Round

ORDERS = (*(1.0 + step / 4 for step in range(1, 40)), *(float(order) for order in range(11, 257)))


@dataclass(frozen=True)
class RenyiFilter:
    """Allows requests while their divergences of one order add up to at most `limit`."""

    epsilon: float
    delta: float
    order: float
    limit: float

    @classmethod
    def for_budget(cls, epsilon: float, delta: float) -> RenyiFilter:
        """The filter of a budget: the order at which it affords the most Gaussian rounds, whose cost grows with it."""
        order = max(ORDERS, key=lambda a: (epsilon - _conversion(a, delta)) / a)
        return cls(epsilon, delta, order, max(0.0, epsilon - _conversion(order, delta)))

    def cost(self, one: Round) -> float:
        """The Rényi divergence of a round at the filter's order."""
        from fedveil.accounting.rdp import round_rdp

        return float(round_rdp(one, (self.order,))[0])

    def allows(self, costs: Iterable[float]) -> bool:
        return self.limit > 0 and math.fsum(costs) <= self.limit

    def epsilon_of(self, costs: Iterable[float]) -> float:
        """ε at the budget's δ of what was spent."""
        total = math.fsum(costs)
        return 0.0 if total == 0 else max(0.0, total + _conversion(self.order, self.delta))


def _conversion(order: float, delta: float) -> float:
    """What ε exceeds the divergence by at δ (Canonne, Kamath, Steinke 2020, Proposition 12)."""
    return math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0)
