"""How near training comes to the machine: achieved rates over those that the machine shows for plain work.

The machine's two rates are measured in the same process, by turns with what is judged by them: square float32 matrix
products, of the size that is quickest here, and copying an array that is larger than any cache. What training needs is
counted from layer shapes (`flops.py`), per client and local step. Each phase holds the ones before it, on as many clients
at once as a round takes, each with its own weights, the steps in one compiled loop.

| row | ours | theirs |
|---|---|---|
| `roofline/MODEL/forward` | operations per second of forward passes | of matrix products |
| `roofline/MODEL/step` | of local steps without a defence: forward, backward, update | likewise |
| `roofline/MODEL/private` | of local steps of Fed-CDP: clip and noise too | likewise |
| `roofline/MODEL/round` | of whole rounds of Fed-CDP: drawing batches and the server's sum too | likewise |
| `roofline/MODEL/PHASE/bytes` | bytes per second, by the count of `flops.py` | of copying |
| `roofline/MODEL/noise/bytes` | of drawing the noise alone and adding it to the gradients | likewise |

A ratio is the share of the machine's rate. Bytes are those that would move if nothing stayed in a cache: a share above 1
says that much did.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.bench import round as rounds
from fedveil.bench.rows import row
from fedveil.core import keys
from fedveil.federation import federation
from fedveil.models import flops
from fedveil.models.layers import Array
from fedveil.models.net import Net
from fedveil.random import noise
from fedveil.simulation import client
from fedveil.simulation.client import Local, RoundContext, Task

Turn = Callable[[int], float]  # plays turn so-and-so and says how many seconds it took


@dataclass(frozen=True)
class Size:
    """How much work a turn is."""

    clients: int = 20
    steps: int = 20
    products: tuple[int, ...] = (256, 512, 1024, 2048)  # sides of the matrices to try
    copied: int = 64 << 20  # bytes


CARD = Size(100, 100, (2048, 4096, 8192), 1 << 30)


@dataclass(frozen=True)
class Phase:
    """A turn with what it needs: operations (0: none that are counted) and bytes."""

    play: Turn
    operations: int
    bytes: int


def run(
    repeats: int = 7, progress: Callable[[str], None] = lambda line: None, size: Size | None = None
) -> Iterator[dict[str, object]]:
    """The rows of the module's table, for every model."""
    size = size or (CARD if jax.default_backend() == "gpu" else Size())
    side = best_side(size.products)
    progress(f"bench roofline: matrix products are quickest at {side}×{side}")
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


# --- what the machine can do


def best_side(sides: Sequence[int]) -> int:
    """The side at which square products run at the highest rate, the best of three tries each."""
    rates = {}
    for side in sides:
        play = product_turn(side)
        play(0)
        rates[side] = side**3 / min(play(number) for number in range(1, 4))
    return max(rates, key=lambda side: rates[side])


def product_turn(side: int) -> Turn:
    """A square matrix product."""
    a, b = jax.random.normal(jax.random.key(0), (2, side, side))
    return _timed(jax.jit(jnp.matmul), a, b)


def copy_turn(size: int) -> Turn:
    """Reads an array of so many bytes and writes another."""
    return _timed(jax.jit(lambda a: a + 1.0), jnp.zeros(size // flops.SIZE, jnp.float32))


def _timed(function: Callable[..., Any], *args: Any) -> Turn:
    def play(number: int) -> float:
        started = time.perf_counter()
        for leaf in jax.tree.leaves(function(*args)):
            leaf.block_until_ready()
        return time.perf_counter() - started

    return play


# --- what training does


def phases(case: rounds.Case, size: Size) -> dict[str, Phase]:
    """The phases of one model, in the order in which each holds the one before."""
    data = rounds.random_data(case, size.clients)
    whole = rounds.rounds(case, data, size.clients, size.steps, rounds.PRIVATE, "shuffle")
    settings = rounds.settings_of(case, size.clients, size.steps, rounds.PRIVATE, "shuffle")
    simulator = federation(settings, data=data).simulator
    task, count = simulator.task, simulator.chunk * size.steps
    net = task.model
    assert isinstance(net, Net)
    loops = Loops(task, net, simulator.x, simulator.y, simulator.chunk, size.steps)
    forward = (case.batch * flops.forward(net), flops.forward_bytes(net, case.batch))
    training = (case.batch * flops.training(net), flops.training_bytes(net, case.batch))
    weights = sum(int(a.size) for a in jax.tree.leaves(loops.params)) // simulator.chunk
    every = size.clients * size.steps
    return {
        "forward": Phase(loops.forward(), count * forward[0], count * forward[1]),
        "step": Phase(loops.local(replace(task, defenses=())), count * training[0], count * training[1]),
        "private": Phase(loops.local(task), count * training[0], count * training[1]),
        "round": Phase(whole, every * training[0], every * training[1]),
        "noise": Phase(loops.noise(), 0, count * 2 * flops.SIZE * weights),
    }


class Loops:
    """Local steps of a chunk of clients as compiled loops, from which parts are left out."""

    def __init__(self, task: Task, net: Net, x: Array, y: Array, clients: int, steps: int):
        self.task, self.net, self.x, self.y = task, net, x, y
        rng = np.random.default_rng(0)
        self.index = jnp.asarray(rng.integers(0, len(y), (clients, steps, task.setting.batch)))
        self.params = jax.vmap(net.init)(jax.random.split(jax.random.key(0), clients))
        self.keys = jax.vmap(lambda c: keys.client_key(keys.root(0), c, 0))(jnp.arange(clients))

    def forward(self) -> Turn:
        """Losses alone."""
        context = client.in_training(self.task, None)

        def one(params: Any, index: Array, key: Array, x: Array, y: Array) -> Array:
            def body(total: Array, rows: Array) -> tuple[Array, None]:
                logits = self.net.apply(params, x[rows].astype(jnp.float32) * self.task.scale, context)
                return total + client.cross_entropy(logits, y[rows]).sum(), None

            return jax.lax.scan(body, jnp.zeros(()), index)[0]

        return self._of_all(one)

    def local(self, task: Task) -> Turn:
        """Local steps with the defences of a task."""
        there = jnp.ones(self.index.shape[2], bool)

        def one(params: Any, index: Array, key: Array, x: Array, y: Array) -> Any:
            now = RoundContext(key, key, 0, 1e-4)

            def body(local: Local, inputs: tuple[Array, Array]) -> tuple[Local, None]:
                number, rows = inputs
                return client.step(task, local, x[rows], y[rows], there, number, now), None

            numbers = jnp.arange(index.shape[0])
            return jax.lax.scan(body, client.start(task, params), (numbers, index))[0].params

        return self._of_all(one)

    def noise(self) -> Turn:
        """The noise of every step, added up."""

        def one(params: Any, index: Array, key: Array, x: Array, y: Array) -> Any:
            def body(total: Any, number: Array) -> tuple[Any, None]:
                return noise.add(total, noise.gaussian(jax.random.fold_in(key, number), total, 1.0)), None

            return jax.lax.scan(body, params, jnp.arange(index.shape[0]))[0]

        return self._of_all(one)

    def _of_all(self, one: Callable[..., Any]) -> Turn:
        every = jax.jit(jax.vmap(one, in_axes=(0, 0, 0, None, None)))
        return _timed(every, self.params, self.index, self.keys, self.x, self.y)
