"""L-BFGS without line search, one attack at a time in plain NumPy: the slow obvious twin of `lbfgs.py`."""

from __future__ import annotations

import numpy as np


class Reference:
    """Makes attack iterations on `function(x) -> (value, gradient)`; `visited` lists every point that was evaluated."""

    def __init__(self, function, x, pairs=100, inner=20):
        self.function, self.x, self.pairs, self.inner = function, x.copy(), pairs, inner
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []
        self.guess, self.made = 1.0, 0
        self.step = self.slope_before = None
        self.value_before = 0.0
        self.visited: list[np.ndarray] = []

    def look(self):
        self.visited.append(self.x.copy())
        return self.function(self.x)

    def iterate(self) -> None:
        """One attack iteration."""
        value, slope = self.look()
        if np.abs(slope).max() <= 1e-7:
            return
        for place in range(1, self.inner + 1):
            way = self.way(slope)
            self.slope_before, self.value_before = slope, value
            length = min(1.0, 1.0 / np.abs(slope).sum()) if self.made == 0 else 1.0
            self.made += 1
            if slope @ way > -1e-9:
                self.step = length * way
                return
            self.step = length * way
            self.x = self.x + self.step
            if place == self.inner:
                return
            value, slope = self.look()
            if np.abs(slope).max() <= 1e-7 or np.abs(self.step).max() <= 1e-9 or abs(value - self.value_before) < 1e-9:
                return

    def way(self, slope):
        if self.made > 0:
            y = slope - self.slope_before
            if y @ self.step > 1e-10:
                self.kept = [*self.kept, (self.step, y)][-self.pairs :]
                self.guess = (y @ self.step) / (y @ y)
        left, shares = -slope, []
        for s, y in reversed(self.kept):
            shares.append((s @ left) / (y @ s))
            left = left - shares[-1] * y
        way = self.guess * left
        for (s, y), share in zip(self.kept, reversed(shares), strict=True):
            way = way + s * (share - (y @ way) / (y @ s))
        return way

    def path(self, iterations: int) -> np.ndarray:
        """All points evaluated in so many iterations; a point looked at twice in a row counts once."""
        for _ in range(iterations):
            self.iterate()
        kept = [self.visited[0]]
        for x in self.visited[1:]:
            if not np.array_equal(x, kept[-1]):
                kept.append(x)
        return np.array(kept)
