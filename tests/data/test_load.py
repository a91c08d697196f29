"""Datasets: counts, shapes, splits and ranges. Those whose files are not here are skipped."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.core.errors import ConfigError
from fedveil.data.registry import DATASETS, load

# name, split -> train, held out, its name, test, public
SPLITS = [
    ("digits", "fed-cdp", 1347, 450, "validation", None, None),
    ("digits", "cpl", 1347, 450, "test", None, None),
    ("digits", "dpfl", 1347, 405, "test", None, 45),
    ("cancer", "fed-cdp", 426, 143, "validation", None, None),
    ("mnist", "fed-cdp", 50_000, 10_000, "validation", 10_000, None),
    ("mnist", "cpl", 60_000, 10_000, "test", None, None),
    ("mnist", "dpfl", 50_000, 9_000, "test", None, 1_000),
    ("fashion-mnist", "fed-cdp", 50_000, 10_000, "validation", 10_000, None),
    ("cifar10", "fed-cdp", 40_000, 10_000, "validation", 10_000, None),
    ("cifar10", "dpfl", 50_000, 7_000, "test", None, 3_000),
    ("cifar100", "fed-cdp", 7_999, 2_000, "validation", None, None),
    ("lfw", "fed-cdp", 2_267, 756, "validation", None, None),
    ("lfw", "cpl", 2_267, 756, "test", None, None),
    ("adult", "fed-cdp", 36_631, 12_211, "validation", None, None),
    ("xray", "fed-cdp", 1, 1, "validation", None, None),
]


@pytest.mark.parametrize(("name", "split", "train", "held_out", "held_out_name", "test", "public"), SPLITS)
def test_counts_and_shapes(need, name, split, train, held_out, held_out_name, test, public):
    need(name)
    data, info = load(name, split=split), DATASETS[name]
    assert (len(data.train), len(data.held_out), data.held_out_name) == (train, held_out, held_out_name)
    assert (data.test and len(data.test), data.public and len(data.public)) == (test, public)
    assert data.shape == info.shape and data.classes == info.classes and data.note == info.note
    parts = [part for part in (data.train, data.held_out, data.test, data.public) if part is not None]
    for part in parts:
        assert part.y.dtype == np.int32 and len(part.x) == len(part.y)
        assert part.x.dtype in (np.uint8, np.float32)
        assert part.y.min() >= 0 and part.y.max() < data.classes
        low, high = (-5, 15) if name == "cancer" else (0, 1)  # cancer is standardised, everything else is in [0, 1]
        assert part.x.min() * data.scale >= low and part.x.max() * data.scale <= high
    if info.trainable:
        assert set(data.train.y) == set(range(data.classes))
    assert len(data.class_names) in (0, data.classes)


@pytest.mark.parametrize("name", ["digits", "cancer"])
def test_a_split_is_always_the_same_and_overlaps_nowhere(name):
    data, again = load(name, public=0.2), load(name, public=0.2)
    assert np.array_equal(data.held_out.x, again.held_out.x) and np.array_equal(data.public.x, again.public.x)
    total = len(data.train) + len(data.held_out) + len(data.public)
    rows = np.concatenate([part.x.reshape(len(part), -1) for part in (data.train, data.held_out, data.public)])
    whole = load(name)
    assert total == len(whole.train) + len(whole.held_out)
    assert len(np.unique(rows, axis=0)) >= total - 1  # no example twice (one digit may be drawn twice by its writers)


def test_a_public_set_comes_from_the_test_part(need):
    need("mnist")
    data = load("mnist", public=0.1)
    assert (len(data.held_out), len(data.test), len(data.public)) == (10_000, 9_000, 1_000)


def test_wrong_names_and_shares():
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(ConfigError, match="data.split"):
        load("digits", split="fedcpd")
    with pytest.raises(ConfigError, match="defense.public"):
        load("digits", public=1.0)
