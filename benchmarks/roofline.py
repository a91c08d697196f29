"""How close training comes to the speed of the machine: achieved rates over the rates of plain operations.

The machine's two rates are measured in the same process, taking turns with training: square float32 matrix products of the
size that is fastest here, and copies of an array that is larger than any cache. The operations and bytes of training are
counted from layer shapes (`models/net.py`), per client and step. Each phase includes the one before it. A phase runs as
many clients at once as a round does, each with its own weights, and its steps are one compiled loop.

| row | ours | theirs |
|---|---|---|
| `roofline/MODEL/forward` | operations per second of forward passes | of matrix products |
| `roofline/MODEL/step` | of local steps without a defence: forward, backward, update | likewise |
| `roofline/MODEL/private` | of local steps of Fed-CDP: with clip and noise | likewise |
| `roofline/MODEL/round` | of whole rounds of Fed-CDP: with sampling of batches and aggregation | likewise |
| `roofline/MODEL/PHASE/bytes` | bytes per second, by the count of `models/net.py` | of copying |
| `roofline/MODEL/noise/bytes` | of drawing the noise alone and adding it to the gradients | likewise |

A ratio is the share of the machine's rate. Bytes are counted as if nothing stayed in a cache: a share above 1 shows that
much of it did.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import counts
from benchmarks import round as rounds
from benchmarks.rows import row
from fedveil.core import keys
from fedveil.federation import federation
from fedveil.kernels.clipping import training_context
from fedveil.models.layers import Array
from fedveil.models.net import Net
from fedveil.random import noise
from fedveil.simulation import client
from fedveil.simulation.client import Local, Task
from fedveil.simulation.inputs import Batch, RoundContext

Turn = Callable[[int], float]  # takes the number of a turn and returns its seconds


@dataclass(frozen=True)
class Size:
    """The amount of work in a turn."""

    clients: int = 20
    steps: int = 20
    products: tuple[int, ...] = (256, 512, 1024, 2048)  # side lengths of the matrices to try
    copied: int = 64 << 20  # bytes


GPU = Size(100, 100, (2048, 4096, 8192), 1 << 30)


@dataclass(frozen=True)
class Phase:
    """A turn, and the operations (0: not counted) and bytes that it needs."""

    play: Turn
    operations: int
    bytes: int


def run(
    repeats: int = 7, progress: Callable[[str], None] = lambda line: None, size: Size | None = None
) -> Iterator[dict[str, object]]:
    """The rows of the module's table, for every model."""
    size = size or (GPU if jax.default_backend() == "gpu" else Size())
    side = best_side(size.products)
    progress(f"bench roofline: matrix products are fastest at {side}×{side}")
    for name, case in rounds.CASES.items():
        progress(f"bench roofline: {name}")
        yield from _model(name, case, size, side, repeats)


def _model(name: str, case: rounds.Case, size: Size, side: int, repeats: int) -> list[dict[str, object]]:
    found = phases(case, size)
    turns = {f: phase.play for f, phase in found.items()}
    seconds = rounds.take_turns({"product": product_turn(side), "copy": copy_turn(size.copied), **turns}, repeats)
    multiplying = [2 * side**3 / s for s in seconds["product"]]
    copying = [2 * size.copied / s for s in seconds["copy"]]
    rows = []
    for phase, what in found.items():
        if what.operations:
            achieved = [what.operations / s for s in seconds[phase]]
            rows.append(row(f"roofline/{name}/{phase}", achieved, multiplying))
        moved = [what.bytes / s for s in seconds[phase]]
        rows.append(row(f"roofline/{name}/{phase}/bytes", moved, copying))
    return rows


# --- the rates of the machine


def best_side(sides: Sequence[int]) -> int:
    """The side length at which square products have the highest rate, by the best of three tries."""
    rates = {}
    for side in sides:
        play = product_turn(side)
        play(0)
        rates[side] = side**3 / min(play(number) for number in range(1, 4))
    return max(rates, key=lambda side: rates[side])


def product_turn(side: int) -> Turn:
    """A product of two square matrices."""
    a, b = jax.random.normal(jax.random.key(0), (2, side, side))
    return _timed(jax.jit(jnp.matmul), a, b)


def copy_turn(size: int) -> Turn:
    """Reads an array of `size` bytes and writes another."""
    return _timed(jax.jit(lambda a: a + 1.0), jnp.zeros(size // counts.FLOAT_BYTES, jnp.float32))


def _timed(function: Callable[..., Any], *args: Any) -> Turn:
    def play(number: int) -> float:
        started = time.perf_counter()
        for leaf in jax.tree.leaves(function(*args)):
            leaf.block_until_ready()
        return time.perf_counter() - started

    return play


# --- the phases of training


def phases(case: rounds.Case, size: Size) -> dict[str, Phase]:
    """The phases of one model; each includes the one before it, except `noise`."""
    data = rounds.random_data(case, size.clients)
    whole = rounds.rounds(case, data, size.clients, size.steps, rounds.PRIVATE, "shuffle")
    settings = rounds.settings_of(case, size.clients, size.steps, rounds.PRIVATE, "shuffle")
    simulator = federation(settings, data=data).simulator
    task, count = simulator.task, simulator.chunk * size.steps
    net = task.model
    assert isinstance(net, Net)
    loops = Loops(task, net, simulator.x, simulator.y, simulator.chunk, size.steps)
    forward = (case.batch * counts.forward_operations(net), counts.forward_bytes(net, case.batch))
    training = (case.batch * counts.training_operations(net), counts.training_bytes(net, case.batch))
    weights = sum(int(a.size) for a in jax.tree.leaves(loops.params)) // simulator.chunk
    every = size.clients * size.steps
    return {
        "forward": Phase(loops.forward(), count * forward[0], count * forward[1]),
        "step": Phase(loops.local(replace(task, defenses=())), count * training[0], count * training[1]),
        "private": Phase(loops.local(task), count * training[0], count * training[1]),
        "round": Phase(whole, every * training[0], every * training[1]),
        "noise": Phase(loops.noise(), 0, count * 2 * counts.FLOAT_BYTES * weights),
    }


class Loops:
    """Compiled loops over the local steps of a chunk of clients, each with only a part of a step."""

    def __init__(self, task: Task, net: Net, x: Array, y: Array, clients: int, steps: int):
        self.task, self.net, self.x, self.y = task, net, x, y
        rng = np.random.default_rng(0)
        self.index = jnp.asarray(rng.integers(0, len(y), (clients, steps, task.setting.batch)))
        self.params = jax.vmap(net.init)(jax.random.split(jax.random.key(0), clients))
        self.keys = jax.vmap(lambda c: keys.client_key(keys.root(0), c, 0))(jnp.arange(clients))

    def forward(self) -> Turn:
        """Forward passes and losses only."""
        hooks = self.task.kernels
        context = training_context(None, None, hooks.bfloat16) if hooks else None

        def one(params: Any, index: Array, key: Array, x: Array, y: Array) -> Array:
            def body(total: Array, rows: Array) -> tuple[Array, None]:
                logits = self.net.apply(params, x[rows].astype(jnp.float32) * self.task.scale, context)
                return total + client.cross_entropy(logits, y[rows]).sum(), None

            return jax.lax.scan(body, jnp.zeros(()), index)[0]

        return self._of_all(one)

    def local(self, task: Task) -> Turn:
        """Local steps with the defences of `task`."""
        there = jnp.ones(self.index.shape[2], bool)

        def one(params: Any, index: Array, key: Array, x: Array, y: Array) -> Any:
            context = RoundContext(key, key, 0, 1e-4)

            def body(local: Local, inputs: tuple[Array, Array]) -> tuple[Local, None]:
                number, rows = inputs
                return client.step(task, local, Batch(x[rows], y[rows], there), number, context), None

            numbers = jnp.arange(index.shape[0])
            return jax.lax.scan(body, client.start(task, params), (numbers, index))[0].params

        return self._of_all(one)

    def noise(self) -> Turn:
        """Only the noise of every step, added to the parameters."""

        def one(params: Any, index: Array, key: Array, x: Array, y: Array) -> Any:
            def body(total: Any, number: Array) -> tuple[Any, None]:
                return noise.add(total, noise.gaussian(jax.random.fold_in(key, number), total, 1.0)), None

            return jax.lax.scan(body, params, jnp.arange(index.shape[0]))[0]

        return self._of_all(one)

    def _of_all(self, one: Callable[..., Any]) -> Turn:
        every = jax.jit(jax.vmap(one, in_axes=(0, 0, 0, None, None)))
        return _timed(every, self.params, self.index, self.keys, self.x, self.y)
