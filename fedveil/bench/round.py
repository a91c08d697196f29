"""What privacy costs in time, per client and local iteration: Fed-CDP over no defence, Poisson batches, Opacus.

All sides take turns in one process, on random data of the dataset's shape, after compilation. Each turn gives one ratio;
the figure is their median, with the quartiles beside it. A ratio is ours over theirs: under 1 we are faster.

| row | ours | theirs |
|---|---|---|
| `round/MODEL` | Fed-CDP, batches of fixed size | no defence, the same batches |
| `round/MODEL/poisson` | Fed-CDP, Poisson batches of that expected size | Fed-CDP, batches of fixed size |
| `round/MODEL/opacus` | Fed-CDP, batches of fixed size | Opacus, the same clip and batches, one client after another |
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedveil import api
from fedveil.bench.peers import opacus
from fedveil.bench.rows import row
from fedveil.data.arrays import from_arrays
from fedveil.data.dataset import Dataset
from fedveil.models.build import build

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
    """The rows of the module's table, for every model."""
    absent = opacus.missing()
    if absent:
        progress(f"bench round: no comparison with Opacus, {absent} is not installed: pip install 'fedveil[bench]'")
    rows = []
    for name, case in CASES.items():
        progress(f"bench round: {name}")
        data = random_data(case, clients)
        sides = {
            "private": rounds(case, data, clients, steps, PRIVATE, "shuffle"),
            "plain": rounds(case, data, clients, steps, NONE, "shuffle"),
            "poisson": rounds(case, data, clients, steps, PRIVATE, "poisson"),
        }
        if not absent:
            sides["opacus"] = _opacus(case, data, clients * steps)
        seconds = take_turns(sides, repeats)
        pairs = {"": ("private", "plain"), "/poisson": ("poisson", "private"), "/opacus": ("private", "opacus")}
        for tail, (ours, theirs) in pairs.items():
            if theirs in seconds:
                rows.append(row(f"round/{name}{tail}", seconds[ours], seconds[theirs], clients * steps))
    return rows


def random_data(case: Case, clients: int) -> Dataset:
    rng = np.random.default_rng(0)
    count = clients * 100 * case.batch  # N_i = 100 B, as on MNIST in fed-cdp's Table I
    x = rng.random((count, *case.shape), np.float32)
    return from_arrays(x, rng.integers(0, case.classes, count), x[:8], np.arange(8) % case.classes, case.classes)


def settings_of(case: Case, clients: int, steps: int, defense: dict[str, str], batching: str) -> dict[str, object]:
    """The config of a federation in which all clients take part in every round."""
    return {
        "data": {"partition": "iid", "clients": clients},
        "model": {"name": case.model},
        "train": {
            "per_round": clients,
            "local_steps": steps,
            "batch": case.batch,
            "lr": 1e-4,
            "rounds": 1000,
            "sampling": "fixed",
            "batching": batching,
        },
        "defense": defense,
    }


def rounds(
    case: Case, data: Dataset, clients: int, steps: int, defense: dict[str, str], batching: str
) -> Callable[[int], float]:
    """A function that plays round so-and-so of a federation and says how many seconds it took."""
    return play_rounds(settings_of(case, clients, steps, defense, batching), data)


def play_rounds(settings: dict[str, object], data: Dataset) -> Callable[[int], float]:
    """The same for any config."""
    simulator = api.federation(settings, data=data).simulator
    state = simulator.start()

    def play(number: int) -> float:
        nonlocal state
        started, compiled = time.perf_counter(), simulator.compile_seconds
        state, _ = simulator.round(state, number)
        simulator.block(state)
        # A round may be the first of its batch width: what it spent on compiling is no cost of the round.
        return time.perf_counter() - started - (simulator.compile_seconds - compiled)

    return play


def _opacus(case: Case, data: Dataset, count: int) -> Callable[[int], float]:
    net = build(case.model, case.shape, case.classes)
    steps = opacus.private_steps(net, data.train.x, data.train.y, case.batch, clip=4.0, noise=6.0, lr=1e-4)
    return lambda number: steps(count)


def take_turns(sides: dict[str, Callable[[int], float]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each turn of each side, one turn each after the other; the first warms up and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(repeats + 1):
        for name, play in sides.items():
            taken = play(number)
            if number:
                seconds[name].append(taken)
    return seconds
