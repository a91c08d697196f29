"""Models from elsewhere: they compute what their own framework computes, and they can be trained."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedveil
from fedveil.core.errors import ConfigError
from fedveil.models.adapters import to_layers

SMALL = {
    "data": {"name": "digits", "partition": "iid", "clients": 10, "per_client": 100},
    "train": {"rounds": 2, "per_round": 5, "local_steps": 25, "batch": 8, "lr": 0.1},
}
KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def digits():
    return fedveil.load_dataset("digits").train.x[:6]


def check_trains(model):
    """Two rounds on digits: a finite loss, below that of the first model."""
    ready = fedveil.federation(SMALL, model=model)
    _, before = ready.simulator.evaluate(ready.simulator.start().params)
    result = fedveil.train(SMALL, model=model)
    assert np.isfinite(result.loss) and result.loss < before
    assert {len(layer) > 0 for layer in result.params.values()} == {True}


def close(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-5)


# --- plain functions


def init(key):
    return {"hidden": {"w": 0.2 * jax.random.normal(key, (64, 16)), "b": jnp.zeros(16)}, "out": jnp.zeros((16, 10))}


def apply(params, x):
    hidden = x.reshape(len(x), -1) @ params["hidden"]["w"] + params["hidden"]["b"]
    return jnp.tanh(hidden) @ params["out"]


def test_functions_take_any_tree_and_give_it_back(digits):
    model = fedveil.from_functions(init, apply)
    params = model.init(KEY)
    assert {layer: sorted(arrays) for layer, arrays in params.items()} == {"hidden": ["b", "w"], "top": ["out"]}
    close(model.apply(params, digits), apply(init(KEY), digits))
    assert jax.tree.structure(model.tree(params)) == jax.tree.structure(init(KEY))
    assert hash(model) == hash(fedveil.from_functions(init, apply))


def test_functions_train():
    check_trains(fedveil.from_functions(init, apply))


def test_a_dict_of_layers_stays_as_it_is():
    layers = {"a": {"w": jnp.ones(2)}, "b": {"w": jnp.ones(3), "b": jnp.ones(1)}}
    assert jax.tree.map(np.shape, to_layers(layers)) == jax.tree.map(np.shape, layers)
    assert list(to_layers({"block": {"dense": {"kernel": jnp.ones(1)}}})) == ["block/dense"]
    assert list(to_layers([{"w": jnp.ones(1)}, {"w": jnp.ones(1)}])) == ["0", "1"]


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({}, "no parameters"),
        ({"layer": {"steps": jnp.arange(3)}}, "layer/steps: int32"),
        ({"top": {"w": jnp.ones(1)}, "w": jnp.ones(1)}, "names two arrays"),
    ],
)
def test_trees_that_cannot_be_trained_are_refused(tree, says):
    with pytest.raises(ConfigError, match=says):
        fedveil.from_functions(lambda key: tree, apply)


# --- Flax


def test_flax(digits):
    linen = pytest.importorskip("flax.linen")
    module = linen.Sequential(
        [
            linen.Conv(8, (3, 3)),
            linen.GroupNorm(4),
            linen.relu,
            lambda x: x.reshape(len(x), -1),
            linen.Dense(10),
        ]
    )
    model = fedveil.from_flax(module, digits[:1])
    params = model.init(KEY)
    assert set(params["layers_0"]) == {"kernel", "bias"}
    close(model.apply(params, digits), module.apply(module.init(KEY, digits[:1]), digits))
    check_trains(model)


def test_flax_names_nested_modules_by_their_path():
    linen = pytest.importorskip("flax.linen")
    module = linen.Sequential([linen.Sequential([linen.Dense(4), linen.relu]), linen.Dense(2)])
    model = fedveil.from_flax(module, np.ones((1, 3)))
    assert set(model.init(KEY)) == {"layers_0/layers_0", "layers_1"}


def test_flax_refuses_what_mixes_examples():
    linen = pytest.importorskip("flax.linen")
    module = linen.Sequential([linen.Dense(4), linen.BatchNorm(use_running_average=False)])
    with pytest.raises(ConfigError, match="batch_stats.*GroupNorm"):
        fedveil.from_flax(module, np.ones((2, 3)))
    with pytest.raises(ConfigError, match=r"takes a flax\.linen module"):
        fedveil.from_flax(lambda x: x, np.ones((2, 3)))


# --- Equinox


def test_equinox(digits):
    eqx = pytest.importorskip("equinox")

    class Small(eqx.Module):
        conv: eqx.nn.Conv2d
        mlp: eqx.nn.MLP

        def __init__(self, key):
            first, second = jax.random.split(key)
            self.conv = eqx.nn.Conv2d(1, 4, 3, key=first)
            self.mlp = eqx.nn.MLP(4 * 6 * 6, 10, 16, 1, key=second)

        def __call__(self, x):  # one example, height × width × channels
            return self.mlp(jax.nn.relu(self.conv(x.transpose(2, 0, 1))).ravel())

    model = fedveil.from_equinox(Small)
    params = model.init(KEY)
    assert set(params) == {"conv", "mlp/layers/0", "mlp/layers/1"}
    assert set(params["conv"]) == {"weight", "bias"}
    close(model.apply(params, digits), jax.vmap(Small(KEY))(digits))
    check_trains(model)


def test_equinox_refuses_what_mixes_examples():
    eqx = pytest.importorskip("equinox")
    with pytest.raises(ConfigError, match=r"equinox\.nn\.State"):
        fedveil.from_equinox(lambda key: eqx.nn.BatchNorm(3, axis_name="batch", mode="batch"))


# --- PyTorch


def torch_output(sequential, x):
    import torch

    channels_first = torch.from_numpy(np.ascontiguousarray(np.moveaxis(np.asarray(x), -1, 1)))
    with torch.no_grad():
        return sequential.eval()(channels_first).numpy()


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is here")
def test_torch_is_no_dependency():
    with pytest.raises(ImportError):
        fedveil.from_torch(None, (8, 8, 1))


def torch_net(nn, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(6, 5, 3, stride=2, padding="valid", bias=False), nn.LeakyReLU()),
        nn.Conv2d(5, 7, 3, padding="same"),
        nn.Tanh(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(7 * 2 * 3, 12),
        nn.Sigmoid(),
        nn.Linear(12, 10),
    )


def test_torch_gives_the_same_logits():
    nn = pytest.importorskip("torch.nn")
    x = np.random.default_rng(0).normal(size=(4, 10, 15, 3)).astype(np.float32)
    sequential = torch_net(nn, 3)
    model = fedveil.from_torch(sequential, (10, 15, 3))
    close(model.apply(model.init(KEY), x), torch_output(sequential, x))
    assert set(model.init(KEY)) == {"0", "3.0", "4", "8", "10"}
    assert model.random and hash(model) is not None


def test_torch_mean_pooling_and_a_layer_used_twice(digits):
    nn = pytest.importorskip("torch.nn")
    relu = nn.ReLU()
    sequential = nn.Sequential(
        nn.Conv2d(1, 3, 2), relu, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(27, 9), relu, nn.Linear(9, 10)
    )
    model = fedveil.from_torch(sequential, (8, 8, 1))
    close(model.apply(model.init(KEY), digits), torch_output(sequential, digits))
    check_trains(model)


def test_torch_on_attributes():
    nn = pytest.importorskip("torch.nn")
    torch = pytest.importorskip("torch")
    sequential = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = np.random.default_rng(0).normal(size=(3, 5))
    with torch.no_grad():
        expected = sequential(torch.from_numpy(x)).numpy()
    with jax.enable_x64(True):
        model = fedveil.from_torch(sequential, (5,))
        np.testing.assert_allclose(model.apply(model.init(KEY), jnp.asarray(x)), expected, rtol=1e-12)


def test_torch_weights_are_copies(digits):
    nn = pytest.importorskip("torch.nn")
    torch = pytest.importorskip("torch")
    linear = nn.Linear(64, 10)
    model = fedveil.from_torch(nn.Sequential(nn.Flatten(), linear), (8, 8, 1))
    before = np.asarray(model.init(KEY)["1"]["w"])
    with torch.no_grad():
        linear.weight.zero_()
    assert np.array_equal(np.asarray(model.init(KEY)["1"]["w"]), before) and before.any()


# --- Flax NNX


def test_nnx(digits):
    nnx = pytest.importorskip("flax.nnx")

    class Small(nnx.Module):
        def __init__(self, rngs):
            self.first, self.norm = nnx.Linear(64, 16, rngs=rngs), nnx.LayerNorm(16, rngs=rngs)
            self.drop, self.out = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(16, 10, rngs=rngs)

        def __call__(self, x):
            return self.out(self.drop(nnx.relu(self.norm(self.first(x.reshape(len(x), -1))))))

    model = fedveil.from_nnx(Small)
    params, module = model.init(KEY), Small(nnx.Rngs(KEY))
    module.eval()
    assert set(params) == {"first", "norm", "out"} and set(params["first"]) == {"kernel", "bias"}
    close(model.apply(params, digits), module(digits))
    check_trains(model)

    class Mixing(Small):
        def __init__(self, rngs):
            super().__init__(rngs)
            self.norm = nnx.BatchNorm(16, rngs=rngs)

    with pytest.raises(ConfigError, match=r"Mixing.*BatchStat.*GroupNorm"):
        fedveil.from_nnx(Mixing)
