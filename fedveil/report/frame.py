"""What the charts share: the heading, the axes around the data, names along an axis, and the legend below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedveil.report.axes import TICK_SIZE, Axis
from fedveil.report.svg import ID, LINE, element, pixels, text_lines, text_width, wrapped

MARGIN = 16.0
RIGHT = 24.0  # margin on the right, for half a tick's text
TITLE_SIZE = 15.0
LABEL_SIZE = 12.5
LEGEND_SIZE = 12.0
SAMPLE = 30.0  # width of the sample beside a name in the legend
STEEP = 40.0  # degrees by which names turn that are too wide to stand side by side
BOLD = 1.1  # how much wider bold text is


@dataclass(frozen=True)
class Box:
    """The rectangle that the data is drawn in, in pixels from the upper left corner of the chart."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top


@dataclass(frozen=True)
class Frame:
    """The rectangle with its axes: from numbers to pixels."""

    box: Box
    x: Axis
    y: Axis

    def across(self, values: np.ndarray | float) -> np.ndarray:
        return self.box.left + self.x.share(values) * self.box.width

    def up(self, values: np.ndarray | float) -> np.ndarray:
        return self.box.bottom - self.y.share(values) * self.box.height

    def clipped(self, *parts: str) -> str:
        """Parts of which only what lies inside the rectangle is seen; lines on its edge are seen whole."""
        box = self.box
        hole = element("rect", x=box.left - 2, y=box.top - 2, width=box.width + 4, height=box.height + 4)
        return element("clipPath", hole, id=f"{ID}-clip") + element("g", *parts, clip_path=f"url(#{ID}-clip)")


def heading(title: str, width: float) -> tuple[str, float]:
    """The title, and the height that it takes."""
    lines = wrapped(title, (width - 2 * MARGIN) / BOLD, TITLE_SIZE)
    top = MARGIN + TITLE_SIZE
    return (
        text_lines(lines, MARGIN, top, size=TITLE_SIZE, anchor="start", weight="600"),
        top + (len(lines) - 1) * TITLE_SIZE * LINE + MARGIN,
    )


def box_beside(y: Axis, *, top: float, width: float, height: float) -> Box:
    """The rectangle that the texts of the axes leave free; more lines than one below it come on top of the height."""
    bottom = height - 8 - (TICK_SIZE + LABEL_SIZE) * LINE
    left = MARGIN + len(wrapped(y.label, bottom - top, LABEL_SIZE)) * LABEL_SIZE * LINE + 4 + y.widest() + 8
    return Box(left, top, width - RIGHT, bottom)


def y_axis(frame: Frame) -> str:
    """Lines across the chart at the ticks, their texts, and the label along the axis."""
    box, axis = frame.box, frame.y
    places = frame.up(np.array(axis.ticks))
    rules = [_rule(box.left, place, box.right, place) for place in places]
    short = [_tick(box.left, place, box.left - 3, place) for place in frame.up(np.array(axis.minor))]
    texts = [
        text_lines([text], box.left - 7, place + TICK_SIZE * 0.36, size=TICK_SIZE, anchor="end")
        for text, place in zip(axis.texts, places, strict=True)
    ]
    return element("g", *rules, *short, *texts, class_="y-axis") + side_label(axis.label, box)


def side_label(label: str, box: Box) -> str:
    """A label along the left edge, read upwards."""
    lines = wrapped(label, box.height, LABEL_SIZE)
    return text_lines(lines, MARGIN + LABEL_SIZE * 0.8, (box.top + box.bottom) / 2, size=LABEL_SIZE, turn=-90)


def x_axis(frame: Frame) -> tuple[str, float]:
    """The axis below with its ticks, their texts and its label; and where they end."""
    box, axis = frame.box, frame.x
    places = frame.across(np.array(axis.ticks))
    rules = [_rule(place, box.top, place, box.bottom) for place in places]
    ticks = [_tick(place, box.bottom, place, box.bottom + 5) for place in places]
    short = [_tick(place, box.bottom, place, box.bottom + 3) for place in frame.across(np.array(axis.minor))]
    texts = [
        text_lines([text], place, box.bottom + 6 + TICK_SIZE, size=TICK_SIZE)
        for text, place in zip(axis.texts, places, strict=True)
    ]
    label, end = below_label(axis.label, box, box.bottom + 6 + TICK_SIZE * LINE)
    return element("g", *rules, *ticks, *short, *texts, class_="x-axis") + axis_line(box, box.bottom) + label, end


def below_label(label: str, box: Box, top: float) -> tuple[str, float]:
    """A label below the rectangle, under what ends at `top`; and where it ends."""
    lines = wrapped(label, box.width, LABEL_SIZE)
    text = text_lines(lines, (box.left + box.right) / 2, top + 2 + LABEL_SIZE, size=LABEL_SIZE)
    return text, top + 2 + len(lines) * LABEL_SIZE * LINE


def axis_line(box: Box, y: float) -> str:
    """A line across the rectangle."""
    return _tick(box.left, y, box.right, y)


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke="currentColor", stroke_opacity=0.13)


def _tick(x1: float, y1: float, x2: float, y2: float) -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke="currentColor", stroke_opacity=0.6)


def beside_names(names: Sequence[str], box: Box) -> Box:
    """The rectangle, with as much more room on its left as names below it need that are turned."""
    part = box.width / len(names)
    if not _turned(names, part):
        return box
    slant = math.cos(math.radians(STEEP))
    reach = max(text_width(name, TICK_SIZE) * slant - place * part for place, name in enumerate(names))
    return replace(box, left=max(box.left, reach + 4))


def _turned(names: Sequence[str], part: float) -> bool:
    """Whether some word of a name is wider than the name's part of the axis."""
    return any(text_width(word, TICK_SIZE) > part - 6 for name in names for word in name.split())


def names_below(names: Sequence[str], box: Box) -> tuple[str, float]:
    """Names under equal parts of the rectangle's lower edge, and where they end; turned if too wide to wrap."""
    part = box.width / len(names)
    middles = [box.left + (place + 0.5) * part for place in range(len(names))]
    top = box.bottom + 6
    if not _turned(names, part):
        lines = [wrapped(name, part - 6, TICK_SIZE) for name in names]
        texts = [text_lines(own, x, top + TICK_SIZE, size=TICK_SIZE) for own, x in zip(lines, middles, strict=True)]
        return "".join(texts), top + max(len(own) for own in lines) * TICK_SIZE * LINE
    texts = [
        text_lines([" ".join(name.split())], x + 4, top + 8, size=TICK_SIZE, anchor="end", turn=-STEEP)
        for name, x in zip(names, middles, strict=True)
    ]
    fall = max(text_width(name, TICK_SIZE) for name in names) * math.sin(math.radians(STEEP))
    return "".join(texts), top + TICK_SIZE + fall


def legend(entries: Sequence[tuple[str, str]], box: Box, top: float) -> tuple[str, float]:
    """Names, each beside its sample (drawn from (0, 0) to the right), in columns under what ends at `top`; where it ends.

    Being below the axes, it covers nothing. Names too wide for the chart go over several lines.
    """
    before = SAMPLE + 8
    lines = [wrapped(name, box.width - before, LEGEND_SIZE) or [""] for name, _ in entries]
    column = before + max(text_width(line, LEGEND_SIZE) for own in lines for line in own) + 20
    columns = max(1, int((box.width + 20) // column))
    parts, y = [], top + 12 + LEGEND_SIZE
    for first in range(0, len(entries), columns):
        row = range(first, min(first + columns, len(entries)))
        for place in row:
            x = box.left + (place - first) * column
            at = f"translate({pixels(x)} {pixels(y - LEGEND_SIZE * 0.36)})"
            parts.append(element("g", entries[place][1], transform=at))
            parts.append(text_lines(lines[place], x + before, y, size=LEGEND_SIZE, anchor="start"))
        y += max(len(lines[place]) for place in row) * LEGEND_SIZE * LINE + 4
    return element("g", *parts, class_="legend"), y - LEGEND_SIZE
