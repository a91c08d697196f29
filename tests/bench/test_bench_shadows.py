"""The benchmark of shadows compares seconds per shadow: in a batch, and alone."""

import itertools
from types import SimpleNamespace

import pytest

from benchmarks import shadows as bench


@pytest.mark.slow
def test_a_batch_is_compared_with_one_alone(monkeypatch):
    """A real run in small, on a clock that is one second later at each look: every training takes one second."""
    for name, value in {"MODELS": ("logistic",), "SIZE": 20, "BATCH": 10, "CLIENTS": 2}.items():
        monkeypatch.setattr(bench, name, value)
    ticks = itertools.count()
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    (row,) = bench.run(shadows=3, rounds=1, repeats=3)
    assert row["name"] == "shadows/logistic"
    assert (row["ratio"], row["ours"], row["theirs"]) == pytest.approx((1 / 3, 1 / 3, 1.0))
    assert next(ticks) == 2 * 2 * 4  # two looks, two sides, three turns after one that warms up
