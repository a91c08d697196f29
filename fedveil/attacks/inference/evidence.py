"""What an attacker on membership goes by, and how it scores each record: the larger, the likelier it was trained on.

The attacker asks models how sure they are of a record's label: the model that it sees, and shadows that it has trained
itself, each on a choice of records of its own. Numbers are log(p/(1 − p)) of the label's probability p throughout; what
the seen model was trained on is not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import log_expit, logsumexp

ENOUGH = 32  # shadows with and as many without a record, for a variance of its own
GAMMA = 1.0  # RMIA: by how much a record's likelihood ratio must exceed a population record's


@dataclass(frozen=True)
class Evidence:
    """Of one federation: how sure its model and the attacker's shadows are of each record's label."""

    target: np.ndarray  # [records]
    shadows: np.ndarray  # [shadows, records]
    inside: np.ndarray  # [shadows, records] bool: what the attacker trained each shadow on
    target_population: np.ndarray  # [others] records that nobody was trained on
    shadows_population: np.ndarray  # [shadows, others]


def loss_threshold(seen: Evidence) -> np.ndarray:
    """[records]: minus the loss (Yeom et al. 2018); no shadow is looked at."""
    return log_expit(seen.target)


def lira(seen: Evidence) -> np.ndarray:
    """[records]: log-likelihood ratio of "trained on" against "not" (Carlini et al. 2022, online).

    Both are Gaussians fitted to the shadows with and without the record; with few shadows all records share a variance.
    """
    inside = _log_density(seen.target, seen.shadows, seen.inside)
    return inside - _log_density(seen.target, seen.shadows, ~seen.inside)


def _log_density(value: np.ndarray, among: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """[records]: log density of a value under the Gaussian of the chosen shadows [shadows, records], up to a constant."""
    count = chosen.sum(axis=0)
    mean = np.where(chosen, among, 0.0).sum(axis=0) / np.maximum(count, 1)
    squares = np.where(chosen, np.square(among - mean), 0.0).sum(axis=0)
    shared = squares.sum() / max(1, (count - 1).sum())
    variance = np.where(count >= ENOUGH, squares / np.maximum(count - 1, 1), shared)
    variance = np.maximum(variance, 1e-12)
    return -0.5 * (np.square(value - mean) / variance + np.log(variance))


def rmia(seen: Evidence) -> np.ndarray:
    """[records]: the share of population records whose likelihood ratio this record's exceeds (Zarifzadeh et al. 2024).

    A record's ratio is p(x | model) / p(x), p(x) the mean of what shadows with and shadows without it give; p(z) of
    population records, which no shadow has, is the mean over all shadows. Probabilities are those of the softmax.
    """
    sure = log_expit(seen.shadows)
    expected = np.logaddexp(_log_mean(sure, seen.inside), _log_mean(sure, ~seen.inside)) - math.log(2.0)
    ratio = log_expit(seen.target) - expected
    everywhere = np.ones(seen.shadows_population.shape, bool)
    others = log_expit(seen.target_population) - _log_mean(log_expit(seen.shadows_population), everywhere)
    return np.searchsorted(np.sort(others), ratio - math.log(GAMMA), side="right") / len(others)


def _log_mean(logs: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """[records]: log of the mean of exp(logs) over the chosen shadows."""
    return logsumexp(logs, axis=0, b=chosen) - np.log(chosen.sum(axis=0))


SCORES: dict[str, Callable[[Evidence], np.ndarray]] = {
    "loss-threshold": loss_threshold,
    "lira": lira,
    "rmia": rmia,
}

FEWEST = {"loss-threshold": 0, "lira": 4, "rmia": 2}  # shadows without which an attack has nothing to compare with
