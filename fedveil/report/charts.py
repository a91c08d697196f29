"""Charts of measured numbers: lines, bars, heat maps and ROC curves.

    from fedveil.report.charts import Frame, Reference, Series, line_chart, write
    frame = Frame("Accuracy under Fed-CDP", "round", "test accuracy")
    chart = line_chart([Series("fed-cdp", rounds, accuracy, low, high)], frame, [Reference("paper", 0.93)])
    write(Path("accuracy.svg"), chart)  # or .png, .pdf, .pgf

This module checks the numbers and describes them in words; `drawing` draws them with matplotlib, which is imported when the
first chart is drawn. None, NaN and infinite values are gaps.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedveil.report.tables import number

if TYPE_CHECKING:
    from fedveil.report.drawing import Drawing

Numbers = Sequence[float | None] | Sequence[float] | np.ndarray


# --- what a caller gives


@dataclass(frozen=True)
class Frame:
    """The title, labels and scales around the data. `width` and `height` are in pixels; the legend comes on top."""

    title: str
    x_label: str = ""
    y_label: str = ""
    x_log: bool = False
    y_log: bool = False
    y_range: tuple[float, float] | None = None
    width: float = 640
    height: float = 400


@dataclass(frozen=True)
class Series:
    """A named line. `low` and `high` bound a band around it, or an error bar at each point."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    spread: Literal["band", "bars"] = "band"


@dataclass(frozen=True)
class Reference:
    """A named horizontal line, such as a published result."""

    name: str
    y: float


@dataclass(frozen=True)
class Bars:
    """A named kind of bar with one value for each group. `low` and `high` are the ends of error bars."""

    name: str
    values: Numbers
    low: Numbers | None = None
    high: Numbers | None = None


@dataclass(frozen=True)
class Curve:
    """A named ROC curve: false and true positive rates, in any order."""

    name: str
    fpr: Numbers
    tpr: Numbers


@dataclass(frozen=True)
class Allowed:
    """The rates that (ε, δ)-differential privacy allows: TPR ≤ min(e^ε · FPR + δ, 1 − e^−ε · (1 − δ − FPR), 1)."""

    epsilon: float
    delta: float
    of: str = ""  # the run that has this certificate

    def __post_init__(self) -> None:
        if not (self.epsilon >= 0 and 0 <= self.delta <= 1):
            raise ValueError(f"ε is at least 0 and δ is from 0 to 1, got ({self.epsilon}, {self.delta})")

    @property
    def name(self) -> str:
        allowed = f"allowed by ε = {number(self.epsilon)}, δ = {number(self.delta)}"
        return f"{self.of}: {allowed}" if self.of else allowed

    def most(self, fpr: np.ndarray | float) -> np.ndarray:
        """The highest true positive rate that is allowed at these false positive rates."""
        factor, fpr = math.exp(min(self.epsilon, 700.0)), np.asarray(fpr, float)
        return np.minimum(1.0, np.minimum(factor * fpr + self.delta, 1.0 - (1.0 - self.delta - fpr) / factor))

    @property
    def corner(self) -> float:
        """The false positive rate at which the two bounds meet."""
        return (1.0 - self.delta) / (1.0 + math.exp(min(self.epsilon, 700.0)))


# --- what is drawn


@dataclass(frozen=True)
class Points:
    """A line, a kind of bar or a ROC curve as arrays of shape [points], NaN where there is a gap."""

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bars: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart: its kind, what it shows, and the same in words for readers who cannot see it."""

    kind: Literal["lines", "bars", "heat", "roc"]
    frame: Frame
    description: str
    content: tuple[Any, ...]  # the arguments of the function in `drawing` that draws this kind

    @cached_property
    def drawing(self) -> Drawing:
        """The matplotlib figure, drawn when it is first needed."""
        from fedveil.report.drawing import draw

        return draw(self)

    def svg(self) -> str:
        """SVG text that follows the colour scheme of the page around it."""
        from fedveil.report.output import svg_text

        return svg_text(self)


@contextmanager
def quiet() -> Iterator[None]:
    """Silences matplotlib's messages about its font cache and about characters missing from its font."""
    logger = logging.getLogger("matplotlib")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def write(path: Path, chart: Chart) -> None:
    """Writes a chart as SVG, PNG, PDF or PGF, by the ending of the file name."""
    from fedveil.report.output import write as write_file

    write_file(path, chart)


# --- the kinds of chart


def line_chart(series: Sequence[Series], frame: Frame, references: Sequence[Reference] = ()) -> Chart:
    """Lines through points, with their spread. What is beyond `frame.y_range` is cut off."""
    if not series:
        raise ValueError(f"chart {frame.title!r} has no series: give at least one")
    _check_range(frame)
    for one in references:
        if not math.isfinite(one.y) or (frame.y_log and one.y <= 0):
            axis = "a log axis; take y_log=False, or leave it out" if frame.y_log else "an axis; leave it out"
            raise ValueError(f"reference {one.name!r}: y = {one.y:g} cannot be shown on {axis}")
    lines = [_line(one, frame) for one in series]
    parts = [f"Line chart of {frame.y_label} against {frame.x_label}.", *(_line_words(line) for line in lines)]
    parts += [f"Reference line {one.name}: {number(one.y)}." for one in references]
    return Chart("lines", frame, " ".join(parts), (lines, references))


def bar_chart(groups: Sequence[str], bars: Sequence[Bars], frame: Frame) -> Chart:
    """For each group one bar of each kind, from 0. The chart is wider than `frame.width` where bars would touch."""
    if not groups or not bars:
        raise ValueError(f"chart {frame.title!r} has nothing to draw: give at least one group and one kind of bar")
    _check_range(frame)
    kinds = []
    for one in bars:
        name, values = f"bars {one.name!r}", _array(one.values)
        if len(values) != len(groups):
            raise ValueError(f"{name}: one value for each of {len(groups)} groups, got {len(values)}")
        if np.isnan(values).all():
            raise ValueError(f"{name} have no value to draw; leave them out of the chart")
        kinds.append(Points(one.name, np.arange(len(groups)), values, *_spread(name, values, one.low, one.high)))
    parts = [f"{one.name}: {_listed(groups, one.y, '–')}." for one in kinds]
    return Chart("bars", frame, " ".join([f"Bar chart of {frame.y_label}.", *parts]), (kinds, groups))


def heat_map(
    values: Sequence[Numbers] | np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    frame: Frame,
    *,
    scale_label: str,
    missing: str = "not run",
    value_range: tuple[float, float] | None = None,
) -> Chart:
    """Values [rows, columns] as colours with their numbers; a gap is an empty cell that says `missing`."""
    title = f"chart {frame.title!r}"
    if not len(rows) or not len(columns):
        raise ValueError(f"{title} has nothing to draw: give at least one row and one column")
    sizes = [len(row) for row in values]
    if sizes != [len(columns)] * len(rows):
        raise ValueError(f"{title}: {len(rows)} rows of {len(columns)} values are named, got rows of {sizes}")
    grid = np.array([_array(row) for row in values])
    if value_range is None and np.isnan(grid).all():
        raise ValueError(f"{title} has no value to scale its colours by; give value_range=(low, high)")
    parts = [f"{name}: {_listed(columns, row, missing, 3)}." for name, row in zip(rows, grid, strict=True)]
    content = (grid, (rows, columns), scale_label, missing, value_range)
    return Chart("heat", frame, " ".join([f"Heat map of {scale_label}.", *parts]), content)


def roc_chart(
    curves: Sequence[Curve], title: str, *, log: bool = False, allowed: Sequence[Allowed] = (), size: float = 480
) -> Chart:
    """ROC curves of attacks that guess membership, beside chance and the region that each (ε, δ) allows.

    True positives at a low false positive rate matter most, so both axes can be logarithmic.
    """
    if not curves:
        raise ValueError(f"chart {title!r} has no curves: give at least one")
    frame = Frame(title, "false positive rate", "true positive rate", log, log, None, size, size)
    lines = [_rates(one) for one in curves]
    parts = ["ROC chart of true positive rate against false positive rate, with the line of chance."]
    for line in lines:
        found = [f"{number(float(line.y[line.x <= at].max(initial=0.0)))} at {number(at)}" for at in (0.001, 0.01, 0.1)]
        parts.append(f"{line.name}: true positive rate {', '.join(found)}.")
    parts += [f"Dashed line: {one.name}." for one in allowed]
    return Chart("roc", frame, " ".join(parts), (lines, allowed))


# --- checks


def _array(values: Numbers) -> np.ndarray:
    array = np.array([math.nan if value is None else value for value in values], float)
    return np.where(np.isfinite(array), array, np.nan)


def _spread(name: str, values: np.ndarray, low: Numbers | None, high: Numbers | None) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the spread, of the shape of the values; NaN where there is none."""
    if (low is None) != (high is None):
        raise ValueError(f"{name}: low and high come together, one of them is missing")
    if low is None or high is None:
        return np.full_like(values, np.nan), np.full_like(values, np.nan)
    below, above = _array(low), _array(high)
    if {len(below), len(above)} != {len(values)}:
        raise ValueError(f"{name}: {len(values)} values need as many low and high, got {len(below)} and {len(above)}")
    if (below > above).any():
        wrong = int(np.argmax(below > above))
        raise ValueError(f"{name}: low = {below[wrong]:g} is above high = {above[wrong]:g}, at index {wrong}")
    gap = np.isnan(values)
    return np.where(gap, np.nan, below), np.where(gap, np.nan, above)


def _check_range(frame: Frame) -> None:
    low, high = frame.y_range or (0.5, 1.0)
    axis, got = f"axis {frame.y_label!r}", f"got ({low}, {high})"
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{axis}: a range goes from a lower number to a higher one, {got}")
    if frame.y_log and low <= 0:
        raise ValueError(f"{axis}: a log axis starts above 0, {got}")


def _line(series: Series, frame: Frame) -> Points:
    name, x, y = f"series {series.name!r}", _array(series.x), _array(series.y)
    if len(x) != len(y):
        raise ValueError(f"{name}: every point has an x and a y, got {len(x)} and {len(y)} of them")
    if np.isnan(x + y).all():
        raise ValueError(f"{name} has no point to draw; leave it out of the chart")
    low, high = _spread(name, y, series.low, series.high)
    for key, values in (("x", x), ("y", y), ("low", low), ("high", high)):
        axis = "x" if key == "x" else "y"
        if (frame.x_log if axis == "x" else frame.y_log) and (values <= 0).any():
            wrong = f"{key} = {values[values <= 0][0]:g} cannot be shown on a log axis"
            raise ValueError(f"{name}: {wrong}; take {axis}_log=False, or None for such points")
    return Points(series.name, x, y, low, high, series.spread == "bars")


def _rates(one: Curve) -> Points:
    """A ROC curve with rising rates."""
    fpr, tpr = _array(one.fpr), _array(one.tpr)
    if len(fpr) != len(tpr) or not len(fpr):
        raise ValueError(f"curve {one.name!r}: as many false as true positive rates, got {len(fpr)} and {len(tpr)}")
    for key, values in (("fpr", fpr), ("tpr", tpr)):
        wrong = values[~((values >= 0) & (values <= 1))]
        if len(wrong):
            raise ValueError(f"curve {one.name!r}: {key} holds {wrong[0]:g}; a rate is a number from 0 to 1")
    order = np.lexsort((tpr, fpr))
    return Points(one.name, fpr[order], tpr[order], *_spread("", fpr, None, None))


# --- descriptions


def _listed(names: Sequence[str], values: np.ndarray, gap: str, digits: int = 4) -> str:
    texts = [gap if np.isnan(value) else number(float(value), digits) for value in values]
    return ", ".join(f"{name} {text}" for name, text in zip(names, texts, strict=True))


def _line_words(line: Points) -> str:
    known = np.flatnonzero(~np.isnan(line.x + line.y))
    (x0, y0), (x1, y1) = ((number(line.x[i]), number(line.y[i])) for i in (known[0], known[-1]))
    least, most = number(line.y[known].min()), number(line.y[known].max())
    points = f"{len(known)} point{'s' if len(known) > 1 else ''}"
    return f"{line.name}: {points}, {y0} at {x0} to {y1} at {x1}, between {least} and {most}."
