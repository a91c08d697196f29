"""Heat maps: a grid of values as colours, each with its number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedveil.report.axes import TICK_SIZE, Axis, fitting, reaching
from fedveil.report.frame import (
    LABEL_SIZE,
    MARGIN,
    RIGHT,
    Box,
    below_label,
    beside_names,
    heading,
    names_below,
    side_label,
)
from fedveil.report.palette import RAMP, readable_on, shade
from fedveil.report.svg import ID, LINE, document, element, text_lines, text_width, wrapped
from fedveil.report.tables import number
from fedveil.report.values import Numbers, numbers

CELL_HEIGHT = 36.0  # pixels, at least
CELL_SIZE = 12.0  # of the font
MISSING_SIZE = 10.0
SCALE_LENGTH = 220.0  # pixels
WIDEST_NAME = 170.0  # pixels for the names of rows; longer ones go over several lines


def heat_map(
    values: Sequence[Numbers] | np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    x_label: str,
    y_label: str,
    scale_label: str,
    missing: str = "not run",
    value_range: tuple[float, float] | None = None,
    width: float = 640,
) -> str:
    """The chart as SVG: values [rows, columns]. None and NaN are empty cells that say `missing`.

    `width` is the least; it grows where numbers would not fit into their cells. The height follows from the rows.
    """
    grid = _read(values, rows, columns, title)
    scale = _scale(scale_label, grid, value_range, title)
    names = [wrapped(name, WIDEST_NAME, TICK_SIZE) or [""] for name in rows]
    least = max((text_width(text, size) + 8 for text, size in _contents(grid, missing)), default=0.0)
    box = beside_names(columns, Box(_beside(names, y_label), 0.0, width - RIGHT, 0.0))
    box = replace(box, right=max(box.right, box.left + len(columns) * least))
    head, top = heading(title, box.right + RIGHT)
    empty = wrapped(missing, box.width / len(columns) - 8, MISSING_SIZE)
    high = max(CELL_HEIGHT, _tallest(names) * TICK_SIZE * LINE + 8, len(empty) * MISSING_SIZE * LINE + 8)
    box = replace(box, top=top, bottom=top + high * len(rows))
    cells = [_cell(_part(box, grid, *place), float(grid[place]), scale, empty) for place in np.ndindex(*grid.shape)]
    beside = [_row_name(lines, box.left - 7, top + (row + 0.5) * high) for row, lines in enumerate(names)]
    below, end = names_below(columns, box)
    label, end = below_label(x_label, box, end)
    bar, end = _colour_bar(scale, box, end)
    body = [head, *cells, *beside, side_label(y_label, box), below, label, bar]
    return document(title, _says(grid, rows, columns, scale_label, missing), box.right + RIGHT, end + MARGIN, body)


def _read(
    values: Sequence[Numbers] | np.ndarray, rows: Sequence[str], columns: Sequence[str], title: str
) -> np.ndarray:
    """The values [rows, columns], NaN where there are none."""
    if not len(rows) or not len(columns):
        raise ValueError(f"chart {title!r} has nothing to draw: give at least one row and one column")
    sizes = [len(row) for row in values]
    if sizes != [len(columns)] * len(rows):
        raise ValueError(f"chart {title!r}: {len(rows)} rows of {len(columns)} values are named, got rows of {sizes}")
    return np.array([numbers(row) for row in values])


def _scale(label: str, grid: np.ndarray, given: tuple[float, float] | None, title: str) -> Axis:
    """Which numbers the ends of the colours stand for."""
    known = grid[np.isfinite(grid)]
    if given is None and not len(known):
        raise ValueError(f"chart {title!r} has no value to scale its colours by; give value_range=(low, high)")
    low, high = given if given else (reaching(label, known).low, reaching(label, known).high)
    return fitting(label, low, high, length=SCALE_LENGTH)


def _contents(grid: np.ndarray, missing: str) -> list[tuple[str, float]]:
    """What has to fit into a cell, with its size: each number, and each word that an empty cell says."""
    texts = [(number(float(value), 3), CELL_SIZE) for value in grid[np.isfinite(grid)]]
    return texts + ([(word, MISSING_SIZE) for word in missing.split()] if np.isnan(grid).any() else [])


def _tallest(names: Sequence[Sequence[str]]) -> int:
    return max(len(lines) for lines in names)


def _beside(names: Sequence[Sequence[str]], y_label: str) -> float:
    """The room that the names of rows and the label along them take on the left, in pixels."""
    label = len(wrapped(y_label, CELL_HEIGHT * len(names), LABEL_SIZE)) * LABEL_SIZE * LINE
    return MARGIN + label + 12 + max(text_width(line, TICK_SIZE) for lines in names for line in lines)


def _part(box: Box, grid: np.ndarray, row: int, column: int) -> Box:
    """The cell's part of the rectangle."""
    wide, high = box.width / grid.shape[1], box.height / grid.shape[0]
    left, top = box.left + column * wide, box.top + row * high
    return Box(left, top, left + wide, top + high)


def _cell(box: Box, value: float, scale: Axis, empty: Sequence[str]) -> str:
    """One cell with its number; an empty one has a dashed edge and says so."""
    place = {"x": box.left + 1, "y": box.top + 1, "width": box.width - 2, "height": box.height - 2, "rx": 2}
    if np.isnan(value):
        edge = element("rect", **place, fill="none", stroke="currentColor", stroke_opacity=0.45, stroke_dasharray="3 3")
        return edge + _centred(empty, box, MISSING_SIZE, "currentColor")
    colour = shade(float(scale.share(value)))
    return element("rect", **place, fill=colour) + _centred([number(value, 3)], box, CELL_SIZE, readable_on(colour))


def _centred(lines: Sequence[str], box: Box, size: float, fill: str) -> str:
    return text_lines(
        lines, (box.left + box.right) / 2, _first((box.top + box.bottom) / 2, lines, size), size=size, fill=fill
    )


def _first(middle: float, lines: Sequence[str], size: float) -> float:
    """The baseline of the first of several lines about a middle."""
    return middle + size * (0.36 - (len(lines) - 1) * LINE / 2)


def _row_name(lines: Sequence[str], x: float, y: float) -> str:
    return text_lines(lines, x, _first(y, lines, TICK_SIZE), size=TICK_SIZE, anchor="end")


def _colour_bar(scale: Axis, box: Box, top: float) -> tuple[str, float]:
    """The legend: which colour stands for which number; and where it ends below."""
    stops = [element("stop", offset=place / (len(RAMP) - 1), stop_color=colour) for place, colour in enumerate(RAMP)]
    gradient = element("defs", element("linearGradient", *stops, id=f"{ID}-ramp"))
    left = min(box.left, box.right - SCALE_LENGTH - scale.widest() / 2)
    lines = wrapped(scale.label, box.right - left, LABEL_SIZE)
    first = top + 10 + LABEL_SIZE
    y = first + (len(lines) - 1) * LABEL_SIZE * LINE + 6
    bar = element("rect", x=left, y=y, width=SCALE_LENGTH, height=12, rx=2, fill=f"url(#{ID}-ramp)")
    texts = [
        text_lines([text], left + float(scale.share(tick)) * SCALE_LENGTH, y + 16 + TICK_SIZE, size=TICK_SIZE)
        for tick, text in zip(scale.ticks, scale.texts, strict=True)
    ]
    label = text_lines(lines, left, first, size=LABEL_SIZE, anchor="start")
    return element("g", gradient, label, bar, *texts, class_="legend"), y + 16 + TICK_SIZE * LINE


def _says(grid: np.ndarray, rows: Sequence[str], columns: Sequence[str], label: str, missing: str) -> str:
    parts = [f"Heat map of {label}."]
    for name, row in zip(rows, grid, strict=True):
        texts = [missing if np.isnan(value) else number(float(value), 3) for value in row]
        parts.append(f"{name}: {', '.join(f'{column} {text}' for column, text in zip(columns, texts, strict=True))}.")
    return " ".join(parts)
