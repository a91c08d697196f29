"""Rényi divergences of rounds at a list of orders, and the ε that follows from them.

`dp_accounting` gives the divergences of sampled Gaussians and the conversion to ε; mixtures over visible coins are ours.
Divergences are read from `RdpAccountant.rdp`, which is public.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedveil.accounting.accountants import Round, Rounds, binomial

if TYPE_CHECKING:
    from dp_accounting import DpEvent, NeighboringRelation

Array = NDArray[np.floating]
Orders = tuple[float, ...]

ORDERS: Orders = (1.25, 1.5, 2, 2.5, *range(3, 32), *range(32, 65, 8), 80, 96, 128, 192, 256, 512)


def epsilon(rounds: Rounds, delta: float) -> float | None:
    """ε at δ; None where no order has a finite divergence."""
    return converted(divergences(rounds), delta)


def divergences(rounds: Rounds, orders: Orders = ORDERS) -> Array:
    """[orders] the Rényi divergence of all rounds together."""
    total = np.zeros(len(orders))
    for one, times in rounds:
        total += times * round_rdp(replace(one, fails=0.0), orders)
    return total


def converted(total: Array, delta: float, orders: Orders = ORDERS) -> float | None:
    """ε at δ of Rényi divergences; None where none is finite."""
    from dp_accounting import rdp

    usable = np.isfinite(total)
    if not usable.any():
        return None
    found = float(rdp.compute_epsilon(np.asarray(orders)[usable], np.maximum(total[usable], 0.0), delta)[0])
    return max(found, 0.0) if math.isfinite(found) else None


@lru_cache(maxsize=256)
def round_rdp(one: Round, orders: Orders = ORDERS) -> Array:
    """[orders] the Rényi divergence of a round: with visible outcomes, log E[exp((α − 1)·D)]/(α − 1)."""
    parts = []
    for (chance, count), (share, z) in itertools.product(one.counts, one.noise):
        if count == 0:
            cost: Array = np.zeros(len(orders))
        elif one.together:
            cost = one.steps * step_rdp(one, z, int(count), orders)
        else:
            cost = one.steps * int(count) * step_rdp(one, z, 1, orders)
        parts.append((chance * share, cost))
    return _mixed(parts, orders)


def _mixed(parts: Sequence[tuple[float, Array]], orders: Orders) -> Array:
    """The Rényi divergence of a mixture whose coin is published with the outcome."""
    above = np.asarray(orders, dtype=float) - 1.0
    logs = [math.log(chance) + above * cost for chance, cost in parts if chance > 0]
    # Rounding may leave the logarithm of a sum that is one just below zero.
    return np.maximum(np.logaddexp.reduce(logs, axis=0), 0.0) / above


@lru_cache(maxsize=256)
def step_rdp(one: Round, z: float, count: int, orders: Orders = ORDERS) -> Array:
    """[orders] the divergence of one mechanism, used by `count` parts of the unit that enter one sum."""
    import dp_accounting as dp

    gaussian = one.distribution == "gaussian"
    if one.subset and gaussian:
        size, drawn = one.subset
        event = dp.SampledWithoutReplacementDpEvent(size, drawn, dp.GaussianDpEvent(z / (2.0 * count)))
        known = _of_event(event, dp.NeighboringRelation.REPLACE_ONE, orders)
        return np.minimum(known, _noisy(one, z, count, orders))
    if one.hidden and one.rate < 1.0 and count == 1 and not one.replace and gaussian:
        return np.minimum(poisson_gaussian(z, one.rate, orders), _noisy(one, z, count, orders))
    # No amplification is known here: the coins are revealed to the observer.
    uses = binomial(count, one.rate) if one.rate < 1.0 else ((1.0, float(count)),)
    return _mixed([(chance, _noisy(one, z, int(used), orders)) for chance, used in uses], orders)


def _noisy(one: Round, z: float, count: int, orders: Orders) -> Array:
    """The divergence of noise of multiplier z on a sum to which the unit contributes `count` times its bound."""
    above = np.asarray(orders, dtype=float)
    size = (2.0 if one.replace or one.subset else 1.0) * count / z
    if one.distribution == "laplace":  # any mechanism of pure ε: at most ε, and at most α·ε²/2
        return np.minimum(size, above * size**2 / 2.0)
    return above * size**2 / 2.0


def poisson_gaussian(z: float, rate: float, orders: Orders) -> Array:
    """[orders] the divergence of a Gaussian of multiplier z on a Poisson sample, add/remove, by the library."""
    import dp_accounting as dp

    event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z))
    return _of_event(event, dp.NeighboringRelation.ADD_OR_REMOVE_ONE, orders)


def _of_event(event: DpEvent, relation: NeighboringRelation, orders: Orders) -> Array:
    """The library's divergences of an event; infinite at orders where its series gives no number."""
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(orders=orders, neighboring_relation=relation)
    try:
        with quietly(), np.errstate(all="ignore"):
            accountant.compose(event)
    except (ArithmeticError, ValueError):  # noise too small for the library's series
        return np.full(len(orders), np.inf)
    found: Array = np.asarray(accountant.rdp, dtype=float)
    return np.where(np.isnan(found), np.inf, np.maximum(found, 0.0))


@contextmanager
def quietly() -> Iterator[None]:
    """Silences dp_accounting's warnings about Rényi orders that it skips: the other orders stay valid."""
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
