"""Poisson batches in micro-batches: the same batches, the same noise, the same model as whole ones."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedveil
from benchmarks import round as bench
from fedveil.config import from_dict
from fedveil.core.keys import Draws
from fedveil.data.partition import Partition
from fedveil.federation import prepare
from fedveil.simulation import client, microbatches, sampling
from fedveil.simulation.microbatches import Workload


def partition_of(sizes):
    length = np.asarray(sizes)
    start = np.cumsum(length) - length
    return Partition(np.random.default_rng(0).permutation(int(length.sum())), start, length)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    batch=st.integers(1, 12),
    steps=st.integers(1, 6),
    width=st.integers(1, 15),
    seed=st.integers(0, 1000),
)
def test_microbatches_hold_exactly_the_batches(sizes, batch, steps, width, seed):
    drawn, partition = sampling.BatchSampling("poisson", batch, steps, None), partition_of(sizes)
    cohort = sampling.Cohort.only(range(len(sizes)))
    found = microbatches.draw_microbatches(
        drawn, partition, Draws(seed), 3, cohort, microbatches.Shape(width, steps * 40)
    )
    for row, c in enumerate(cohort.clients):
        whole = sampling.client_batches(drawn, Draws(seed), 3, int(c), 0, sizes[c])
        assert found.steps[row] == steps and found.last[row].sum() == steps
        for step, positions in enumerate(whole):
            # Micro-batches after the last one are empty and end no step; their step is 0.
            own = np.flatnonzero((found.step[row] == step) & (np.cumsum(found.last[row][::-1])[::-1] > 0))
            assert len(own) == max(1, -(-len(positions) // width)) and (np.diff(own) == 1).all()
            assert found.last[row][own].tolist() == [False] * (len(own) - 1) + [True]
            rows = found.index[row][own][found.mask[row][own]]
            assert rows.tolist() == partition.client(int(c))[positions].tolist()
        assert found.mask[row].sum() == sum(map(len, whole))


def test_too_many_microbatches_are_reported():
    drawn, partition = sampling.BatchSampling("poisson", 10, 4, None), partition_of([30, 30])
    needed = [sum(max(1, len(b)) for b in sampling.client_batches(drawn, Draws(0), 0, c, 0, 30)) for c in (0, 1)]

    def fits(count):
        shape = microbatches.Shape(1, count)
        return microbatches.draw_microbatches(drawn, partition, Draws(0), 0, sampling.Cohort.only([0, 1]), shape)

    assert fits(max(needed) - 1) is None and fits(max(needed)) is not None


@pytest.mark.parametrize(("size", "batch", "width", "steps"), [(500, 5, 5, 100), (500, 5, 3, 1), (40, 20, 7, 10)])
def test_as_many_microbatches_as_are_needed_and_hardly_more(size, batch, width, steps):
    rng = np.random.default_rng(1)
    drawn = rng.binomial(size, batch / size, size=(20_000, steps))
    needed = np.maximum(1, -(-drawn // width)).sum(axis=1)
    count = microbatches.needed(size, batch / size, width, steps, clients=1)
    assert (needed > count).mean() <= 0.0135  # 0.01 and four deviations of its estimate
    assert (needed > count - 1).mean() > 0.006


def test_the_shape_is_cheaper_than_whole_batches_or_none_is_chosen():
    partition = partition_of([500] * 3)
    poisson = sampling.BatchSampling("poisson", 5, 100, None)
    shape = microbatches.best_shape(poisson, partition, Workload(100, 5, 17, 2.0))
    assert shape.count * (shape.width + 2.0) < 0.7 * 100 * 19
    shuffled = sampling.BatchSampling("shuffle", 5, 100, None)
    assert microbatches.best_shape(shuffled, partition, Workload(100, 5, 5, 2.0)) is None
    large = sampling.BatchSampling("poisson", 100, 1, None)
    assert microbatches.best_shape(large, partition, Workload(1, 5, 145, 2.0)) is None


# --- the same model

DATA = {"partition": "iid", "clients": 6, "per_client": 60}
TRAIN = {"rounds": 2, "per_round": 6, "batch": 4, "local_steps": 8, "lr": 0.1, "batching": "poisson", "noise_seed": 0}
CNN = {"name": "cnn"}
MLP = {"name": "mlp", "hidden": [8]}


def simulator_of(defense, engine="vectorised", model=MLP, **train):
    speed = {"engine": engine, "precision": "float64"}
    made = {"data": DATA, "model": model, "train": {**TRAIN, **train}, "defense": defense, "speed": speed}
    return prepare(from_dict(made)).simulator


def test_clients_that_make_fewer_steps_end_earlier():
    data = {"partition": "dirichlet", "alpha": 0.5, "clients": 6}
    train = {name: value for name, value in TRAIN.items() if name != "local_steps"} | {"local_epochs": 1}
    made = {"data": data, "model": MLP, "train": train, "defense": {"name": "fed-cdp", "clip": 0.5, "noise": 0.1}}
    cut, slow = (
        prepare(from_dict({**made, "speed": {"engine": engine, "precision": "float64"}})).simulator
        for engine in ("vectorised", "reference")
    )
    assert cut.task.ragged_steps and slow.microbatches is None
    cut = cut.variant(microbatches=microbatches.Shape(3, 4 * cut.task.setting.local_steps))
    for a, b in zip(jax.tree.leaves(model_after(cut, 1)), jax.tree.leaves(model_after(slow, 1)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-8)


def model_after(simulator, rounds=2):
    with jax.enable_x64(True):
        state = simulator.start()
        for number in range(rounds):
            state, _ = simulator.round(state, number)
        return jax.device_get(state.params)


@pytest.mark.parametrize(
    ("defense", "train"),
    [
        ({"name": "none"}, {"optimizer": "momentum"}),
        ({"name": "fed-cdp", "clip": 0.5, "noise": 0.1}, {}),
        ({"name": "fed-cdp", "clip": 0.5, "noise": 0.1, "placement": "batch", "clip_end": 0.1}, {}),
        pytest.param({"name": "fed-sdp", "clip": 0.5, "noise": 0.1}, {}, marks=pytest.mark.slow),
        pytest.param({"name": "gradient-noise", "scale": 0.1}, {}, marks=pytest.mark.slow),
        ({"name": "dgc"}, {}),
    ],
)
def test_the_model_is_that_of_whole_batches(defense, train):
    """The noise is no small part of it: a draw too many or too few would show."""
    cut, slow = simulator_of(defense, **train), simulator_of(defense, "reference", **train)
    cut = cut.variant(microbatches=microbatches.Shape(2, 40))
    for a, b in zip(jax.tree.leaves(model_after(cut)), jax.tree.leaves(model_after(slow)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-8)


def test_a_convolution_is_trained_in_microbatches():
    """Images as large as MNIST's; the noise of a dense network costs as much as a dozen examples."""
    case, settings = bench.CASES["cnn"], bench.settings_of(bench.CASES["cnn"], 2, 20, {"name": "fed-cdp"}, "poisson")
    simulator = fedveil.federation(settings, data=bench.random_data(case, 2)).simulator
    assert simulator.microbatches is not None and simulator.microbatches.width < simulator.widths[0]
    assert simulator_of({"name": "fed-cdp"}).microbatches is None
    slow = {**settings, "speed": {"engine": "reference"}}
    assert fedveil.federation(slow, data=bench.random_data(case, 2)).simulator.microbatches is None


def test_a_round_that_needs_more_microbatches_is_computed_whole():
    defense = {"name": "fed-cdp", "clip": 0.5, "noise": 0.1}
    cut = simulator_of(defense)
    usual = model_after(cut, 1)
    few = cut.variant(microbatches=microbatches.Shape(2, 8))
    for a, b in zip(jax.tree.leaves(usual), jax.tree.leaves(model_after(few, 1)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("defense", "model", "batching"),
    [
        ({"name": "fed-cdp", "clip_scope": "flat"}, MLP, "poisson"),
        ({"name": "fed-cdp", "clip_mode": "median"}, MLP, "poisson"),
        ({"name": "fed-cdp"}, MLP, "shuffle"),
        ({"name": "none"}, {**CNN, "dropout": 0.2}, "poisson"),
    ],
)
def test_batches_stay_whole_where_they_are_looked_at_as_a_whole(defense, model, batching):
    simulator = simulator_of(defense, model=model, batching=batching)
    assert simulator.microbatches is None
    assert batching == "shuffle" or not client.in_microbatches(simulator.task)
