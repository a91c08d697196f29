"""Did a training learn? Its accuracy against that of always naming the most common class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

CONFIDENCE = 0.99  # of the one-sided test by which an accuracy is above chance
DIVERGED = 3.0  # a loss so many times that of naming all classes as equally likely has diverged


def chance_of(labels: np.ndarray | Sequence[int]) -> float:
    """The share of the most common class: the accuracy of a model that ignores its input."""
    import numpy

    labels = numpy.asarray(labels)
    return float(numpy.bincount(labels).max() / len(labels)) if len(labels) else 0.0


def learned(accuracy: float | None, chance: float, records: int) -> bool:
    """Whether an accuracy on so many held-out records is above chance, by a one-sided binomial test at 99 %."""
    if accuracy is None or not math.isfinite(accuracy) or records < 1:
        return False
    from scipy.stats import binom

    right = round(accuracy * records)
    return bool(binom.sf(right - 1, records, chance) < 1.0 - CONFIDENCE)


def diverged(loss: float | None, classes: int) -> bool:
    """Whether a loss is not finite, or far above that of a model that calls all classes equally likely."""
    return loss is None or not math.isfinite(loss) or loss > DIVERGED * math.log(max(2, classes))
