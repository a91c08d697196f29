"""The audit's statistics against known values, and how often they are wrong."""

import math

import numpy as np
import pytest
from scipy import stats

from fedveil.accounting import statistics
from fedveil.audit.certificate import gaussian_epsilon

# --- statistics: one run


@pytest.mark.parametrize(
    ("guesses", "correct", "epsilon"), [(100, 80, 1.0), (100, 100, 4.0), (7, 0, 0.3), (50, 20, 0.0)]
)
def test_p_value_without_delta_is_the_binomial_tail(guesses, correct, epsilon):
    rate = 1 / (1 + math.exp(-epsilon))
    found = statistics.one_run_p_value(200, guesses, correct, epsilon, 0.0)
    assert found == pytest.approx(stats.binom.sf(correct - 1, guesses, rate))


def test_p_value_with_delta_is_the_theorem_term_by_term():
    canaries, guesses, correct, epsilon, delta = 60, 40, 33, 0.7, 1e-3
    law = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    at_least = [
        sum(law.pmf(k) for k in range(max(v, 0), guesses + 1)) for v in range(correct, correct - canaries - 1, -1)
    ]
    steepest = max((at_least[i] - at_least[0]) / i for i in range(1, canaries + 1))
    expected = at_least[0] + 2 * canaries * delta * steepest
    assert statistics.one_run_p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(expected)


def test_p_value_allows_for_a_mechanism_that_tells_all_with_probability_delta():
    """Telling every coin with probability δ, else nothing, is (0, δ)-private."""
    for canaries in (1, 5, 40):
        right = 0.05 + 0.95 * 0.5**canaries
        assert statistics.one_run_p_value(canaries, canaries, canaries, 0.0, 0.05) >= right


def test_one_run_epsilon_is_where_the_p_value_meets_alpha():
    found = statistics.one_run_epsilon(1000, 1000, 1000, 0.0, 0.05)
    assert (1 / (1 + math.exp(-found))) ** 1000 == pytest.approx(0.05, rel=1e-2)  # all right: q^1000 = 5%
    found = statistics.one_run_epsilon(1000, 800, 700, 1e-5, 0.05)
    assert statistics.one_run_p_value(1000, 800, 700, found, 1e-5) <= 0.05
    assert statistics.one_run_p_value(1000, 800, 700, found + 1e-3, 1e-5) > 0.05
    assert statistics.one_run_epsilon(1000, 1000, 510, 1e-5, 0.05) == 0.0


def test_one_run_is_too_large_no_more_often_than_it_says():
    """Randomised response is exactly ε-private, and its coins are independent: the hardest case."""
    epsilon, alpha, runs = 1.0, 0.2, 400
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(runs):
        coins = rng.random(200) < 0.5
        kept = rng.random(200) < 1 / (1 + math.exp(-epsilon))
        scores = np.where(coins == kept, 1.0, -1.0) * (1 + 1e-3 * rng.random(200))
        wrong += statistics.one_run(scores, coins, 0.0, alpha).epsilon > epsilon
    assert wrong <= runs * alpha + 3 * math.sqrt(runs * alpha)


# --- statistics: trials


@pytest.mark.parametrize(("count", "trials"), [(0, 50), (3, 50), (49, 50), (50, 50)])
def test_clopper_pearson(count, trials):
    exact = stats.binomtest(count, trials).proportion_ci(0.9, method="exact").high  # two-sided: 5% above
    assert float(statistics.clopper_pearson(count, trials, 0.05)) == pytest.approx(exact)


def test_trials_epsilon_is_the_worse_of_both_directions():
    found = statistics.trials_epsilon(10, 900, 1000, 1e-5, 0.05)
    low, high = statistics.clopper_pearson(10, 1000, 0.025), statistics.clopper_pearson(900, 1000, 0.025)
    assert float(found) == pytest.approx(math.log((1 - 1e-5 - high) / low))
    assert float(statistics.trials_epsilon(900, 10, 1000, 1e-5, 0.05)) == pytest.approx(float(found))
    assert float(statistics.trials_epsilon(500, 500, 1000, 1e-5, 0.05)) == 0.0


def test_trials_are_too_large_no_more_often_than_they_say():
    """Randomised response again: here the ratio of the rates is e^ε at every threshold."""
    epsilon, alpha, runs = 1.0, 0.2, 400
    rng = np.random.default_rng(2)
    rate = 1 / (1 + math.exp(-epsilon))
    wrong = 0
    for _ in range(runs):
        without, with_it = (rng.random(500) > rate).astype(float), (rng.random(500) < rate).astype(float)
        wrong += statistics.independent_trials(without, with_it, 0.0, alpha).epsilon > epsilon
    assert wrong <= runs * alpha + 3 * math.sqrt(runs * alpha)


def test_trials_of_a_gaussian_come_near_what_is_expected_of_them():
    rng = np.random.default_rng(3)
    found = statistics.independent_trials(rng.normal(size=200_000), 0.5 + rng.normal(size=200_000), 1e-5, 0.05)
    assert 0.85 * statistics.trials_reach(2.0, 200_000, 1e-5, 0.05) < found.epsilon < gaussian_epsilon(2.0, 1e-5)


# --- statistics: one run against a trade-off curve


def test_one_canary_is_the_gaussian_curve_itself():
    """With one canary the best that a μ-GDP mechanism allows is Φ(μ/2) right guesses."""
    best = stats.norm.cdf(0.5)
    alpha = np.array([best - 1e-6, best + 1e-6])
    assert statistics.f_dp_refuted(1, 1, 1, np.asarray(1.0), alpha).tolist() == [False, True]


@pytest.mark.parametrize(("canaries", "guesses", "correct"), [(10, 10, 10), (100, 100, 80), (100, 25, 24)])
def test_f_dp_p_value_is_no_less_than_that_of_independent_canaries(canaries, guesses, correct):
    """Independent canaries under a Gaussian mechanism are one μ-GDP mechanism: its tail is a lower bound."""
    tail = stats.binom.sf(correct - 1, guesses, stats.norm.cdf(0.5))
    assert tail <= statistics.f_dp_p_value(canaries, guesses, correct, 1.0) <= 1.0


def test_f_dp_p_value_allows_for_canaries_that_share_one_secret():
    """All coins told by one Gaussian release of their common direction: the mechanism that fools binomial intervals."""
    rng, mu, canaries = np.random.default_rng(4), 1.0, 40
    hits = 0
    for _ in range(2000):
        coins = rng.random(canaries) < 0.5
        seen = mu * coins.sum() / math.sqrt(canaries) + rng.normal()  # every coin moves it by less than μ
        hits += int((coins == (seen > mu * math.sqrt(canaries) / 2)).sum() >= 25)
    assert hits / 2000 <= statistics.f_dp_p_value(canaries, canaries, 25, mu / math.sqrt(canaries))


def test_f_dp_bound_grows_with_what_is_right_and_never_exceeds_the_truth():
    found = [statistics.f_dp_mu(300, 300, correct, 1e-3) for correct in (150, 200, 250, 300)]
    assert found == sorted(found) and found[0] == 0.0 and found[-1] > 1.0
    rng = np.random.default_rng(5)
    for mu in (0.5, 2.0):
        bounds = []
        for _ in range(20):
            coins = rng.random(300) < 0.5
            curve = statistics.f_dp(mu * coins + rng.normal(size=300), coins, mu, 0.05)
            bounds.append(curve.mu)
            assert curve.p_value > 0.05
        assert 0.2 * mu < np.mean(bounds) < max(bounds) < mu


# --- statistics: realised noise


def test_upper_bounds_of_noise_scales_are_the_chi_square_and_gamma_quantiles():
    total, count = np.array([50.0]), np.array([40.0])
    gaussian = math.sqrt(50.0 / stats.chi2.ppf(0.01, 40))
    assert statistics.noise_upper(total, count, "gaussian", 0.01)[0] == pytest.approx(gaussian)
    assert statistics.noise_upper(total, count, "laplace", 0.01)[0] == pytest.approx(50.0 / stats.gamma.ppf(0.01, 40))


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_scale_alarms_seldom_where_noise_is_just_enough_and_surely_where_it_is_half(law):
    rng = np.random.default_rng(6)
    draw = rng.normal if law == "gaussian" else rng.laplace
    sizes, z = np.array([[3.0, 4.0]]), 2.0
    needed = z * (5.0 if law == "gaussian" else 7.0)  # one scale for both groups
    small = 0
    for _ in range(300):
        noise = [draw(scale=needed, size=n) for n in (50, 400)]
        small += _scale_p(noise, sizes, law, z) <= 0.1
    assert small <= 0.1 * 300 + 3 * math.sqrt(0.1 * 300)
    half = [draw(scale=needed / 2, size=n) for n in (50, 400)]
    assert _scale_p(half, sizes, law, z) < 1e-9


def _scale_p(noise, sizes, law, z):
    total = np.array([np.square(a).sum() if law == "gaussian" else np.abs(a).sum() for a in noise])
    return statistics.scale_p_value(sizes, total, np.array([float(a.size) for a in noise]), law, z)


def test_a_group_without_noise_has_the_smallest_p_value():
    count = np.array([100.0, 100.0])
    assert statistics.scale_p_value(np.ones((1, 2)), np.array([0.0, 1e6]), count, "gaussian", 1.0) < 1e-200
    assert statistics.scale_p_value(np.array([[0.0, 1.0]]), np.array([0.0, 1e6]), count, "gaussian", 1.0) == 1.0


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_correlation_p_values_are_uniform_or_above_and_vanish_for_shared_noise(law):
    rng = np.random.default_rng(7)
    draw = rng.normal if law == "gaussian" else rng.laplace
    p = [statistics.correlation_p_value(draw(size=60), draw(size=60), law) for _ in range(1000)]
    assert np.mean(np.array(p) <= 0.1) <= 0.1 + 3 * math.sqrt(0.1 / 1000)
    one = draw(size=300)
    for other in (one, -one, one + draw(size=300)):
        assert statistics.correlation_p_value(one, other, law) < 1e-6
