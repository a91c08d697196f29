"""Lines through measured points, with what is known of their spread, against published figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedveil.report.axes import Axis, around, between, reaching
from fedveil.report.frame import MARGIN, SAMPLE, Frame, box_beside, heading, legend, x_axis, y_axis
from fedveil.report.palette import coloured, dash, marker, reference_dash
from fedveil.report.svg import clean, document, element, pixels
from fedveil.report.tables import number
from fedveil.report.values import Numbers, numbers, spread

MARKED = 30  # a line with more points than this has markers on some of them only
SPACING = 60.0  # pixels from one of these to the next
CLOSE = 0.4  # pixels within which a further point of a line changes nothing


@dataclass(frozen=True)
class Series:
    """A named line. None and NaN are gaps. `low` and `high` are drawn as a band, or as a bar at each point."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    spread: Literal["band", "bars"] = "band"


@dataclass(frozen=True)
class Reference:
    """A named horizontal line, such as a published figure."""

    name: str
    y: float


@dataclass(frozen=True)
class _Points:
    """A series as arrays, all [points], NaN where nothing is known."""

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bars: bool


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_log: bool = False,
    y_log: bool = False,
    y_range: tuple[float, float] | None = None,
    references: Sequence[Reference] = (),
    width: float = 640,
    height: float = 400,
) -> str:
    """The chart as SVG. `height` is without the legend, which is below. What is beyond `y_range` is cut."""
    if not series:
        raise ValueError(f"chart {title!r} has no series: give at least one")
    lines = [_read(one, x_log, y_log) for one in series]
    x_values = np.concatenate([line.x[np.isfinite(line.x)] for line in lines])
    head, top = heading(title, width)
    y = _y(y_label, lines, references, y_log, y_range, height)
    box = box_beside(y, top=top, width=width, height=height)
    frame = Frame(box, around(x_label, x_values, log=x_log, length=box.width), y)
    rules = [_rule(frame, place, line) for place, line in enumerate(references)]
    entries = [(line.name, curve_sample(place)) for place, line in enumerate(lines)]
    entries += [(line.name, reference_sample(place)) for place, line in enumerate(references)]
    across, end = x_axis(frame)
    below, end = legend(entries, box, end)
    curves = [curve(frame, place, line.x, line.y) for place, line in enumerate(lines)]
    spreads = [_spread(frame, place, line) for place, line in enumerate(lines)]
    marks = [markers(frame, place, line.name, line.x, line.y) for place, line in enumerate(lines)]
    body = [head, y_axis(frame), across, frame.clipped(*spreads, *rules, *curves), *marks, below]
    return document(title, _says(lines, references, x_label, y_label), width, end + MARGIN, body)


def _y(
    label: str,
    lines: Sequence[_Points],
    references: Sequence[Reference],
    log: bool,
    given: tuple[float, float] | None,
    height: float,
) -> Axis:
    """The range that was given, or one that holds points, their spread and the references."""
    for line in references:
        if not math.isfinite(line.y) or (log and line.y <= 0):
            where = "a log axis; take y_log=False, or leave it out" if log else "an axis; leave it out"
            raise ValueError(f"reference {line.name!r}: y = {line.y:g} has no place on {where}")
    count = max(2, int(height // 65))
    if given:
        return between(label, *given, log=log, count=count)
    values = np.concatenate([values for line in lines for values in (line.y, line.low, line.high)])
    reached = np.append(values[np.isfinite(values)], [line.y for line in references])
    return reaching(label, reached, log=log, count=count)


def _read(series: Series, x_log: bool, y_log: bool) -> _Points:
    """The series as arrays, or an error that says what is wrong with it."""
    name, x, y = f"series {series.name!r}", numbers(series.x), numbers(series.y)
    if len(x) != len(y):
        raise ValueError(f"{name}: every point has an x and a y, got {len(x)} and {len(y)} of them")
    if not (np.isfinite(x) & np.isfinite(y)).any():
        raise ValueError(f"{name} has no point to draw; leave it out of the chart")
    low, high = spread(name, y, series.low, series.high)
    for key, log, values in (("x", x_log, x), ("y", y_log, y), ("low", y_log, low), ("high", y_log, high)):
        if log and (values <= 0).any():
            wrong = values[values <= 0][0]
            axis = "y" if key in ("low", "high") else key
            raise ValueError(
                f"{name}: {key} = {wrong:g} has no place on a log axis; take {axis}_log=False, or None for such points"
            )
    return _Points(series.name, x, y, low, high, series.spread == "bars")


def curve(frame: Frame, place: int, x: np.ndarray, y: np.ndarray) -> str:
    """The line through the points, broken at gaps."""
    across, up = frame.across(x), frame.up(y)
    path = "".join(_path(across[run], up[run]) for run in _runs(np.isfinite(across + up)))
    line = element(
        "path",
        d=path,
        fill="none",
        stroke="currentColor",
        stroke_width=2,
        stroke_linejoin="round",
        stroke_dasharray=dash(place),
    )
    return element("g", line, **coloured(place))


def markers(frame: Frame, place: int, name: str, x: np.ndarray, y: np.ndarray) -> str:
    """A marker at each point inside the rectangle, which says its numbers to the mouse; of many points, at some."""
    across, up = frame.across(x), frame.up(y)
    marks = [
        element(
            "path",
            element("title", clean(f"{name}: {number(float(x[i]))}, {number(float(y[i]))}")),
            d=marker(place),
            transform=f"translate({pixels(float(across[i]))} {pixels(float(up[i]))})",
            fill="currentColor",
        )
        for i in _marked(place, across, up)
        if frame.x.holds(x[i]) and frame.y.holds(y[i])
    ]
    return element("g", *marks, **coloured(place)) if marks else ""


def _marked(place: int, across: np.ndarray, up: np.ndarray) -> list[int]:
    """Which points get a marker: all of a few; of many, some that keep apart, and those that no line leads to."""
    finite = np.isfinite(across + up)
    points = np.flatnonzero(finite).tolist()
    if len(points) <= MARKED:
        return points
    alone = {run.start for run in _runs(finite) if run.stop - run.start == 1}
    shown, last = [], across[points[0]] - SPACING + (17 * place) % SPACING  # markers of several lines do not coincide
    for i in points:
        if abs(across[i] - last) >= SPACING or i in alone:
            shown.append(i)
            last = across[i]
    return shown


def curve_sample(place: int) -> str:
    """The line of the series with this place, for the legend."""
    line = element("path", d=f"M0 0H{SAMPLE:g}", stroke="currentColor", stroke_width=2, stroke_dasharray=dash(place))
    dot = element("path", d=marker(place), transform=f"translate({SAMPLE / 2:g} 0)", fill="currentColor")
    return element("g", line, dot, **coloured(place))


def reference_sample(place: int) -> str:
    """The dashed line of the reference with this place, for the legend."""
    return _dashed(f"M0 0H{SAMPLE:g}", place)


def reference(frame: Frame, place: int, x: np.ndarray, y: np.ndarray) -> str:
    """A dashed line that is no measurement."""
    return _dashed(_path(frame.across(x), frame.up(y)), place)


def _dashed(path: str, place: int) -> str:
    return element(
        "path",
        d=path,
        fill="none",
        stroke="currentColor",
        stroke_opacity=0.75,
        stroke_width=1.6,
        stroke_dasharray=reference_dash(place),
    )


def _rule(frame: Frame, place: int, line: Reference) -> str:
    return reference(frame, place, np.array([frame.x.low, frame.x.high]), np.array([line.y, line.y]))


def _spread(frame: Frame, place: int, line: _Points) -> str:
    """A band for each stretch of points; a bar where bars were asked for or a point stands alone."""
    across, low, high = frame.across(line.x), frame.up(line.low), frame.up(line.high)
    parts = []
    for run in _runs(np.isfinite(across + low + high)):
        if line.bars or run.stop - run.start == 1:
            parts += [error_bar(across[i], low[i], high[i]) for i in range(run.start, run.stop)]
        else:
            edge = np.append(across[run], across[run][::-1]), np.append(low[run], high[run][::-1])
            parts.append(element("path", d=_path(*edge) + "z", fill="currentColor", fill_opacity=0.16))
    return element("g", *parts, **coloured(place)) if parts else ""


def error_bar(x: float, low: float, high: float) -> str:
    """From low to high, both in pixels, with a short cap at each end."""
    x, low, high = float(x), float(low), float(high)
    caps = "".join(f"M{pixels(x - 3.5)} {pixels(y)}h7" for y in (low, high))
    return element(
        "path", d=f"M{pixels(x)} {pixels(low)}V{pixels(high)}{caps}", stroke="currentColor", stroke_width=1.4
    )


def _runs(known: np.ndarray) -> list[slice]:
    """The stretches without a gap."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    return [slice(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _path(x: np.ndarray, y: np.ndarray) -> str:
    """A line through pixels; points that all but coincide with the last are left out, save the final one."""
    kept = [0]
    for i in range(1, len(x)):
        if max(abs(x[i] - x[kept[-1]]), abs(y[i] - y[kept[-1]])) > CLOSE or i == len(x) - 1:
            kept.append(i)
    return "M" + "L".join(f"{pixels(float(x[i]))} {pixels(float(y[i]))}" for i in kept)


def _says(lines: Sequence[_Points], references: Sequence[Reference], x_label: str, y_label: str) -> str:
    parts = [f"Line chart of {y_label} against {x_label}."]
    for line in lines:
        known = np.flatnonzero(np.isfinite(line.x) & np.isfinite(line.y))
        (x0, y0), (x1, y1) = ((number(line.x[i]), number(line.y[i])) for i in (known[0], known[-1]))
        least, most = number(line.y[known].min()), number(line.y[known].max())
        points = f"{len(known)} point{'s' if len(known) > 1 else ''}"
        parts.append(f"{line.name}: {points}, {y0} at {x0} to {y1} at {x1}, between {least} and {most}.")
    return " ".join(parts + [f"Reference line {line.name}: {number(line.y)}." for line in references])
