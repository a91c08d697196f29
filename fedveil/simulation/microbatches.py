"""Poisson batches in micro-batches of one width.

A Poisson batch has no largest size, and a program must be as wide as the largest batch: 17 slots for 10,000 batches of 5 in
expectation. Cut into micro-batches of 7 slots, a step takes 1.13 of them on average. A micro-batch adds its (clipped)
gradients to the sum of its step. The last micro-batch of a step adds the noise once and moves the weights. Gradients and
noise stay the same; only the order of additions differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.core.keys import Draws
from fedveil.core.system import Lazy
from fedveil.data.partition import Partition
from fedveil.simulation import sampling as draw
from fedveil.simulation.sampling import BatchSampling, Cohort

special: Any = Lazy("scipy.special")

OVERFLOW = 0.01  # how often a round may need more micro-batches than planned; it is then computed in whole batches
WORTH = 0.85  # micro-batches are used if they cost at most this part of whole batches


@dataclass(frozen=True)
class Shape:
    """Slots of a micro-batch, and micro-batches of a client in a round."""

    width: int
    count: int


@dataclass(frozen=True)
class Microbatches:
    """The batches of some clients in micro-batches."""

    index: np.ndarray  # [clients, micro-batches, width] int32, rows of the dataset
    mask: np.ndarray  # [clients, micro-batches, width] bool, False for padding
    step: np.ndarray  # [clients, micro-batches] int32, the step that a micro-batch belongs to
    last: np.ndarray  # [clients, micro-batches] bool, whether it is the last of its step
    steps: np.ndarray  # [clients] int32, steps that this client makes


@dataclass(frozen=True)
class Workload:
    """What the choice of a shape depends on."""

    steps: int  # local steps of a client in a round
    clients: int  # computed at a time
    width: int  # of whole batches
    extra: float  # what noise and update of a step cost, in examples


def best_shape(sampling: BatchSampling, partition: Partition, work: Workload) -> Shape | None:
    """The shape that costs least; None where whole batches cost no more. A micro-batch costs its width and `extra`."""
    if sampling.batching != "poisson":
        return None
    largest = int(partition.length.max())
    rate = sampling.rate(largest)
    best, least = None, WORTH * work.steps * (work.width + work.extra)
    for width in range(1, work.width):
        count = needed(largest, rate, width, work.steps, work.clients)
        if count * (width + work.extra) < least:
            best, least = Shape(width, count), count * (width + work.extra)
    return best


def needed(size: int, rate: float, width: int, steps: int, clients: int) -> int:
    """How many micro-batches hold all steps of each of `clients` clients, except with probability OVERFLOW."""
    most = math.ceil(size / width)
    ends = special.bdtr(np.minimum(width * np.arange(1, most + 1), size).astype(float), size, rate)
    distribution = np.diff(ends, prepend=0.0)  # of the micro-batches of one step: 1, 2, …
    distribution = distribution[: int(np.searchsorted(ends, 1 - 1e-15)) + 1]
    length = steps * (len(distribution) - 1) + 1
    total = np.fft.irfft(np.fft.rfft(distribution, length) ** steps, length)  # of the sum over all steps
    beyond = np.cumsum(np.maximum(total, 0.0)[::-1])[::-1] - total  # P(more than steps + index)
    return steps + int(np.argmax(clients * beyond <= OVERFLOW))


def draw_microbatches(
    sampling: BatchSampling, partition: Partition, draws: Draws, round_: int, cohort: Cohort, shape: Shape
) -> Microbatches | None:
    """The batches that `sampling.draw_batches` draws, in micro-batches; None where some client needs too many."""
    size = (len(cohort.clients), shape.count)
    index, mask = np.zeros((*size, shape.width), np.int32), np.zeros((*size, shape.width), bool)
    step, last, steps = np.zeros(size, np.int32), np.zeros(size, bool), np.zeros(size[0], np.int32)
    for row, (client, occurrence) in enumerate(zip(cohort.clients, cohort.occurrence, strict=True)):
        rows = partition.client(int(client))
        positions, counts = draw.draw_positions(sampling, draws, round_, int(client), int(occurrence), len(rows))
        each = np.maximum(1, -(-counts // shape.width))  # an empty batch is a step, too
        total = int(each.sum())
        if total > shape.count:
            return None
        own = np.repeat(np.arange(len(counts)), each)
        number = np.arange(total) - np.repeat(np.cumsum(each) - each, each)  # of a micro-batch in its step
        filled = np.arange(shape.width) < (counts[own] - number * shape.width)[:, None]
        mask[row, :total] = filled
        index[row, :total][filled] = rows[positions]
        step[row, :total], last[row, :total], steps[row] = own, number == each[own] - 1, len(counts)
    return Microbatches(index, mask, step, last, steps)
