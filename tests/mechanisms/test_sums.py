"""Integers that are sent into a sum: rounded to a step after the noise, in few bits, with the same sensitivity."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedveil.core.setting import Setting
from fedveil.defenses.fed_cdp import FedCDP
from fedveil.mechanisms.grid import ROOM, TAIL, Grid
from fedveil.random import integers

# z of one sender, values, senders, contributions of each
CASES = [
    (1.8, 39_700, 100, 100),
    (3.5, 610, 4, 5),
    (0.5, 39_700, 100, 100),
    (0.25, 10**6, 1000, 100),
    (0.01, 100, 4, 5),
]
SETTING = Setting(
    clients=20, per_round=10, rounds=5, batch=6, local_steps=1, sampling="fixed", batching="poisson", aggregation="fedsgd",
    weights="uniform", smallest=50, layers=2, values=900, lr=0.5, secure_aggregation=True, quorum=8,
)  # fmt: skip
COHORT = FedCDP(placement="cohort", noise=6.0, arithmetic="integer")


@pytest.mark.parametrize("case", CASES)
def test_a_sum_has_room_for_contributions_that_all_point_to_one_value(case: tuple[float, int, int, int]) -> None:
    z, values, senders, each = case
    grid = Grid.fitting(z, values).in_sums(z, senders, senders * each)
    count = stats.poisson.isf(1e-13, senders * each)
    largest = count * math.sqrt(grid.accounted_square(z)) + TAIL * math.sqrt(senders) * grid.sigma
    assert grid.step % 2 == 1 and (grid.step == 1 or grid.sigma / grid.step >= ROOM)
    assert largest / grid.step + senders / 2 < 2 ** (grid.bits - 1)
    assert grid.bits == 16 or largest / max(1.0, grid.sigma / ROOM) > 2 ** (grid.bits - 4)  # and no bit is wasted


def test_the_best_row_of_the_page_beyond_takes_16_bits() -> None:
    z = 17.9 / math.sqrt(100)
    grid = Grid.fitting(z, 39_700).in_sums(z, 100, 100 * 100)
    assert grid.bits == 16 and grid.sigma / grid.step > ROOM


@pytest.mark.parametrize("step", [1, 3, 5, 535])
def test_steps_are_the_nearest_multiples(step: int) -> None:
    mechanism = COHORT.on_sum(SETTING)
    assert mechanism.grid is not None
    made = replace(mechanism, grid=replace(mechanism.grid, step=step))
    whole = np.arange(-3000, 3001)
    found = np.asarray(made.in_steps(jnp.asarray(whole, jnp.int32)))
    assert (np.abs(whole - step * found) <= step // 2).all()


def test_rounding_to_the_grid_and_then_to_an_odd_step_is_rounding_to_the_step() -> None:
    """The distribution that is sent, summed exactly from the thresholds of the draw, is that of round((x + N)/step)."""
    sigma, step, x = 6.0, 3, 7
    words = integers.thresholds(sigma).astype(object)
    upto = [sum(int(w) << shift for w, shift in zip(column, integers.WORDS, strict=True)) for column in words.T]
    sizes = np.diff([0, *upto, 1 << 128])
    found: dict[int, Fraction] = {}
    for size, mass in enumerate(sizes):
        for value in {size, -size}:
            share = Fraction(int(mass), (1 << 128) * (2 if size else 1))
            sent = (x + value + step // 2) // step
            found[sent] = found.get(sent, Fraction(0)) + share
    for sent, mass in found.items():
        low, high = ((step * (sent + side) - x) / sigma for side in (-0.5, 0.5))
        assert float(mass) == pytest.approx(stats.norm.cdf(high) - stats.norm.cdf(low), abs=1e-13)


def test_the_account_takes_the_distance_of_what_is_sent_and_the_sensitivity_of_what_is_added_up() -> None:
    setting = replace(SETTING, values=40_000, batch=50, smallest=500)
    (placed,) = COHORT.mechanisms(setting)
    grid = placed.mechanism.grid
    assert grid is not None and grid.step > 1
    release = placed.release(setting)
    assert release.sum_slip == grid.sum_slip(setting.clients) < 1e-20
    coarse, fine = Grid(2000.0, 40_000, step=999), Grid(2000.0, 40_000)
    assert coarse.sum_slip(20) >= 40_000 * integers.sum_slip(2000 / 999, 2) > 1e6 * fine.sum_slip(20)
    (whole,) = COHORT.mechanisms(replace(setting, quorum=0, per_round=8))  # the same shares, without a quorum
    assert whole.mechanism.grid is not None and whole.mechanism.grid.step == 1
    assert release.multiplier == pytest.approx(whole.release(setting).multiplier, rel=1e-9)


def test_both_ways_to_compute_a_round_send_multiples_of_the_step() -> None:
    import jax

    from fedveil.core.stage import StageContext

    setting = replace(SETTING, values=40_000, batch=50, smallest=500)
    key = jax.random.key(0, impl="threefry2x32")
    at = StageContext(setting, key, key, jnp.int32(0), jnp.float32(0.5), jnp.float32(50))
    each = {"one": {"w": jnp.asarray(np.random.default_rng(0).normal(size=(6, 40_000)), jnp.float32)}}
    mask = jnp.ones(6, bool)
    shown, rest = COHORT.example(each, mask, at)
    assert rest is not None
    by_example = shown["one"]["w"].sum(axis=0) + rest["one"]["w"]
    unit = COHORT.integer_unit(at)
    for total in (by_example, COHORT.example_sum(each, mask, at)["one"]["w"]):
        steps = np.asarray(total, np.float64) / unit
        assert np.abs(steps - np.rint(steps)).max() < 0.01 and np.abs(steps).max() > 5
