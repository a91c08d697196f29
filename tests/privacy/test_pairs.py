"""Normal numbers in pairs: the generator gives the published words, the numbers follow the law, and no two are related."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedveil.kernels import gpu
from fedveil.random import noise

COUNT = 1_000_001


# Known answers of Threefry-2x32 with 20 rounds, as published with the generator: key, counter, words.
@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_its_known_answers(key, counter, words):
    got = noise.threefry(jnp.asarray(key, jnp.uint32), jnp.asarray([counter[0]], jnp.uint32), np.uint32(counter[1]))
    assert tuple(int(w[0]) for w in got) == words


@pytest.fixture(scope="module")
def drawn():
    return np.asarray(jax.jit(noise.normal, static_argnums=1)(jax.random.key(7), COUNT), np.float64)


def test_the_law_is_normal(drawn):
    assert drawn.shape == (COUNT,) and np.isfinite(drawn).all()
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((drawn**power).mean() - mean) < 5 * np.sqrt(variance / COUNT)
    assert stats.kstest(drawn, "norm").pvalue > 1e-4
    beyond = np.count_nonzero(np.abs(drawn) > 4)
    assert abs(beyond - COUNT * 2 * stats.norm.sf(4)) < 5 * np.sqrt(COUNT * 2 * stats.norm.sf(4))


def test_the_two_of_a_pair_are_independent(drawn):
    half = (COUNT + 1) // 2
    x, y = drawn[: half - 1], drawn[half:]
    limit = 5 / np.sqrt(half)
    assert abs(np.corrcoef(x, y)[0, 1]) < limit
    assert abs(np.corrcoef(x**2, y**2)[0, 1]) < limit
    angle = np.arctan2(y, x)
    assert stats.kstest(angle, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-4


def test_keys_draw_apart_and_the_same_key_the_same():
    draw = jax.jit(jax.vmap(lambda key: noise.normal(key, 4001)))
    keys = jax.random.split(jax.random.key(0), 3)
    first = np.asarray(draw(keys))
    np.testing.assert_array_equal(first, np.asarray(draw(keys)))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(first[a], first[b])[0, 1]) < 5 / np.sqrt(4001)
    np.testing.assert_allclose(first[1], np.asarray(noise.normal(keys[1], 4001)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_numbers(count):
    assert noise.normal(jax.random.key(1), count).shape == (count,)


def test_noise_takes_pairs_in_float32_and_the_librarys_own_draw_in_float64():
    key = jax.random.key(3)
    like = {"a": jnp.zeros((3, 5), jnp.float32)}
    single = noise.gaussian(key, like, 2.0)["a"].ravel()
    np.testing.assert_allclose(single, 2.0 * noise.normal(key, 15), rtol=1e-5, atol=1e-6)
    with jax.enable_x64(True):
        double = noise.gaussian(key, {"a": jnp.zeros(15, jnp.float64)}, 2.0)["a"]
        np.testing.assert_allclose(double, 2.0 * jax.random.normal(key, (15,), jnp.float64))


@pytest.fixture(params=["cpu", "gpu"])
def backend(request):
    """The order of noise on a CPU, and that on a GPU."""
    return request.param


def parts_of(shapes, backend):
    like = {name: jnp.zeros(shape, jnp.float32) for name, shape in shapes.items()}
    with noise.drawn_by(gpu.joined_gaussian) if backend == "gpu" else contextlib.nullcontext():
        drawn = jax.jit(lambda key: noise.gaussian(key, like, 1.0))(jax.random.key(4))
    return {name: np.asarray(part) for name, part in drawn.items()}


def test_arrays_of_a_tree_take_parts_of_one_draw_that_do_not_overlap(backend):
    shapes = {"a": (3,), "b": (5, 8), "c": (2, 15), "d": (7,)}
    whole = noise.normal(jax.random.key(4), 80) if backend == "cpu" else gpu.neighbours(jax.random.key(4), 0, 82)
    starts = {"a": 0, "b": 3, "c": 43, "d": 73} if backend == "cpu" else {"a": 0, "b": 4, "c": 44, "d": 74}
    for name, part in parts_of(shapes, backend).items():
        assert part.shape == shapes[name]
        start = starts[name]
        np.testing.assert_allclose(part.ravel(), whole[start : start + part.size], rtol=1e-5, atol=1e-6)


@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6))
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_number_of_a_draw_is_used_twice(backend, sizes):
    found = parts_of({str(number): (size,) for number, size in enumerate(sizes)}, backend)
    every = np.concatenate([part.ravel() for part in found.values()])
    assert len(every) == sum(sizes)
    assert len(np.unique(every)) == len(every)


def test_neighbours_are_the_numbers_of_the_pairs_side_by_side():
    key = jax.random.key(5)
    first, second = np.split(np.asarray(noise.normal(key, 2 * 300)), 2)
    side_by_side = np.stack([first, second], axis=1).ravel()
    for start, count in ((0, 600), (0, 599), (2, 7), (598, 2), (100, 1)):
        want = side_by_side[start : start + count]
        got = jax.jit(gpu.neighbours, static_argnums=(1, 2))(key, start, count)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
