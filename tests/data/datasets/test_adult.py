"""Adult: the encoding of records."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.core.errors import DataError
from fedveil.data.datasets import adult
from fedveil.data.registry import load


def test_features(need):
    need("adult")
    data = load("adult")
    assert data.groups[0][0] == 6 and data.groups[-1][1] == 105 and len(data.feature_names) == 105
    for first, last in data.groups:
        assert set(data.train.x[:, first:last].sum(axis=1)) <= {0.0, 1.0}  # zero: unknown
    everyone = np.concatenate([data.train.y, data.held_out.y])
    assert everyone.sum() == 11_687


def test_rows_that_do_not_fit_are_refused():
    line = b"39, State-gov, 77516, Bachelors, 13, Never-married, ?, Wife, White, Male, 2174, 0, 40, Cuba, >50K.\n"
    part = adult.encode(adult.parse(b"|comment\n" + line + b"\n", "adult.test"))
    assert part.x.shape == (1, 105) and part.y.tolist() == [1]
    assert part.x[0, 6:].sum() == 7  # eight categories, one of them unknown
    assert part.x[0, 3] == pytest.approx(np.log1p(2174) / np.log1p(99_999))
    with pytest.raises(DataError, match="fields"):
        adult.parse(b"39, State-gov\n", "adult.data")
    with pytest.raises(DataError, match="codebook"):
        adult.encode(adult.parse(line.replace(b"Cuba", b"Utopia"), "adult.test"))
