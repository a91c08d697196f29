"""Values as a caller gives them, as arrays: None and whatever is not finite is a gap, which is NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Numbers = Sequence[float | None] | Sequence[float] | np.ndarray


def numbers(values: Numbers) -> np.ndarray:
    """As floats, NaN for gaps."""
    array = np.array([math.nan if value is None else value for value in values], float)
    return np.where(np.isfinite(array), array, np.nan)


def spread(name: str, values: np.ndarray, low: Numbers | None, high: Numbers | None) -> tuple[np.ndarray, np.ndarray]:
    """The ends of error bars or bands about values, both [values]; NaN where there is a gap, or none were given."""
    if (low is None) != (high is None):
        raise ValueError(f"{name}: low and high come together, one of them is missing")
    if low is None or high is None:
        return np.full_like(values, np.nan), np.full_like(values, np.nan)
    ends = numbers(low), numbers(high)
    if {len(ends[0]), len(ends[1])} != {len(values)}:
        raise ValueError(
            f"{name}: {len(values)} values need as many low and high, got {len(ends[0])} and {len(ends[1])}"
        )
    if (ends[0] > ends[1]).any():
        wrong = int(np.argmax(ends[0] > ends[1]))
        raise ValueError(f"{name}: low = {ends[0][wrong]:g} is above high = {ends[1][wrong]:g}, at place {wrong}")
    gap = np.isnan(values)
    return np.where(gap, np.nan, ends[0]), np.where(gap, np.nan, ends[1])
