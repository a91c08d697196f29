"""Scores of recovered classes, compared with the examples that the victim holds.

The scale of a recovered picture carries no information (twice the input is the same class with more confidence), so it is
stretched to [0, 1] by its smallest and largest value before it is compared. The truth is not changed. Attributes are
compared unchanged, by mean square error alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.attacks.inference.inversion import stretched
from fedveil.attacks.inference.roc import mean_interval
from fedveil.attacks.score import ssim
from fedveil.attacks.taps import examples_as_seen
from fedveil.core.keys import generator

if TYPE_CHECKING:
    from fedveil.federation import Federation

Scores = list[dict[str, Any]]  # one for each class of a federation


@dataclass(frozen=True)
class Truth:
    """The victim's examples by class, as the model sees them."""

    classes: tuple[int, ...]
    examples: tuple[np.ndarray, ...]  # of each class [n, ...shape]

    def of(self, label: int) -> np.ndarray:
        return self.examples[self.classes.index(label)]

    def means(self, classes: Sequence[int]) -> np.ndarray:
        """[classes, ...shape]: the mean of the victim's examples of each class."""
        return np.stack([self.of(label).mean(axis=0) for label in classes])


def truth_of(federation: Federation, victim: int) -> Truth:
    """The examples that a client holds, by class."""
    mine = examples_as_seen(federation.dataset, federation.dataset.train, federation.partition.client(victim))
    held = tuple(int(label) for label in np.unique(mine.y))
    return Truth(held, tuple(mine.x[mine.y == label] for label in held))


def noise_pictures(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Pictures of noise, uniform in [0, 1)."""
    return generator(seed, 0x696E76).random(shape)


def score_classes(found: np.ndarray, answers: np.ndarray, classes: Sequence[int], truth: Truth) -> Scores:
    """One score for each class: found [classes, ...shape], and the class that the attacked model gives to each.

    Nearest is the victim's example of the class with the least mean square error. A class is recognised if its result is
    more similar to the victim's mean of that class than to other class means (SSIM for pictures, else mean square error).
    """
    return [_score(x, int(answer), label, truth) for x, answer, label in zip(found, answers, classes, strict=True)]


def _score(x: np.ndarray, answer: int, label: int, truth: Truth) -> dict[str, Any]:
    picture = x.ndim == 3
    x = stretched(x) if picture else x
    means = truth.means(truth.classes)
    mine = truth.classes.index(label)
    alike = np.array([ssim(x, mean) if picture else -_mse(x, mean) for mean in means])
    near = min(truth.of(label), key=lambda example: _mse(x, example))
    return {
        "class": label,
        "ssim": float(alike[mine]) if picture else None,
        "mse": _mse(x, means[mine]),
        "ssim_nearest": ssim(x, near) if picture else None,
        "mse_nearest": _mse(x, near),
        "classified": answer == label,
        "recognised": int(alike.argmax()) == mine,
    }


def _mse(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.square(a - b).mean())


def summary(scores: Sequence[Scores]) -> dict[str, Any]:
    """Means over classes and federations; the interval of the SSIM (of attributes the MSE) is over federations."""
    main = per_federation(scores, "ssim" if scores[0][0]["ssim"] is not None else "mse")
    keys = ("ssim", "mse", "ssim_nearest", "mse_nearest")
    return {
        **{key: _mean(per_federation(scores, key)) for key in keys},
        "interval": list(mean_interval(main)) if len(main) > 1 else None,
        "label_success_rate": _mean(per_federation(scores, "classified")),
        "recognised_rate": _mean(per_federation(scores, "recognised")),
        "classes": [_of_class(scores, label) for label in sorted({s["class"] for one in scores for s in one})],
    }


def per_federation(scores: Sequence[Scores], key: str) -> np.ndarray:
    """[federations]: the mean over its classes; NaN where there is no such score."""
    return np.array([np.mean([math.nan if s[key] is None else s[key] for s in one]) for one in scores])


def _of_class(scores: Sequence[Scores], label: int) -> dict[str, Any]:
    mine = [[s for s in one if s["class"] == label] for one in scores]
    held = [one for one in mine if one]
    keys = ("ssim", "mse", "ssim_nearest", "mse_nearest", "classified", "recognised")
    return {"class": label, **{key: _mean(per_federation(held, key)) for key in keys}}


def _mean(values: np.ndarray) -> float | None:
    mean = float(values.mean())
    return None if math.isnan(mean) else mean
