"""A grid for integer noise: its width, the sensitivity of what is rounded to it, and how far the noise is from the ideal.

The noise has the same number of grid widths in every round and for every client, so that one table of probabilities serves
a run. What changes with the round (the clip, the noise multiplier) changes the width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.random import integers

FINEST = 512.0  # the least reach of a contribution, in grid widths
REACH = 8.0  # reach over √d: rounding then takes 0.2 % of z
LONGEST = 16_000.0  # the largest reach: the sum of squares of its integers fits 29 bits
EXCEEDED = 1e-3  # β: at most this share of contributions is rounded towards zero
LARGEST_SQUARE = 2**29  # so that no sum of squares overflows
MARGIN = 1.0 + 2.0**-16  # the account's square over what a compiled round computes in float32


def usual_square(reach: Any, values: int, least: Callable[[Any, Any], Any] = np.minimum) -> Any:
    """A bound on the sum of squares of a rounded contribution of `values` numbers with norm `reach`.

    With probability 1 − β randomised rounding stays below R² + d/4 + √(2·ln(1/β))·(R + √d/2); it never exceeds (R + √d)².
    `reach` is a number, an array over rounds, or a traced value; `least` is the minimum function for its type.
    """
    usual = reach**2 + values / 4.0 + math.sqrt(-2.0 * math.log(EXCEEDED)) * (reach + math.sqrt(values) / 2.0)
    return least(usual, (reach + math.sqrt(values)) ** 2)


@dataclass(frozen=True)
class Grid:
    """σ = `sigma` grid widths of noise on each of `values` numbers."""

    sigma: float
    values: int

    @classmethod
    def fitting(cls, multiplier: float, values: int) -> Grid:
        """The grid for noise of `multiplier` times the sensitivity, the largest of the run."""
        reach = min(max(FINEST, REACH * math.sqrt(values)), LONGEST)
        return cls(min(max(reach * multiplier, integers.SMALLEST), integers.LARGEST), values)

    def accounted_square(self, multiplier: Any) -> Any:
        """The largest sum of squares of one contribution's integers; `multiplier` is z before rounding."""
        return usual_square(self.sigma / multiplier, self.values) * MARGIN

    def too_fine(self, multiplier: float) -> bool:
        """Whether the integers of a contribution could be too large to be checked; `multiplier` is z after rounding."""
        return bool((self.sigma / multiplier) ** 2 > LARGEST_SQUARE)

    @property
    def slip(self) -> float:
        """Total variation between the noise of one release and rounded Gaussians."""
        return self.values * integers.slip(self.sigma)

    def sum_slip(self, most: int) -> float:
        """The same for a sum over two senders or more, up to `most`."""
        if most < 2:
            return 0.0
        apart = max(integers.sum_slip(self.sigma, 2), integers.sum_slip(self.sigma, most))
        return self.values * (apart + most * integers.slip(self.sigma))
