"""The search: which candidates learn most at the asked ε, by quick trainings on the stand-in, in two halving stages.

First every kind with every clip and learning rate at a middle number of rounds; then the best three of a kind with every
number of rounds. Held-out records of the stand-in decide. The stand-in is public, so this tuning costs no ε.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedveil.advice.candidates import CLIPS, STEPS, Candidate, Kind, lengths
from fedveil.advice.question import Question
from fedveil.advice.quick import Recipe, Records, accuracy
from fedveil.data.dataset import Dataset, Part
from fedveil.data.scatter import scattered

MOST_RECORDS = 20_000  # of the stand-in that the search reads
ALWAYS = len(CLIPS) * len(STEPS)  # trainings that are made however little time there is
KEPT = 3  # settings of a kind that reach the second stage
REACH = 14  # doublings of ε or of the clients that are tried before giving up

Say = Callable[[str], None]


@dataclass(frozen=True)
class Found:
    """A candidate and its accuracy on the held-out records of the stand-in, by a quick training."""

    candidate: Candidate
    accuracy: float


class Search:
    """Quick trainings on one stand-in."""

    def __init__(self, asked: Question, dataset: Dataset, say: Say, seconds: float):
        """`dataset`: the stand-in without features. `seconds`: for trainings, after which only a few more begin."""
        self.asked, self.say = asked, say
        self._views, self._records = {"raw": dataset}, dict[str, Records]()
        self._left, self.tried = seconds, 0

    @property
    def over(self) -> bool:
        return self._left <= 0 and self.tried >= ALWAYS

    def view(self, features: str) -> Dataset:
        """The stand-in with its features, computed once for the search and for the trial."""
        if features not in self._views:
            self.say("stand-in: computing scattering features (kept for the next time)")
            self._views[features] = scattered(self._views["raw"])
        return self._views[features]

    def records(self, kind: Kind) -> Records:
        """Training and held-out records of the stand-in, as this kind of model sees them."""
        if kind.features not in self._records:
            rng = np.random.default_rng(0)
            parts = []
            dataset = self.view(kind.features)
            for part in (dataset.train, dataset.held_out):
                rows = rng.permutation(len(part))[:MOST_RECORDS]
                parts.append(_seen(part.take(rows), dataset.scale))
            (x, y), (x_held, y_held) = parts
            self._records[kind.features] = Records(x, y, x_held, y_held, dataset.classes)
        return self._records[kind.features]

    def score(self, candidate: Candidate, clients: int | None = None, seed: int = 0) -> float:
        """The accuracy of a candidate; with `clients`, at another size of the federation."""
        count = clients or self.asked.clients
        noise = candidate.noise_on_mean(count)
        recipe = Recipe(candidate.rounds, candidate.clip, candidate.lr, noise, float(count * candidate.batch))
        records, begun = self.records(candidate.kind), time.monotonic()
        self.tried += 1
        found = accuracy(records, recipe, self.asked.seed + seed)
        self._left -= time.monotonic() - begun
        return found

    def best_of(self, kind: Kind) -> list[Found]:
        """The candidates of a kind that were tried, the best first; empty where the kind has no certificate."""
        sizes = lengths(self.asked, kind)
        middle = sizes[len(sizes) // 2]
        first = sorted(self._stage(kind, [middle], list(_steps())), key=lambda one: -one.accuracy)
        tops = [(one.candidate.clip, one.candidate.lr * one.candidate.clip) for one in first[:KEPT]]
        second = self._stage(kind, [size for size in sizes if size != middle], tops)
        found = sorted([*first, *second], key=lambda one: -one.accuracy)
        if found:
            self.say(f"search: {kind.name}: {found[0].accuracy:.3f} in {self.tried} quick trainings so far")
        return found

    def _stage(self, kind: Kind, sizes: list[tuple[int, int]], steps: list[tuple[float, float]]) -> Iterator[Found]:
        for rounds, batch in sizes:
            noise = None
            for clip, step in steps:
                candidate = Candidate(kind, rounds, batch, clip, step / clip)
                if noise is None:
                    calibrated = candidate.calibrated(self.asked)
                    if calibrated is None:
                        break
                    noise = calibrated.noise  # a multiple of the clip, so the same for all of these
                if self.over:
                    return
                made = replace(candidate, noise=noise)
                yield Found(made, self.score(made))

    def without_noise(self, kind: Kind) -> float:
        """The best accuracy of the same model without noise."""
        rounds, batch = lengths(self.asked, kind)[-1]
        settings = [Candidate(kind, rounds, batch, 1.0, step) for step in STEPS[1::2]]
        return max(self.score(one) for one in settings)

    # --- where nothing useful is found

    def from_epsilon(self, best: Candidate, goal: float) -> float | None:
        """The least ε, to about a tenth, at which this candidate with its noise recalibrated reaches an accuracy."""

        def reaches(epsilon: float) -> bool:
            made = best.calibrated(self.asked, epsilon)
            return made is not None and self._reaches(made, goal)

        return _least(reaches, self.asked.epsilon)

    def from_clients(self, best: Candidate, goal: float) -> int | None:
        """The least number of clients, to about a tenth, with which this candidate reaches an accuracy."""
        start = float(self.asked.clients)
        found = _least(lambda clients: self._reaches(best, goal, math.ceil(clients)), start)
        return None if found is None else math.ceil(found)

    def _reaches(self, candidate: Candidate, goal: float, clients: int | None = None) -> bool:
        """Whether some learning rate reaches an accuracy: less noise bears a larger one."""
        return any(self.score(replace(candidate, lr=step / candidate.clip), clients) >= goal for step in STEPS)


def _least(reaches: Callable[[float], bool], start: float) -> float | None:
    """The least value above `start`, to about a tenth, for which it holds: by doubling, then by bisection."""
    low, high = start, 2 * start
    for _ in range(REACH):
        if reaches(high):
            break
        low, high = high, 2 * high
    else:
        return None
    while high / low > 1.1:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def _steps() -> Iterator[tuple[float, float]]:
    """All pairs to try: a clip, and a step size, which is learning rate × clip."""
    for clip in CLIPS:
        for step in STEPS:
            yield clip, step


def _seen(part: Part, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Records as rows of a linear model, and their labels."""
    rows = part.x.reshape(len(part), -1).astype(np.float32) * np.float32(scale)
    return rows, part.y
