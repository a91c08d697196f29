"""The cost of a shadow federation: a batch of them trained together against one alone.

Both sides train the same federation on data of MNIST's shape: 10 clients of 500 examples, all of them in every round,
batches of 25, five local epochs. A turn trains a few rounds from the start. Both sides take turns in one process after
compilation, and each chooses how many clients it trains at once. Each turn gives one ratio of seconds per shadow; a row
has their median and quartiles. The ratio is the batch's seconds over the single federation's: under 1 the batch is
faster.

| row | model |
|---|---|
| `shadows/logistic` | multinomial logistic regression |
| `shadows/mlp` | 784, 64, 32, 10 |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.rows import row
from fedveil.attacks.games.shadows import Fleet
from fedveil.core.keys import Draws
from fedveil.data.arrays import from_arrays
from fedveil.federation import Federation, federation

MODELS = ("logistic", "mlp")
CLIENTS, SIZE, BATCH, EPOCHS = 10, 500, 25, 5


def run(
    shadows: int = 64, rounds: int = 2, repeats: int = 7, progress: Callable[[str], None] = lambda line: None
) -> Iterator[dict[str, object]]:
    """The rows of the module's table."""
    for model in MODELS:
        federation = _federation(model, rounds)
        together, alone = _together(federation, shadows), _alone(federation)
        progress(f"bench shadows: {model}")
        together(), alone()  # the first turn compiles and warms up
        turns = [(together() / shadows, alone()) for _ in range(repeats)]
        yield row(f"shadows/{model}", [a for a, _ in turns], [b for _, b in turns])


def _federation(model: str, rounds: int) -> Federation:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (CLIENTS * SIZE, 28, 28, 1), np.uint8)
    data = from_arrays(x, rng.integers(0, 10, len(x)), x[:8], np.arange(8), 10)
    settings = {
        "data": {"partition": "iid", "clients": CLIENTS, "per_client": SIZE},
        "model": {"name": model},
        "train": {"per_round": CLIENTS, "local_epochs": EPOCHS, "batch": BATCH, "lr": 1e-3, "rounds": rounds},
    }
    return federation(settings, data=data)


def _together(federation: Federation, shadows: int) -> Callable[[], float]:
    """A function that trains all shadows in one batch and returns the seconds it took."""
    given = np.random.default_rng(1).random((shadows, CLIENTS * SIZE)) < 0.5
    fleet = Fleet(federation, range(shadows), [Draws(f) for f in range(shadows)], given)

    def train() -> float:
        started = time.perf_counter()
        fleet.train()
        return time.perf_counter() - started

    return train


def _alone(federation: Federation) -> Callable[[], float]:
    """A function that trains one federation, round by round, and returns the seconds it took."""
    simulator, block = federation.simulator, federation.simulator.block

    def train() -> float:
        state = simulator.start()
        block(state)
        started = time.perf_counter()
        for number in range(federation.rounds):
            state, _ = simulator.round(state, number)
        block(state)
        return time.perf_counter() - started

    return train
