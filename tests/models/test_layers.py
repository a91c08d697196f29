"""Layers against their definitions, written out in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedveil.kernels import clipping
from fedveil.models.layers import Context, GroupNorm
from fedveil.random import noise


def test_group_normalisation_is_over_the_channels_of_a_group_within_an_example():
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 2.0, (2, 5, 4, 6)).astype(np.float32)
    scale, shift = rng.normal(size=6), rng.normal(size=6)
    layer = GroupNorm("n", 3)
    params = {"n": {"scale": jnp.asarray(scale, jnp.float32), "shift": jnp.asarray(shift, jnp.float32)}}
    split = x.astype(float).reshape(2, 5, 4, 3, 2)
    mean, variance = split.mean(axis=(1, 2, 4), keepdims=True), split.var(axis=(1, 2, 4), keepdims=True)
    want = ((split - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape) * scale + shift
    np.testing.assert_allclose(layer.apply(params, jnp.asarray(x), Context()), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("inputs", "outputs"), [(12, 4), (80, 40), (3, 7)])  # turned and summed, turned, neither
def test_gradients_of_a_convolution_are_sums_over_positions_whichever_way_they_are_made(inputs, outputs):
    rng = np.random.default_rng(1)
    x, g = (rng.normal(size=(3, 10, size)).astype(np.float32) for size in (inputs, outputs))
    params = {"w": jnp.zeros((inputs, outputs))}
    each = np.einsum("bpk,bpm->bkm", x.astype(float), g.astype(float))
    assert clipping.transposed(x, g) == (inputs > outputs)
    (gradient,) = jax.vjp(lambda p: clipping.fast_linear("", p, jnp.asarray(x)), params)[1](jnp.asarray(g))
    np.testing.assert_allclose(gradient["w"], each.sum(axis=0), rtol=1e-4, atol=1e-4)
    norms = np.sqrt(np.square(each).sum(axis=(1, 2)))
    bound = float(np.median(norms))
    wanted = (each * np.minimum(1.0, bound / norms)[:, None, None]).sum(axis=0)
    linear = clipping.clipping_linear(jnp.asarray(bound))
    (gradient,) = jax.vjp(lambda p: linear("", p, jnp.asarray(x)), params)[1](jnp.asarray(g))
    np.testing.assert_allclose(gradient["w"], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.codegen
@pytest.mark.parametrize("shape", [(37, 11), (3, 3, 2, 8)])
def test_weights_drawn_by_numpy_are_those_of_jax_to_the_last_bit(shape):
    draw = jax.jit(lambda key, limit: noise.uniform(key, shape, -limit, limit))
    for seed, limit in ((0, 0.5), (1, 0.1234), (2, 0.0777), (3, 0.31), (2**31 - 1, 1e-3)):
        key = jax.random.key(seed, impl="threefry2x32")
        wanted = np.asarray(jax.random.uniform(key, shape, minval=-limit, maxval=limit))
        assert np.array_equal(noise.uniform(key, shape, -limit, limit), wanted)
        np.testing.assert_allclose(draw(key, limit), wanted, rtol=1e-5)


def test_weights_in_double_precision_and_of_another_generator_are_drawn_by_jax():
    with jax.enable_x64(True):
        key = jax.random.key(0, impl="threefry2x32")
        got = noise.uniform(key, (5,), -0.5, 0.5)
        assert got.dtype == np.float64 and np.array_equal(got, jax.random.uniform(key, (5,), minval=-0.5, maxval=0.5))
    key = jax.random.key(0, impl="rbg")
    assert np.array_equal(noise.uniform(key, (5,), -0.5, 0.5), jax.random.uniform(key, (5,), minval=-0.5, maxval=0.5))
