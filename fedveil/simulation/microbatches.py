"""Poisson batches in parts of one width.

A Poisson batch has no largest size, and a program must be as wide as the largest batch it meets: 17 places for 10,000
batches of 5 in expectation. Cut into parts of 7 places, a step takes 1.13 parts on average. A part adds its (clipped)
gradients to the sum of its step; the last part of a step adds the noise, once, and moves the weights. What is computed and
what is drawn stay the same, gradients example by example and noise step by step; only the order of additions differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.core.keys import Draws
from fedveil.core.system import Lazy
from fedveil.data.partition import Partition
from fedveil.simulation import sampling

special: Any = Lazy("scipy.special")

SELDOM = 0.01  # how often a round may need more parts than there are; it is computed in whole batches then
WORTH = 0.85  # of the cost of whole batches


@dataclass(frozen=True)
class Shape:
    """Places of a part, and parts that a client has in a round."""

    width: int
    count: int


@dataclass(frozen=True)
class Microbatches:
    """The batches of some clients in parts."""

    index: np.ndarray  # [clients, parts, width] int32, rows of the dataset
    mask: np.ndarray  # [clients, parts, width] bool, False for padding
    step: np.ndarray  # [clients, parts] int32, the step that a part belongs to
    last: np.ndarray  # [clients, parts] bool, whether it is the last of its step
    steps: np.ndarray  # [clients] int32, steps that this client makes


def best_shape(
    law: sampling.BatchSampling, partition: Partition, steps: int, clients: int, whole: int, extra: float
) -> Shape | None:
    """The cut that costs least, None where whole batches of width `whole` cost no more.

    A part costs its width and `extra`: what noise and update cost, in examples. `clients` are computed at a time.
    """
    if law.batching != "poisson":
        return None
    largest = int(partition.length.max())
    rate = law.rate(largest)
    best, least = None, WORTH * steps * (whole + extra)
    for width in range(1, whole):
        count = _parts_needed(largest, rate, width, steps, clients)
        if count * (width + extra) < least:
            best, least = Shape(width, count), count * (width + extra)
    return best


def _parts_needed(size: int, rate: float, width: int, steps: int, clients: int) -> int:
    """How many parts suffice for all steps of all clients, except SELDOM."""
    most = math.ceil(size / width)
    ends = special.bdtr(np.minimum(width * np.arange(1, most + 1), size).astype(float), size, rate)
    law = np.diff(ends, prepend=0.0)  # of the parts of one step: 1, 2, …
    law = law[: int(np.searchsorted(ends, 1 - 1e-15)) + 1]
    places = steps * (len(law) - 1) + 1
    total = np.fft.irfft(np.fft.rfft(law, places) ** steps, places)  # the law of the sum over all steps
    beyond = np.cumsum(np.maximum(total, 0.0)[::-1])[::-1] - total  # P(more than steps + place)
    return steps + int(np.argmax(clients * beyond <= SELDOM))


def draw_microbatches(
    law: sampling.BatchSampling, partition: Partition, draws: Draws, round_: int, cohort: sampling.Cohort, cut: Shape
) -> Microbatches | None:
    """The batches that `sampling.draw_batches` gives, in parts; None where some client needs more parts than there are."""
    shape = (len(cohort.clients), cut.count)
    index, mask = np.zeros((*shape, cut.width), np.int32), np.zeros((*shape, cut.width), bool)
    step, last, steps = np.zeros(shape, np.int32), np.zeros(shape, bool), np.zeros(shape[0], np.int32)
    for row, (client, occurrence) in enumerate(zip(cohort.clients, cohort.occurrence, strict=True)):
        rows = partition.client(int(client))
        positions, counts = sampling.draw_positions(law, draws, round_, int(client), int(occurrence), len(rows))
        each = np.maximum(1, -(-counts // cut.width))  # an empty batch is a step, too
        total = int(each.sum())
        if total > cut.count:
            return None
        own = np.repeat(np.arange(len(counts)), each)
        place = np.arange(total) - np.repeat(np.cumsum(each) - each, each)
        filled = np.arange(cut.width) < (counts[own] - place * cut.width)[:, None]
        mask[row, :total] = filled
        index[row, :total][filled] = rows[positions]
        step[row, :total], last[row, :total], steps[row] = own, place == each[own] - 1, len(counts)
    return Microbatches(index, mask, step, last, steps)
