"""Which clients take part in a round, and which examples form each local batch.

Both are drawn on the host with numpy before the round is computed. So the distributions are exact (no float32 is involved),
shapes are known before anything is compiled, and no batch is truncated: a Poisson round takes a width that holds its
largest batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedveil.core.keys import Draws
from fedveil.core.setting import Setting
from fedveil.core.system import Lazy
from fedveil.data.partition import Partition

special: Any = Lazy("scipy.special")


@dataclass(frozen=True)
class Cohort:
    """The clients of one round that answer, and how many were chosen and lost."""

    clients: np.ndarray  # [n] client ids
    occurrence: np.ndarray  # [n] 0, or 1, 2, ... for a client drawn again (sampling with replacement)
    late: np.ndarray  # [n] whether the answer arrives one round late
    chosen: int
    lost: int

    @classmethod
    def only(cls, clients: Sequence[int] | np.ndarray) -> Cohort:
        """A cohort of these clients, none of them lost or late."""
        ids = np.asarray(clients, np.int64)
        return cls(ids, np.zeros(len(ids), np.int64), np.zeros(len(ids), bool), len(ids), 0)

    def part(self, where: slice | np.ndarray) -> Cohort:
        """The cohort reduced to the clients at these indices."""
        return replace(self, clients=self.clients[where], occurrence=self.occurrence[where], late=self.late[where])


def draw_cohort(
    draws: Draws,
    round_: int,
    setting: Setting,
    dropout: float = 0.0,
    late: float = 0.0,
    chosen: np.ndarray | None = None,
) -> Cohort:
    """Draws a round's clients, unless they are `chosen` already, and its simulated faults.

    Each client's fault has its own key.
    """
    if chosen is None:
        rng = draws.host("cohort", round_)
        chosen = draw_clients(rng, setting.clients, setting.per_round, setting.sampling)
    chosen = np.sort(chosen)
    lost = _coins(draws, "lost", round_, chosen, dropout)
    kept = chosen[~lost]
    before = np.arange(len(kept)) - np.searchsorted(kept, kept, side="left")  # how often the same id occurs before
    return Cohort(kept, before, _coins(draws, "late", round_, kept, late), len(chosen), int(lost.sum()))


def answering(cohort: Cohort, present: np.ndarray) -> Cohort:
    """A cohort without the clients that are not `present` [clients]. The draws of the others do not change."""
    return cohort.part(present[cohort.clients])


def draw_clients(rng: np.random.Generator, clients: int, per_round: int, sampling: str) -> np.ndarray:
    """Client ids by the named distribution; `poisson` takes each with probability per_round / clients."""
    if sampling == "poisson":
        count = int(rng.binomial(clients, per_round / clients))
        return np.sort(rng.choice(clients, count, replace=False, shuffle=False))
    if sampling == "with-replacement":
        return np.sort(rng.integers(clients, size=per_round))
    return np.sort(rng.choice(clients, per_round, replace=False, shuffle=False))


def _coins(draws: Draws, purpose: str, round_: int, chosen: np.ndarray, share: float) -> np.ndarray:
    """One coin per client, keyed by client, so that it does not depend on the other clients."""
    if share == 0.0:
        return np.zeros(len(chosen), bool)
    return np.array([draws.host(purpose, round_, int(c)).random() < share for c in chosen], bool)


CACHED_DRAWS = 32  # a client that draws at most this many examples in a round has its draw cached


@dataclass(frozen=True)
class Batches:
    """The batches of some clients, padded to one width and number of steps."""

    index: np.ndarray  # [clients, steps, width] int32, rows of the dataset
    mask: np.ndarray  # [clients, steps, width] bool, False for padding
    steps: np.ndarray  # [clients] int32, steps that this client makes


@dataclass(frozen=True)
class BatchSampling:
    """How each client forms its batches."""

    batching: str  # shuffle, poisson, without-replacement, with-replacement
    batch: int
    local_steps: int | None
    local_epochs: int | None

    def steps_for(self, size: int) -> int:
        """Local steps of a client with `size` examples."""
        if self.local_steps is not None:
            return self.local_steps
        assert self.local_epochs is not None
        return self.local_epochs * math.ceil(size / self.batch)

    def rate(self, size: int) -> float:
        """Poisson sampling rate of one example at a client of this size."""
        return min(1.0, self.batch / size)


def client_batches(
    sampling: BatchSampling, draws: Draws, round_: int, client: int, occurrence: int, size: int
) -> list[np.ndarray]:
    """The local batches of one client in one round: for each step the positions (0 … size-1) of its examples."""
    positions, counts = draw_positions(sampling, draws, round_, client, occurrence, size)
    return np.split(positions, np.cumsum(counts)[:-1])


def draw_positions(
    sampling: BatchSampling, draws: Draws, round_: int, client: int, occurrence: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The positions of all batches of a client one after another, and how many belong to each step."""
    if draws.seed is not None and sampling.steps_for(size) * sampling.batch <= CACHED_DRAWS:
        return _cached_draw(sampling, draws.seed, round_, client, occurrence, size)
    return _draw(sampling, draws, round_, client, occurrence, size)


def _draw(
    sampling: BatchSampling, draws: Draws, round_: int, client: int, occurrence: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    rng = draws.host("batch", round_, client, occurrence)
    steps = sampling.steps_for(size)
    if sampling.batching == "poisson":
        return _poisson(rng, steps, size, sampling.rate(size))
    if sampling.batching == "without-replacement":
        return _subsets(rng, steps, size, min(sampling.batch, size))
    if sampling.batching == "with-replacement":
        return rng.integers(size, size=steps * sampling.batch), np.full(steps, sampling.batch)
    return _shuffled(rng, steps, size, sampling.batch)


@lru_cache(maxsize=1 << 16)
def _cached_draw(
    sampling: BatchSampling, seed: int, round_: int, client: int, occurrence: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """`_draw` by a seed, cached: studies compare defences on the same draws, and a generator costs more than few draws.

    Draws from a secret are never cached, because the cache outlives the run.
    """
    positions, counts = _draw(sampling, Draws(seed), round_, client, occurrence, size)
    positions.flags.writeable = counts.flags.writeable = False
    return positions, counts


def _poisson(rng: np.random.Generator, steps: int, size: int, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Each example in each batch with probability `rate`, independently.

    All steps at once: the number of hits in the steps × size grid is binomial, and given their number they are a
    uniformly random subset of the grid. This is the distribution of one coin per cell, at the cost of the hits alone.
    """
    hits = int(rng.binomial(steps * size, rate))
    if not hits:
        return np.zeros(0, np.int64), np.zeros(steps, np.int64)
    cells = np.sort(rng.choice(steps * size, hits, replace=False, shuffle=False))
    step, position = np.divmod(cells, size)
    return position, np.bincount(step, minlength=steps)


def _subsets(rng: np.random.Generator, steps: int, size: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """For each step a uniformly random subset of `batch` positions (Floyd's algorithm, all steps at once)."""
    taken = np.empty((steps, batch), np.int64)
    for slot in range(batch):
        top = size - batch + slot
        drawn = rng.integers(0, top + 1, size=steps)
        again = (taken[:, :slot] == drawn[:, None]).any(axis=1)
        taken[:, slot] = np.where(again, top, drawn)
    return taken.reshape(-1), np.full(steps, batch)


def _shuffled(rng: np.random.Generator, steps: int, size: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Batches of whole epochs: each cuts a fresh permutation into batches; the last may be smaller."""
    counts, total = _sizes(steps, size, batch)
    order = np.concatenate([rng.permutation(size) for _ in range(-(-total // size))])
    return order[:total], counts


@lru_cache(maxsize=1024)
def _sizes(steps: int, size: int, batch: int) -> tuple[np.ndarray, int]:
    """The sizes of the batches of `_shuffled`, and their sum: the same for all clients of one size."""
    per_epoch = math.ceil(size / batch)
    counts = np.tile(np.minimum(batch, size - batch * np.arange(per_epoch)), math.ceil(steps / per_epoch))[:steps]
    counts.flags.writeable = False
    return counts, int(counts.sum())


def draw_batches(
    sampling: BatchSampling, partition: Partition, draws: Draws, round_: int, cohort: Cohort, widths: tuple[int, ...]
) -> Batches:
    """The batches of a cohort (or of a chunk of one) as padded arrays of dataset rows."""
    ids = [int(c) for c in cohort.clients]
    each = [(c, int(o), int(partition.length[c])) for c, o in zip(ids, cohort.occurrence, strict=True)]
    drawn = [draw_positions(sampling, draws, round_, *one) for one in each]
    lengths = [len(counts) for _, counts in drawn]
    largest = max((int(counts.max()) for _, counts in drawn), default=0)
    width = next((w for w in widths if w >= largest), 0) or 1 << (largest - 1).bit_length()
    steps = sampling.steps_for(int(partition.length.max()))
    index = np.zeros((len(ids), steps, width), np.int32)
    mask = np.zeros((len(ids), steps, width), bool)
    for row, (client, (positions, counts)) in enumerate(zip(ids, drawn, strict=True)):
        if len(positions) == len(counts) * width:  # every batch is full
            index[row, : len(counts)] = partition.client(client)[positions].reshape(-1, width)
            mask[row, : len(counts)] = True
            continue
        filled = np.arange(width) < counts[:, None]
        mask[row, : len(counts)] = filled
        index[row, : len(counts)][filled] = partition.client(client)[positions]
    return Batches(index, mask, np.array(lengths, np.int32))


def batch_widths(sampling: BatchSampling, partition: Partition, draws: int) -> tuple[int, ...]:
    """The few widths to compile for.

    Fixed batches have one. For Poisson batches the first width holds the largest of `draws` batches 99 times in 100. The
    others grow by half each up to the largest client. A wider batch gets the next power of two.
    """
    largest = int(partition.length.max())
    if sampling.batching == "with-replacement":
        return (sampling.batch,)
    if sampling.batching != "poisson":
        return (min(sampling.batch, largest),)
    rate = sampling.rate(largest)
    width = sampling.batch
    while width < largest and draws * special.bdtrc(width, largest, rate) > 0.01:
        width += 1
    widths = [width]
    while widths[-1] < largest and len(widths) < 4:
        widths.append(min(largest, math.ceil(widths[-1] * 1.5)))
    return tuple(widths)


def client_weights(kind: str, partition: Partition) -> np.ndarray:
    """Weight of each client's message: 1, or its data size over the mean size."""
    if kind == "uniform":
        return np.ones(partition.clients)
    return partition.length / partition.length.mean()
