"""Fixtures of the benchmark tests: a clock that a test moves, and torch with one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


class Clock:
    """Stands in for the module `time`: it moves only when a test moves it, so timings are known exactly."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch with one thread: its threads wait in busy loops, which is slow where tests run in parallel."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra [bench])")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
