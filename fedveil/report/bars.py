"""Bars in groups, each with its value and what is known of its spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedveil.report.axes import Axis, between, reaching
from fedveil.report.frame import (
    MARGIN,
    RIGHT,
    SAMPLE,
    Frame,
    axis_line,
    below_label,
    beside_names,
    box_beside,
    heading,
    legend,
    names_below,
    y_axis,
)
from fedveil.report.lines import error_bar
from fedveil.report.palette import coloured, hatch
from fedveil.report.svg import ID, clean, document, element, text_lines, text_width
from fedveil.report.tables import number
from fedveil.report.values import Numbers, numbers, spread

VALUE_SIZE = 10.5
FILLED = 0.8  # the share of a group's width that bars take
WIDEST = 64.0  # pixels from bar to bar at most
LEAST = 14.0  # pixels from bar to bar, so that values that are turned upright keep apart


@dataclass(frozen=True)
class Bars:
    """A named kind of bar: one value for each group, None where there is none. `low` and `high` are drawn as error bars."""

    name: str
    values: Numbers
    low: Numbers | None = None
    high: Numbers | None = None


@dataclass(frozen=True)
class _Heights:
    """Bars as arrays, all [groups], NaN where nothing is known."""

    name: str
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def top(self) -> np.ndarray:
        return np.fmax(self.values, self.high)

    @property
    def bottom(self) -> np.ndarray:
        return np.fmin(self.values, self.low)


def bar_chart(
    groups: Sequence[str],
    bars: Sequence[Bars],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    width: float = 640,
    height: float = 400,
) -> str:
    """The chart as SVG: for each group one bar of each kind, from 0. `width` is the least; it grows where bars would touch.

    `height` is that of the chart without the legend and without names of groups that need more than one line.
    """
    if not groups or not bars:
        raise ValueError(f"chart {title!r} has nothing to draw: give at least one group and one kind of bar")
    kinds = [_read(one, groups) for one in bars]
    head, top = heading(title, width)
    frame = _frame(groups, kinds, _y(y_label, kinds, y_range, height, VALUE_SIZE), x_label, top, width, height)
    upright = _written(kinds) + 2 > _pitch(frame, kinds)
    if upright:
        frame = _frame(groups, kinds, _y(y_label, kinds, y_range, height, _written(kinds)), x_label, top, width, height)
    box = frame.box
    names, end = names_below(groups, box)
    label, end = below_label(x_label, box, end)
    below, end = legend([(one.name, _sample(place)) for place, one in enumerate(kinds)], box, end)
    patterns = element("defs", *(_pattern(place) for place in range(len(kinds))))
    marks = [_bars(frame, place, kinds, groups, upright) for place in range(len(kinds))]
    body = [patterns, head, y_axis(frame), *marks, axis_line(box, _cut(frame, 0.0)), names, label, below]
    return document(title, _says(kinds, groups, y_label), box.right + RIGHT, end + MARGIN, body)


def _read(one: Bars, groups: Sequence[str]) -> _Heights:
    """The bars as arrays, or an error that says what is wrong with them."""
    name, values = f"bars {one.name!r}", numbers(one.values)
    if len(values) != len(groups):
        raise ValueError(f"{name}: one value for each of {len(groups)} groups, got {len(values)}")
    if not np.isfinite(values).any():
        raise ValueError(f"{name} have no value to draw; leave them out of the chart")
    return _Heights(one.name, values, *spread(name, values, one.low, one.high))


def _written(kinds: Sequence[_Heights]) -> float:
    """The width of the widest value as it is written, in pixels."""
    return max(text_width(number(float(value), 3), VALUE_SIZE) for one in kinds for value in one.values)


def _y(label: str, kinds: Sequence[_Heights], given: tuple[float, float] | None, height: float, text: float) -> Axis:
    """The axis from 0 to the ends of bars, with room for values that are so many pixels high."""
    count = max(2, int(height // 65))
    if given:
        return between(label, *given, count=count)
    highest = max(0.0, *(float(np.nanmax(one.top)) for one in kinds))
    lowest = min(0.0, *(float(np.nanmin(one.bottom)) for one in kinds))
    room = (highest - lowest) * (text + 6) / (height - 8 * MARGIN)
    reached = [highest + room if highest > 0 else 0.0, lowest - room if lowest < 0 else 0.0]
    return reaching(label, np.array(reached), count=count)


def _frame(
    groups: Sequence[str], kinds: Sequence[_Heights], y: Axis, x_label: str, top: float, width: float, height: float
) -> Frame:
    """Axes of which the one below is as wide as bars need."""
    box = beside_names(groups, box_beside(y, top=top, width=width, height=height))
    box = replace(box, right=max(box.right, box.left + len(groups) * len(kinds) * LEAST / FILLED))
    return Frame(box, Axis(x_label, 0.0, float(len(groups)), False, (), ()), y)


def _pitch(frame: Frame, kinds: Sequence[_Heights]) -> float:
    """Pixels from bar to bar."""
    return min(frame.box.width / frame.x.high * FILLED / len(kinds), WIDEST)


def _bars(frame: Frame, place: int, kinds: Sequence[_Heights], groups: Sequence[str], upright: bool) -> str:
    """All bars of one kind; over them, in the colour of text, their error bars and values."""
    one, pitch = kinds[place], _pitch(frame, kinds)
    bars, over = [], []
    for group in np.flatnonzero(np.isfinite(one.values)).tolist():
        value, low, high = (float(array[group]) for array in (one.values, one.low, one.high))
        middle = float(frame.across(group + 0.5)) + (place - (len(kinds) - 1) / 2) * pitch
        says = f"{one.name}, {groups[group]}: {number(value)}"
        bars.append(_bar(middle, pitch * 0.9, _cut(frame, 0.0), _cut(frame, value), f"url(#{ID}-hatch{place})", says))
        if np.isfinite(low + high):
            over.append(error_bar(middle, _cut(frame, low), _cut(frame, high)))
        over.append(_value(frame, middle, value, float(one.bottom[group] if value < 0 else one.top[group]), upright))
    return element("g", *bars, **coloured(place)) + element("g", *over)


def _bar(middle: float, width: float, start: float, end: float, fill: str, says: str) -> str:
    return element(
        "rect",
        element("title", clean(says)),
        x=middle - width / 2,
        y=min(start, end),
        width=width,
        height=abs(end - start),
        fill=fill,
        stroke="currentColor",
    )


def _cut(frame: Frame, value: float) -> float:
    """Where a value is drawn: at the nearest end of the axis if it is beyond."""
    return float(frame.up(min(max(value, frame.y.low), frame.y.high)))


def _value(frame: Frame, middle: float, value: float, end: float, upright: bool) -> str:
    """The value as text beyond the end of its bar and error bar."""
    text, below = [number(value, 3)], value < 0
    y = _cut(frame, end) + (5 if below else -5)
    if upright:
        side: Literal["start", "end"] = "end" if below else "start"
        return text_lines(text, middle + VALUE_SIZE * 0.36, y, size=VALUE_SIZE, anchor=side, turn=-90)
    return text_lines(text, middle, y + (VALUE_SIZE * 0.75 if below else 0), size=VALUE_SIZE)


def _pattern(place: int) -> str:
    """What bars with this place are filled with: a tint with strokes, so that grey print tells them apart."""
    strokes = hatch(place)
    tint = element("rect", width=6, height=6, fill="currentColor", fill_opacity=0.3 if strokes else 0.85)
    drawn = element("path", d=strokes, stroke="currentColor", stroke_width=1.3) if strokes else ""
    tile = {"width": 6, "height": 6, "patternUnits": "userSpaceOnUse"}
    return element("pattern", tint, drawn, id=f"{ID}-hatch{place}", **tile, **coloured(place))


def _sample(place: int) -> str:
    box = element(
        "rect", x=0, y=-7, width=SAMPLE - 4, height=13, fill=f"url(#{ID}-hatch{place})", stroke="currentColor"
    )
    return element("g", box, **coloured(place))


def _says(kinds: Sequence[_Heights], groups: Sequence[str], y_label: str) -> str:
    parts = [f"Bar chart of {y_label}."]
    for one in kinds:
        values = [
            f"{name} {number(float(v)) if np.isfinite(v) else '–'}" for name, v in zip(groups, one.values, strict=True)
        ]
        parts.append(f"{one.name}: {', '.join(values)}.")
    return " ".join(parts)
