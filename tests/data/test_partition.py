"""Partitions: what each one promises, for any labels, any number of clients and any seed."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import ConfigError
from fedveil.data.partition import (
    GROUPS_DISJOINT,
    GROUPS_MIXED,
    GROUPS_OVERLAP,
    PARTITIONS,
    PartitionSettings,
    make_partition,
)

DISJOINT = (
    "groups-disjoint",
    "groups-overlap",
    "groups-mixed",
    "dirichlet",
    "quantity",
)  # no two clients share an example
MNIST_LIKE = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 5_000))


DRAWN = sorted(set(PARTITIONS) - {"own"})  # `own` draws nothing: tests/data/test_own_clients.py


@st.composite
def balanced_labels(draw):
    """Ten classes of equal size, in a mixed order."""
    each = draw(st.integers(10, 40))
    return np.random.default_rng(draw(st.integers(0, 99))).permutation(np.repeat(np.arange(10), each))


def made(name, labels, **settings):
    return make_partition(name, labels, PartitionSettings(**settings))


def held(part):
    return [part.client(i) for i in range(part.clients)]


@settings(max_examples=60, deadline=None)
@given(balanced_labels(), st.sampled_from(DRAWN), st.integers(1, 40), st.integers(0, 2**40))
def test_every_client_holds_something_and_nothing_twice(labels, name, clients, seed):
    part = made(name, labels, clients=clients, seed=seed)
    assert part.clients == clients and part.order.dtype == np.int32
    for index in held(part):
        assert 1 <= len(index) <= part.max_length
        assert len(np.unique(index)) == len(index)
        assert index.min() >= 0 and index.max() < len(labels)
    together = np.bincount(np.concatenate(held(part)))
    assert part.copies() == together.max()
    if name in DISJOINT:
        assert part.copies() == 1
    if name in ("dirichlet", "quantity"):
        assert together.sum() == len(labels)


@pytest.mark.parametrize("name", DRAWN)
def test_the_seed_decides(name):
    def order(seed):
        return made(name, MNIST_LIKE[:2000], clients=20, per_client=50, seed=seed).order

    assert np.array_equal(order(3), order(3))
    assert not np.array_equal(order(3), order(4))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 60), st.integers(0, 99))
def test_iid_reuses_the_data_in_whole_rounds(clients, per_client, seed):
    part = made("iid", np.zeros(100, int), clients=clients, per_client=per_client, seed=seed)
    assert (part.length == per_client).all()
    assert part.copies() <= -(-clients // (100 // per_client))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 9), st.integers(0, 99))
def test_shards_are_dealt_evenly(clients, classes_per_client, width, seed):
    """Also where hands straddle two rounds of shards: no shard twice in a hand, every round complete."""
    labels = np.repeat(np.arange(7), 9)
    per_client = width * classes_per_client
    part = made(
        "shards", labels, clients=clients, per_client=per_client, seed=seed, classes_per_client=classes_per_client
    )
    assert (part.length == per_client).all()
    for index in held(part):
        assert len(np.unique(index)) == len(index)
    used = np.bincount(part.order, minlength=len(labels))
    shards = len(labels) // width
    whole = clients * classes_per_client // shards
    assert np.count_nonzero(used) == min(shards, clients * classes_per_client) * width
    assert set(used[used > 0]) <= {whole, whole + 1}


def test_shards_of_a_thousand_clients():
    part = made("shards", MNIST_LIKE, clients=1_000, per_client=500)
    assert (part.length == 500).all()
    assert (np.bincount(part.order, minlength=50_000) == 10).all()
    assert part.copies() == 10
    assert max(len(np.unique(MNIST_LIKE[index])) for index in held(part)) <= 2


def test_shards_of_uneven_classes_have_few_classes():
    labels = np.repeat(np.arange(10), [4932, 5678, 4968, 5101, 4859, 4506, 4951, 5175, 4842, 4988])
    part = made("shards", labels, clients=1_000, per_client=500)
    assert max(len(np.unique(labels[index])) for index in held(part)) <= 4  # a shard may straddle two classes
    assert part.copies() == 10


@pytest.mark.parametrize(("name", "groups"), [("groups-disjoint", GROUPS_DISJOINT), ("groups-overlap", GROUPS_OVERLAP)])
def test_groups_hold_their_own_classes(name, groups):
    part = made(name, MNIST_LIKE, clients=60)
    for client, index in enumerate(held(part)):
        assert set(MNIST_LIKE[index]) == set(groups[client % len(groups)])
    assert part.length.sum() == 50_000  # all of it is handed out
    capped = made(name, MNIST_LIKE, clients=60, per_client=100)
    assert (capped.length == 100).all()
    for client, index in enumerate(held(capped)):
        assert set(MNIST_LIKE[index]) <= set(groups[client % len(groups)])


def test_a_client_may_hold_several_groups_of_both_kinds():
    """2dp-fl, Section VI: "each client can get one or multiple data buckets"."""
    part = made("groups-mixed", MNIST_LIKE, clients=60, groups_per_client=3)
    for client, index in enumerate(held(part)):
        wanted = set().union(*(GROUPS_MIXED[(3 * client + n) % 20] for n in range(3)))
        assert set(MNIST_LIKE[index]) == wanted
    assert part.length.sum() == 50_000 and part.copies() == 1
    one = made("groups-mixed", MNIST_LIKE, clients=20)
    assert [set(MNIST_LIKE[index]) for index in held(one)] == [set(group) for group in GROUPS_MIXED]
    for name, count in (("groups-disjoint", 15), ("groups-overlap", 5), ("groups-mixed", 20)):
        with pytest.raises(ConfigError, match="data.groups_per_client"):
            made(name, MNIST_LIKE, clients=20, groups_per_client=count + 1)


def test_a_class_is_shared_evenly_among_its_group():
    part = made("groups-overlap", MNIST_LIKE, clients=10)
    counts = np.array([np.bincount(MNIST_LIKE[index], minlength=10) for index in held(part)])
    assert set(counts[counts > 0]) == {1250}


def test_classes_are_balanced_and_few():
    labels = np.random.default_rng(0).integers(0, 62, 2267)
    part = made("classes", labels, clients=124, per_client=300, classes_per_client=15)
    sets = [set(labels[index]) for index in held(part)]
    assert all(1 <= len(one) <= 15 for one in sets)
    assert part.max_length <= 300
    small = made("classes", labels, clients=5, per_client=2000, classes_per_client=1)
    for index in held(small):  # the pool is smaller than what is asked: all of it
        assert len(index) == np.sum(labels == labels[index[0]])


def test_copies():
    part = made("copies", MNIST_LIKE[:426], clients=1_000)
    assert part.copies() == 1_000 and part.max_length == 426 and len(part.order) == 426
    assert np.array_equal(np.sort(part.client(999)), np.arange(426))
    some = made("copies", MNIST_LIKE[:426], clients=10, per_client=40)
    assert (some.length == 40).all() and 1 < some.copies() <= 10


def test_alpha_makes_the_skew():
    def spread(alpha):
        return np.std(made("quantity", MNIST_LIKE, clients=50, alpha=alpha).length)

    assert spread(0.1) > spread(1.0) > spread(100.0)
    tiny = made("dirichlet", MNIST_LIKE[:60], clients=50, alpha=0.001)
    assert tiny.length.min() >= 1 and tiny.length.sum() == 60


@pytest.mark.parametrize("name", DRAWN)
def test_ten_thousand_clients_are_quick(name):
    start = time.process_time()
    part = made(name, MNIST_LIKE, clients=10_000, per_client=500)
    assert time.process_time() - start < 5.0  # well under one second on an idle machine
    assert part.clients == 10_000 and part.length.min() >= 1


@pytest.mark.parametrize(
    ("name", "given", "key"),
    [
        ("iid", {"clients": 0}, "data.clients"),
        ("iid", {"clients": 2, "per_client": 101}, "data.per_client"),
        ("iid", {"clients": 2, "per_client": 0}, "data.per_client"),
        ("iid", {"clients": 2, "seed": -1}, "train.seed"),
        ("copies", {"clients": 2, "per_client": 101}, "data.per_client"),
        ("shards", {"clients": 2, "classes_per_client": 11}, "data.classes_per_client"),
        ("shards", {"clients": 2, "classes_per_client": 0}, "data.classes_per_client"),
        ("shards", {"clients": 2, "per_client": 1}, "data.per_client"),
        ("classes", {"clients": 2, "per_client": 3, "classes_per_client": 4}, "data.per_client"),
        ("dirichlet", {"clients": 101}, "data.clients"),
        ("dirichlet", {"clients": 2, "alpha": 0.0}, "data.alpha"),
        ("quantity", {"clients": 2, "alpha": float("nan")}, "data.alpha"),
        ("quantity", {"clients": 101}, "data.clients"),
        ("groups-overlap", {"clients": 2, "classes": 11}, "data.partition"),
        ("groups-disjoint", {"clients": 100}, "data.clients"),
        ("shard", {"clients": 2}, "data.partition"),
    ],
)
def test_what_cannot_be_made_is_refused_by_its_key(name, given, key):
    with pytest.raises(ConfigError) as caught:
        made(name, np.repeat(np.arange(10), [1, 19] + [10] * 8), **given)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_a_misspelt_name_gets_a_hint():
    with pytest.raises(ConfigError, match="did you mean 'shards'"):
        made("shard", MNIST_LIKE, clients=2)


@pytest.mark.parametrize("name", ["iid", "shards", "groups-disjoint", "dirichlet"])
def test_label_sets_give_the_first_clients_their_classes_and_nobody_else_their_examples(name):
    sets = [[0, 1, 2], [7, 8]]
    part = made(name, MNIST_LIKE[:5000], clients=12, per_client=100, label_sets=sets, seed=3, classes=10)
    assert part.clients == 12
    for client, wanted in enumerate(sets):
        assert set(MNIST_LIKE[part.client(client)]) == set(wanted) and part.length[client] == 100
    first = set(part.client(0)) | set(part.client(1))
    assert len(first) == 200 and not any(first & set(part.client(c)) for c in range(2, 12))


@pytest.mark.parametrize(
    "sets, says",
    [([[11]], "classes from 0 to 9"), ([[0]] * 12, "fewer sets"), ([[]], "classes from 0"), ([[3]], "are left")],
)
def test_label_sets_that_cannot_be_served_are_refused(sets, says):
    with pytest.raises(ConfigError, match=says):
        made("iid", MNIST_LIKE[:500], clients=12, per_client=100, label_sets=sets, classes=10)
