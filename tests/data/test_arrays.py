"""A user's own arrays, in memory or in a file."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.core.errors import ConfigError, DataError
from fedveil.data.arrays import from_arrays
from fedveil.data.registry import load


def test_own_arrays(tmp_path):
    x, y = np.random.default_rng(0).random((40, 5)), np.arange(40) % 3
    data = from_arrays(x, y)
    assert (len(data.train), len(data.held_out), data.classes, data.held_out_name) == (30, 10, 3, "validation")
    assert data.train.x.dtype == np.float32
    tested = from_arrays(x, y, x[:4], y[:4], classes=5)
    assert (len(tested.train), len(tested.held_out), tested.classes, tested.held_out_name) == (40, 4, 5, "test")
    path = tmp_path / "mine.npz"
    np.savez(path, x=x, y=y, x_test=x[:8], y_test=y[:8])
    loaded = load("file", file=str(path), public=0.25)
    assert (loaded.name, len(loaded.train), len(loaded.held_out), len(loaded.public)) == ("mine", 40, 6, 2)


def test_own_arrays_that_do_not_fit(tmp_path):
    x, y = np.ones((4, 2)), np.array([0, 1, 0, 1])
    for given, words in [
        ((x, y[:3]), "one label for each"),
        ((x * np.nan, y), "NaN"),
        ((x, y - 1), "count from 0"),
        ((x, y, x), "both or neither"),
        ((x, y, np.ones((4, 3)), y), "alike"),
        ((x[:1], y[:1]), "hold out"),
        ((x, y, None, None, 1), "classes is 1"),
    ]:
        with pytest.raises(DataError, match=words):
            from_arrays(*given)
    with pytest.raises(ConfigError, match="data.file"):
        load("file")
    with pytest.raises(DataError, match="there is no file"):
        load("file", file=str(tmp_path / "none.npz"))
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataError, match="numpy.savez"):
        load("file", file=str(tmp_path / "text.npz"))
    np.savez(tmp_path / "other.npz", a=x)
    with pytest.raises(DataError, match="it takes x, y"):
        load("file", file=str(tmp_path / "other.npz"))
    np.save(tmp_path / "one.npy", x)
    with pytest.raises(DataError, match="one array"):
        load("file", file=str(tmp_path / "one.npy"))
