"""The price of tuning, against the library's own event."""

import math

import dp_accounting as dp
import pytest

from fedveil.accounting import rdp
from fedveil.accounting.accountants import Round, epsilon
from fedveil.accounting.tuning import stopping_rate, tuned_epsilon

DELTA = 1e-5
POISSON = ((Round(((1.0, 2.0),), rate=0.01, hidden=True), 1000),)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("mean", [1.5, 10.0, 1000.0])
def test_equals_the_librarys_event(mean, shape):
    one = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(2.0))
    event = dp.dp_event.RepeatAndSelectDpEvent(dp.SelfComposedDpEvent(one, 1000), mean, shape)
    theirs = dp.rdp.RdpAccountant(orders=rdp.ORDERS).compose(event).get_epsilon(DELTA)
    assert tuned_epsilon(POISSON, DELTA, mean, shape) == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("shape", [0.0, 1.0, math.inf])
def test_more_runs_cost_more_and_less_than_releasing_them_all(shape):
    once = epsilon(POISSON, DELTA, "rdp")
    found = [tuned_epsilon(POISSON, DELTA, mean, shape) for mean in (2.0, 10.0, 100.0)]
    assert once < found[0] < found[1] < found[2]
    assert found[2] < epsilon(((POISSON[0][0], 100_000),), DELTA, "rdp")


def test_one_run_costs_what_it_costs():
    assert tuned_epsilon(POISSON, DELTA, 1.0, 1.0) == epsilon(POISSON, DELTA, "rdp")
    assert tuned_epsilon((), DELTA, 10.0, 1.0) == 0.0


@pytest.mark.parametrize(("shape", "stop"), [(0.0, 0.01), (0.5, 0.3), (1.0, 0.2), (4.0, 0.05)])
def test_the_stopping_rate_gives_the_mean(shape, stop):
    """The mean as a sum over K, with probabilities proportional to Γ(K + η)/K!·(1 − γ)^K."""
    weights = [math.exp(math.lgamma(k + shape) - math.lgamma(k + 1) + k * math.log1p(-stop)) for k in range(1, 20_000)]
    mean = sum(k * w for k, w in enumerate(weights, 1)) / sum(weights)
    assert stopping_rate(mean, shape) == pytest.approx(stop, rel=1e-6)


def test_every_run_may_fail_and_little_noise_has_an_answer():
    failing = ((Round(((1.0, 6.0),), fails=1e-7), 10),)
    assert tuned_epsilon(failing, DELTA, 5.0, 1.0) is not None and tuned_epsilon(failing, DELTA, 11.0, 1.0) is None
    for sigma in (1e-4, 0.02):
        for shape in (0.0, 1.0, math.inf):
            found = tuned_epsilon(((Round(((1.0, sigma),)), 1),), DELTA, 10.0, shape)
            assert found is None or 1 / (2 * sigma**2) < found < math.inf
    for mean, shape in ((0.5, 1.0), (2.0, -0.5), (math.inf, 1.0), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="mean_repeats ≥ 1"):
            tuned_epsilon(POISSON, DELTA, mean, shape)
