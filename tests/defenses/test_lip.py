"""LIP: relevances against a plain loop, budgets that fall with relevance, layers without noise, refusals, and a run.

Statistical tests compare a mean of n absolute Laplace values (mean and deviation both equal to the scale) with its
expectation within 5 standard errors: about one false alarm in 1.7 million per comparison. Seeds are fixed, so a passing
test keeps passing.
"""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_program import at_stage

import fedveil
from fedveil.core.errors import ConfigError
from fedveil.core.setting import Setting
from fedveil.core.stage import StageContext
from fedveil.defenses import importance
from fedveil.defenses.catalog import make
from fedveil.defenses.lip import LIP
from fedveil.models.catalog import ModelConfig, build

SETTING = Setting(
    clients=12, per_round=4, rounds=3, batch=4, local_steps=2, sampling="fixed", batching="shuffle",
    aggregation="fedsgd", weights="uniform", lr=0.1, layers=3,
)  # fmt: skip


def federation(model, *, defense=None, speed=None, rounds=2):
    return fedveil.federation(
        {
            "data": {"clients": 6, "partition": "dirichlet"},
            "model": model,
            "train": {"rounds": rounds, "per_round": 3, "local_steps": 2, "batch": 4, "lr": 0.1},
            "defense": {"name": "lip", **(defense or {})},
            "speed": speed or {},
        }
    )


def flat(tree):
    return np.concatenate([np.asarray(a, np.float64).ravel() for a in jax.tree.leaves(tree)])


def relevance_one_by_one(params, x, y):
    """Two dense layers with a ReLU between, one example and one connection at a time."""
    w1, b1 = np.asarray(params["hidden1"]["w"]), np.asarray(params["hidden1"]["b"])
    w2, b2 = np.asarray(params["dense"]["w"]), np.asarray(params["dense"]["b"])
    found = {"hidden1": {"w": 0.0 * w1, "b": 0.0 * b1}, "dense": {"w": 0.0 * w2, "b": 0.0 * b2}}
    for a, label in zip(x, y, strict=True):
        z1 = a @ w1 + b1
        h = np.maximum(z1, 0.0)
        z2 = h @ w2 + b2
        out = z2[label] / (z2[label] + math.copysign(1e-6, z2[label])) * z2[label]  # through the stabiliser
        middle = np.zeros(len(h))
        for i in range(len(h)):
            found["dense"]["w"][i, label] += abs(h[i] * w2[i, label] / z2[label] * out) / len(x)
            middle[i] = h[i] * w2[i, label] / z2[label] * out
        found["dense"]["b"][label] += abs(b2[label] / z2[label] * out) / len(x)
        for j in range(len(h)):
            for i in range(len(a)):
                found["hidden1"]["w"][i, j] += abs(a[i] * w1[i, j] / z1[j] * middle[j]) / len(x)
            found["hidden1"]["b"][j] += abs(b1[j] / z1[j] * middle[j]) / len(x)
    return found


def test_relevance_is_that_of_a_plain_loop_and_ignores_padding():
    model = build("mlp", (5,), 3, ModelConfig(hidden=[4], init="uniform-0.5"))
    params = model.init(jax.random.key(1))
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    y, present = np.array([0, 1, 2, 0, 1, 2]), np.array([True] * 4 + [False] * 2)
    found = jax.jit(partial(importance.relevance, model))(params, x, y, present)
    expected = relevance_one_by_one(params, x[:4], y[:4])
    assert set(found) == {"hidden1", "dense"}
    for layer, own in expected.items():
        for k, value in own.items():
            np.testing.assert_allclose(found[layer][k], value, rtol=2e-3, atol=1e-5)


def test_the_more_relevant_the_smaller_the_budget():
    relevances = {"a": {"w": jnp.asarray([[0.0, 1.0], [2.0, 9.0]])}, "b": {"w": jnp.asarray([4.0, 4.0])}}
    shares = importance.sparing_shares(relevances)
    a = np.asarray(shares["a"]["w"]).ravel()
    assert (np.diff(a) < 0).all() and a.min() > 0
    assert a.mean() == pytest.approx(0.5)  # two layers share evenly
    np.testing.assert_allclose(a * (1 + np.array([0, 1, 2, 9]) / 3), a[0], rtol=1e-6)
    np.testing.assert_allclose(shares["b"]["w"], 0.5)


def test_a_layer_of_no_relevance_at_all_is_noised_evenly():
    np.testing.assert_allclose(importance.sparing_shares({"a": {"w": jnp.zeros(3)}})["a"]["w"], 1.0)


@pytest.mark.parametrize(
    ("layers", "noised"), [(None, {"dense"}), (["conv1"], {"conv1"}), (["conv2", "dense"], {"conv2", "dense"})]
)
def test_only_dense_or_named_layers_are_noised(layers, noised):
    defense = {"layers": layers, "clip": 0.5} if layers else {"clip": 0.5}
    simulator = federation({"name": "cnn"}, defense=defense).simulator
    state, key = simulator.start(), jax.random.key(0)
    assert set(state.clients["0"]) == noised
    update = jax.tree.map(lambda a: 1.0 + np.asarray(a), state.params)
    own = jax.tree.map(lambda a: np.asarray(a)[1], state.clients["0"])
    point = StageContext(setting=SETTING, key=key, shared=key, round=0, lr=0.1)
    message, _ = at_stage(partial(simulator.task.defenses[0].apply_with_state, "upload"), update, own, point=point)
    factor = 0.5 / np.abs(flat(update)).sum()
    for layer, values in update.items():
        for k, before in values.items():
            same = np.allclose(message[layer][k], before * factor, rtol=1e-4, atol=0)
            assert same == (layer not in noised), (layer, k)


def test_the_scale_of_the_noise_follows_the_budget():
    shares = {"dense": {"w": np.repeat(np.float32([0.2, 0.8]), 20_000), "b": np.full(20_000, 0.5, np.float32)}}
    update = jax.tree.map(np.zeros_like, {**shares, "conv1": {"w": np.zeros(10, np.float32)}})
    defense = LIP(clip=0.5, epsilon=4.0)
    key = jax.random.key(0)
    point = StageContext(setting=SETTING, key=key, shared=key, round=0, lr=9.0)
    noised, kept = at_stage(partial(defense.apply_with_state, "upload"), update, shares, point=point)
    assert jax.tree.all(jax.tree.map(np.array_equal, kept, shares)) and not np.asarray(noised["conv1"]["w"]).any()
    w = np.asarray(noised["dense"]["w"])
    for values, share in ((w[:20_000], 0.2), (w[20_000:], 0.8), (np.asarray(noised["dense"]["b"]), 0.5)):
        scale = 2 * 0.1 * 0.5 / (4.0 * share)  # 2ηα/ε_j
        assert abs(np.abs(values).mean() / scale - 1.0) < 5.0 / math.sqrt(values.size)


def test_budgets_differ_by_client_and_parameter():
    memory = federation({"name": "mlp", "hidden": [8]}).simulator.start().clients["0"]
    assert set(memory) == {"hidden1", "dense"} and memory["hidden1"]["w"].shape == (6, 64, 8)
    for layer in memory.values():
        each = np.concatenate([np.asarray(a).reshape(6, -1) for a in layer.values()], axis=1)
        np.testing.assert_allclose(each.mean(axis=1), 0.5, rtol=1e-5)
        assert each.std(axis=1).min() > 0 and each.min() > 0
        assert np.abs(each[0] - each[1]).max() > 0


def test_nothing_is_certified():
    for defense in (LIP(), LIP(layers=("conv1", "conv2", "dense"))):
        assert not defense.private
        assert all(not release.certifiable and release.reason for release in defense.events(SETTING))


def test_unknown_layers_and_models_without_dense_layers_are_refused():
    with pytest.raises(ConfigError, match=r"defense.layers: got 'conv_1'; did you mean 'conv1'\?"):
        federation({"name": "cnn"}, defense={"layers": ["conv_1"]})
    with pytest.raises(ConfigError, match="defense.layers: got \\[\\]; takes at least one"):
        make({"name": "lip", "layers": []}, "defense")
    with pytest.raises(ConfigError, match="train.aggregation"):
        LIP().check(replace(SETTING, aggregation="fedavg"))

    class Own:
        def init(self, key):
            return {"only": {"w": jnp.zeros((64, 10))}}

        def apply(self, params, x):
            return x.reshape(len(x), -1) @ params["only"]["w"]

    with pytest.raises(ConfigError, match="name the layers to noise, only"):
        fedveil.federation({"defense": {"name": "lip"}}, model=Own())


def test_it_trains_and_the_engines_agree():
    runs = []
    for engine in ("vectorised", "reference"):
        speed = {"precision": "float64", "engine": engine}
        runs.append(fedveil.train(federation({"name": "logistic"}, speed=speed).config))
    assert runs[0].rounds == 2
    assert np.abs(flat(runs[0].params) - flat(runs[1].params)).max() < 1e-9
