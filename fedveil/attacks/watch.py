"""The watch of the bench: compares attacks on their way with the truth, reports them, and gives up those without hope.

An attack is given up when two things hold: for `PATIENCE` iterations its objective has not fallen by 1 %, and its best
example matches the truth no better than a guess does (`attacks.guess`). Attacks on noised messages are like that: they fit
the noise. The attacker itself could not know the second, so this saves time and is no ability of the attack. Only attacks
with a time limit are watched; `attack.seconds = 0` lets each attack run to its own end.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from fedveil.attacks.base import LiveProgress, Progress
from fedveil.attacks.reconstruction.scheduler import CHUNK, Order, Snapshot
from fedveil.attacks.score import assigned, ssim

PATIENCE = 15  # iterations
BETWEEN = 1.0  # seconds between two looks at a block, at least
APART = 10  # times what the last look took, at least, until the next
CHUNK_SECONDS = 0.5  # that a chunk may take, so that the time limit is met and progress is live


class Watch:
    """A monitor of the attacks on one group of observations."""

    def __init__(self, truth: np.ndarray, tries: int, guess: float | None, progress: Progress):
        """`truth` [observations, examples, ...shape]; `tries`: starts of each; `guess`: the best match of a guess."""
        self.truth, self.tries, self.guess = truth, tries, guess
        self.images = truth.ndim == 5
        self.live = progress if isinstance(progress, LiveProgress) else None
        self.best: float | None = None
        self.lengths: dict[int, int] = {}  # of each thread's next chunk
        self.looked: dict[int, tuple[float, float]] = {}  # when each thread's last look ended, and what it took
        self.lock = threading.Lock()

    def __call__(self, inputs: np.ndarray, labels: np.ndarray, shot: Snapshot) -> Order:
        thread = threading.get_ident()
        before = self.lengths.get(thread, 1)
        fits = int(before * CHUNK_SECONDS / max(shot.seconds, 1e-4))
        length = self.lengths[thread] = max(1, min(CHUNK, 2 * before, fits))
        ended, took = self.looked.get(thread, (0.0, 0.0))
        now = time.monotonic()
        if now - ended < max(BETWEEN, APART * took):
            return Order(length)
        matches = np.array([self._match(*one) for one in zip(inputs, shot.attack, strict=True)])
        self._report(matches)
        self.looked[thread] = (time.monotonic(), time.monotonic() - now)
        return Order(length, self._hopeless(matches, shot))

    def _match(self, found: np.ndarray, start: int) -> float:
        """The best match of an attack's examples: SSIM, for attributes the mean square error."""
        real = self.truth[(int(start) // self.tries) % len(self.truth)]
        found, _ = assigned(found[None].astype(np.float64), np.zeros((1, len(found)), int), real[None])
        if self.images:
            return max(ssim(mine, its) for mine, its in zip(found[0], real, strict=True))
        return float(np.square(found[0] - real).reshape(len(real), -1).mean(axis=1).min())

    def _report(self, matches: np.ndarray) -> None:
        best = float(np.nanmax(matches) if self.images else np.nanmin(matches))
        with self.lock:
            self.best = best if self.best is None else (max if self.images else min)(self.best, best)
            if self.live is not None:
                self.live.match(self.best, self.guess, "SSIM" if self.images else "mean square error")

    def _hopeless(self, matches: np.ndarray, shot: Snapshot) -> np.ndarray | None:
        if self.guess is None:
            return None
        no_better = matches <= self.guess if self.images else matches >= self.guess
        return no_better & (shot.idle >= PATIENCE)
