"""A grid for integer noise: its width, the sensitivity of what is rounded to it, and how far the noise is from the ideal.

The noise has the same number of grid widths in every round and for every client, so that one table of probabilities serves
a run. What changes with the round (the clip, the noise multiplier) changes the width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedveil.random import integers

FINEST = 512.0  # the least reach of a contribution, in grid widths
REACH = 8.0  # reach over √d: rounding then takes 0.2 % of z
LONGEST = 16_000.0  # the largest reach: the sum of squares of its integers fits 29 bits
EXCEEDED = 1e-3  # β: at most this share of contributions is rounded towards zero
LARGEST_SQUARE = 2**29  # so that no sum of squares overflows
ROOM = 4.0  # least standard deviation of a sender's noise, in steps of what it sends into a sum
BITS = 16  # of a value that is sent into a sum, at least
TAIL = 8.0  # standard deviations of noise and of the number of contributions for which the range of a sum has room
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
    """σ = `sigma` grid widths of noise on each of `values` numbers.

    What is sent into a sum of several senders is rounded to multiples of `step` after the noise, and added modulo 2^`bits`.
    """

    sigma: float
    values: int
    step: int = field(default=1, repr=False)  # odd
    bits: int = field(default=0, repr=False)  # 0: no sum

    @classmethod
    def fitting(cls, multiplier: float, values: int) -> Grid:
        """The grid for noise of `multiplier` times the sensitivity, the largest of the run."""
        reach = min(max(FINEST, REACH * math.sqrt(values)), LONGEST)
        return cls(min(max(reach * multiplier, integers.SMALLEST), integers.LARGEST), values)

    def in_sums(self, multiplier: float, senders: int, contributions: float) -> Grid:
        """This grid for messages that are added up, in as few bits as the proof and the range of the sum allow.

        `multiplier` is the smallest z before rounding. The range is that of `contributions` that all point to one value,
        with noise. The step is odd: rounding to the grid and then to the step is then rounding to the step (Theorem 2).
        """
        more = contributions + TAIL * math.sqrt(contributions) + 32  # Poisson: exceeded with a probability below e⁻³²
        most = more * math.sqrt(self.accounted_square(multiplier)) + TAIL * math.sqrt(senders) * self.sigma
        widest = max(1, _odd_below(self.sigma / ROOM))
        bits = max(BITS, 2 + math.floor(math.log2(most / widest + senders / 2 + 1)))
        narrowest = most / (2 ** (bits - 1) - 1 - senders / 2)
        return replace(self, step=min(widest, _odd_below(narrowest) + 2), bits=bits)

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
        sent = self.sigma / self.step
        apart = max(integers.sum_slip(sent, 2), integers.sum_slip(sent, most))
        return self.values * (apart + most * integers.slip(self.sigma))


def _odd_below(x: float) -> int:
    """The largest odd number up to x; −1 below 1."""
    whole = math.floor(x)
    return whole if whole % 2 else whole - 1
