"""How the cost of a round and of an attack grows with one size at a time.

The ratio of a row is seconds per unit of the varied size, at its largest value over at its smallest: up to 1 the growth is
at most linear. `points` are (size, median seconds). `exponent` is the slope of log seconds over log size by least squares;
`exponent_low` and `exponent_high` are its 95 % interval. The sizes of a row take turns in one process, after compilation.
Rounds use Fed-CDP with batches of fixed size.

| row | varied | what grows |
|---|---|---|
| `growth/MODEL/K` | clients, of which a fixed number take part | a round |
| `growth/MODEL/Kt` | clients that take part | a round |
| `growth/MODEL/L` | local steps | a round |
| `growth/MODEL/B` | examples in a batch | a round |
| `growth/mlp/parameters` | parameters of the model, by its hidden layers | a round |
| `growth/attack/images` | images attacked as one batch (cpl, MNIST's shape) | the attack |
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks import attack
from benchmarks import round as rounds
from benchmarks.rows import row
from fedveil.attacks.reconstruction.cpl import CPL
from fedveil.data.arrays import from_arrays
from fedveil.data.dataset import Dataset

Turn = Callable[[int], float]


@dataclass(frozen=True)
class Point:
    """The sizes of one federation: K, Kt, L, B, the units of an mlp's hidden layer, and `held` examples per client."""

    clients: int = 100
    per_round: int = 20
    steps: int = 10
    batch: int = 4
    hidden: int = 64
    held: int = 50


AXES: dict[str, dict[str, tuple[int, ...]]] = {
    "mlp": {
        "clients": (100, 300, 1000, 3000),
        "per_round": (10, 30, 100, 300),
        "steps": (10, 30, 100, 300),
        "batch": (4, 12, 40, 120),
        "hidden": (64, 192, 576, 1152),
    },
    "cnn": {
        "clients": (100, 200, 400, 800),
        "per_round": (10, 20, 40, 80),
        "steps": (5, 10, 20, 40),
        "batch": (4, 8, 16, 32),
    },
}
SYMBOLS = {"clients": "K", "per_round": "Kt", "steps": "L", "batch": "B", "hidden": "parameters"}
IMAGES = (4, 8, 16, 32, 64)


def run(
    repeats: int = 7,
    progress: Callable[[str], None] = lambda line: None,
    axes: dict[str, dict[str, tuple[int, ...]]] | None = None,
    images: Sequence[int] = IMAGES,
) -> Iterator[dict[str, object]]:
    """The rows of the module's table."""
    for model, varied in (AXES if axes is None else axes).items():
        for axis, values in varied.items():
            progress(f"bench growth: {model}, {SYMBOLS[axis]}")
            points = [_around(axis, value) for value in values]
            sides = {size(model, axis, point): _round(model, point) for point in points}
            yield grown(f"growth/{model}/{SYMBOLS[axis]}", sides, repeats)
    if images:
        progress("bench growth: images")
        yield grown("growth/attack/images", {count: _attack(count) for count in images}, repeats)


def grown(name: str, sides: dict[int, Turn], repeats: int) -> dict[str, object]:
    """The row of one varied size. `sides` maps each of its values to a function that returns seconds."""
    sizes = sorted(sides)
    seconds = rounds.take_turns({str(count): sides[count] for count in sizes}, repeats)
    least, most = sizes[0], sizes[-1]
    per_unit = {count: [s / count for s in seconds[str(count)]] for count in (least, most)}
    medians = [statistics.median(seconds[str(count)]) for count in sizes]
    slope, low, high = exponent(sizes, medians)
    return row(name, per_unit[most], per_unit[least]) | {
        "exponent": slope,
        "exponent_low": low,
        "exponent_high": high,
        "points": [[count, median] for count, median in zip(sizes, medians, strict=True)],
    }


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float, float]:
    """The slope of log seconds over log size by least squares, and its 95 % interval."""
    from scipy.special import stdtrit

    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(seconds, float))
    if len(x) < 3:
        raise ValueError(f"an exponent with an interval takes at least 3 sizes, got {len(x)}")
    away = x - x.mean()
    slope = float(away @ y / (away @ away))
    left = y - y.mean() - slope * away
    free = len(x) - 2
    error = math.sqrt(float(left @ left) / free / float(away @ away))
    reach = float(stdtrit(free, 0.975)) * error
    return slope, slope - reach, slope + reach


def _around(axis: str, value: int) -> Point:
    """The default federation with one size changed, and with enough clients and examples for that size."""
    point = replace(Point(), **{axis: value})
    return replace(point, clients=max(point.clients, point.per_round), held=max(point.held, point.batch))


def size(model: str, axis: str, point: Point) -> int:
    """The size that seconds are compared with: the varied number, or for `hidden` the number of parameters it gives."""
    if axis != "hidden":
        return int(getattr(point, axis))
    case = rounds.CASES[model]
    return (case.shape[0] + 1) * point.hidden + (point.hidden + 1) * case.classes


def _round(model: str, point: Point) -> Turn:
    case = replace(rounds.CASES[model], batch=point.batch)
    chosen: dict[str, object] = {
        "preset": "paper",
        "data": {"partition": "iid", "clients": point.clients, "per_client": point.held},
        "model": {"name": case.model} | ({"hidden": [point.hidden]} if case.model == "mlp" else {}),
        "train": {
            "per_round": point.per_round,
            "local_steps": point.steps,
            "batch": point.batch,
            "lr": 1e-4,
            "rounds": 1000,
            "sampling": "fixed",
            "batching": "shuffle",
        },
        "defense": rounds.PRIVATE,
    }
    return rounds.play_rounds(chosen, _data(case, point.clients * point.held))


def _data(case: rounds.Case, count: int) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (count, *case.shape), np.uint8)
    return from_arrays(x, rng.integers(0, case.classes, count), x[:8], np.arange(8) % case.classes, case.classes)


def _attack(images: int) -> Turn:
    case = attack.CASES["mnist"]
    work = attack.victims(case, images, attack.noise)
    play = attack.as_a_batch(work, CPL(iterations=case.iterations))
    return lambda number: images * play()
