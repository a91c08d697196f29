"""An order of GPU kernels: the same bits, and a dependency that the compiler does not see through."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedveil
from benchmarks import round as bench
from fedveil.kernels import gpu as gpu_code
from fedveil.models.catalog import build
from fedveil.models.layers import Conv, Pool
from fedveil.random import noise, secure
from fedveil.simulation import server


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


ODD = np.array([0, 0x80000000, 1, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF, 0x3F800000], np.uint32)


@pytest.mark.parametrize("b", [0.0, -1.0, np.nan, np.inf])
def test_what_waits_keeps_its_bits(b, gpu):
    waited = jnp.full((2, 3), b, jnp.float32)
    whole = jnp.asarray(ODD)
    np.testing.assert_array_equal(jax.jit(gpu_code.after)(whole, waited), ODD)
    floats = jax.lax.bitcast_convert_type(whole, jnp.float32)
    got = jax.jit(gpu_code.after)(floats, waited)
    np.testing.assert_array_equal(jax.lax.bitcast_convert_type(got, jnp.uint32), ODD)


@pytest.mark.parametrize("make", [lambda: jax.random.key(7, impl="threefry2x32"), secure.fresh_key])
def test_keys_wait_and_stay_what_they_are(make, gpu):
    key = make()
    late = jax.jit(gpu_code.after)(key, jnp.ones(3))
    assert late.dtype == key.dtype and noise.is_secure(late) == noise.is_secure(key)
    np.testing.assert_array_equal(jax.random.key_data(late), jax.random.key_data(key))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8])
def test_other_widths_do_not_wait(dtype, gpu):
    a = jnp.ones(4, dtype)
    assert gpu_code.after(a, jnp.ones(2)) is a


def test_the_compiler_keeps_the_dependency(gpu):
    """After all of XLA's passes, what computes `a` still takes `b`."""
    program = jax.jit(jax.vmap(lambda a, b: 2.0 * gpu_code.after(a, b)))
    text = program.lower(jnp.ones((3, 5)), jnp.ones((3, 4))).compile().as_text()
    body = text[text.index("ENTRY") :]
    (taken,) = re.findall(r"ROOT .* fusion\(([^)]*)\)", body)
    assert sorted(re.findall(r"%(\w+)", taken)) == ["a", "b"]


def test_elsewhere_nothing_is_added():
    a = jnp.ones(3)
    assert gpu_code.after(a, jnp.zeros(2)) is a


IMAGES, DENSE, KEY = (
    (5, 28, 28, 1),
    (1600, 10),
    [(), (2,)],
)  # of the backward pass; its gradient; and what it is made of


@pytest.mark.parametrize(("defense", "late"), [(bench.NONE, [IMAGES]), (bench.PRIVATE, [IMAGES, DENSE, *KEY])])
def test_a_round_lowers_for_a_gpu_with_what_waits(defense, late, gpu, a_card, monkeypatch):
    case, waits, real = bench.CASES["cnn"], [], gpu_code.after
    monkeypatch.setattr(gpu_code, "after", lambda a, b: waits.append(a.shape) or real(a, b))
    settings = bench.settings_of(case, 2, 2, defense, "shuffle")
    simulator = fedveil.federation(settings, data=bench.random_data(case, 2)).simulator
    assert simulator.task.kernels.bfloat16
    state = simulator.start()
    (chunk,) = simulator.chunks(simulator.cohort(state, 0), 0)
    args = ((server.empty_sum(simulator.rule, state.params), {}), simulator.inputs(state, 0), chunk)
    with a_card:
        text = simulator._rounds.chunk.jitted.trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    assert waits == late
    assert "stablehlo.shift_right_logical" in text


def test_later_layers_wait_for_the_second_alone(gpu, monkeypatch):
    waits = []
    monkeypatch.setattr(gpu_code, "after", lambda a, b: waits.append((a.shape, b.shape)) or a)
    net = build("cnn", (28, 28, 1), 10)
    total = net.init(jax.random.key(0))
    x = jnp.zeros((5, 28, 28, 1))
    got = gpu_code.in_order(net.layers, x, total)
    assert jax.tree.structure(got) == jax.tree.structure(total)
    names = list(total)
    second = total[names[1]]["w"].shape
    assert waits == [(a.shape, second) for name in names[2:] for a in total[name].values()] != []
    waits.clear()
    gpu_code.in_order((Conv("a", 12, 3), Pool(), Conv("b", 32, 3), Pool()), x, total)  # shapes that do not suit tiles
    gpu_code.in_order(build("mlp", (28, 28, 1), 10).layers, x, total)
    assert not waits
