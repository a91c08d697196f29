"""Conditional rounding: integers within their bound for every input, and a mean that stays."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedveil.mechanisms import rounding

REACH, VALUES = 256.0, 600
MOST = rounding.largest_square(REACH, VALUES)


def squares(each: dict[str, jax.Array]) -> np.ndarray:
    return sum((np.asarray(a, np.int64) ** 2).reshape(len(a), -1).sum(axis=1) for a in each.values())


def contributions(count: int, seed: int = 0) -> dict[str, jax.Array]:
    drawn = np.random.default_rng(seed).normal(size=(count, VALUES))
    drawn *= REACH / np.linalg.norm(drawn, axis=1, keepdims=True)
    return {"a": jnp.asarray(drawn[:, :500].reshape(count, 20, 25), jnp.float32), "b": jnp.asarray(drawn[:, 500:])}


def test_contributions_within_the_reach_keep_the_bound_and_rarely_lose_their_mean() -> None:
    each = contributions(500)
    found = rounding.to_integers(each, jax.random.key(0), MOST)
    assert (squares(found) <= MOST).all()
    assert all(a.dtype == jnp.int32 for a in found.values())
    truncated = np.array([(np.asarray(found["b"][i]) == np.trunc(each["b"][i])).all() for i in range(500)])
    assert truncated.mean() <= 0.01


def test_the_mean_is_kept() -> None:
    one = contributions(1)
    many = {k: jnp.broadcast_to(a, (4000, *a.shape[1:])) for k, a in one.items()}
    found = rounding.to_integers(many, jax.random.key(1), MOST)
    off = np.concatenate([(np.asarray(found[k]).mean(axis=0) - np.asarray(one[k][0])).ravel() for k in one])
    assert np.abs(off).max() < 6 * 0.5 / math.sqrt(4000)
    assert abs(off.mean()) < 6 * 0.5 / math.sqrt(4000 * VALUES)


@pytest.mark.parametrize("bad", [1.001, 1.5, 1e4, 1e20, math.inf, math.nan])
def test_the_bound_holds_for_inputs_that_break_the_clip(bad: float) -> None:
    each = jax.tree.map(lambda a: a * bad, contributions(50))
    found = rounding.to_integers(each, jax.random.key(2), MOST)
    assert (squares(found) <= MOST).all()
    if bad > 1.1 or math.isnan(bad):
        assert (squares(found) == 0).all()


def test_squares_that_wrap_do_not_pass() -> None:
    """65,536² is 0 modulo 2³²."""
    each = {"a": jnp.full((1, 16), 65536.0)}
    assert (np.asarray(rounding.to_integers(each, jax.random.key(0), MOST)["a"]) == 0).all()


def test_a_contribution_does_not_change_the_others() -> None:
    each = contributions(6)
    other = jax.tree.map(lambda a: a.at[3].set(0.0), each)
    one, two = (rounding.to_integers(e, jax.random.key(3), MOST) for e in (each, other))
    for k in one:
        same = (np.asarray(one[k]) == np.asarray(two[k])).reshape(6, -1).all(axis=1)
        assert same.tolist() == [True, True, True, False, True, True]


@pytest.mark.parametrize("values", [1, 10, 10_000])
def test_the_bound_is_no_more_than_the_worst_case(values: int) -> None:
    assert REACH**2 <= rounding.largest_square(REACH, values) <= (REACH + math.sqrt(values)) ** 2


def test_the_coins_of_contributions_are_independent() -> None:
    """Otherwise a removed contribution, after which the next ones move up, would change how the others are rounded."""
    half = {"w": jnp.full((3, 20_000), 0.5)}
    ups = np.asarray(rounding._at_random(half, jax.random.key(5))["w"], float)
    between = np.corrcoef(ups)[np.triu_indices(3, 1)]
    assert 0.45 < ups.mean() < 0.55 and np.abs(between).max() < 0.05
