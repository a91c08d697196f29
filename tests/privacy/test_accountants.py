"""Accountants: exact where a closed form exists, never below the truth, never without an answer; and their registry."""

import ast
import itertools
import math
import subprocess
import sys
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, signal, special, stats

from fedveil.accounting import accountants, pld, published, rdp
from fedveil.accounting.accountants import Round
from fedveil.core.errors import ConfigError

DELTA = 1e-5


def both(rounds, finer=8):
    """ε as it is given, and on a grid `finer` times as fine."""
    return accountants.epsilon(rounds, DELTA, "pld"), pld.composed_epsilon(rounds, DELTA, finer)


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
    "laplace": ((Round(((1.0, 6.0),), distribution="laplace"), 50),),
    "laplace seldom": ((Round(((1.0, 3.0),), distribution="laplace", steps=5, counts=((0.9, 0.0), (0.1, 1.0))), 100),),
    "subsets": ((Round(((1.0, 6.0),), replace=True, subset=(1000, 100)), 100),),
    "laplace and gaussian": ((Round(((1.0, 6.0),), distribution="laplace"), 50), gaussian(6.0, 10, 0.01, 50)[0]),
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
    """ε around 709, where e^−ε has too few bits."""
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
    assert found > 700
    assert delta(found) <= DELTA * (1 + 1e-6)
    assert delta(found * (1 - 1e-3)) > DELTA


@pytest.mark.parametrize(("z", "rate"), [(0.5, 1e-7), (0.06, 1e-6), (0.3, 1e-4), (1.0, 1e-5)])
def test_little_noise_used_rarely_does_not_make_the_grid_too_long(z, rate):
    rounds = gaussian(z, 1, rate, 10)
    deviation, steps, furthest = pld.spread(rounds)
    assert furthest / pld.grid_for(deviation, steps, furthest, DELTA) <= math.sqrt(2) * pld.LONGEST
    assert 0 <= accountants.epsilon(rounds, DELTA, "pld") < math.inf


@pytest.mark.parametrize(("epsilon", "times"), [(1 / 6, 50), (0.5, 20), (2.0, 1), (0.01, 300)])
def test_pure_steps_compose_as_coins_do(epsilon, times):
    """k of n losses are +ε, the others −ε: δ is a sum over k."""
    pure = 1.0 / (1.0 + math.exp(-epsilon))
    losses = (2 * np.arange(times + 1) - times) * epsilon
    weights = stats.binom.pmf(np.arange(times + 1), times, pure)

    def delta(at):
        return float((weights * np.clip(-np.expm1(at - losses), 0.0, None)).sum())

    found = accountants.epsilon(((Round(((1.0, 1.0 / epsilon),), distribution="laplace"), times),), DELTA, "pld")
    assert delta(found) <= DELTA * (1 + 1e-6)
    assert delta(found * (1 - 1e-3)) > DELTA


def test_losses_beyond_any_grid_fall_back_on_renyi():
    rounds = gaussian(0.06, 1, 1.0, 10**6)
    assert accountants.epsilon(rounds, DELTA, "pld") == accountants.epsilon(rounds, DELTA, "rdp") < math.inf


# --- δ near the rounding error of the FFT


def exact_gaussian(mu, delta):
    """ε of a Gaussian with means μ standard deviations apart, from the closed form of log δ(ε)."""

    def over(epsilon):
        upper, lower = special.log_ndtr(mu / 2 - epsilon / mu), epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
        return upper + math.log(-math.expm1(lower - upper)) - math.log(delta)

    return optimize.brentq(over, 0.0, mu**2 / 2 + 15 * mu + 50, xtol=1e-13)


@pytest.mark.parametrize(
    ("z", "times"),
    [(1.0, 1), (6.0, 36), (6.0, 1000), (30.0, 100), (100.0, 10_000), (300.0, 100_000), (1000.0, 10**6), (1.0, 3000)],
)
def test_a_small_delta_is_never_below_the_exact_one(z, times):
    """The library's distributions are 7 % low at (300, 100,000) and δ = 1e-14."""
    for delta in (1e-5, 1e-8, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14):
        exact = exact_gaussian(math.sqrt(times) / z, delta)
        found = pld.composed_epsilon(gaussian(z, 1, 1.0, times), delta)
        assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-3)


def test_the_error_term_covers_what_the_transform_loses():
    """Against convolution without FFT: the distance stays below the bound, and the bound is not far from it."""
    step = pld.sampled_gaussian(1.0, 0.1, 0.05).tilted(0, 4.0)
    composed = pld.sampled_gaussian(1.0, 0.1, 0.05).self_compose(8).tilted(0, 4.0)
    plain = step.probs
    for _ in range(3):
        plain = np.convolve(plain, plain)
    start = composed.first - 8 * step.first
    gap = plain.sum() - plain[start : start + len(composed.probs)].sum()
    gap += np.abs(plain[start : start + len(composed.probs)] - composed.probs).sum()
    assert gap <= composed.error <= 1e-10


def test_an_infinite_loss_ends_in_renyis_bound():
    """Losses beyond ten standard deviations are infinite on the grid: a δ below their probability has no ε there."""
    rounds = gaussian(1.0, 1, 1.0, 1)
    assert pld.composed_epsilon(rounds, 1e-30) is None
    assert (
        accountants.epsilon(rounds, 1e-30, "pld")
        == accountants.epsilon(rounds, 1e-30, "rdp")
        > exact_gaussian(1.0, 1e-30)
    )


# --- little noise


KINDS = {
    "hidden": {"hidden": True},
    "visible": {},
    "replace": {"hidden": True, "replace": True},
    "laplace": {"distribution": "laplace"},
    "together": {"hidden": True, "together": True, "counts": ((0.5, 0.0), (0.5, 3.0))},
    "subset": {"replace": True, "subset": (1000, 10)},
}


BETWEEN = [pytest.param(sigma, marks=pytest.mark.slow) for sigma in (1e-4, 1e-3, 0.02, 0.05)]


@pytest.mark.parametrize("sigma", [1e-8, 0.005, 0.06, 0.3, *BETWEEN])
def test_little_noise_always_has_an_answer(sigma):
    """None or a number, never an exception: a row that fails would lose a finished run."""
    for rate, steps in itertools.product((1e-5, 0.1, 1.0), (1, 10_000, 1_000_000)):
        found = [rule(sigma, rate, steps, DELTA) for rule in (*published.COMPOSE.values(), published.moments_pld)]
        for kind, name in itertools.product(KINDS.values(), ("pld", "rdp", "paper")):
            one = Round(((1.0, sigma),), rate=rate, **kind)
            found.append(accountants.epsilon(((one, steps),), DELTA, name))
        assert all(epsilon is None or 0 <= epsilon < math.inf for epsilon in found)


def test_little_noise_is_accounted_from_above():
    for sigma in (1e-3, 0.02, 0.06):
        exact = exact_gaussian(1.0 / sigma, DELTA)
        for name in ("pld", "rdp"):
            assert exact <= accountants.epsilon(gaussian(sigma, 1, 1.0, 1), DELTA, name) <= 1.5 * exact


# --- fixed-size subsets


def subset_outputs(size, drawn, z, others, mine):
    """The exact output distribution of a noisy sum over a random subset, on a fine grid of outputs."""
    records = [mine, *others]
    sums = [sum(chosen) for chosen in itertools.combinations(records, drawn)]
    edges = np.linspace(-12 * z - drawn, 12 * z + drawn, 6001)
    return np.mean([np.diff(stats.norm.cdf((edges - total) / z)) for total in sums], axis=0)


def exact_deltas(first, second, times, epsilons):
    """δ(ε) of `times` independent uses, by convolution; losses are rounded to the nearest point of a fine grid."""
    kept = (first > 0) & (second > 0)
    grid = 1e-4
    losses = np.round(np.log(first[kept] / second[kept]) / grid).astype(int)
    low = losses.min()
    masses = np.bincount(losses - low, weights=first[kept])
    total = masses
    for _ in range(times - 1):
        total = signal.fftconvolve(total, masses)
    at = (times * low + np.arange(len(total))) * grid
    return [float((total * np.clip(-np.expm1(epsilon - at), 0.0, None)).sum()) for epsilon in epsilons]


@pytest.mark.parametrize(("size", "drawn"), [(2, 1), (3, 1), (4, 2), (6, 2), (5, 4)])
@pytest.mark.parametrize("z", [1.5, 4.0])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_subsets_are_never_below_the_truth(size, drawn, z, times):
    """The exchanged record goes from 1 to −1 or back; the others are at the bound, ±1, or all zero."""
    epsilons = np.array([0.0, 0.05, 0.2, 0.5, 1.0, 2.0])
    bound = pld.round_losses(Round(((1.0, z),), replace=True, subset=(size, drawn)), 2e-3).self_compose(times)
    given_ = [bound.get_delta_for_epsilon(e) for e in epsilons]
    closest = math.inf
    bystanders = [[1.0] * marked + [-1.0] * (size - 1 - marked) for marked in range(size)]
    for others, sign in itertools.product([*bystanders, [0.0] * (size - 1)], (1.0, -1.0)):
        pair = [subset_outputs(size, drawn, z, others, mine) for mine in (sign, -sign)]
        true = exact_deltas(*pair, times, epsilons)
        assert all(t <= g + 1e-5 * times for t, g in zip(true, given_, strict=True))
        closest = min(closest, (given_[2] + 1e-12) / (true[2] + 1e-12))
    assert closest < 3 or drawn > 1  # the bound is not idle


def test_the_branch_above_one_alone_is_no_bound_under_composition():
    """Nine of ten records, two steps, all others zero: the exact δ(0) is 0.776, the branch gives 0.771, our pair 0.800."""
    pair = [subset_outputs(10, 9, 1.0, [0.0] * 9, mine) for mine in (1.0, -1.0)]
    (true,) = exact_deltas(*pair, 2, [0.0])
    branch = pld.sampled_gaussian(0.5, 0.9, 2e-3).self_compose(2).get_delta_for_epsilon(0.0)
    ours = pld.subset_losses(2.0, 0.9, "gaussian", 2e-3).self_compose(2).get_delta_for_epsilon(0.0)
    assert branch + 0.004 < true < ours


def test_fixed_cohorts_of_fed_sdp():
    """K = 1000, Kt = 100, T = 100, z = 6. The branch for α ≥ 1 in both directions gives 1.39, which is no bound."""
    rounds = SETTINGS["subsets"]
    branch = pld.sampled_gaussian(3.0, 0.1, 1e-3).self_compose(100).get_epsilon_for_delta(DELTA)
    found = accountants.epsilon(rounds, DELTA, "pld")
    open_ = accountants.epsilon(gaussian(6.0, 1, 1.0, 100, counts=((0.9, 0.0), (0.1, 1.0)), replace=True), DELTA, "pld")
    assert branch == pytest.approx(1.388, abs=2e-3) and found == pytest.approx(1.480, abs=2e-3)
    assert accountants.epsilon(rounds, DELTA, "rdp") == pytest.approx(3.22, abs=0.01)
    assert open_ == pytest.approx(5.46, abs=0.02)


@pytest.mark.parametrize(
    ("size", "drawn", "z", "times"), [(1000, 10, 2.0, 100), (50, 25, 8.0, 20), (500, 5, 6.0, 1000)]
)
def test_subsets_are_tighter_than_renyi(size, drawn, z, times):
    rounds = ((Round(((1.0, z),), replace=True, subset=(size, drawn)), times),)
    whole = ((Round(((1.0, z),), replace=True), times),)
    assert accountants.epsilon(rounds, DELTA, "pld") < accountants.epsilon(rounds, DELTA, "rdp")
    assert accountants.epsilon(rounds, DELTA, "pld") < accountants.epsilon(whole, DELTA, "pld")


def test_a_subset_of_everything_is_no_subset():
    every = ((Round(((1.0, 6.0),), replace=True, subset=(10, 10)), 10),)
    plain = ((Round(((1.0, 6.0),), replace=True), 10),)
    assert accountants.epsilon(every, DELTA, "pld") == pytest.approx(accountants.epsilon(plain, DELTA, "pld"), rel=1e-3)


# --- the registry


class Counting:
    """A toy accountant: as much ε as there are rounds."""

    name = "counting"
    certifies = False

    def epsilon(self, rounds, delta):
        return float(sum(times for _, times in rounds))


@pytest.fixture
def counting():
    accountants.register_accountant(Counting())
    yield
    del accountants.ACCOUNTANTS["counting"]
    accountants.epsilon.cache_clear()


def test_an_accountant_from_outside_is_asked_by_name(counting):
    assert accountants.epsilon(gaussian(6.0, 1, 1.0, 17), DELTA, "counting") == 17.0
    assert {"pld", "rdp", "paper", "counting"} <= set(accountants.ACCOUNTANTS)
    with pytest.raises(ConfigError, match="registered already"):
        accountants.register_accountant(Counting())


def test_an_unknown_accountant_is_named_with_those_that_exist():
    with pytest.raises(ConfigError, match="'plt'; is not registered: choose one of pld, rdp, paper"):
        accountants.epsilon(gaussian(6.0, 1, 1.0, 1), DELTA, "plt")
    with pytest.raises(TypeError, match="needs name, certifies and epsilon"):
        accountants.register_accountant(object())


def test_only_the_papers_rule_does_not_certify():
    assert {name: accountants.accountant_named(name).certifies for name in ("pld", "rdp", "paper")} == {
        "pld": True,
        "rdp": True,
        "paper": False,
    }


def test_the_papers_accountant_repeats_the_published_rule():
    assert accountants.epsilon(gaussian(6.0, 100, 0.01, 100), DELTA, "paper") == published.moments(
        6.0, 0.01, 10_000, DELTA
    )
    assert accountants.epsilon(SETTINGS["laplace"], DELTA, "paper") is None
    assert accountants.epsilon(SETTINGS["noise that grows"], DELTA, "paper") is None


# --- the library's public interface, and start-up


@pytest.mark.parametrize("path", sorted(Path(pld.__file__).parent.glob("*.py")), ids=lambda p: p.name)
def test_no_private_attribute_of_another_object_is_read(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            assert isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"), f"line {node.lineno}"


def test_renyi_divergences_equal_the_librarys():
    event = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(6.0))
    direct = dp.rdp.RdpAccountant(orders=rdp.ORDERS).compose(event, 10_000)
    found = accountants.epsilon(gaussian(6.0, 100, 0.01, 100), DELTA, "rdp")
    assert found == pytest.approx(direct.get_epsilon(DELTA), rel=1e-9)


def test_naming_accountants_imports_nothing_slow():
    slow = "{'numpy', 'scipy', 'dp_accounting'}"
    code = f"import sys; from fedveil.accounting import accountants; print({slow} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
