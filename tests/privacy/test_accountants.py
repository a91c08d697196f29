"""The grid of losses: three digits of ε for any number of steps, never less than the truth, never too long."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedveil.accounting import accountants
from fedveil.accounting.accountants import Round

DELTA = 1e-5


def both(rounds, finer=8):
    """ε as it is given, and on a grid so many times finer."""
    grid = accountants.grid_for(*accountants._losses(rounds), DELTA)
    return accountants.epsilon(rounds, DELTA, "pld"), accountants._pld(rounds, DELTA, grid / finer)


def gaussian(z, steps, rate, times, **more):
    return ((Round(((1.0, z),), steps=steps, rate=rate, hidden=rate < 1, **more), times),)


SETTINGS = {
    "few steps": gaussian(6.0, 3, 0.01, 1),
    "one step": gaussian(1.0, 1, 1.0, 1),
    "a training": gaussian(6.0, 100, 0.01, 100),
    "a million steps": gaussian(6.0, 10_000, 0.01, 100),
    "rounds without the client": gaussian(6.0, 100, 0.01, 100, counts=((0.9, 0.0), (0.1, 1.0))),
    "rounds seldom with it": gaussian(1.0, 1, 1.0, 100, counts=((0.999, 0.0), (0.001, 1.0))),
    "copies in one sum": gaussian(6.0, 10, 0.01, 50, counts=((0.5, 0.0), (0.3, 1.0), (0.2, 3.0)), together=True),
    "another record": gaussian(6.0, 10, 0.01, 50, replace=True),
    "noise that grows": tuple(gaussian(z, 100, 0.01, 10)[0] for z in (2.0, 4.0, 8.0)),
    "coins that are seen": ((Round(((1.0, 6.0),), steps=100, rate=0.01), 100),),
    "laplace": ((Round(((1.0, 6.0),), law="laplace"), 50),),
    "laplace seldom": ((Round(((1.0, 3.0),), law="laplace", steps=5, counts=((0.9, 0.0), (0.1, 1.0))), 100),),
    "laplace and gaussian": ((Round(((1.0, 6.0),), law="laplace"), 50), gaussian(6.0, 10, 0.01, 50)[0]),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_three_digits_whatever_the_steps(name):
    given_, fine = both(SETTINGS[name], 4 if name == "a million steps" else 8)
    assert fine * (1 - 1e-9) <= given_ <= fine * (1 + 1e-3)


@given(
    z=st.floats(0.7, 30.0),
    rate=st.floats(1e-3, 1.0),
    times=st.integers(1, 3000),
)
@settings(max_examples=20, deadline=None)
def test_a_coarser_grid_never_gives_less(z, rate, times):
    given_, fine = both(gaussian(z, 1, rate, times), 3)
    assert fine * (1 - 1e-9) - 1e-12 <= given_ <= fine * 1.02 + 1e-3


@pytest.mark.parametrize("times", [1531, 1568])
def test_losses_of_which_no_float_holds_the_exponential(times):
    """The library's own search divides by less than the smallest normal number here, on the given grid or the finer."""
    given_, fine = both(gaussian(0.71875, 1, 0.71875, times), 3)
    assert fine * (1 - 1e-9) <= given_ <= fine * 1.001


@pytest.mark.parametrize(("z", "times"), [(0.7, 580), (0.7, 1000), (1.0, 3000)])
def test_large_accounts_of_the_gaussian_are_exact(z, times):
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) with μ = √steps/z, by logarithms."""
    mu = math.sqrt(times) / z

    def delta(at):
        low = stats.norm.logcdf(-mu / 2 - at / mu) + at
        return math.exp(stats.norm.logcdf(mu / 2 - at / mu)) - math.exp(low)

    found = accountants.epsilon(gaussian(z, 1, 1.0, times), DELTA, "pld")
    assert found > accountants.LARGE
    assert delta(found) <= DELTA * (1 + 1e-6)
    assert delta(found * (1 - 1e-3)) > DELTA


@pytest.mark.parametrize("name", ["few steps", "a training", "another record", "laplace", "noise that grows"])
@pytest.mark.parametrize("delta", [1e-5, 1e-10])
def test_the_search_for_large_losses_finds_what_the_library_finds(name, delta):
    grid = accountants.grid_for(*accountants._losses(SETTINGS[name]), delta)
    total = None
    for one, times in SETTINGS[name]:
        composed = accountants._round_pld(one, grid).self_compose(times)
        total = composed if total is None else total.compose(composed)
    found, want = accountants._of_large_losses(total, delta), total.get_epsilon_for_delta(delta)
    assert want - 1e-9 <= found <= want + grid * (1 + 1e-6)


@pytest.mark.parametrize(("z", "rate"), [(0.5, 1e-7), (0.06, 1e-6), (0.3, 1e-4), (1.0, 1e-5)])
def test_little_noise_used_rarely_does_not_make_the_grid_too_long(z, rate):
    rounds = gaussian(z, 1, rate, 10)
    deviation, steps, furthest = accountants._losses(rounds)
    assert furthest / accountants.grid_for(deviation, steps, furthest, DELTA) <= math.sqrt(2) * accountants.LONGEST
    assert 0 <= accountants.epsilon(rounds, DELTA, "pld") < math.inf


@pytest.mark.parametrize(("epsilon", "times"), [(1 / 6, 50), (0.5, 20), (2.0, 1), (0.01, 300)])
def test_pure_steps_compose_as_coins_do(epsilon, times):
    """k of n losses are +ε, the others −ε: δ is a sum over k."""
    pure = 1.0 / (1.0 + math.exp(-epsilon))
    losses = (2 * np.arange(times + 1) - times) * epsilon
    weights = stats.binom.pmf(np.arange(times + 1), times, pure)

    def delta(at):
        return float((weights * np.clip(-np.expm1(at - losses), 0.0, None)).sum())

    found = accountants.epsilon(((Round(((1.0, 1.0 / epsilon),), law="laplace"), times),), DELTA, "pld")
    assert delta(found) <= DELTA * (1 + 1e-6)
    assert delta(found * (1 - 1e-3)) > DELTA


def test_losses_beyond_any_grid_fall_back_on_renyi():
    rounds = gaussian(0.06, 1, 1.0, 10**6)
    assert accountants.epsilon(rounds, DELTA, "pld") == accountants.epsilon(rounds, DELTA, "rdp") < math.inf
