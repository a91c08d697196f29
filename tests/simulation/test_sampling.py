"""The distributions of cohorts and batches. Statistical tests: fixed seeds, 5σ, so a false alarm is one in a
million over the choice of seeds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core import keys
from fedveil.core.keys import Draws
from fedveil.core.setting import Setting
from fedveil.data.partition import Partition, PartitionSettings, make_partition
from fedveil.simulation import sampling
from fedveil.simulation.sampling import BatchSampling


def law(batching="shuffle", batch=4, steps=5, epochs=None):
    return BatchSampling(batching, batch, None if epochs else steps, epochs)


def setting(clients, per_round, sampling="fixed"):
    return Setting(clients, per_round, 1, 1, 1, sampling, "shuffle", "fedsgd", "uniform")


def near(count, trials, probability):
    """Whether a binomial count is within five standard deviations."""
    return abs(count - trials * probability) <= 5 * math.sqrt(trials * probability * (1 - probability)) + 1e-9


# --- clients


def test_cohorts_have_the_distribution_they_name():
    trials, clients, per_round = 4000, 12, 3
    for name in ("fixed", "poisson", "with-replacement"):
        drawn = [sampling.draw_clients(keys.host(7, "cohort", t), clients, per_round, name) for t in range(trials)]
        sizes = np.array([len(d) for d in drawn])
        counts = np.bincount(np.concatenate(drawn), minlength=clients)
        assert all(
            near(
                c,
                trials * (per_round if name == "with-replacement" else 1),
                per_round / clients / (per_round if name == "with-replacement" else 1),
            )
            for c in counts
        )
        if name == "poisson":
            together = sum(0 in d and 1 in d for d in drawn)
            assert near(together, trials, (per_round / clients) ** 2), "clients must be drawn independently"
            assert sizes.min() == 0 or sizes.min() < per_round < sizes.max()
        else:
            assert set(sizes) == {per_round}
        if name == "fixed":
            assert all(len(np.unique(d)) == per_round for d in drawn)


def test_a_client_drawn_twice_draws_its_batches_apart():
    cohort = sampling.draw_cohort(Draws(0), 0, setting(3, 8, "with-replacement"))
    assert len(set(zip(cohort.clients.tolist(), cohort.occurrence.tolist(), strict=True))) == 8
    first = sampling.client_batches(law(), Draws(0), 0, 1, 0, 50)
    again = sampling.client_batches(law(), Draws(0), 0, 1, 1, 50)
    assert not all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_faults_hit_the_stated_share_and_depend_on_the_client_alone():
    cohort = sampling.draw_cohort(Draws(3), 5, setting(3000, 2000), dropout=0.25, late=0.1)
    assert cohort.chosen == 2000 and len(cohort.clients) == 2000 - cohort.lost
    assert near(cohort.lost, 2000, 0.25) and near(int(cohort.late.sum()), len(cohort.clients), 0.1)
    wider = sampling.draw_cohort(Draws(3), 5, setting(3000, 3000), dropout=0.25)
    chosen = sampling.draw_clients(keys.host(3, "cohort", 5), 3000, 2000, "fixed")
    assert set(cohort.clients) == set(chosen) & set(wider.clients)


# --- batches


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 12),
    steps=st.integers(1, 25),
    batching=st.sampled_from(["shuffle", "poisson", "without-replacement"]),
    seed=st.integers(0, 1000),
)
def test_batches_hold_distinct_examples_of_the_client(size, batch, steps, batching, seed):
    batches = sampling.client_batches(law(batching, batch, steps), Draws(seed), 1, 2, 0, size)
    assert len(batches) == steps
    for positions in batches:
        assert len(np.unique(positions)) == len(positions)
        assert len(positions) == 0 or (positions.min() >= 0 and positions.max() < size)
        if batching == "without-replacement":
            assert len(positions) == min(batch, size)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 40), batch=st.integers(1, 12), epochs=st.integers(1, 4), seed=st.integers(0, 1000))
def test_an_epoch_uses_every_example_once(size, batch, epochs, seed):
    batches = sampling.client_batches(law("shuffle", batch, epochs=epochs), Draws(seed), 0, 0, 0, size)
    assert len(batches) == epochs * math.ceil(size / batch)
    uses = np.bincount(np.concatenate(batches), minlength=size)
    assert (uses == epochs).all()


def test_poisson_batches_take_each_example_independently():
    size, batch, steps = 20, 5, 8000
    batches = sampling.client_batches(law("poisson", batch, steps), Draws(11), 0, 0, 0, size)
    table = np.zeros((steps, size), bool)
    for row, positions in enumerate(batches):
        table[row, positions] = True
    rate = batch / size
    assert all(near(int(table[:, i].sum()), steps, rate) for i in range(size))
    assert near(int((table[:, 0] & table[:, 1]).sum()), steps, rate**2), "two examples of one step"
    assert near(int((table[:-1, 0] & table[1:, 0]).sum()), steps - 1, rate**2), "one example at two steps"
    assert abs(table.sum(axis=1).var() - size * rate * (1 - rate)) < 0.3
    assert near(sum(len(b) == 0 for b in batches), steps, (1 - rate) ** size), "empty batches are legal"


def test_subsets_without_replacement_are_uniform():
    size, batch, steps = 6, 3, 12000
    batches = sampling.client_batches(law("without-replacement", batch, steps), Draws(2), 0, 0, 0, size)
    codes = [sum(1 << int(i) for i in positions) for positions in batches]
    subsets = math.comb(size, batch)
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == subsets and all(near(int(c), steps, 1 / subsets) for c in counts)


def test_draws_with_replacement_are_independent_and_may_repeat():
    size, batch, steps = 5, 7, 4000
    batches = sampling.client_batches(law("with-replacement", batch, steps), Draws(2), 0, 0, 0, size)
    table = np.array(batches)
    assert table.shape == (steps, batch)
    assert all(near(int((table == i).sum()), steps * batch, 1 / size) for i in range(size))
    assert near(int((table[:, 0] == table[:, 1]).sum()), steps, 1 / size), "two draws of one step"


def test_padded_arrays_hold_exactly_the_drawn_batches():
    labels = np.arange(300) % 10
    partition = make_partition("dirichlet", labels, PartitionSettings(clients=7, alpha=0.4, seed=1))
    cohort = sampling.draw_cohort(Draws(0), 2, setting(7, 5))
    for batching in ("shuffle", "poisson", "without-replacement", "with-replacement"):
        drawing = law(batching, 4, 6)
        widths = sampling.batch_widths(drawing, partition, 100)
        padded = sampling.draw_batches(drawing, partition, Draws(0), 2, cohort, widths)
        for row, c in enumerate(cohort.clients):
            own = partition.client(int(c))
            wanted = sampling.client_batches(drawing, Draws(0), 2, int(c), 0, len(own))
            for step, positions in enumerate(wanted):
                got = padded.index[row, step][padded.mask[row, step]]
                np.testing.assert_array_equal(got, own[positions])


def test_no_batch_is_ever_cut():
    """Narrow widths on offer: a larger batch gets a width of its own."""
    partition = Partition(np.arange(64, dtype=np.int32), np.array([0]), np.array([64], np.int32))
    cohort = sampling.draw_cohort(Draws(0), 0, setting(1, 1))
    drawing = law("poisson", 32, 50)
    padded = sampling.draw_batches(drawing, partition, Draws(0), 0, cohort, (3,))
    wanted = sampling.client_batches(drawing, Draws(0), 0, 0, 0, 64)
    assert padded.mask.sum() == sum(len(b) for b in wanted) and padded.mask.shape[2] >= max(len(b) for b in wanted)


@pytest.mark.parametrize("batching", ["shuffle", "poisson", "without-replacement", "with-replacement"])
def test_draws_are_keyed_by_round_and_client(batching):
    one = sampling.client_batches(law(batching), Draws(0), 1, 2, 0, 50)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(one, sampling.client_batches(law(batching), Draws(0), 1, 2, 0, 50), strict=True)
    )
    for seed, *other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):
        again = sampling.client_batches(law(batching), Draws(seed), *other, 0, 50)
        assert not all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))


@pytest.mark.parametrize("numbers", [(0, 0, 0), (7, 123456, 2), (2**32 - 1, 0, 1), (2**32, 5, 0), (2**40 + 3, 1, 1)])
def test_generators_are_those_of_their_names(numbers):
    seed, *rest = numbers
    obvious = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, keys.PURPOSES["batch"], *rest])))
    assert keys.host(seed, "batch", *rest).integers(2**62, size=4).tolist() == obvious.integers(2**62, size=4).tolist()


def test_what_is_remembered_of_draws_is_what_was_drawn():
    law = sampling.BatchSampling("poisson", 4, 3, None)
    again = [sampling.draw_positions(law, Draws(5), 2, 1, 0, 20) for _ in range(2)]
    fresh = sampling._draw(law, Draws(5), 2, 1, 0, 20)
    for found in again:
        assert all((a == b).all() for a, b in zip(found, fresh, strict=True))
    with pytest.raises(ValueError, match="read-only"):
        again[0][1][0] = 9
