"""Trade-off curves and μ-GDP: exact for Gaussians, from above for all else."""

import math

import numpy as np
import pytest
from scipy import stats

from fedveil.accounting import accountants, pld
from fedveil.accounting.accountants import Round
from fedveil.accounting.curves import LEAST, gdp_mu, profile, trade_off

ALPHAS = (0.0, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0)


def gaussian(z, times, **more):
    return ((Round(((1.0, z),), **more), times),)


@pytest.mark.parametrize(("z", "times"), [(1.0, 1), (6.0, 1), (6.0, 36), (2.0, 100), (30.0, 10_000)])
def test_gaussians_have_their_mu(z, times):
    mu = math.sqrt(times) / z
    assert mu * (1 - 1e-9) <= gdp_mu(gaussian(z, times)) <= mu * 1.003


@pytest.mark.parametrize(("z", "times"), [(1.0, 1), (6.0, 36), (2.0, 100)])
def test_gaussians_have_their_trade_off_curve(z, times):
    """f(α) = Φ(Φ⁻¹(1 − α) − μ)."""
    exact = stats.norm.cdf(stats.norm.isf(np.array(ALPHAS)) - math.sqrt(times) / z)
    found = np.array(trade_off(gaussian(z, times), ALPHAS))
    assert (found <= exact + 1e-12).all() and (found >= exact - 2e-3).all()


SAMPLED = [(1.0, 0.01, 1000), (6.0, 0.01, 10_000), (0.7, 0.001, 5000), (2.0, 0.3, 50)]


@pytest.mark.parametrize(("z", "rate", "times"), SAMPLED)
def test_sampled_gaussians_are_above_the_central_limit(z, rate, times):
    """μ = q·√(T·(e^(1/z²) − 1)) is the limit of many steps, not a bound (Bu et al. 2020)."""
    limit = rate * math.sqrt(times * math.expm1(1 / z**2))
    assert gdp_mu(gaussian(z, times, rate=rate, hidden=True)) > limit


@pytest.mark.parametrize(
    "rounds",
    [
        *(gaussian(z, times, rate=rate, hidden=True) for z, rate, times in SAMPLED),
        gaussian(6.0, 100, replace=True, subset=(1000, 100)),
        gaussian(3.0, 50, counts=((0.9, 0.0), (0.1, 1.0))),
        gaussian(6.0, 50, distribution="laplace"),
    ],
)
def test_mu_covers_every_delta_and_no_more(rounds):
    mu = gdp_mu(rounds)
    deltas = np.geomspace(LEAST, 0.3, 9)
    finer = [pld.composed_epsilon(rounds, delta, 4.0) for delta in deltas]
    allowed = pld.gaussian_delta(mu, np.array(finer))
    assert all(a >= d * (1 - 1e-6) for a, d, e in zip(allowed, deltas, finer, strict=True) if e > 0)
    epsilons, found = profile(rounds)
    kept = found >= LEAST
    assert (pld.gaussian_delta(0.98 * mu, epsilons)[kept] < found[kept]).any()


def test_the_curve_never_promises_more_than_delta_allows():
    """A test at ε's corner: α = δ(ε) leaves a type II error of at most 1 − δ − e^ε·α above the line."""
    rounds = gaussian(1.0, 1000, rate=0.01, hidden=True)
    curve = trade_off(rounds, ALPHAS)
    assert curve == sorted(curve, reverse=True) and curve[-1] == 0.0 and curve[0] <= 1.0
    for delta in (1e-2, 1e-4):
        epsilon = accountants.epsilon(rounds, delta, "pld")
        for alpha, beta in zip(ALPHAS, curve, strict=True):
            assert beta >= 1 - delta - math.exp(epsilon) * alpha - 2e-3


def test_failures_and_missing_noise_are_counted():
    plain, failing = gaussian(6.0, 36), gaussian(6.0, 36, fails=1e-4)
    assert all(a >= b for a, b in zip(trade_off(plain, ALPHAS), trade_off(failing, ALPHAS), strict=True))
    assert trade_off(failing, [0.0])[0] < trade_off(plain, [0.0])[0]
    assert gdp_mu(failing) is None and gdp_mu(gaussian(6.0, 36, fails=1e-13)) == pytest.approx(1.0, rel=0.01)
    assert gdp_mu(gaussian(0.001, 10)) is None and trade_off(gaussian(0.001, 10), [0.1]) == [0.0]
    assert gdp_mu(()) == 0.0 and trade_off((), [0.25]) == [0.75]
