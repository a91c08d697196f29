"""The cost of privacy in time: Fed-CDP against no defence, against Poisson batches, and against other libraries.

All sides take turns in one process, on random data of the dataset's shape, after compilation. Each turn gives one ratio of
seconds per client and local iteration; a row has their median and quartiles. The ratio is ours over theirs: under 1 ours
is faster. A side that trains clients one after another makes fewer steps in a turn.

| row | ours | theirs |
|---|---|---|
| `round/MODEL` | Fed-CDP, 100 clients, batches of fixed size | no defence, the same batches |
| `round/MODEL/poisson` | Fed-CDP, Poisson batches of that expected size | Fed-CDP, batches of fixed size |
| `round/MODEL/opacus` | Fed-CDP, batches of fixed size | Opacus, the same clip and batches, one client after another |
| `round/MODEL/loop` | likewise | PyTorch, one example after another |
| `round/MODEL/vmap` | likewise | PyTorch, `vmap` over clients and over the examples of each |
| `round/MODEL/flower` | likewise | Flower's simulation, one process per core, Opacus in its clients |
| `round/MODEL/opacus/KT` | Fed-CDP with KT clients | Opacus |

PyTorch uses one thread or all, whichever is faster for the side. `vmap` trains at most 100 clients at once, because more
may not fit in memory. Flower is compared only on CPUs, and not with ResNet-20.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import numpy as np

from benchmarks.peers import flower_round, opacus, torch_round
from benchmarks.peers.private_step import PrivateStep
from benchmarks.peers.torch_nets import sequential
from benchmarks.rows import row
from fedveil.data.arrays import from_arrays
from fedveil.data.dataset import Dataset
from fedveil.federation import federation
from fedveil.models.catalog import build

PRIVATE = {"name": "fed-cdp"}
NONE = {"name": "none"}
CLIP, NOISE, LR = 4.0, 6.0, 1e-4
MAIN = 100  # clients per round in the rows whose name has no number
CLIENTS = (10, MAIN, 1000)


@dataclass(frozen=True)
class Case:
    """One model on one shape of data, with the batch size of fed-cdp's Table I and `work` client iterations per turn."""

    model: str
    shape: tuple[int, ...]
    classes: int
    batch: int
    work: int = 2000


CASES = {
    "cnn": Case("cnn", (28, 28, 1), 10, 5),
    "lenet": Case("lenet-cpl", (32, 32, 3), 62, 3),
    "mlp": Case("mlp", (105,), 2, 3, 20_000),
}
DEEP = {"resnet20": Case("resnet20", (32, 32, 3), 10, 4, 100)}
GPU_WORK = 50  # the factor on `work` on a GPU
Side = Callable[[int], float]  # takes the number of a turn and returns its seconds


def run(
    clients: tuple[int, ...] = CLIENTS, repeats: int = 7, progress: Callable[[str], None] = lambda line: None
) -> Iterator[dict[str, object]]:
    """The rows of the module's table, for every model."""
    absent = opacus.missing()
    if absent:
        progress(f"bench round: no comparison with PyTorch, {absent} is not installed: pip install 'fedveil[bench]'")
    elif flower_round.missing():
        progress(f"bench round: no comparison with Flower, {flower_round.missing()} is not installed")
    for name, case in (CASES | DEEP).items():
        for count in clients if case.model != "resnet20" else (10,):
            progress(f"bench round: {name}, {count} clients")
            yield from _measured(
                name, case, count, count == MAIN or count == clients[0] == clients[-1], absent, repeats
            )


def _measured(name: str, case: Case, clients: int, main: bool, absent: str, repeats: int) -> list[dict[str, object]]:
    """The rows of one model with one number of clients. `main`: compare with all sides, not only with Opacus."""
    main = main or case.model == "resnet20"
    steps = max(2, case.work * (GPU_WORK if jax.default_backend() == "gpu" else 1) // clients)
    data = random_data(case, clients)
    sides = {"private": per_step(rounds(case, data, clients, steps, PRIVATE, "shuffle"), clients * steps)}
    if main:
        sides["plain"] = per_step(rounds(case, data, clients, steps, NONE, "shuffle"), clients * steps)
        sides["poisson"] = per_step(rounds(case, data, clients, steps, PRIVATE, "poisson"), clients * steps)
    if not absent:
        sides |= _peers(case, data, clients, main)
    seconds = take_turns(sides, repeats)
    pairs = {"": ("private", "plain"), "/poisson": ("poisson", "private")}
    pairs |= {f"/{peer}": ("private", peer) for peer in ("opacus", "loop", "vmap")}
    tail = "" if main else f"/{clients}"
    rows = [
        row(f"round/{name}{kind}{tail}", seconds[ours], seconds[theirs])
        for kind, (ours, theirs) in pairs.items()
        if theirs in seconds and ours in seconds
    ]
    if main and case.model != "resnet20" and not (absent or flower_round.missing()) and jax.default_backend() == "cpu":
        rows.append(_against_flower(name, case, data, clients, steps, sides["private"], repeats))
    return rows


def _against_flower(
    name: str, case: Case, data: Dataset, clients: int, steps: int, private: Side, repeats: int
) -> dict[str, object]:
    """The row of Flower's simulation: its rounds take turns with ours inside its server."""
    net = build(case.model, case.shape, case.classes)
    seconds: dict[str, list[float]] = {}

    def turns(play: Side) -> None:
        seconds.update(take_turns({"private": private, "flower": per_step(play, clients * steps)}, repeats))

    work = flower_round.ClientWork(net, _step(case), steps)
    flower_round.in_simulation(work, data.train.x, data.train.y, clients, turns)
    return row(f"round/{name}/flower", seconds["private"], seconds["flower"])


def per_step(play: Side, count: int) -> Side:
    """The side in seconds per client iteration, where a turn makes `count` of them."""
    return lambda number: play(number) / count


def _step(case: Case) -> PrivateStep:
    return PrivateStep(case.batch, CLIP, NOISE, LR)


def _peers(case: Case, data: Dataset, clients: int, main: bool) -> dict[str, Side]:
    """The same work by PyTorch, in seconds per client iteration."""
    net, x, y = build(case.model, case.shape, case.classes), data.train.x, data.train.y
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    few = max(10, case.work // 20)
    one_by_one = opacus.OpacusSteps(net, x, y, _step(case), device)
    sides = {"opacus": _with_threads(lambda count: one_by_one(count) / count, few)}
    if main:
        loop = torch_round.loop_steps(sequential(net), x, y, _step(case), device)
        sides["loop"] = _with_threads(lambda count: loop(count) / count, max(4, few // 4))
        together = min(clients, MAIN)
        wide = torch_round.VmapSteps(sequential(net), x, y, together, _step(case), device)
        sides["vmap"] = _with_threads(lambda count: wide(count) / (count * together), max(2, few // together))
    return sides


def _with_threads(steps: Callable[[int], float], count: int) -> Side:
    """A side that makes `count` steps per turn, with one thread or all, whichever is faster."""
    import torch

    every = torch.get_num_threads()
    seconds = {}
    for threads in (every, 1):
        torch.set_num_threads(threads)
        steps(2)
        seconds[threads] = steps(max(2, count // 4))
    best = min(seconds, key=lambda threads: seconds[threads])
    torch.set_num_threads(every)

    def play(number: int) -> float:
        torch.set_num_threads(best)
        try:
            return steps(count)
        finally:
            torch.set_num_threads(every)

    return play


def random_data(case: Case, clients: int) -> Dataset:
    """Random examples of the case's shape, enough for all clients."""
    rng = np.random.default_rng(0)
    count = clients * 100 * case.batch  # N_i = 100 B, as on MNIST in fed-cdp's Table I
    x = rng.random((count, *case.shape), np.float32)
    return from_arrays(x, rng.integers(0, case.classes, count), x[:8], np.arange(8) % case.classes, case.classes)


def settings_of(case: Case, clients: int, steps: int, defense: dict[str, str], batching: str) -> dict[str, object]:
    """The config of a federation in which all clients take part in every round."""
    return {
        "preset": "paper",  # the peers clip and noise as the paper does
        "data": {"partition": "iid", "clients": clients},
        "model": {"name": case.model},
        "train": {
            "per_round": clients,
            "local_steps": steps,
            "batch": case.batch,
            "lr": LR,
            "rounds": 1000,
            "sampling": "fixed",
            "batching": batching,
        },
        "defense": defense,
    }


def rounds(case: Case, data: Dataset, clients: int, steps: int, defense: dict[str, str], batching: str) -> Side:
    """A function that plays the round of a given number and returns its seconds, without compilation."""
    return play_rounds(settings_of(case, clients, steps, defense, batching), data)


def play_rounds(settings: dict[str, object], data: Dataset) -> Side:
    """The same as `rounds`, for any config."""
    simulator = federation(settings, data=data).simulator
    state = simulator.start()

    def play(number: int) -> float:
        nonlocal state
        started, compiled = time.perf_counter(), simulator.compile_seconds
        state, _ = simulator.round(state, number)
        simulator.block(state)
        # A round with a new batch width compiles first: that time is not part of the cost of a round.
        return time.perf_counter() - started - (simulator.compile_seconds - compiled)

    return play


def take_turns(sides: dict[str, Side], repeats: int) -> dict[str, list[float]]:
    """The seconds of each side in each turn. All sides play once per turn; the first turn warms up and is left out."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(repeats + 1):
        for name, play in sides.items():
            taken = play(number)
            if number:
                seconds[name].append(taken)
    return seconds
