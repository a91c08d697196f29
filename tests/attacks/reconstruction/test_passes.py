"""The four passes are automatic differentiation, only faster."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedveil.attacks import gradients
from fedveil.attacks.reconstruction import passes
from fedveil.models.catalog import ModelConfig, build
from fedveil.models.layers import Activation, Conv, Dense, Flatten
from fedveil.models.net import Net

NETS = {
    "lenet-cpl": build("lenet-cpl", (9, 8, 3), 4, ModelConfig(channels=3)),
    "pooled": build("lenet-dlg", (8, 8, 1), 4, ModelConfig(pooling="mean", channels=3, activation="tanh")),
    "cnn": build("cnn", (8, 8, 1), 4),
    "mlp": build("mlp", (7,), 3, ModelConfig(hidden=[6, 5], activation="sigmoid")),
    "logistic": build("logistic", (4, 4, 1), 3),
    # A stride wider than the kernel: some pixels are in no window.
    "strided": Net((Conv("c", 2, 2, stride=3, padding=1), Activation("sigmoid"), Flatten(), Dense("d", 3)), (7, 8, 2)),
}


def close(a, b):
    return max(float(np.abs(x - y).max()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize(
    "name,examples,own",
    [
        ("lenet-cpl", 1, False),
        ("pooled", 3, True),
        ("cnn", 1, True),
        ("mlp", 3, False),
        ("logistic", 1, False),
        ("strided", 2, True),
    ],
)
def test_gradients_and_their_derivatives(name, examples, own):
    with jax.enable_x64(True):
        net, attacks = NETS[name], 2
        rng = np.random.default_rng(1)
        shapes = jax.eval_shape(net.init, jax.random.key(0))
        lead = (attacks,) if own else ()
        params = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=(*lead, *a.shape)) * 0.3), shapes)
        direction = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=(attacks, *a.shape))), shapes)
        x = jnp.asarray(rng.normal(size=(attacks, examples, *net.input_shape)))
        classes = net.layers[-1].units
        q = jax.nn.softmax(jnp.asarray(rng.normal(size=(attacks, examples, classes))))

        @jax.jit
        def ours(params, x, q):
            found, pull = passes.gradients(net, params, x, q)
            return found, pull(direction)

        @jax.jit
        def theirs(params, x, q):
            found, pull = gradients.of_any_model(net, params, own, x, q)
            return found, pull(direction)

        assert passes.fits(net)
        assert close(ours(params, x, q), theirs(params, x, q)) < 1e-12


def test_other_networks_take_the_general_way():
    assert not passes.fits(build("resnet20", (8, 8, 3), 3))
    assert not passes.fits(object())


@pytest.mark.parametrize("stride,padding,kernel", [(1, 2, 5), (2, 2, 5), (3, 1, 2)])
def test_folding_is_the_transpose_of_unfolding(stride, padding, kernel):
    rng = np.random.default_rng(0)
    conv = Conv("c", 4, kernel, stride, padding)
    a = rng.normal(size=(2, 3, 8, 9)).astype(np.float32)
    h = jax.jit(lambda a: passes.unfold(conv, a))(a)
    other = rng.normal(size=h.shape).astype(np.float32)
    back = jax.jit(lambda h: passes.fold(conv, a.shape[1:], h))(other)
    assert np.isclose((h * other).sum(), (a * back).sum(), rtol=1e-4)
    # The inputs of a window come in the order of the weights.
    assert np.allclose(np.swapaxes(h, 1, 2), jax.jit(conv.patches)(np.moveaxis(a, 1, -1)))


def test_one_simulated_step_is_the_gradient_itself():
    with jax.enable_x64(True):
        net = NETS["mlp"]
        params = jax.tree.map(lambda a: a.astype(jnp.float64), net.init(jax.random.key(0)))
        x = jax.random.normal(jax.random.key(1), (2, 3, 7))
        q = jax.nn.one_hot(jnp.arange(6).reshape(2, 3) % 3, 3)
        one = partial(gradients.of_local_steps, net, params, False, lr=0.1, steps=1, order=None)
        plain = jax.jit(lambda x, q: gradients.of_any_model(net, params, False, x, q)[0])(x, q)
        assert close(plain, jax.jit(lambda x, q: one(x, q)[0])(x, q)) < 1e-12
        update = jax.tree.map(lambda g: -0.1 * g, plain)
        assert close(gradients.from_update(update, 0.1), plain) < 1e-12
