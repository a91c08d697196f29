"""Convolution and pooling as one step against the layers one by one, and clipped against example by example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedveil.kernels import clipping, gpu, pallas
from fedveil.kernels.clipping import ConvPool, training_context
from fedveil.mechanisms import clip
from fedveil.models.catalog import ModelConfig, build
from fedveil.models.layers import Activation, Context, Conv, Pool


def network(activation="relu", shape=(11, 12, 1)):
    net = build("cnn", shape, 3, ModelConfig(activation=activation))
    return net, jax.tree.map(lambda a: jnp.asarray(a, float), net.init(jax.random.key(0)))


def examples(shape, count=4):
    return jnp.asarray(np.random.default_rng(1).random((count, *shape)))


def summed(net, context):
    return lambda p, x: jnp.square(net.apply(p, x, context) - 0.3).sum()


@pytest.fixture(params=[False, True], ids=["patches", "kernel"])
def on_gpu(request, monkeypatch):
    """In float64 without the GPU kernel, in float32 with it: it runs as plain JAX here."""
    monkeypatch.setattr(clipping, "suits_gpu", lambda conv, x: request.param and clipping.suits(conv, x.shape[-1]))
    monkeypatch.setattr(pallas, "INTERPRET", True)
    with jax.enable_x64(not request.param):
        yield {"rtol": 1e-3, "atol": 1e-4} if request.param else {"rtol": 1e-8, "atol": 1e-12}


def close(got, want, tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), got, want)


def test_value_and_gradient_are_those_of_the_layers_one_by_one(on_gpu):
    net, params = network()
    x = examples(net.input_shape)
    context = training_context(None, None, bfloat16=False)
    got = jax.jit(jax.value_and_grad(summed(net, context)))(params, x)
    close(got, jax.jit(jax.value_and_grad(summed(net, None)))(params, x), on_gpu)


@pytest.mark.parametrize("kind", ["sigmoid", "tanh", "leaky-relu"])
def test_pooling_and_activations_commute(kind):
    layer = ConvPool(Conv("c", 4, 3), Activation(kind))
    params = layer.init(jax.random.key(1), (7, 8, 2))
    x = examples((7, 8, 2))
    one_by_one = Pool().apply(
        {}, Activation(kind).apply({}, layer.conv.apply(params, x, Context()), Context()), Context()
    )
    np.testing.assert_allclose(layer.apply(params, x, Context()), one_by_one, rtol=1e-6)


@pytest.mark.parametrize("bound", [pytest.param(1e-3, marks=pytest.mark.slow), 0.5])
def test_clipped_inside_equals_clipped_one_by_one(bound, on_gpu):
    net, params = network()
    x = examples(net.input_shape)
    context = training_context(None, jnp.asarray(bound), bfloat16=False)
    got = jax.jit(jax.grad(summed(net, context)))(params, x)
    each = jax.jit(jax.vmap(jax.grad(summed(net, None)), (None, 0)))(params, x[:, None])
    want = jax.tree.map(lambda a: a.sum(axis=0), clip.clip_examples(each, bound, "layerwise"))
    close(got, want, {**on_gpu, "atol": on_gpu["atol"] * bound})


@pytest.mark.parametrize("inputs", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_kernel_has_a_bias_and_takes_clients_of_their_own_weights(inputs, monkeypatch):
    monkeypatch.setattr(pallas, "INTERPRET", True)
    conv = Conv("c", 16, 3)
    clients = jax.vmap(lambda k: conv.init(k, (9, 10, inputs))["c"])(jax.random.split(jax.random.key(2), 3))
    clients = {"w": clients["w"], "b": clients["b"] + jnp.linspace(-1.0, 1.0, 16)}
    x = examples((9, 10, inputs), 6).reshape(3, 2, 9, 10, inputs)

    def plain(p, v):
        return jnp.sin(clipping.max_pool(conv.apply({"c": p}, v, Context())[:, :6, :8])).sum()

    quick = jax.jit(jax.vmap(jax.value_and_grad(lambda p, v: jnp.sin(gpu.first(p, v)).sum())))(clients, x)
    close(quick, jax.jit(jax.vmap(jax.value_and_grad(plain)))(clients, x), {"rtol": 1e-3, "atol": 1e-4})


def test_the_kernel_lowers_for_a_gpu(a_card):
    x, w = jnp.zeros((2, 5, 28, 28, 1), jnp.float32), jnp.zeros((2, 3, 3, 1, 32), jnp.float32)
    step = jax.vmap(jax.grad(lambda w, x: gpu.first({"w": w}, x).sum()))
    with a_card:
        assert "triton" in jax.jit(step).trace(w, x).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.optimised  # which may reorder or contract sums
@pytest.mark.parametrize("bound", [1e-2])
def test_a_clip_bound_holds_with_patches_in_bfloat16(bound):
    """One example at a time: what the layer gets is at most the bound, and points where the exact gradient does."""
    net, params = network()
    context = training_context(None, jnp.asarray(bound), bfloat16=True)
    one = jax.jit(jax.grad(summed(net, context)))
    exact = jax.jit(jax.grad(summed(net, None)))
    for x in examples(net.input_shape, 3):
        got, want = one(params, x[None]), exact(params, x[None])
        for name in ("conv1", "conv2"):
            a, b = np.asarray(got[name]["w"]).ravel(), np.asarray(want[name]["w"]).ravel()
            assert np.linalg.norm(a) <= bound * (1 + 1e-6)
            assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.99


def test_of_equal_entries_the_first_gets_the_derivative():
    gradient = jax.grad(lambda y: clipping.max_pool(y).sum())(jnp.ones((1, 2, 2, 1)))
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[1, 0], [0, 0]])


def test_only_a_convolution_before_max_pooling_is_joined():
    mean = build("cnn", (12, 12, 1), 3, ModelConfig(pooling="mean"))
    assert clipping.merged(mean.layers) == mean.layers
    joined = clipping.merged(build("cnn", (12, 12, 1), 3).layers)
    assert [type(layer).__name__ for layer in joined] == ["ConvPool", "ConvPool", "Flatten", "Dense"]


@pytest.mark.parametrize("batch", [1, 5, 8, 9])
def test_outer_sum_is_a_matrix_product(batch, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    rng = np.random.default_rng(3)
    x, g = rng.random((batch, 6)), rng.random((batch, 4))
    np.testing.assert_allclose(clipping.outer_sum(jnp.asarray(x), jnp.asarray(g)), x.T @ g, rtol=1e-5)
