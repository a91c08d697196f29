"""What privacy costs in time: a round under Fed-CDP over the same round without a defence.

Both federations take turns in one process, on random data of the dataset's shape, with batches of fixed size, after
compilation. Each turn gives one ratio; the figure is their median, with the quartiles beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from fedveil import api
from fedveil.data.arrays import from_arrays
from fedveil.data.dataset import Dataset
from fedveil.rounds.simulate import Simulator

PRIVATE = {"name": "fed-cdp"}
NONE = {"name": "none"}


@dataclass(frozen=True)
class Case:
    """One model on one shape of data, at the batch size of fed-cdp's Table I."""

    model: str
    shape: tuple[int, ...]
    classes: int
    batch: int


CASES = {
    "cnn": Case("cnn", (28, 28, 1), 10, 5),
    "lenet": Case("lenet-cpl", (32, 32, 3), 62, 3),
    "mlp": Case("mlp", (105,), 2, 3),
}


def run(
    clients: int = 20, steps: int = 20, repeats: int = 7, progress: Callable[[str], None] = lambda line: None
) -> list[dict[str, object]]:
    """A row per model: seconds per client iteration with and without the defence, and their ratio."""
    rows = []
    for name, case in CASES.items():
        progress(f"bench round: {name}")
        data = _random_data(case, clients)
        pair = [_simulator(case, data, clients, steps, defense) for defense in (PRIVATE, NONE)]
        private, plain = _take_turns(pair, repeats)
        ratios = [a / b for a, b in zip(private, plain, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        work = clients * steps
        rows.append(
            {
                "name": f"round/{name}",
                "ratio": middle,
                "low": low,
                "high": high,
                "ours": statistics.median(private) / work,
                "theirs": statistics.median(plain) / work,
                "device": str(jax.devices()[0].device_kind),
            }
        )
    return rows


def _random_data(case: Case, clients: int) -> Dataset:
    rng = np.random.default_rng(0)
    count = clients * 4 * case.batch
    x = rng.random((count, *case.shape), np.float32)
    return from_arrays(x, rng.integers(0, case.classes, count), x[:8], np.arange(8) % case.classes, case.classes)


def _simulator(case: Case, data: Dataset, clients: int, steps: int, defense: dict[str, str]) -> Simulator:
    settings = {
        "data": {"partition": "iid", "clients": clients},
        "model": {"name": case.model},
        "train": {
            "per_round": clients,
            "local_steps": steps,
            "batch": case.batch,
            "lr": 1e-4,
            "rounds": 1000,
            "sampling": "fixed",
            "batching": "shuffle",
        },
        "defense": defense,
    }
    return api.federation(settings, data=data).simulator


def _take_turns(simulators: list[Simulator], repeats: int) -> list[list[float]]:
    """Seconds of each round of each simulator, one round each in turn; the first, which compiles, does not count."""
    states = [simulator.start() for simulator in simulators]
    seconds: list[list[float]] = [[] for _ in simulators]
    for number in range(repeats + 1):
        for place, simulator in enumerate(simulators):
            started = time.perf_counter()
            states[place], _ = simulator.round(states[place], number)
            simulator.block(states[place])
            if number:
                seconds[place].append(time.perf_counter() - started)
    return seconds
