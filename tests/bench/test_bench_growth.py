"""Exponents are those of the law that made the points; sizes are varied one at a time."""

import numpy as np
import pytest

from fedveil.bench import growth as bench
from fedveil.models.build import build
from fedveil.models.catalog import ModelConfig


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_an_exact_power_is_found(power):
    sizes = [10, 30, 100, 300]
    slope, low, high = bench.exponent(sizes, [0.01 * n**power for n in sizes])
    assert slope == pytest.approx(power, abs=1e-9) and high - low < 1e-6


def test_the_interval_is_that_of_a_regression():
    from scipy.stats import linregress, t

    rng = np.random.default_rng(0)
    sizes = [10.0, 20.0, 50.0, 100.0, 200.0]
    seconds = [n**0.8 * float(np.exp(0.1 * rng.normal())) for n in sizes]
    known = linregress(np.log(sizes), np.log(seconds))
    reach = t.ppf(0.975, 3) * known.stderr
    wanted = (known.slope, known.slope - reach, known.slope + reach)
    assert bench.exponent(sizes, seconds) == pytest.approx(wanted)


def test_two_sizes_have_no_interval():
    with pytest.raises(ValueError, match="at least 3 sizes"):
        bench.exponent([1, 2], [1.0, 2.0])


def test_linear_cost_has_ratio_one_and_worse_has_more():
    def row(power):
        return bench.grown("growth/x", {n: (lambda number, n=n: 1e-3 * n**power) for n in (40, 10, 20)}, 3)

    linear, worse = row(1.0), row(2.0)
    assert linear["ratio"] == pytest.approx(1.0) and linear["exponent"] == pytest.approx(1.0)
    assert worse["ratio"] == pytest.approx(4.0) and worse["exponent"] == pytest.approx(2.0)
    assert [n for n, _ in linear["points"]] == [10, 20, 40]


def test_parameters_are_those_of_the_model():
    import jax

    case, point = bench.rounds.CASES["mlp"], bench.Point(hidden=24)
    shapes = jax.eval_shape(build("mlp", case.shape, case.classes, ModelConfig(hidden=[24])).init, jax.random.key(0))
    assert bench.size("mlp", "hidden", point) == sum(a.size for a in jax.tree.leaves(shapes))


@pytest.mark.slow
def test_rounds_grow_in_small():
    (row,) = bench.run(repeats=3, axes={"mlp": {"per_round": (2, 4, 8)}}, images=())
    assert row["name"] == "growth/mlp/Kt" and [n for n, _ in row["points"]] == [2, 4, 8]
    assert row["exponent_low"] < row["exponent"] < row["exponent_high"] and row["low"] <= row["ratio"] <= row["high"]
