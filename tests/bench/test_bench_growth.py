"""The exponent is that of the power law that made the points; one size is varied at a time."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import growth as bench
from fedveil.models.catalog import ModelConfig, build


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


@pytest.mark.parametrize(
    ("axis", "key", "name"), [("per_round", "per_round", "Kt"), ("steps", "local_steps", "L"), ("batch", "batch", "B")]
)
def test_a_row_varies_one_setting_of_the_round(monkeypatch, axis, key, name):
    """Rounds whose seconds are a known power of that setting."""
    monkeypatch.setattr(bench.rounds, "play_rounds", lambda s, data: lambda number: 0.01 * s["train"][key] ** 1.5)
    (row,) = bench.run(repeats=3, axes={"mlp": {axis: (2, 4, 8)}}, images=())
    assert row["name"] == f"growth/mlp/{name}" and [n for n, _ in row["points"]] == [2, 4, 8]
    assert row["exponent"] == pytest.approx(1.5) and row["ratio"] == pytest.approx(4**0.5)


def test_attacks_are_timed_as_a_whole_batch(monkeypatch):
    """`as_a_batch` gives seconds per image; the row has the seconds of all images."""
    monkeypatch.setattr(bench.attack, "victims", lambda case, images, draw: SimpleNamespace(x=np.zeros(images)))
    monkeypatch.setattr(bench.attack, "as_a_batch", lambda work, chosen: lambda: 0.1 * len(work.x))
    (row,) = bench.run(repeats=3, axes={}, images=(1, 2, 4))
    assert row["name"] == "growth/attack/images" and row["exponent"] == pytest.approx(2.0)
    assert row["points"] == [[n, pytest.approx(0.1 * n**2)] for n in (1, 2, 4)]


@pytest.mark.slow
def test_real_rounds_have_the_clients_of_their_size(monkeypatch):
    """A real run in small: each size plays all its turns, on a federation with that number of clients per round."""
    played, real = [], bench.rounds.play_rounds

    def play_rounds(settings, data):
        play, numbers = real(settings, data), []
        played.append((settings["train"]["per_round"], len(data.train), numbers))
        return lambda number: numbers.append(number) or play(number)

    monkeypatch.setattr(bench.rounds, "play_rounds", play_rounds)
    (row,) = bench.run(repeats=3, axes={"mlp": {"per_round": (2, 4, 8)}}, images=())
    assert [n for n, _ in row["points"]] == [2, 4, 8]
    assert played == [(count, 100 * 50, [0, 1, 2, 3]) for count in (2, 4, 8)]
