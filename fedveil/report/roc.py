"""ROC curves of attacks that guess who was in the training data, against chance and against what (ε, δ) allows.

Under (ε, δ)-differential privacy, whatever the attack, TPR ≤ e^ε · FPR + δ and 1 − FPR ≤ e^ε · (1 − TPR) + δ: the region
below both lines is shaded. What an attack finds at the price of few false alarms is what counts, so both axes can be
logarithmic, from 1e-3 on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.report.axes import between, fitting
from fedveil.report.frame import MARGIN, Frame, box_beside, heading, legend, x_axis, y_axis
from fedveil.report.lines import curve, curve_sample, markers, reference, reference_sample
from fedveil.report.svg import document, element, pixels
from fedveil.report.tables import number
from fedveil.report.values import Numbers, numbers

EDGE = 1e-3  # where log axes begin
SHADED = 8.0  # a larger ε allows nearly everything: shading it would hide the others
FINE = 40  # points per power of ten: what is straight on plain axes is bent on log axes


@dataclass(frozen=True)
class Curve:
    """A named ROC curve: rates of false and of true positives, in any order."""

    name: str
    fpr: Numbers
    tpr: Numbers


@dataclass(frozen=True)
class Allowed:
    """The rates that (ε, δ)-differential privacy allows: TPR ≤ min(e^ε · FPR + δ, 1 − e^−ε · (1 − δ − FPR), 1)."""

    epsilon: float
    delta: float
    of: str = ""  # whose certificate it is

    def __post_init__(self) -> None:
        if not (self.epsilon >= 0 and 0 <= self.delta <= 1):
            raise ValueError(f"ε is at least 0 and δ is from 0 to 1, got ({self.epsilon}, {self.delta})")

    @property
    def name(self) -> str:
        allowed = f"allowed by ε = {number(self.epsilon)}, δ = {number(self.delta)}"
        return f"{self.of}: {allowed}" if self.of else allowed

    def line(self, fpr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The highest rates allowed at these rates of false positives, and at the corner of the two bounds."""
        steep = math.exp(min(self.epsilon, 700.0))
        x = np.union1d(fpr, max((1.0 - self.delta) / (1.0 + steep), fpr[0]))
        return x, self.most(x)

    def most(self, fpr: np.ndarray | float) -> np.ndarray:
        """The highest true positive rate allowed at a rate of false positives."""
        steep, fpr = math.exp(min(self.epsilon, 700.0)), np.asarray(fpr, float)
        return np.minimum(1.0, np.minimum(steep * fpr + self.delta, 1.0 - (1.0 - self.delta - fpr) / steep))


def roc_chart(
    curves: Sequence[Curve],
    *,
    title: str,
    log: bool = False,
    allowed: Sequence[Allowed] = (),
    width: float = 480,
    height: float = 480,
) -> str:
    """The chart as SVG. `height` is that of the chart without the legend, which is below."""
    if not curves:
        raise ValueError(f"chart {title!r} has no curves: give at least one")
    rates = [_rates(one) for one in curves]
    low = EDGE if log else 0.0
    head, top = heading(title, width)
    y = between("true positive rate", low, 1.0, log=log)
    box = box_beside(y, top=top, width=width, height=height)
    frame = Frame(box, fitting("false positive rate", low, 1.0, log=log, length=box.width), y)
    ends = np.array([low, 1.0])
    grid = np.geomspace(EDGE, 1.0, 6 * FINE) if log else np.linspace(0.0, 1.0, 6 * FINE)
    rules = [reference(frame, 0, ends, ends)]
    rules += [reference(frame, place, *one.line(grid)) for place, one in enumerate(allowed, 1)]
    regions = [_region(frame, *one.line(grid)) for one in allowed if one.epsilon < SHADED]
    drawn = [_bent(*pair) if log else pair for pair in rates]
    parts = [curve(frame, place, *pair) for place, pair in enumerate(drawn)]
    seen = [(fpr >= low) & (tpr >= low) for fpr, tpr in rates]
    marks = [
        markers(frame, place, one.name, fpr[seen[place]], tpr[seen[place]])
        for place, (one, (fpr, tpr)) in enumerate(zip(curves, rates, strict=True))
    ]
    entries = [(one.name, curve_sample(place)) for place, one in enumerate(curves)]
    dashed = ["chance", *(one.name for one in allowed)]
    entries += [(name, reference_sample(place)) for place, name in enumerate(dashed)]
    across, end = x_axis(frame)
    below, end = legend(entries, box, end)
    body = [head, y_axis(frame), across, frame.clipped(*regions, *rules, *parts), *marks, below]
    return document(title, _says(curves, rates, allowed), width, end + MARGIN, body)


def _region(frame: Frame, x: np.ndarray, y: np.ndarray) -> str:
    """What lies below a line, lightly shaded."""
    box, corners = frame.box, zip(frame.across(x), frame.up(y), strict=True)
    path = "L".join(f"{pixels(float(a))} {pixels(float(b))}" for a, b in corners)
    closed = f"M{pixels(box.left)} {pixels(box.bottom)}L{path}L{pixels(box.right)} {pixels(box.bottom)}z"
    return element("path", d=closed, fill="currentColor", fill_opacity=0.07)


def _rates(one: Curve) -> tuple[np.ndarray, np.ndarray]:
    """False and true positive rates in rising order."""
    fpr, tpr = numbers(one.fpr), numbers(one.tpr)
    if len(fpr) != len(tpr) or not len(fpr):
        raise ValueError(
            f"curve {one.name!r}: as many rates of one kind as of the other, got {len(fpr)} and {len(tpr)}"
        )
    for key, values in (("fpr", fpr), ("tpr", tpr)):
        wrong = values[~((values >= 0) & (values <= 1))]
        if len(wrong):
            raise ValueError(f"curve {one.name!r}: {key} holds {wrong[0]:g}; a rate is a number from 0 to 1")
    order = np.lexsort((tpr, fpr))
    return fpr[order], tpr[order]


def _bent(fpr: np.ndarray, tpr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The curve as log axes show it, from their edge on: what is straight between two points gets points of its own."""
    xs, ys = [fpr[:1]], [tpr[:1]]
    for x0, x1, y0, y1 in zip(fpr[:-1], fpr[1:], tpr[:-1], tpr[1:], strict=True):
        first, last = max(x0, EDGE), max(x1, EDGE)
        more = int(FINE * math.log10(last / first)) + 2
        x = np.geomspace(first, last, more)
        share = np.clip((x - x0) / (x1 - x0), 0.0, 1.0) if x1 > x0 else np.linspace(0.0, 1.0, more)
        xs.append(x)
        ys.append(y0 + share * (y1 - y0))
    x, y = np.maximum(np.concatenate(xs), EDGE), np.maximum(np.concatenate(ys), EDGE)
    start = np.flatnonzero(x == EDGE)[-1] if (x == EDGE).any() else 0
    return x[start:], y[start:]


def _says(curves: Sequence[Curve], rates: Sequence[tuple[np.ndarray, np.ndarray]], allowed: Sequence[Allowed]) -> str:
    parts = ["ROC chart of true positive rate against false positive rate, with the line of chance."]
    for one, (fpr, tpr) in zip(curves, rates, strict=True):
        found = [f"{number(float(tpr[fpr <= at].max(initial=0.0)))} at {number(at)}" for at in (0.001, 0.01, 0.1)]
        parts.append(f"{one.name}: true positive rate {', '.join(found)}.")
    return " ".join(parts + [f"Dashed line: {one.name}." for one in allowed])
