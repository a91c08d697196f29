"""The Rényi filter: a budget that an adaptive server cannot exceed, against plain composition, which it can."""

import math

import numpy as np
import pytest
from scipy import optimize, special

from fedveil.accounting import accountants, pld
from fedveil.accounting.accountants import Round
from fedveil.accounting.filters import ORDERS, RenyiFilter, conversion

DELTA = 1e-5


def gaussian(mu):
    return Round(((1.0, 1.0 / mu),))


def rare(chance, z=0.06):
    """Almost no noise, but only if a coin falls that the server sees."""
    return Round(((1.0, z),), counts=((1.0 - chance, 0.0), (chance, 1.0)))


def gaussian_delta(mu, epsilon):
    upper, lower = special.log_ndtr(mu / 2 - epsilon / mu), epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    return np.exp(upper) - np.exp(np.minimum(lower, 700.0))


def rare_delta(chance, epsilon, z=0.06):
    nothing = np.clip(-np.expm1(np.minimum(epsilon, 0.0)), 0.0, None)
    return (1.0 - chance) * nothing + chance * gaussian_delta(1.0 / z, epsilon)


def adaptive_delta(first, second, chance, epsilon, z=0.06):
    """The exact δ of a server that sees a Gaussian's loss, then asks for what costs more: a Gaussian or a rare leak."""
    losses = first**2 / 2 + first * np.linspace(-12, 12, 200_001)
    density = np.exp(-(((losses - first**2 / 2) / first) ** 2) / 2)
    worst = np.maximum(gaussian_delta(second, epsilon - losses), rare_delta(chance, epsilon - losses, z))
    return float((density * worst).sum() / density.sum())


def largest(holds, low, high):
    """The largest value, to one part in a million, for which it holds."""
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def test_an_adaptive_server_exceeds_plain_composition_and_not_the_filter():
    first, second = 0.35, 0.35
    epsilon = pld.composed_epsilon(((gaussian(first), 1), (gaussian(second), 1)), DELTA)

    def composes(chance):
        return pld.composed_epsilon(((gaussian(first), 1), (rare(chance), 1)), DELTA) <= epsilon

    chance = largest(composes, 1e-7, 1e-4)
    assert adaptive_delta(first, second, chance, epsilon) > 1.8 * DELTA

    budget = RenyiFilter.for_budget(epsilon, DELTA)
    spent = [budget.cost(gaussian(0.25))]
    assert budget.allows(spent) and not budget.allows([*spent, budget.cost(rare(chance))])
    mu = largest(lambda mu: budget.allows([*spent, budget.cost(gaussian(mu))]), 1e-3, 10.0)
    for z in (0.5, 1.0, 2.0):  # a leak behind less noise is not affordable at all
        leak = largest(lambda chance, z=z: budget.allows([*spent, budget.cost(rare(chance, z))]), 1e-100, 0.1)
        assert leak > 1e-100 and mu > 0.1 and adaptive_delta(0.25, mu, leak, epsilon, z) <= DELTA


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0, 8.0, 50.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_the_order_suits_gaussian_rounds(epsilon, delta):
    """At least 99 % of what the best order affords, and 80 % of what is exact without adaptivity."""
    budget = RenyiFilter.for_budget(epsilon, delta)
    found = optimize.minimize_scalar(
        lambda log: -(epsilon - conversion(1 + math.exp(log), delta)) / (1 + math.exp(log)),
        bounds=(-4, 9),
        method="bounded",
    )
    rho = budget.limit / budget.order
    assert rho >= 0.99 * -found.fun
    exact = optimize.brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-6, 100.0)
    assert 0.8 * exact**2 / 2 <= rho <= exact**2 / 2


@pytest.mark.parametrize(
    "one",
    [gaussian(0.2), Round(((1.0, 6.0),), 100, 0.01, True), Round(((1.0, 9.0),), distribution="laplace"), rare(1e-12)],
)
def test_costs_add_up_to_no_less_than_the_tight_account(one):
    budget = RenyiFilter.for_budget(4.0, DELTA)
    times = math.floor(budget.limit / budget.cost(one))
    assert budget.allows([budget.cost(one)] * times) and not budget.allows([budget.cost(one)] * (times + 2))
    spent = budget.epsilon([budget.cost(one)] * times)
    assert accountants.epsilon(((one, times),), DELTA, "pld") <= spent <= budget.epsilon_limit * (1 + 1e-9)


def test_what_has_no_cost_is_refused():
    budget = RenyiFilter.for_budget(2.0, DELTA)
    assert budget.allows([]) and budget.epsilon([]) == 0.0
    assert budget.cost(Round(((1.0, 6.0),), fails=1e-13)) == math.inf
    assert not budget.allows([math.inf]) and budget.epsilon([math.inf]) == math.inf
    for cost in (-1.0, math.nan):
        with pytest.raises(ValueError, match="negative or NaN"):
            budget.allows([cost])
    with pytest.raises(ValueError, match="needs ε > 0"):
        RenyiFilter.for_budget(0.0, DELTA)


def test_the_order_depends_on_the_budget_alone():
    assert RenyiFilter.for_budget(2.0, DELTA) == RenyiFilter.for_budget(2.0, DELTA)
    assert RenyiFilter.for_budget(2.0, DELTA).order in ORDERS
    tiny = RenyiFilter.for_budget(1e-6, 1e-9)  # no order affords anything
    assert tiny.limit == 0.0 and not tiny.allows([tiny.cost(gaussian(1e-3))])
