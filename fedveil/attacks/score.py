"""The scores of a reconstruction, compared with the truth that the attacker never had.

There are two criteria. Whether an attack *succeeded* is decided here, on the content, by a stated rule. Whether the
attacker *believes* that it did is decided by the gradient distance it reached, which is the paper's criterion; that one
also gives the iteration counts. A distance that is below the threshold before the first step is no evidence: where
gradients vanish, every input has it. Such an attack counts as one that never met the criterion.

The order of several examples behind one gradient is lost, so the recovered examples are assigned to the true ones such that
the mean square error is least; labels go with their inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import norm

from fedveil.attacks.base import Reconstruction
from fedveil.core.errors import RunError, unknown_name

BELIEF = 1e-4  # cpl's threshold on the gradient distance, read as squared L2


@dataclass(frozen=True)
class Rule:
    """When the content counts as recovered."""

    name: str
    says: str
    holds: Callable[[Items], np.ndarray] = field(repr=False)


@dataclass(frozen=True)
class Items:
    """One number per attack and example, after the assignment. All arrays [attacks, examples]."""

    mse: np.ndarray
    ssim: np.ndarray  # NaN where examples are not images
    label: np.ndarray  # whether the label is right
    believed: np.ndarray  # whether the attack met cpl's criterion on its way
    fields: np.ndarray  # share of one-hot groups recovered, NaN where there are none


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("ssim", "SSIM of at least 0.9", lambda items: items.ssim >= 0.9),
        Rule("mse", "mean square error of at most 1e-3", lambda items: items.mse <= 1e-3),
        Rule("distance", "squared gradient distance below 1e-4 (cpl's own)", lambda items: items.believed),
    )
}


@dataclass(frozen=True)
class Scores:
    """A scored study."""

    rule: Rule
    items: Items
    success: np.ndarray  # [attacks, examples] by the rule
    iterations: np.ndarray  # [attacks] until the attacker's criterion was met, else all
    reconstruction: Reconstruction

    def summary(self) -> dict[str, Any]:
        """The JSON document: rates with their intervals, quality, cost."""
        done, items = self.reconstruction, self.items
        # Iterations are counted over attacks that succeeded, as the paper does; over all where none did.
        succeeded = self.success.any(axis=1)
        counted = self.iterations[succeeded] if succeeded.any() else self.iterations
        low, high = interval(self.success.mean(axis=1), done.attack)
        return {
            "success_rate": float(self.success.mean()),
            "interval": [low, high],
            "label_success_rate": float(items.label.mean()),
            "believed_rate": float(believed(done).mean()),
            "rule": self.rule.says,
            "ssim": _mean(items.ssim),
            "mse": _mean(items.mse),
            "rmse": _mean(np.sqrt(items.mse)),
            "psnr": _mean(psnr(items.mse)),
            "fields": _mean(items.fields),
            "distance": _mean(done.distance),
            "iterations": _mean(counted),
            "iterations_min": int(counted.min()) if len(counted) else None,
            "iterations_max": int(counted.max()) if len(counted) else None,
            "iterations_variance": float(counted.var()) if len(counted) else None,
            "evaluations": _mean(done.evaluations),
            "seconds": done.seconds,
            "seconds_per_attack": done.seconds / max(1, len(done)),
            "images": len(np.unique(done.attack)) * done.inputs.shape[1],
            "seeds": len(np.unique(done.seed)),
            "failed": int((done.ending == "failed").sum()),
        }


def score(
    reconstruction: Reconstruction,
    truth_x: np.ndarray,
    truth_y: np.ndarray,
    rule: str | None = None,
    groups: tuple[tuple[int, int], ...] = (),
) -> Scores:
    """Compares with the truth: x [observed, examples, ...shape] or, for one example each, [observed, ...shape]; y likewise.

    `rule` is a name of `RULES`; without it SSIM for images and MSE for attributes. `groups` are one-hot columns.
    """
    inputs, shape = reconstruction.inputs, reconstruction.inputs.shape[2:]
    images = len(shape) == 3
    chosen = rule_for(rule, shape)
    examples = inputs.shape[1]
    x = np.asarray(truth_x, np.float64).reshape(-1, examples, *shape)[reconstruction.attack]
    y = np.asarray(truth_y).reshape(-1, examples)[reconstruction.attack]
    found, guessed = assigned(inputs.astype(np.float64), reconstruction.labels, x)
    blank = np.full(y.shape, np.nan)
    items = Items(
        mse=np.square(found - x).reshape(*y.shape, -1).mean(axis=2),
        ssim=_each(ssim, found, x) if images else blank,
        label=guessed == y,
        believed=np.repeat(believed(reconstruction)[:, None], examples, axis=1),
        fields=_each(lambda a, b: _fields(a, b, groups), found, x) if groups else blank,
    )
    return Scores(chosen, items, chosen.holds(items), until_belief(reconstruction), reconstruction)


def rule_for(name: str | None, shape: tuple[int, ...]) -> Rule:
    """The rule called `name`; without a name SSIM for images and the mean square error for attributes."""
    images = len(shape) == 3
    name = name or ("ssim" if images else "mse")
    if name not in RULES:
        raise unknown_name("attack.rule", name, RULES)
    if name == "ssim" and not images:
        raise RunError(f"attack.rule: SSIM is for images, examples have shape {shape}; take 'mse'")
    return RULES[name]


def assigned(found: np.ndarray, labels: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Recovered examples and labels of each attack, reordered to match the true examples that they fit best."""
    if found.shape[1] == 1:
        return found, labels
    ordered, ordered_labels = found.copy(), labels.copy()
    for row, (mine, real) in enumerate(zip(found, truth, strict=True)):
        apart = np.square(real[:, None] - mine[None]).reshape(len(real), len(mine), -1).mean(axis=2)
        _, order = linear_sum_assignment(apart)
        ordered[row], ordered_labels[row] = mine[order], labels[row][order]
    return ordered, ordered_labels


def believed(reconstruction: Reconstruction) -> np.ndarray:
    """Whether each attack [attacks] came below cpl's threshold on the gradient distance; not where it began below."""
    return (reconstruction.distance < BELIEF) & ~_met_at_start(reconstruction)


def until_belief(reconstruction: Reconstruction) -> np.ndarray:
    """Iterations [attacks] until the squared gradient distance was first below cpl's threshold; else all iterations."""
    below = (reconstruction.trace < BELIEF) & ~_met_at_start(reconstruction)[:, None]
    return np.where(below.any(axis=1), below.argmax(axis=1), reconstruction.iterations)


def _met_at_start(reconstruction: Reconstruction) -> np.ndarray:
    """Whether the start itself was below the threshold; a solution in closed form, without evaluations, has no start."""
    return (reconstruction.trace[:, 0] < BELIEF) & (reconstruction.evaluations > 0)


def ssim(found: np.ndarray, real: np.ndarray) -> float:
    """Structural similarity of two images with values in [0, 1]; windows of 7 pixels, or the largest that fit."""
    from skimage.metrics import structural_similarity

    side = min(7, *real.shape[:2])
    window = side if side % 2 else side - 1
    similarity: Any = structural_similarity
    return float(similarity(found, real, data_range=1.0, channel_axis=-1, win_size=window))


def psnr(mse: np.ndarray) -> np.ndarray:
    """Peak signal-to-noise ratio for values in [0, 1], in decibels; at most 100, so that means stay finite."""
    return 10.0 * np.log10(1.0 / np.maximum(mse, 1e-10))


def _fields(found: np.ndarray, real: np.ndarray, groups: tuple[tuple[int, int], ...]) -> float:
    """Share of one-hot groups whose largest column is the true one; groups of zeros ("unknown") do not count."""
    known = [(start, stop) for start, stop in groups if real[start:stop].any()]
    right = [found[start:stop].argmax() == real[start:stop].argmax() for start, stop in known]
    return float(np.mean(right)) if right else math.nan


def _each(function: Callable[[np.ndarray, np.ndarray], float], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.array([[function(m, n) for m, n in zip(p, q, strict=True)] for p, q in zip(a, b, strict=True)])


def interval(success: np.ndarray, victim: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a success rate over victims: success [attacks] in [0, 1], victim [attacks].

    Starts on one victim are not independent (a victim that resists one resists most), so they count as one. An interval
    over starts would be too narrow.
    """
    return wilson(float(success.mean()), len(np.unique(victim)), level)


def wilson(rate: float, count: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a rate over `count` trials, which need not be a whole number of successes."""
    z = float(norm.ppf(0.5 + level / 2))
    middle = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def _mean(values: np.ndarray) -> float | None:
    finite = np.asarray(values, float)
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if len(finite) else None
