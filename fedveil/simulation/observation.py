"""What an observer sees at the taps of a client's round.

Nothing is recorded in training. Every draw is keyed by (round, client, step), so a client's round can be computed again
with taps open, from the state that it started from, and gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.compilation import Compiler, Program
from fedveil.core.errors import RunError
from fedveil.core.taps import TAPS
from fedveil.simulation import client as client_part
from fedveil.simulation.client import Local, OpenTaps, Task
from fedveil.simulation.inputs import Batch, ClientInputs, RoundInputs
from fedveil.simulation.sampling import Batches

Array = jax.Array
Tree = Any


def observed(
    task: Task, taps: frozenset[str], steps: tuple[int, ...], inputs: RoundInputs, own: ClientInputs
) -> dict[str, Tree]:
    """One client's round with taps open; `example` and `batch` at the named steps only.

    Other steps are scanned over. Steps after the last one that a tap needs are left out.
    """
    batches: Any = own.batches
    medians = client_part.medians_of(task, inputs, own.rows, own.present)
    context = client_part.client_context(inputs, own.client, own.occurrence, medians)
    found: dict[str, Tree] = {tap: {} for tap in taps & {"example", "batch"}}
    outer = OpenTaps(taps & {"broadcast", "client", "server"})
    received = client_part.begin(task, inputs.params, context, outer)
    local = client_part.start(task, received, own.state)
    to_the_end = bool(taps & {"client", "server"})
    inner = steps if found else ()
    last = batches.index.shape[0] if to_the_end else max((step + 1 for step in inner), default=0)

    def made(local: Local, number: Any, rows: Array, mask: Array, observation: OpenTaps) -> Local:
        batch = Batch(inputs.x[rows], inputs.y[rows], mask)
        new = client_part.step(task, local, batch, number, context, observation)
        return client_part.if_made(task, jnp.asarray(number), batches.steps, new, local)

    def unobserved(local: Local, first: int, stop: int) -> Local:
        between = slice(first, stop)
        each = (jnp.arange(first, stop), batches.index[between], batches.mask[between])
        return jax.lax.scan(lambda a, one: (made(a, *one, client_part.CLOSED), None), local, each)[0]

    done = 0
    for number in sorted(inner):
        observation = OpenTaps(taps & {"example", "batch"})
        local = unobserved(local, done, number)
        local = made(local, number, batches.index[number], batches.mask[number], observation)
        for tap, value in observation.values.items():
            found[tap][number] = value
        done = number + 1
    local = unobserved(local, done, last)
    if to_the_end:
        client_part.end(task, inputs.params, received, local, context, outer)
    return {**found, **outer.values}


@dataclass(frozen=True)
class Observer:
    """Compiled rounds of several clients with taps open."""

    task: Task  # exact: bfloat16 would look like noise on a gradient under attack
    compiler: Compiler
    _programs: dict[tuple[frozenset[str], tuple[int, ...]], Program] = field(default_factory=dict)

    def observe(
        self, inputs: RoundInputs, chunk: ClientInputs, taps: frozenset[str], steps: tuple[int, ...]
    ) -> dict[str, Tree]:
        """What the taps show, with a leading axis over the clients of the chunk, as numpy arrays.

        At `example` the axis over examples is as long as the largest batch of these clients at that step.
        """
        # One program for what clients and servers see: types 0 and 1 are mostly asked for one after the other.
        sending = bool(taps & {"client", "server"})
        wanted = (taps | {"client", "server"} if sending else taps, steps)
        if wanted not in self._programs:
            each = jax.vmap(partial(observed, self.task, *wanted), in_axes=(None, 0))
            self._programs[wanted] = self.compiler.program(each)
        shown = self._programs[wanted](inputs, chunk)
        found: dict[str, Tree] = jax.device_get({tap: shown[tap] for tap in taps})
        for step, each in found.get("example", {}).items():
            filled = max(1, int(np.asarray(chunk.batches.mask)[:, step].sum(axis=1).max()))
            found["example"][step] = jax.tree.map(lambda a, n=filled: a[:, :n], each)
        return found

    def check(self, taps: frozenset[str], clients: Sequence[int], count: int) -> None:
        """Raises `RunError` for an unknown tap or client, and for a tap that secure aggregation closes."""
        unknown = taps - set(TAPS)
        if unknown:
            raise RunError(f"no tap is called {sorted(unknown)[0]!r}; there are {', '.join(TAPS)}")
        if "server" in taps and self.task.setting.secure_aggregation:
            raise RunError("the server tap shows sums only: train.secure_aggregation hides what single clients send")
        for c in clients:
            if not 0 <= c < count:
                raise RunError(f"there is no client {c}; clients count from 0 to {count - 1}")


def padded_batches(batches: Batches, first: int | None, usual_width: int | None, least: int) -> Batches:
    """The first batches of some clients (None: all), as wide as the widest of them and at least one example wide.

    `usual_width`: of Poisson batches, which are padded to few shapes, as is their number of clients (to `least` and
    powers of two). Groups of clients then share a program. None: batches of fixed size are not padded.
    """
    steps = int(batches.steps.max()) if first is None else first
    width = max(1, int(batches.mask[:, :steps].sum(axis=2).max()))
    index, mask = batches.index[:, :steps, :width], batches.mask[:, :steps, :width]
    if usual_width is None:
        return Batches(index, mask, batches.steps)
    wider = usual_width if width <= usual_width <= 8 else 1 << (width - 1).bit_length()
    count = len(batches.steps)
    more = ((0, max(least, 1 << (count - 1).bit_length()) - count), (0, 0), (0, wider - width))
    return Batches(np.pad(index, more), np.pad(mask, more), np.pad(batches.steps, more[:1], mode="edge"))
