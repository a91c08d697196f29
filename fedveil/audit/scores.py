"""One run with many canaries, scored per layer, per step, per round and pooled.

A fair coin decides for each canary whether it is in the data. In a first pass, the canary is in every audited step and
round. In a second pass, it is only in the first step of the first round: then the difference of two steps or two rounds
shows whether their noise is the same draw.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedveil.audit.canary import FEW_BIAS, Canary, projections
from fedveil.audit.measure import worst_cohort
from fedveil.audit.path import EMPTY, CanaryPath, Leaves, Scene, subtract
from fedveil.core.keys import generator

MOST_LAYERS = 8  # scored apart, evenly spread where there are more
_COINS = 0x617564  # keeps the coins apart from everything else that is drawn from a seed


@dataclass(frozen=True)
class Score:
    """The values of one score for all canaries, and the number of rounds and steps that it was computed from."""

    name: str
    values: np.ndarray  # [canaries]
    coins: np.ndarray  # [canaries] whether it was put in
    rounds: int
    steps: int


@dataclass(frozen=True)
class Run:
    """One audited run: the tap that the adversary observes, the unit that it guesses, and the size of the run."""

    path: CanaryPath
    tap: str
    unit: str
    by_step: bool  # the tap's noise enters at every step, and steps can be told apart
    norm: float  # of a canary's gradient in every layer
    rounds: int
    steps: int

    def scores(self, canaries: int, seed: int) -> list[Score]:
        rng = generator(seed, _COINS)
        every, coins = self._pass(canaries, seed, rng, first_only=False)
        found = list(self._of_all(every, coins))
        if every.shape[2] > 1 or every.shape[3] > 1:
            once, coins = self._pass(canaries, seed + 1, rng, first_only=True)
            found += self._differences(once, coins)
        return found

    def _of_all(self, values: np.ndarray, coins: np.ndarray) -> list[Score]:
        _, layers, steps, rounds = values.shape
        found = [Score("pooled", values.mean(axis=(1, 2, 3)), coins, rounds, steps)]
        if layers > 1:
            chosen = np.unique(np.linspace(0, layers - 1, min(layers, MOST_LAYERS)).astype(int))
            found += [Score(f"layer {i}", values[:, i].mean(axis=(1, 2)), coins, rounds, steps) for i in chosen]
        if steps > 1:
            found += [Score(f"step {s}", values[:, :, s].mean(axis=(1, 2)), coins, rounds, 1) for s in range(steps)]
        if rounds > 1:
            found += [Score(f"round {t}", values[..., t].mean(axis=(1, 2)), coins, 1, steps) for t in range(rounds)]
        return found

    def _differences(self, values: np.ndarray, coins: np.ndarray) -> list[Score]:
        whole, found = values.mean(axis=1), []
        if values.shape[2] > 1:
            found.append(Score("step 0 minus step 1", whole[:, 0, 0] - whole[:, 1, 0], coins, 1, 1))
        if values.shape[3] > 1:
            found.append(Score("round 0 minus round 1", whole[:, 0, 0] - whole[:, 0, 1], coins, 1, 1))
        return found

    # --- playing

    def _pass(
        self, canaries: int, seed: int, rng: np.random.Generator, first_only: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """[canaries, layers, steps, rounds] scores, and the coins."""
        play, group = self._layout()
        values: list[np.ndarray] = []
        coins: list[np.ndarray] = []
        for number in itertools.count():
            tossed = rng.random(group) < 0.5
            shown = play(seed, number, tossed, first_only)
            values.append(shown)
            coins.append(tossed[: len(shown)])
            if sum(map(len, coins)) >= canaries:
                break
        return np.concatenate(values)[:canaries], np.concatenate(coins)[:canaries]

    def _layout(self) -> tuple[Callable[[int, int, np.ndarray, bool], np.ndarray], int]:
        """The method that runs a group of canaries, and the number of canaries in a group."""
        path, setting = self.path, self.path.task.setting
        if self.tap == "example":
            self._put(1)
            return self._examples, setting.batch
        if self.tap in ("release", "broadcast"):
            together = min(setting.per_round, path.width)
            self._put(together)
            path.forced = worst_cohort(path, setting.per_round)
            return self._changes, together
        if self.unit == "client":
            self._put(1)
            return self._messages, 1
        shape = path.simulator.microbatches
        slots = min(setting.batch, path.width, shape.width if shape else setting.batch)
        self._put(slots)
        return self._messages, slots

    def _records(self, count: int) -> np.ndarray:
        every = tuple(range(len(self.path.kinds)))
        made = [Canary("", every, FEW_BIAS, j) for j in range(count)]
        return np.stack([c.record(self.path.kinds, self.path.width, self.norm) for c in made])

    def _put(self, count: int) -> None:
        self.path.put(self._records(count))

    def _rows(self, tossed: np.ndarray) -> tuple[int, ...]:
        return tuple(self.path.first + j if coin else 0 for j, coin in enumerate(tossed))

    def _project(self, leaves: Leaves, count: int) -> np.ndarray:
        """[count, layers]; an update goes against the gradient."""
        each = [-projections(leaves, i, kind)[:count] for i, kind in enumerate(self.path.kinds)]
        return np.stack(each, axis=1)

    def _messages(self, seed: int, number: int, tossed: np.ndarray, first_only: bool) -> np.ndarray:
        """Scores of canaries where the tap shows each client's message. Each group of canaries is at another client."""
        path = self.path
        path.reseed(seed + 1000 * (number // path.task.setting.clients))
        client = number % path.task.setting.clients
        found = []
        for t in range(self.rounds):
            placed = ((client, self._rows(tossed)),) if not (first_only and t) else ()
            only = (0,) if first_only else None
            found.append(self._by_step(t, client, placed, only))
        return np.stack([np.stack([self._project(a, len(tossed)) for a in one], axis=-1) for one in found], axis=-1)

    def _by_step(
        self, number: int, client: int, placed: tuple[tuple[int, tuple[int, ...]], ...], only: tuple[int, ...] | None
    ) -> list[Leaves]:
        """What the client sends, step by step where the noise enters there."""
        if not self.by_step:
            return [self.path.message(number, client, Scene(placed, only, fill=self.unit == "client"))]
        sent = [self.path.message(number, client, Scene(placed, only, made)) for made in range(self.steps + 1)]
        return [subtract(sent[s + 1], sent[s]) for s in range(self.steps)]

    def _changes(self, seed: int, number: int, tossed: np.ndarray, first_only: bool) -> np.ndarray:
        """[canaries, layers, 1, rounds] how far each round moves the model along the direction of each canary client.

        `number`: which group of canaries it is; each group has its own keys.
        """
        path = self.path
        path.reseed(seed + 1000 * (number + 1))
        assert path.forced is not None
        clients = [int(c) for c in path.forced.clients[: len(tossed)]]
        held = tuple((c, (row,)) for c, row in zip(clients, self._rows(tossed), strict=True))
        found = []
        for t in range(self.rounds):
            shown = path.change(t, EMPTY if first_only and t else Scene(held, fill=True))
            if self.tap == "broadcast":
                received = path.message(t + 1, clients[0], Scene(made=0))
                shown = {name: a + received[name] for name, a in shown.items()}
            found.append(self._project(shown, len(tossed)))
        return np.stack(found, axis=-1)[:, :, None, :]

    def _examples(self, seed: int, number: int, tossed: np.ndarray, first_only: bool) -> np.ndarray:
        """Canaries in the slots of one batch, which the tap shows one by one."""
        path = self.path
        path.reseed(seed + 1000 * (number // path.task.setting.clients))
        client, record = number % path.task.setting.clients, self._records(1)[0]
        found = []
        for t in range(self.rounds):
            put_in = tossed if not (first_only and t) else np.zeros_like(tossed)
            shown, filled = path.examples(t, client, np.where(put_in[:, None], record, 0.0))
            filled = min(filled, len(tossed))
            each = [-self._project({n: a[j] for n, a in shown.items()}, 1)[0] for j in range(filled)]
            found.append(np.array(each).reshape(filled, len(path.kinds)))
        both = min(len(one) for one in found)  # batches of different rounds may differ in size
        return np.stack([one[:both] for one in found], axis=-1)[:, :, None, :]
