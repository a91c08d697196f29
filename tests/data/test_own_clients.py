"""Data that says which client holds what: ids in a file, one file per client, or sizes alone."""

from __future__ import annotations

import numpy as np
import pytest

import fedveil
from fedveil.config import from_settings
from fedveil.core.errors import ConfigError, DataError
from fedveil.data.sizes import read_sizes
from fedveil.federation import plan, prepare

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, 60)
X = (RNG.normal(size=(60, 4)) + Y[:, None]).astype(np.float32)
IDS = np.repeat([30, 10, 20], [40, 12, 8])  # numbered in their order: 10 → 0, 20 → 1, 30 → 2
TRAIN = {"rounds": 2, "batch": 2, "local_steps": 1}


def settings(file, **data):
    return {"data": {"name": "file", "file": str(file), **data}, "train": TRAIN, "defense": {"name": "fed-cdp"}}


@pytest.fixture
def file(tmp_path):
    np.savez(tmp_path / "own.npz", x=X, y=Y, client=IDS)
    return tmp_path / "own.npz"


def held(federation):
    """The training examples of each client."""
    x, partition = federation.dataset.train.x, federation.partition
    return [x[partition.client(i)] for i in range(partition.clients)]


def test_a_client_trains_on_its_own_records_and_no_others(file):
    ready = prepare(from_settings(settings(file)))
    assert ready.config.data.clients == 3 and ready.config.data.partition == "own"
    assert ready.partition.length.tolist() == [9, 6, 30]  # three quarters of each client's records
    for own, name in zip(held(ready), (10, 20, 30), strict=True):
        theirs = {row.tobytes() for row in X[name == IDS]}
        assert {row.tobytes() for row in own} <= theirs
    assert len(ready.dataset.held_out) == 15


def test_a_folder_holds_one_file_per_client_and_a_test_part(tmp_path):
    for name in (10, 20, 30):
        np.savez(tmp_path / f"{name}.npz", x=X[name == IDS], y=Y[name == IDS])
    np.savez(tmp_path / "test.npz", x=X[:5], y=Y[:5])
    ready = prepare(from_settings(settings(tmp_path)))
    assert ready.partition.length.tolist() == [12, 8, 40] and len(ready.dataset.held_out) == 5
    np.testing.assert_array_equal(held(ready)[1], X[IDS == 20])


def test_arrays_in_memory_take_ids_too_and_a_run_of_a_file_is_attacked(file, tmp_path):
    names = np.array(["c", "a", "b"])[IDS // 10 - 1]
    ready = fedveil.federation({"train": TRAIN}, data=fedveil.from_arrays(X, Y, client=names))
    assert ready.partition.length.tolist() == [6, 30, 9]  # a is 20, b is 30, c is 10
    fedveil.train(settings(file), out=tmp_path / "run")
    done = fedveil.attack({"attack": {"images": 1, "iterations": 2}}, run=tmp_path / "run")
    assert done.as_dict()["attack"] == "cpl" and done.study is not None


def test_the_account_of_sizes_is_that_of_the_data(tmp_path):
    """Sizes alone give the account of the data with the same sizes, number by number."""
    np.savez(tmp_path / "own.npz", x=X, y=Y, client=IDS, x_test=X[:5], y_test=Y[:5])
    whole = fedveil.account(settings(tmp_path / "own.npz"))
    (tmp_path / "sizes.csv").write_text("hospital,records\na,12\nb,8\nc,40\n", encoding="utf-8")
    for sizes in ([12, 8, 40], str(tmp_path / "sizes.csv")):
        known = {"name": "file", "sizes": sizes, "shape": [4], "classes": 2}
        from_sizes = fedveil.account({"data": known, "train": TRAIN, "defense": {"name": "fed-cdp"}})
        assert from_sizes.as_dict() == whole.as_dict() and any(row.certified for row in whole)


def test_sizes_do_not_train():
    with pytest.raises(ConfigError, match=r"data\.sizes: got \[3, 4\]; is for accounts"):
        fedveil.train({"data": {"sizes": [3, 4]}})
    assert plan(from_settings({"data": {"sizes": [3, 5]}, "train": {"batch": 2}})).setting.sizes[-1][0] == 5


WRONG = {
    "whole number or name": {"client": IDS[:-1]},
    "the data already has 3 clients: leave it out": {"client": IDS, "data": {"clients": 4}},
    "needs the client of each example": {"data": {"partition": "own"}},
    "leaves none to hold out": {"client": np.arange(60)},
}


@pytest.mark.parametrize("says", WRONG)
def test_wrong_ids_are_refused(tmp_path, says):
    given = WRONG[says]
    np.savez(tmp_path / "own.npz", x=X, y=Y, **{key: v for key, v in given.items() if key == "client"})
    with pytest.raises((ConfigError, DataError), match=says):
        prepare(from_settings(settings(tmp_path / "own.npz", **given.get("data", {}))))


def test_wrong_folders_and_sizes_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds no \.npz files"):
        prepare(from_settings(settings(tmp_path)))
    np.savez(tmp_path / "a.npz", x=X[:4], y=Y[:4])
    np.savez(tmp_path / "b.npz", x=X[:4, :3], y=Y[:4])
    with pytest.raises(DataError, match="give all alike"):
        prepare(from_settings(settings(tmp_path)))
    (tmp_path / "s.csv").write_text("a,1\nb,none\n", encoding="utf-8")
    for wrong in ([], [3, 0], str(tmp_path / "s.csv"), str(tmp_path / "missing.csv")):
        with pytest.raises(ConfigError, match=r"data\.sizes"):
            read_sizes(wrong)
    with pytest.raises(ConfigError, match=r"data\.shape"):
        fedveil.account({"data": {"name": "file", "sizes": [4, 5]}, "train": TRAIN})


def test_another_partition_may_be_asked_for(file):
    ready = prepare(from_settings(settings(file, partition="iid", clients=5)))
    assert ready.partition.clients == 5
