"""Integer noise in defences: what is sent lies on the grid, and what runs has the sensitivity that is accounted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedveil
from fedveil.accounting import ledger, transcript
from fedveil.accounting.accountants import Round, epsilon
from fedveil.accounting.filters import RenyiFilter
from fedveil.core.errors import ConfigError
from fedveil.core.setting import Setting
from fedveil.core.stage import StageContext
from fedveil.defenses.fed_cdp import FedCDP
from fedveil.defenses.fed_sdp import FedSDP
from fedveil.defenses.nbafl import NbAFL
from fedveil.defenses.two_dp import TwoDP
from fedveil.mechanisms import mechanism, rounding

VALUES, BATCH = 900, 6
SETTING = Setting(
    clients=20, per_round=10, rounds=5, batch=BATCH, local_steps=2, sampling="poisson", batching="poisson",
    aggregation="fedsgd", weights="uniform", smallest=50, layers=2, values=VALUES, lr=0.5, lr_end=0.1,
)  # fmt: skip
DEFENSES: dict[str, Any] = {
    "batch": FedCDP(placement="batch", clip_scope="flat"),
    "layerwise": FedCDP(placement="batch"),
    "example": FedCDP(placement="example", noise=0.7),
    "cohort": FedCDP(placement="cohort", noise=2.0),
    "decay": FedCDP(placement="batch", clip=6.0, clip_end=2.0, noise_end=9.0),
    "follows lr": FedCDP(placement="batch", clip_mode="lr"),
    "2dp-fl": TwoDP(),
    "2dp-fl by client": TwoDP(noise_factors=(1.0, 2.5)),
    "fed-sdp": FedSDP(placement="client"),
    "nbafl": NbAFL(epsilon=500.0),
}
# The others are variants of these.
QUICK = {"layerwise", "decay", "2dp-fl by client", "fed-sdp"}
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in DEFENSES]


def of(name: str) -> Any:
    return replace(DEFENSES[name], arithmetic="integer")


def at(number: int, client: int = 1, seed: int = 0) -> StageContext:
    key = jax.random.key(seed, impl="threefry2x32")
    lr = jnp.float32(SETTING.lr_at(number))
    return StageContext(SETTING, key, key, jnp.int32(number), lr, jnp.float32(BATCH), client=jnp.int32(client))


def gradients(count: int, size: float, seed: int = 0) -> dict[str, dict[str, jax.Array]]:
    drawn = np.random.default_rng(seed).normal(size=(count, VALUES)).astype(np.float32) * size
    a, b = drawn[:, : VALUES - 100], drawn[:, VALUES - 100 :]
    return {"one": {"w": jnp.asarray(a.reshape(count, 20, -1))}, "two": {"w": jnp.asarray(b)}}


def released(defense: Any, each: Any, number: int, client: int = 1, seed: int = 0) -> Any:
    """What leaves the client's stage: for a batch of gradients, or one update."""
    stage = at(number, client, seed)
    if defense.fills("example"):
        return defense.example_sum(each, jnp.ones(BATCH, bool), stage)
    one = jax.tree.map(lambda a: a[0], each)
    return defense.update(one, stage) if defense.fills("update") else defense.upload(one, stage)


def placed(defense: Any) -> Any:
    """The mechanism of the client's noise, as the ledger reads it."""
    (made,) = [p for p in defense.mechanisms(SETTING) if p.tap in ("client", "server")]
    return made


def width(defense: Any, number: int, client: int = 1) -> float:
    return float(placed(defense).mechanism.width(at(number, client)))


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.asarray(a, np.float64).ravel() for a in jax.tree.leaves(tree)])


@pytest.mark.parametrize("name", EACH)
def test_what_is_released_lies_on_the_grid(name: str) -> None:
    found = flat(jax.jit(lambda each: released(of(name), each, 2))(gradients(BATCH, 0.3))) / width(of(name), 2)
    assert np.abs(found - np.round(found)).max() < 1e-6 * np.abs(found).max() + 1e-3
    assert np.abs(found).max() > 100


@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize("name", EACH)
def test_the_integers_of_neighbours_differ_by_no_more_than_is_accounted(name: str, number: int) -> None:
    """Zero-out: one contribution becomes nothing. The noise is the same, so the difference is that contribution."""
    defense = of(name)
    made = placed(defense)
    z = float(made.mechanism.multiplier_at(SETTING, number))
    accounted = (made.mechanism.grid.sigma / z) ** 2
    run = jax.jit(lambda each, client, seed: released(defense, each, number, client, seed), static_argnums=(1, 2))
    for size, client, seed in ((30.0, 1, 0), (30.0, 0, 1), (1e-3, 1, 2), (1e30, 1, 3)):
        each = gradients(BATCH, size, seed)
        without = jax.tree.map(lambda a: a.at[0].set(0.0), each)
        moved = np.round(
            (flat(run(each, client, seed)) - flat(run(without, client, seed))) / width(defense, number, client)
        )
        assert (moved**2).sum() <= accounted
        if size == 30.0 and name != "2dp-fl by client":  # whose account is that of the client with the least noise
            assert (moved**2).sum() > 0.97 * accounted


@pytest.mark.parametrize("name", ["batch", "fed-sdp"])
def test_a_longer_contribution_than_is_accounted_would_be_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above fails once what runs allows more than the account: a mutation of the check alone."""
    monkeypatch.setattr(rounding, "largest_square", lambda reach, values: (2.0 * reach**2).astype(jnp.int32))
    longer = lambda tree: jax.tree.map(lambda a: a * 1.2, tree)  # noqa: E731
    one, examples = mechanism.Clip.one, mechanism.Clip.examples
    monkeypatch.setattr(mechanism.Clip, "one", lambda self, value, at: longer(one(self, value, at)))
    monkeypatch.setattr(mechanism.Clip, "examples", lambda self, each, bounds: longer(examples(self, each, bounds)))
    with pytest.raises(AssertionError):
        test_the_integers_of_neighbours_differ_by_no_more_than_is_accounted(name, 0)


@pytest.mark.parametrize("name", EACH)
def test_the_noise_is_what_is_accounted(name: str) -> None:
    defense = of(name)
    nothing = jax.tree.map(jnp.zeros_like, gradients(BATCH, 1.0))
    run = jax.jit(lambda seed: released(defense, nothing, 3, 0, seed))
    drawn = np.concatenate([flat(run(seed)) for seed in range(60)])
    made = placed(defense)
    z, scale = float(made.mechanism.multiplier_at(SETTING, 3)), float(made.mechanism.scale(at(3, 0)))
    assert drawn.std() / scale == pytest.approx(1.0, abs=4.0 / math.sqrt(2 * len(drawn)))
    plain = float(replace(made.mechanism, grid=None).multiplier_at(SETTING, 3))
    assert 0.99 * plain < z < plain


def test_open_examples_carry_their_own_integer_noise_and_the_sum_is_theirs() -> None:
    defense = of("example")
    stage = replace(at(1), open=True)
    mask = jnp.arange(BATCH + 2) < BATCH - 1
    each = jax.tree.map(lambda a: jnp.where(mask.reshape(-1, *[1] * (a.ndim - 1)), a, 0.0), gradients(BATCH + 2, 0.1))
    shown, rest = defense.example(each, mask, stage)
    unit = float(defense.on_example(SETTING).width(stage))
    whole = flat(shown) / unit
    assert np.abs(whole - np.round(whole)).max() < 1e-2
    assert (np.asarray(shown["two"]["w"])[~np.asarray(mask)] == 0).all()
    noise = np.asarray(rest["two"]["w"]) / unit  # one nominal slot is empty
    assert noise.std() == pytest.approx(defense.on_example(SETTING).grid.sigma, rel=0.35)


# --- the ledger


BASE = {
    "data": {"name": "digits", "clients": 10, "partition": "iid"},
    "model": {"name": "logistic"},
    "train": {"rounds": 4, "per_round": 5, "local_steps": 1, "batch": 5, "secure_aggregation": True},
}


def rows(arithmetic: str | None, **defense: Any) -> list[ledger.Row]:
    from fedveil.config import from_dict
    from fedveil.federation import plan

    made = plan(from_dict({**BASE, "defense": {"arithmetic": arithmetic, **defense}}))
    return [row for row in ledger.rows(made.transcript(), accountants=("pld",)) if row.epsilon is not None]


@pytest.mark.parametrize(
    "defense", [{"name": "fed-cdp", "placement": "cohort"}, {"name": "fed-sdp", "placement": "client"}]
)
def test_integers_cost_a_little_more_and_no_longer_assume_real_numbers(defense: dict[str, Any]) -> None:
    plain, whole = rows("float", **defense), rows("integer", **defense)
    assert [(r.tap, r.unit, r.adjacency) for r in plain] == [(r.tap, r.unit, r.adjacency) for r in whole]
    for one, other in zip(plain, whole, strict=True):
        assert one.epsilon < other.epsilon < 1.02 * one.epsilon
        assert ledger.FLOATING in one.assumptions and ledger.FLOATING not in other.assumptions
        assert ledger.WHOLE in other.assumptions


def test_without_a_word_the_arithmetic_of_a_simulation_is_floating_point() -> None:
    assert rows(None, name="fed-cdp") == rows("float", name="fed-cdp")


def test_what_has_no_integer_noise_is_refused() -> None:
    for keys, word in (
        ({"name": "fed-cdp", "clip_mode": "median"}, "clip_mode"),
        ({"name": "fed-sdp", "placement": "server-sum"}, "placement"),
        ({"name": "dpfl"}, "arithmetic"),
        ({"name": "fed-cdp", "arithmetic": "decimal"}, "arithmetic"),
    ):
        with pytest.raises(ConfigError, match=word):
            fedveil.train({**BASE, "defense": {"arithmetic": "integer", **keys}})


def test_a_filter_behind_the_integers_of_single_examples_ends_their_certificate() -> None:
    both = (of("batch"), fedveil.defenses.gradient_noise.GradientNoise(stage="example", scale=0.1))
    made = transcript.start(both, SETTING)
    assert not made.releases[0].certifiable and "at once" in made.releases[0].reason


def test_noise_too_small_for_integers_has_no_certificate() -> None:
    made = FedSDP(placement="client", noise=1e-5, arithmetic="integer")
    (release,) = made.events(SETTING)
    assert not release.certifiable and "too small" in release.reason


# --- how far from the ideal


def test_the_distance_from_the_ideal_is_taken_off_delta() -> None:
    one = Round(((1.0, 1.0),))
    plain, whole = (epsilon(((replace(one, slip=slip), 10),), 1e-5, "pld") for slip in (0.0, 1e-18))
    assert plain < whole < plain * 1.0001
    larger = epsilon(((replace(one, slip=1e-15), 10),), 1e-5, "pld")
    assert larger == epsilon(((one, 10),), 0.5e-5, "pld")
    assert epsilon(((replace(one, slip=1e-9), 10),), 1e-5, "pld") is None


def test_a_budget_takes_it_off_too() -> None:
    budget = RenyiFilter.for_budget(2.0, 1e-5)
    cost = budget.cost(Round(((1.0, 10.0),), slip=1e-18))
    assert budget.allows([cost]) and budget.allows([cost], 1e-18)
    assert not budget.allows([cost], 1e-9)
