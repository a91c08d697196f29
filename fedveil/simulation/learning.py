"""Did a training learn, and if not, why: chance, the likely cause, and what to change.

Chance is the accuracy of always naming the most common class. The likely cause of a training at chance comes from noise
against signal in one step of the global model. A mechanism adds noise of standard deviation s to each of d coordinates, so
the noise has length s·√d. The signal is a sum of n clipped contributions, at most n times the clip bound. Noise of
different clients averages out with the square root of their number. Over S steps a constant signal grows S times, the
noise √S times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedveil.core.setting import Setting
from fedveil.core.stage import AccountPoint
from fedveil.defenses.base import Defense
from fedveil.defenses.presets import UNTUNED
from fedveil.mechanisms.mechanism import BroadcastNoise, Placed

if TYPE_CHECKING:
    import numpy as np

CONFIDENCE = 0.99  # of the one-sided test by which an accuracy is above chance
DIVERGED = 3.0  # a loss above this multiple of that of a uniform guess has diverged
DROWNED = 0.5  # noise over signal, both summed over all steps, from which on noise is the likely cause


def chance_of(labels: np.ndarray | Sequence[int]) -> float:
    """The share of the most common class: the accuracy of a model that ignores its input."""
    import numpy

    labels = numpy.asarray(labels)
    return float(numpy.bincount(labels).max() / len(labels)) if len(labels) else 0.0


def learned(accuracy: float | None, chance: float, records: int) -> bool:
    """Whether an accuracy on `records` held-out records is above chance: a one-sided binomial test at 99 %."""
    if accuracy is None or not math.isfinite(accuracy) or records < 1:
        return False
    from scipy.stats import binom

    right = round(accuracy * records)
    return bool(binom.sf(right - 1, records, chance) < 1.0 - CONFIDENCE)


def of_attacked(accuracies: Sequence[float], held_out: np.ndarray | Sequence[int]) -> dict[str, float | bool]:
    """How well attacked models learned, for the document of an attack: one at chance has little to leak."""
    accuracy, chance = float(sum(accuracies)) / len(accuracies), chance_of(held_out)
    return {"accuracy": accuracy, "chance": chance, "learned": learned(accuracy, chance, len(held_out))}


def diverged(loss: float | None, classes: int) -> bool:
    """Whether a loss is not finite, or far above that of a model that calls all classes equally likely."""
    return loss is None or not math.isfinite(loss) or loss > DIVERGED * math.log(max(2, classes))


@dataclass(frozen=True)
class Drowning:
    """How long the noise of one step is, in units of the longest signal."""

    defense: str
    ratio: float  # in one step
    steps: int  # over the training
    stage: str
    placement: str = ""

    @property
    def overall(self) -> float:
        """The ratio over the whole training."""
        return self.ratio / math.sqrt(self.steps)


def drowning(defenses: Sequence[Defense], setting: Setting, values: int) -> Drowning | None:
    """The mechanism with the largest ratio of noise to signal, in a model of `values` parameters; None without noise."""
    found = []
    for defense in defenses:
        for placed in defense.mechanisms(setting):
            if placed.tap != "example" and placed.mechanism.noisy:
                ratio = _ratio(placed, setting, values)
                steps = setting.rounds * (setting.local_steps if placed.uses == "step" else 1)
                found.append(Drowning(defense.name, ratio, steps, placed.stage, getattr(defense, "placement", "")))
    return max(found, key=lambda one: one.overall, default=None)


def _ratio(placed: Placed, setting: Setting, values: int) -> float:
    """Noise over the longest signal in the mean that one step of the global model takes."""
    mechanism = placed.mechanism
    if isinstance(mechanism, BroadcastNoise):
        mechanism = replace(mechanism, excess=1.0)  # a batch beyond its nominal size makes no longer signal as a rule
    at = AccountPoint(setting, 0, setting.lr)
    deviation = float(mechanism.scale(at)) * (math.sqrt(2.0) if mechanism.distribution == "laplace" else 1.0)
    one = float(mechanism.sensitivity(at))
    if mechanism.distribution == "laplace":  # the sensitivity is in L1, the length of a signal in L2
        one = float(mechanism.weight * mechanism.clip.at(at) * mechanism.clip.reach(setting, 2))
    at_server = placed.stage in ("aggregate", "broadcast")
    summed = setting.batch if placed.stage == "example" else setting.per_round if at_server else 1
    averaged = 1.0 if at_server else math.sqrt(setting.per_round)
    return deviation * math.sqrt(values) / (summed * one * averaged)


@dataclass(frozen=True)
class Outcome:
    """What was measured at the end of a training."""

    accuracy: float
    loss: float
    chance: float
    learned: bool
    classes: int
    not_finite: int = 0  # updates that were left out


def diagnosis(outcome: Outcome, defenses: Sequence[Defense], setting: Setting, values: int) -> str:
    """One paragraph on a training that is at chance or whose loss diverged; empty for one that learned."""
    blown = diverged(outcome.loss, outcome.classes)
    if outcome.learned and not blown:
        return ""
    found = []
    if not outcome.learned:
        found.append(f"the accuracy is no better than that of naming the most common class ({outcome.chance:.3g})")
    if blown:
        found.append(f"the loss diverged ({outcome.loss:.4g}; equal guesses have {math.log(outcome.classes):.3g})")
    if outcome.not_finite:
        found.append(f"{outcome.not_finite} updates were not finite")
    said = "; ".join(found)
    return f"{said[0].upper()}{said[1:]}. {_cause(blown or outcome.not_finite > 0, defenses, setting, values)}"


def _cause(blown: bool, defenses: Sequence[Defense], setting: Setting, values: int) -> str:
    found = drowning(defenses, setting, values)
    if found is not None and found.overall > DROWNED:
        return (
            f"Likely cause: the noise of {found.defense} on {values:,} values is {found.ratio:.3g} times as long as the "
            f"longest signal its clip lets through in a step ({found.overall:.2g} times over {found.steps:,} steps). "
            f"Remedy: {_remedy(found, setting)}{_instead(found.defense)}"
        )
    if blown:
        return f"Likely cause: the learning rate. Remedy: lower train.lr, to {setting.lr / 10:g} say."
    noisy = [defense.name for defense in defenses if defense.noised_stages() and not defense.mechanisms(setting)]
    if noisy:
        remedy = f"less noise, or another train.lr.{_instead(noisy[0])}"
        return f"Likely cause: the noise of {noisy[0]}, or the learning rate. Remedy: {remedy}"
    if found is not None:
        return f"Likely cause: the learning rate. Remedy: another train.lr ({setting.lr:g} now), or more train.rounds."
    return f"Likely cause: too few steps or the learning rate. Remedy: more train.rounds, or train.lr = {3 * setting.lr:g}."


def _instead(defense: str) -> str:
    """The defences to take instead of one for which no setting is known that learns at a small ε."""
    if defense not in UNTUNED:
        return ""
    return (
        f" No setting of {defense} is known that learns at a certified ε of 8 or less: take fed-cdp, which protects "
        "records, or fed-sdp, which protects whole clients."
    )


def _remedy(found: Drowning, setting: Setting) -> str:
    """What lowers noise against signal, the steps that cost no privacy first."""
    ways = [f"lower train.lr, to {setting.lr / 10:g} say", "raise train.per_round"]
    if found.stage == "example":
        ways.append("raise train.batch")
        if setting.local_steps > 1:
            ways.append("take train.local_steps = 1")
        ways.append("set defense.placement = 'batch'" if found.placement == "example" else "lower defense.noise")
    elif found.stage in ("update", "aggregate"):
        ways.append("lower defense.noise and defense.clip")
    else:
        ways.append("allow a larger ε")
    ways.append("or take a smaller model")
    return ", ".join(ways) + "."
