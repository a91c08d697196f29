"""DPFL: budgets by layer, the L1 clip and its noise, the selection law, fine-tuning, each part switched off alone, runs.

Statistical tests stay within 5 standard errors of what they expect, or reject at p < 1e-6: about one false alarm in a
million per comparison. Seeds are fixed, so a passing test keeps passing.
"""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from one_program import at_stage
from scipy import stats

import fedveil
from fedveil.core import keys
from fedveil.core.errors import ConfigError, Interrupted
from fedveil.core.setting import Setting
from fedveil.core.stage import StageContext
from fedveil.data.dataset import Dataset, Part
from fedveil.defenses import importance
from fedveil.defenses.dpfl import DPFL, choose
from fedveil.models.catalog import ModelConfig, build
from fedveil.models.layers import Activation, Context, Conv, Dense, Flatten, GroupNorm
from fedveil.models.net import Net
from fedveil.runs import RunFolder
from fedveil.simulation import client as client_part
from fedveil.simulation import context, sampling
from fedveil.simulation.inputs import Batch, RoundContext
from fedveil.training import resume, train

SETTING = Setting(
    clients=12, per_round=4, rounds=3, batch=4, local_steps=2, sampling="fixed", batching="shuffle",
    aggregation="fedsgd", weights="uniform", lr=0.1, layers=2,
)  # fmt: skip

# Nothing of DPFL is left: no fine-tuning, no selection, a bound that nothing reaches, no noise to speak of.
ALL_OFF = {"allocation": "even", "selection": "uniform", "finetune": False, "clip": 1e4, "epsilon": 1e18}


def at(seed=0, **changes):
    key = jax.random.key(seed)
    return StageContext(setting=SETTING, key=key, shared=key, **{"round": 0, "lr": 0.1, **changes})


def federation(defense, *, data=None, rounds=2, speed=None, **train_keys):
    return fedveil.federation(
        {
            "data": {"partition": "dirichlet", "clients": 12, **(data or {})},
            "model": {"name": "mlp", "hidden": [6]},
            "train": {"rounds": rounds, "per_round": 4, "local_steps": 2, "batch": 4, "lr": 0.1}
            | {"sampling": "fixed", "batching": "shuffle", **train_keys},
            "defense": defense,
            "speed": {"precision": "float64", **(speed or {})},
        }
    )


def dpfl(**keys_):
    return {"name": "dpfl", **keys_}


def flat(tree):
    return np.concatenate([np.asarray(a, np.float64).ravel() for a in jax.tree.leaves(tree)])


def params_after(defense, rounds=2, **changes):
    """Parameters after so many rounds."""
    simulator = federation(defense, rounds=rounds, **changes).simulator
    state = simulator.start()
    for number in range(rounds):
        state, _ = simulator.round(state, number)
    return flat(state.params)


# --- budgets


def test_pogz_by_hand_and_without_padding():
    model = build("mlp", (5,), 3, ModelConfig(hidden=[4], init="uniform-0.5"))
    params = model.init(jax.random.key(0))
    params["dense"]["b"] = jnp.full(3, -50.0)  # nothing is above zero there
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    present = np.array([True] * 4 + [False] * 2)
    z = x[:4] @ np.asarray(params["hidden1"]["w"]) + np.asarray(params["hidden1"]["b"])
    found = jax.jit(partial(importance.pogz, model))(params, x, np.zeros(6, int), present)
    assert float(found["hidden1"]) == pytest.approx((z > 0).sum() / 16)
    assert float(found["dense"]) == pytest.approx(1 / 12)  # counts as one value: a budget of zero is no budget


def test_a_layer_without_pre_activation_counts_as_the_mean_of_the_others():
    model = Net((Conv("conv", 4, 3), GroupNorm("norm", 2), Activation("relu"), Flatten(), Dense("dense", 3)), (5, 5, 1))
    x = np.random.default_rng(1).standard_normal((3, 5, 5, 1), np.float32)
    measure = lambda key: importance.pogz(model, model.init(key), x, np.zeros(3, int), np.ones(3, bool))  # noqa: E731
    found = jax.jit(measure)(jax.random.key(0))
    assert set(found) == {"conv", "norm", "dense"}
    assert float(found["norm"]) == pytest.approx((float(found["conv"]) + float(found["dense"])) / 2)


def test_budgets_follow_equation_3():
    shares = importance.shares_of_budget({"a": jnp.asarray([0.2, 0.5]), "b": jnp.asarray([0.6, 0.5])})
    np.testing.assert_allclose(shares["a"], [0.25, 0.5])
    np.testing.assert_allclose(shares["b"], [0.75, 0.5])


def test_each_client_measures_its_own_pretrained_model(monkeypatch):
    monkeypatch.setattr(context, "CHUNK", 5)  # the last chunk is not full
    ready = federation(dpfl())
    simulator, partition = ready.simulator, ready.partition
    state = simulator.start()
    memory, task = state.clients["0"], replace(simulator.task, defenses=())
    rounds = task.setting.rounds
    with jax.enable_x64(True):
        for c in (0, 7, 11):
            own = partition.client(c)
            key = keys.round_key(simulator.draws.root(), rounds)
            now = RoundContext(keys.client_key(key, c, 0), keys.shared_key(key), rounds, 0.1)
            local = client_part.start(task, state.params)
            for place, positions in enumerate(
                sampling.client_batches(simulator.sampling, simulator.draws, rounds, c, 0, len(own))
            ):
                rows = own[positions]
                mask = jnp.ones(len(rows), bool)
                local = simulator._step(local, Batch(simulator.x[rows], simulator.y[rows], mask), place, now)
            counts = {}
            task.model.apply(
                local.params,
                simulator.x[own].astype("float64") * task.scale,
                Context(probe=lambda name, z, counts=counts: counts.update({name: np.asarray(z > 0).mean()})),
            )
            for layer, share in counts.items():
                assert float(memory[layer][c]) == pytest.approx(share / sum(counts.values()), abs=1e-12)
    assert len(set(np.asarray(memory["dense"]).tolist())) > 3  # clients differ


def test_less_important_layers_may_get_more():
    shares = importance.shares_of_budget({"a": jnp.asarray([0.2, 0.5]), "b": jnp.asarray([0.6, 0.5])}, inverse=True)
    np.testing.assert_allclose(shares["a"], [0.75, 0.5], rtol=1e-6)
    np.testing.assert_allclose(shares["b"], [0.25, 0.5], rtol=1e-6)
    follow, against = (federation(dpfl(allocation=way)).simulator.start().clients["0"] for way in ("pogz", "inverse"))
    odds = np.asarray(follow["hidden1"]) / np.asarray(follow["dense"])
    np.testing.assert_allclose(np.asarray(against["hidden1"]) / np.asarray(against["dense"]), 1 / odds, rtol=1e-6)


def test_pogz_on_a_validation_part_leaves_it_out_of_pretraining():
    """Examples of the validation part alone decide the measure, and those of the rest alone the pre-training."""
    ready = federation(dpfl(validation=0.25), data={"per_client": 40, "partition": "iid"}, batch=10)
    held, params = ready.simulator.task.defenses[0].held, ready.simulator.start().params
    aside, rest = ready.partition.set_aside(0.25)
    assert [len(aside.client(3)), len(rest.client(3))] == [10, 30]
    assert sorted([*aside.client(3), *rest.client(3)]) == sorted(ready.partition.client(3))
    measure = lambda model, own, x, y, present: {"seen": x[present.argsort()[-10:]].sum(), "own": own}  # noqa: E731
    with jax.enable_x64(True):
        found = held.measure_clients(params, measure, 0.25)
        x = np.asarray(ready.dataset.train.x, np.float64) * ready.dataset.scale
        for c in range(12):
            assert float(found["seen"][c]) == pytest.approx(x[aside.client(c)].sum())
        spoiled = ready.dataset.train.x.copy()
        spoiled[aside.client(3)] = 0
        blind = replace(held, dataset=replace(ready.dataset, train=Part(spoiled, ready.dataset.train.y)))
        again = blind.measure_clients(params, measure, 0.25)
        assert float(again["seen"][3]) == 0.0
        np.testing.assert_array_equal(flat(again["own"]), flat(found["own"]))
    state = ready.simulator.start().clients["0"]
    assert not np.array_equal(flat(state), flat(federation(dpfl(), batch=10).simulator.start().clients["0"]))


def test_validation_needs_pogz_and_two_examples():
    with pytest.raises(ConfigError, match="defense.validation: got 0.5"):
        DPFL(allocation="even", validation=0.5).check(SETTING)
    with pytest.raises(ConfigError, match="defense.validation: got 0.5"):
        federation(dpfl(validation=0.5), data={"per_client": 1, "partition": "iid"}, batch=1)


def test_even_budgets():
    memory = federation(dpfl(allocation="even")).simulator.start().clients["0"]
    assert set(memory) == {"hidden1", "dense"}
    assert all((np.asarray(share) == 0.5).all() for share in memory.values())


# --- clip and noise


@settings(max_examples=30, deadline=None)
@given(
    hnp.arrays(np.float32, 12, elements=st.floats(-1e6, 1e6, width=32)),
    st.floats(1e-3, 1e3),
)
def test_the_l1_bound_holds_over_all_layers_together(values, bound):
    update = {"a": {"w": jnp.asarray(values[:8])}, "b": {"w": jnp.asarray(values[8:])}}
    shares = {"a": jnp.asarray(0.5), "b": jnp.asarray(0.5)}
    sent, _ = DPFL(clip=bound, epsilon=1e30).apply_with_state("upload", update, shares, at())
    before, after = np.abs(values.astype(np.float64)).sum(), np.abs(flat(sent)).sum()
    assert after <= bound * (1 + 1e-6)
    if before <= bound * (1 - 1e-5):
        np.testing.assert_allclose(flat(sent), values, rtol=1e-5, atol=1e-20)


def test_a_clamp_limits_every_value_by_itself():
    update = {"a": {"w": jnp.asarray([-3.0, 0.2, 0.5])}, "b": {"w": jnp.asarray([7.0, -0.1, jnp.nan])}}
    shares = {"a": jnp.asarray(0.5), "b": jnp.asarray(0.5)}
    sent, _ = DPFL(clip=0.5, clip_norm="value", epsilon=1e30).apply_with_state("upload", update, shares, at())
    np.testing.assert_allclose(flat(sent), [-0.5, 0.2, 0.5, 0.5, -0.1, 0.0], rtol=1e-5, atol=1e-20)
    ready = federation(dpfl(clip_norm="value", allocation="even"))
    assert ready.simulator.task.setting.values == flat(ready.simulator.start().params).size
    assert federation(dpfl()).simulator.task.setting.values == 0  # counted only where the account needs it


def test_each_layer_gets_laplace_noise_of_its_own_scale():
    shapes = {"a": {"w": (200, 100)}, "b": {"w": (20_000,), "b": (20_000,)}}
    update = {layer: {k: np.zeros(shape, np.float32) for k, shape in own.items()} for layer, own in shapes.items()}
    shares = {"a": np.float32(0.2), "b": np.float32(0.8)}
    # The scale keeps to the first round's rate (0.1), whatever the rate of the round.
    change = partial(DPFL(clip=0.5, epsilon=4.0).apply_with_state, "upload")
    noised, kept = at_stage(change, update, shares, point=at(lr=0.003))
    assert kept == shares
    for layer, k, share in (("a", "w", 0.2), ("b", "w", 0.8), ("b", "b", 0.8)):
        values, scale = np.asarray(noised[layer][k]).ravel(), 2 * 0.1 * 0.5 / (4.0 * share)
        assert abs(np.abs(values).mean() / scale - 1.0) < 5.0 / math.sqrt(values.size)  # deviation of |x| is the scale
        assert stats.kstest(values / scale, "laplace").pvalue > 1e-6


# --- selection


def test_dropped_clients_are_never_drawn_by_value():
    rng, values = np.random.default_rng(0), np.random.default_rng(1).random(20)
    dropped = set(np.argsort(values)[:6].tolist())
    for _ in range(300):
        chosen = choose(rng, values, 5, 0.3, 0.01, 0.0)
        assert len(set(chosen.tolist())) == 5
        assert not dropped & set(chosen.tolist())


def test_the_uniform_part_is_drawn_from_all_that_are_left():
    rng, values = np.random.default_rng(0), np.arange(100.0)
    draws, found = 3000, 0
    for _ in range(draws):
        chosen = choose(rng, values, 10, 0.5, 0.01, 0.4)  # 6 by value, 4 of the other 94, of which 50 are dropped ones
        assert len(set(chosen.tolist())) == 10
        found += (chosen < 50).sum()
    law = stats.hypergeom(94, 50, 4)
    assert abs(found / draws - law.mean()) < 5.0 * law.std() / math.sqrt(draws)


def test_values_weigh_by_their_exponential():
    rng, values = np.random.default_rng(0), np.array([0.0, 1.0, 2.0, 3.0])
    drawn = np.bincount([choose(rng, values, 1, 0.0, 0.5, 0.0)[0] for _ in range(4000)], minlength=4)
    weights = np.exp(0.5 * values)
    assert stats.chisquare(drawn, 4000 * weights / weights.sum()).pvalue > 1e-6


def test_huge_values_and_too_few_clients_left_do_no_harm():
    rng = np.random.default_rng(0)
    assert choose(rng, np.array([1.0, 2.0, 1e300, 3.0]), 1, 0.0, 1.0, 0.0)[0] == 2
    assert sorted(choose(rng, np.arange(4.0), 4, 0.9, 1.0, 0.0)) == [0, 1, 2, 3]


def test_clients_not_seen_yet_come_first_and_by_chance():
    rng = np.random.default_rng(0)
    values = np.where(np.arange(12) < 8, 5.0, np.inf)
    assert set(choose(rng, values, 4, 0.3, 10.0, 0.0).tolist()) == {8, 9, 10, 11}
    first = [choose(rng, np.full(12, np.inf), 1, 0.3, 1.0, 0.0)[0] for _ in range(3000)]
    assert stats.chisquare(np.bincount(first, minlength=12)).pvalue > 1e-6


def test_values_are_data_share_times_loss():
    ready = federation(dpfl(alpha1=11 / 12, alpha3=0.0, finetune=False, allocation="even"))
    defense, sizes = ready.simulator.task.defenses[0], ready.partition.length
    losses = np.full(12, 1.0) / sizes
    losses[3] *= 1.5  # the largest n_k·loss, and not the largest loss
    assert losses.argmax() != 3
    one = replace(SETTING, per_round=1)
    assert defense.select(np.random.default_rng(0), 0, one, losses).tolist() == [3]
    losses[5] = np.nan
    assert defense.select(np.random.default_rng(0), 0, one, losses).tolist() == [5]


def test_only_clients_just_selected_report_a_loss():
    simulator = federation(dpfl(finetune=False, allocation="even", alpha1=0.0, alpha3=0.0)).simulator
    state = simulator.start()
    for number in range(3):
        state, report = simulator.round(state, number)
        assert report.chosen == 4
        assert np.isfinite(np.asarray(state.clients["loss"])).sum() == 4 * (number + 1)  # everyone is seen first


# --- the server


def test_public_and_held_out_examples_are_apart():
    plain, with_public = federation({"name": "none"}).dataset, federation(dpfl(public=0.25)).dataset
    assert with_public.public is not None
    assert len(with_public.public) == round(0.25 * len(plain.held_out))
    rows = lambda part: sorted(np.c_[part.x.reshape(len(part), -1), part.y].tolist())  # noqa: E731
    both = Part(
        np.concatenate([with_public.public.x, with_public.held_out.x]),
        np.concatenate([with_public.public.y, with_public.held_out.y]),
    )
    assert rows(both) == rows(plain.held_out)  # cut in two: nothing twice, nothing lost
    assert rows(with_public.train) == rows(plain.train)
    assert len(federation(dpfl()).dataset.public) == round(0.1 * len(plain.held_out))
    assert federation(dpfl(finetune=False)).dataset.public is None


@pytest.mark.parametrize("has_test", [False, True])
def test_own_datasets_are_cut_too(has_test):
    part = lambda first, n: Part(np.arange(first, first + n, dtype=np.float32)[:, None], np.arange(n) % 2)  # noqa: E731
    own = Dataset("own", part(0, 40), part(100, 20), "validation", 2, test=part(200, 20) if has_test else None)
    settings_ = {"data": {"clients": 2, "partition": "iid", "per_client": 20}, "defense": dpfl(public=0.5)}
    ready = fedveil.federation(settings_, data=own)
    assert len(ready.dataset.public) == 10
    assert len(ready.dataset.held_out) == (20 if has_test else 10)
    kept = [ready.dataset.held_out, ready.dataset.test or part(0, 0), ready.dataset.public]
    assert len(np.unique(np.concatenate([p.x for p in kept]))) == (40 if has_test else 20)
    assert not np.isin(ready.dataset.public.x, ready.dataset.train.x).any()


def test_the_printed_server_step_is_smaller_by_rate_and_share_of_clients():
    updates = np.random.default_rng(0).normal(size=(4, 7))  # of the 4 of 12 clients that take part
    sizes = np.array([10, 20, 30, 40, 25, 25, 25, 25, 50, 50, 50, 10])
    for weights, printed in ((np.ones(12), np.full(12, 1 / 12)), (sizes / sizes.mean(), sizes / sizes.sum())):
        total = {"a": {"w": jnp.asarray(weights[:4] @ updates)}}
        divisor = weights[:4].sum()
        change = flat(DPFL(server_step="as-printed").aggregate(total, at(divisor=divisor))) / divisor
        np.testing.assert_allclose(change, 0.1 * printed[:4] @ updates, rtol=1e-5)


def test_fine_tuning_is_one_epoch_on_the_public_set():
    ready = federation(dpfl(public_only=True, public=0.05), rounds=1)
    public, simulator = ready.dataset.public, ready.simulator
    state = simulator.start()
    with jax.enable_x64(True):
        key = keys.device(simulator.round_key(0), "finish", 0)
        order = np.asarray(jax.random.permutation(jax.random.split(key)[0], len(public)))
        params = state.params
        loss = lambda p, x, y: client_part.cross_entropy(simulator.task.model.apply(p, x), y).mean()  # noqa: E731
        gradient = jax.jit(jax.grad(loss))
        for first in range(0, len(public), 4):
            rows = order[first : first + 4]
            found = gradient(params, public.x[rows] * simulator.task.scale, public.y[rows])
            params = jax.tree.map(lambda a, g: a - 0.1 * g, params, found)
    assert len(public) % 4  # the last batch is smaller
    after, report = simulator.round(state, 0)
    assert np.abs(flat(after.params) - flat(params)).max() < 1e-12
    assert report.row()["clients"] == 0


def test_the_public_set_only_baseline_asks_no_client():
    few = params_after(dpfl(public_only=True))
    other = params_after(dpfl(public_only=True, clip=7.0), data={"clients": 5}, per_round=3)
    assert np.abs(few - other).max() == 0.0


# --- parts switched off alone, engines, runs


@pytest.fixture(scope="module")
def plain():
    return params_after({"name": "none"})


def test_with_all_parts_off_it_is_plain_training(plain):
    assert np.abs(params_after(dpfl(**ALL_OFF)) - plain).max() < 1e-9


@pytest.mark.parametrize("part", [{"selection": "active"}, {"finetune": True}, {"epsilon": 10.0, "clip": 1.0}])
def test_each_part_works_alone(part, plain):
    assert np.abs(params_after(dpfl(**ALL_OFF | part)) - plain).max() > 1e-3


@pytest.mark.parametrize(
    ("off", "stage"), [({"selection": "uniform"}, "select"), ({"finetune": False}, "finish"), ({}, "aggregate")]
)
def test_a_part_that_is_off_is_not_in_the_round(off, stage):
    assert not DPFL(**off).fills(stage)
    assert all(DPFL(**off).fills(s) for s in {"select", "upload", "finish"} - {stage})


def test_it_trains_and_the_engines_agree():
    fast = fedveil.train(federation(dpfl()).config)
    slow = fedveil.train(federation(dpfl(), speed={"engine": "reference"}).config)
    assert fast.rounds == 2 and [row["clients"] for row in fast.history] == [4, 4]
    assert np.abs(flat(fast.params) - flat(slow.params)).max() < 1e-9


def test_a_stopped_run_goes_on_to_the_same_end(tmp_path, monkeypatch):
    settings_ = dpfl(alpha2=5.0)
    made = federation(settings_, rounds=6)
    undisturbed = train(made)
    quick = made.simulator.round

    def stopping(state, number):
        if number == 3:
            raise Interrupted("stop")
        return quick(state, number)

    monkeypatch.setattr(made.simulator, "round", stopping)
    with pytest.raises(Interrupted):
        train(made, RunFolder.create(tmp_path / "run"))
    ended = resume(tmp_path / "run")
    assert 0 < len(ended.history) == 6
    assert np.abs(flat(ended.params) - flat(undisturbed.params)).max() == 0.0


# --- accounts and refusals


def test_even_budgets_cost_their_largest_over_the_rate():
    for release in DPFL(allocation="even", epsilon=4.0, clip=3.0).events(SETTING):
        assert release.certifiable and (release.unit, release.distribution, release.uses) == (
            "client",
            "laplace",
            "round",
        )
        # ε_i = 2, η = 0.1: replace (twice the norm) costs 2/0.1 = 20 a round, zero-out 10.
        assert 2.0 / release.multiplier == pytest.approx(20.0)
        assert any("losses" in text for text in release.assumes)
    assert DPFL(allocation="even", selection="uniform").events(SETTING)[0].assumes == ()
    taps = [release.tap for release in DPFL().events(SETTING)]
    assert taps == ["server"]  # what comes after it is post-processing; what the client itself holds is open


def test_private_pogz_is_not_covered():
    assert all(not release.certifiable and "PoGZ" in release.reason for release in DPFL().events(SETTING))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="train.aggregation: got 'fedavg'"):
        DPFL().check(replace(SETTING, aggregation="fedavg"))
    with pytest.raises(ConfigError, match="defense.public_only: got True"):
        DPFL(public_only=True, finetune=False).check(SETTING)
    with pytest.raises(ConfigError, match="train.sampling"):
        federation(dpfl(), sampling="with-replacement")

    class Own:
        def init(self, key):
            return {"only": {"w": jnp.zeros((64, 10))}}

        def apply(self, params, x):
            return x.reshape(len(x), -1) @ params["only"]["w"]

    with pytest.raises(ConfigError, match="defense.allocation: got 'pogz'"):
        fedveil.federation({"defense": dpfl()}, model=Own())
    fedveil.federation({"defense": dpfl(allocation="even")}, model=Own())
