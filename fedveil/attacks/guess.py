"""What a guess reaches that never saw a message: the yardstick of every reconstruction.

A content guess is a held-out example, or the mean of some. A label guess names one class for all victims: the one that
happens to be the most frequent among them, which is the best that a constant guess can do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedveil.attacks.score import Items, Rule, ssim

PICKED = 8  # held-out examples that are guessed
JUDGED = 48  # examples of the truth that guesses are compared with, at most


@dataclass(frozen=True)
class Guess:
    """How well guesses fit the truth."""

    rate: float | None  # share of guesses that the rule counts as rebuilt; None where it does not compare contents
    match: float | None  # the best match of any guess: SSIM, for attributes the least mean square error
    label_rate: float  # share of labels that the best constant guess gets right


def guess(truth_x: np.ndarray, truth_y: np.ndarray, known: np.ndarray, rule: Rule) -> Guess:
    """Compares truth [attacks, examples, ...shape] with guesses from `known` [n, ...shape], both as the model sees them."""
    shape = truth_x.shape[2:]
    x = truth_x.reshape(-1, *shape)
    x = x[np.linspace(0, len(x) - 1, min(JUDGED, len(x))).astype(int)].astype(np.float64)
    picked = known[np.linspace(0, len(known) - 1, min(PICKED, len(known))).astype(int)].astype(np.float64)
    tries = [*picked, picked.mean(axis=0)] if len(picked) else [np.full(shape, 0.5)]
    mse = np.array([[np.square(mine - real).mean() for mine in tries] for real in x])
    images = len(shape) == 3
    alike = np.array([[ssim(mine, real) for mine in tries] for real in x]) if images else np.full(mse.shape, np.nan)
    no = np.zeros(mse.shape, bool)
    rate = None if rule.name == "distance" else float(rule.holds(Items(mse, alike, no, no, alike)).mean())
    _, counts = np.unique(truth_y, return_counts=True)
    return Guess(rate, float(alike.max() if images else mse.min()), float(counts.max() / counts.sum()))
