"""Our batched L-BFGS makes the steps of the one-at-a-time optimiser, in NumPy and in torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lbfgs_reference import Reference

from fedveil.attacks.optim.lbfgs import LBFGS
from fedveil.attacks.optim.slots import RUNNING, STALLED, Evaluation, advance, begin, stop_rules
from fedveil.attacks.reconstruction.cpl import CPL
from fedveil.kernels import pallas

SIZE, ITERATIONS = 12, 8
STIFFNESS = (3.0, 10.0, 30.0)  # one lane each


def valley(x, stiff, xp):
    """Rosenbrock's valley, bent, so that pairs of little or negative curvature turn up."""
    a, b = x[..., ::2], x[..., 1::2]
    return (stiff * (b - a**2) ** 2 + (1 - a) ** 2 + 0.1 * xp.sin(3 * b)).sum(axis=-1)


def start(slot):
    return np.random.default_rng(slot).normal(size=SIZE)


def our_path(slots=100):
    """Every point that each lane evaluates."""
    stiff = jnp.asarray(STIFFNESS)[:, None]

    def look(z):
        value, back = jax.vjp(lambda z: valley(z, stiff, jnp), z)
        return Evaluation(value, value, back(jnp.ones_like(value))[0])

    optimizer, chosen = LBFGS(slots=slots), CPL(iterations=ITERATIONS)
    z = jnp.asarray(np.stack([start(k) for k in range(len(STIFFNESS))]))
    slots = begin(optimizer, z, stop_rules(chosen, len(z), z.dtype), ITERATIONS + 1)
    one = jax.jit(lambda slots: advance(optimizer, look, slots))
    paths = [[] for _ in STIFFNESS]
    while (np.asarray(slots.status) == RUNNING).any():
        for slot, running in enumerate(np.asarray(slots.status) == RUNNING):
            if running:
                paths[slot].append(np.asarray(slots.z[slot]))
        slots = one(slots)
    return [np.array(path) for path in paths], slots


@pytest.mark.parametrize("slots", [100, 5])
def test_the_steps_are_those_of_the_reference(slots):
    with jax.enable_x64(True):
        paths, _ = our_path(slots)
        slope = jax.jit(jax.value_and_grad(lambda x, stiff: valley(x, stiff, jnp)))
        for slot, stiff in enumerate(STIFFNESS):
            twin = Reference(lambda x, k=stiff: [np.asarray(a) for a in slope(x, k)], start(slot), pairs=slots)
            theirs = twin.path(ITERATIONS)
            # Ours looks once more, at the point where its iterations are spent.
            assert len(paths[slot]) - len(theirs) in (0, 1)
            # Few pairs make a nervous optimiser, which amplifies rounding from step to step.
            count = len(theirs) if slots == 100 else 50
            assert np.abs(paths[slot][:count] - theirs[:count]).max() < 1e-8


def test_the_steps_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed (extra [bench])")
    with jax.enable_x64(True):
        paths, _ = our_path()
    for slot, stiff in enumerate(STIFFNESS):
        x = torch.tensor(start(slot), requires_grad=True)
        optimizer, visited = torch.optim.LBFGS([x], lr=1.0, history_size=100), []

        def closure(x=x, optimizer=optimizer, stiff=stiff, visited=visited):
            visited.append(x.detach().numpy().copy())
            optimizer.zero_grad()
            value = valley(x, stiff, torch)
            value.backward()
            return value

        for _ in range(ITERATIONS):
            optimizer.step(closure)
        theirs = [v for k, v in enumerate(visited) if k == 0 or not np.array_equal(v, visited[k - 1])]
        assert np.abs(paths[slot][: len(theirs)] - np.array(theirs)).max() < 1e-8


def test_what_torch_would_repeat_for_ever_ends():
    with jax.enable_x64(True):
        _, slots = our_path()
    assert set(np.asarray(slots.status).tolist()) <= {2, STALLED, 5}
    assert (np.asarray(slots.iteration) <= ITERATIONS).all()
    trace = np.asarray(slots.trace)
    assert (np.nanmin(trace, axis=1) < 1e-2 * trace[:, 0]).all()


def test_a_lane_that_breaks_goes_back_to_its_best_point_and_its_neighbour_does_not_notice():
    """Σ log² x falls towards 1 from above, ever more gently: the first steps jump below 0, where it is not defined."""

    def look(z):
        value, back = jax.vjp(lambda z: jnp.square(jnp.log(z)).sum(axis=1), z)
        return Evaluation(value, value, back(jnp.ones_like(value))[0])

    def run(starts):
        z = jnp.asarray(starts)[:, None] * jnp.ones((1, 4))
        slots = begin(optimizer, z, stop_rules(CPL(iterations=60), len(z), z.dtype), 61)
        for _ in range(600):
            slots = one(slots)
        return slots

    with jax.enable_x64(True):
        optimizer = LBFGS()
        one = jax.jit(lambda slots: advance(optimizer, look, slots))
        both, alone = run([9.0, 1.2]), run([1.2])
    assert int(both.rescues[0]) > 0 and int(both.rescues[1]) == 0
    assert float(both.best_value[0]) < 1e-6 and np.array_equal(both.best[1], alone.best[0])


@pytest.mark.parametrize("shape", [(3, 101, 700), (2, 5, 256), (1, 17, 3)])
def test_the_gpu_kernel_gives_the_products(shape, monkeypatch):
    monkeypatch.setattr(pallas, "INTERPRET", True)
    rng = np.random.default_rng(1)
    rows, vectors = rng.normal(size=shape), rng.normal(size=(2, shape[0], shape[2]))
    got = jax.jit(pallas.pair_products)(*(jnp.asarray(a, jnp.float32) for a in (rows, *vectors)))
    np.testing.assert_allclose(got, np.einsum("asn,kan->ask", rows, vectors), rtol=1e-4, atol=1e-4)


def test_the_kernel_lowers_for_a_gpu(a_card):
    rows, vector = jnp.zeros((4, 101, 3072), jnp.float32), jnp.zeros((4, 3072), jnp.float32)
    with a_card:
        text = jax.jit(pallas.pair_products).trace(rows, vector, vector).lower(lowering_platforms=("cuda",)).as_text()
    assert "triton" in text
