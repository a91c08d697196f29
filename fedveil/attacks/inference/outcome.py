"""What an inference attack found, once the bench has compared it with the truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """The document of an attack, the rows of its picture, and its ROC curves."""

    document: dict[str, Any]
    pictures: tuple[np.ndarray, ...] = ()  # rows [n, height, width, channels], values in [0, 1]
    captions: tuple[str, ...] = ()  # one for each row of pictures
    curves: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # false and true positive rates
