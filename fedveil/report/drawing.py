"""Charts drawn by matplotlib: one function for each kind of content.

Series differ by colour, and without colour by marker, dash and hatching. The six colours stay apart for readers with any of
the three kinds of colour blindness. Text is never read as mathematics: names may hold `$` or `_`.
"""

from __future__ import annotations

import logging
import math
import textwrap
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedveil.report.charts import Chart, Frame, Grid, Groups, Kind, Line, Lines, Rates
from fedveil.report.tables import FORBIDDEN, number


@contextmanager
def quiet() -> Iterator[None]:
    """Without what matplotlib says about its font cache and about characters that its font lacks."""
    logger = logging.getLogger("matplotlib")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


with quiet():  # the first import on a machine builds a font cache and says so
    import matplotlib
    from matplotlib import ticker
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Rectangle

LIGHT = ("#0955c6", "#e0480f", "#0a9268", "#922281", "#6b4a1b", "#1e9fd3")
DARK = ("#3b8cff", "#f0652f", "#20cd95", "#b07ab8", "#e5de32", "#a9e0fe")  # the same on a dark page
INK, DARK_INK = "#1f2328", "#e6e8eb"  # text and axes
PAPER = ("#ffffff", "#16191d")  # light and dark, behind a chart that stands alone
DASHES = ("-", (0, (7, 3)), (0, (2.5, 2.5)), (0, (9, 3, 2.5, 3)), (0, (12, 3)))
REFERENCE_DASHES = ((2, 4), (6, 4), (11, 4, 2, 4), (1.5, 2.5), (14, 5), (6, 3, 1.5, 3, 1.5, 3))
MARKERS = "os^DvXP"
HATCHES = ("", "//", "xx", "\\\\", "--", "++", "||")
RAMP = "YlGnBu"  # lightness falls all the way, so that grey print keeps the order

DPI = 96  # pixels of the screen per inch
STYLE = {
    "figure.dpi": DPI,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.formatter.limits": (-4, 5),
    "axes.formatter.useoffset": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "grid.color": INK,
    "grid.alpha": 0.13,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "lines.scale_dashes": False,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedveil",
    "pdf.fonttype": 42,
    "pgf.rcfonts": False,
}
PAD = 0.08  # inches around the chart
EDGE = 1e-3  # where the log axes of a ROC chart begin
SHADED = 8.0  # a larger ε allows nearly everything: shading it would hide the others
MARKED = 30  # a longer line has markers at some of its points only
FEW = 10  # this many
SLANT = 40  # degrees by which names turn that are too wide for a horizontal line
BAR = 14.0  # least pixels from bar to bar, so that their upright values stay apart
FILLED = 0.8  # share of a group's width that bars take

_LOCK = threading.RLock()  # matplotlib's settings belong to the process
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass
class Drawing:
    """A figure, and for the artists with these gids what the mouse shows over each of their marks."""

    figure: Figure
    tips: dict[str, list[str]] = field(default_factory=dict)


@contextmanager
def style() -> Iterator[None]:
    """Our settings instead of the user's, for one thread at a time."""
    with _LOCK, matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def draw(chart: Chart) -> Drawing:
    """The figure of a chart, with its layout settled."""
    with style(), quiet():
        figure = Figure(figsize=(chart.frame.width / DPI, chart.frame.height / DPI), layout="constrained")
        FigureCanvasAgg(figure)
        figure.get_layout_engine().set(w_pad=PAD, h_pad=PAD)
        made = Drawing(figure)
        axes = figure.add_subplot()
        figure.suptitle(
            wrapped(figure, chart.frame.title, chart.frame.width - 30, 11, bold=True),
            x=10 / chart.frame.width, ha="left", fontsize=11, fontweight="bold",
        )  # fmt: skip
        match chart.content:
            case Lines():
                _lines(made, axes, chart.frame, chart.content)
            case Groups():
                _bars(made, axes, chart.frame, chart.content)
            case Grid():
                _heat(made, axes, chart.frame, chart.content)
            case Rates():
                _roc(made, axes, chart.frame, chart.content)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        return made


# --- texts


def clean(text: object) -> str:
    """Text without the characters that XML forbids."""
    return FORBIDDEN.sub("\ufffd", str(text))


def _width(figure: Figure, text: str, size: float, bold: bool = False) -> float:
    """How wide a text is drawn, in pixels."""
    font = FontProperties(size=size, weight="bold" if bold else "normal")
    return float(figure.canvas.get_renderer().get_text_width_height_descent(text, font, False)[0])  # type: ignore[attr-defined]


def wrapped(figure: Figure, text: str, width: float, size: float, bold: bool = False) -> str:
    """Text in lines of about this width in pixels; a longer word is cut."""
    text = " ".join(clean(text).split())
    letter = _width(figure, text, size, bold) / max(1, len(text))
    return textwrap.fill(text, max(4, int(width / max(letter, 1.0))), break_on_hyphens=False)


def _labels(figure: Figure, axes: Axes, frame: Frame) -> None:
    if frame.x_label:
        axes.set_xlabel(wrapped(figure, frame.x_label, frame.width - 100, 9.5), fontsize=9.5)
    if frame.y_label:
        axes.set_ylabel(wrapped(figure, frame.y_label, frame.height - 100, 9.5), fontsize=9.5)


def _legend(figure: Figure, handles: Sequence[Line2D | Patch], names: Sequence[str]) -> None:
    """The names below the chart, which grows by the height that they need."""
    wide, high = figure.get_size_inches() * DPI
    texts = [wrapped(figure, name, wide - 80, 9) for name in names]
    column = max(_width(figure, line, 9) for text in texts for line in text.split("\n") or [""]) + 60
    made = figure.legend(
        handles, texts, loc="outside lower left", ncols=max(1, min(len(texts), int((wide - 20) // column))),
        fontsize=9, handlelength=3.0, columnspacing=1.5, labelspacing=0.4,
    )  # fmt: skip
    below = made.get_window_extent(figure.canvas.get_renderer()).height  # type: ignore[attr-defined]
    figure.set_size_inches(wide / DPI, (high + below) / DPI)


def _names_below(figure: Figure, axes: Axes, names: Sequence[str], part: float) -> None:
    """Names under equal parts of the x axis, each `part` pixels wide; slanted where a word does not fit."""
    slanted = any(_width(figure, word, 9) > part - 6 for name in names for word in clean(name).split())
    texts = [wrapped(figure, name, 300 if slanted else part - 6, 9) for name in names]
    turn = {"rotation": SLANT, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    axes.set_xticks(range(len(names)), texts, **turn)
    axes.tick_params(axis="x", length=0)


# --- axes


class _LogFormatter(ticker.LogFormatter):
    """The ticks that matplotlib would label, as plain numbers or powers of ten."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        if not super().__call__(x, pos):
            return ""
        if 1e-3 <= x < 1e5:
            return f"{x:g}"
        mantissa, power = f"{x:.0e}".split("e")
        times = "" if mantissa == "1" else f"{mantissa}×"
        return f"{times}10{str(int(power)).translate(_SUPERSCRIPTS)}"


def _scales(axes: Axes, frame: Frame, whole: bool = False) -> None:
    """Log or linear axes with round ticks; `whole` keeps those of the x axis to whole numbers."""
    for axis, log in ((axes.xaxis, frame.x_log), (axes.yaxis, frame.y_log)):
        if log:
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
            axis.set_major_formatter(_LogFormatter(minor_thresholds=(1.5, 0.6)))
            axis.set_minor_formatter(_LogFormatter(labelOnlyBase=False, minor_thresholds=(1.5, 0.6)))
        else:
            count, integer = ("auto", whole) if axis is axes.xaxis else (6, False)
            axis.set_major_locator(ticker.MaxNLocator(count, steps=[1, 2, 5, 10], integer=integer))
    axes.grid(True)


def _holding(low: float, high: float, log: bool) -> tuple[float, float]:
    """Limits that hold both numbers: round ones, or with some room on a log axis."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = (low / 2, high * 2) if log else (low - abs(low) / 10, high + abs(high) / 10) if low else (0.0, 1.0)
    if log:
        room = (high / low) ** 0.05
        return low / room, high * room
    ticks = ticker.MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(low, high)
    return float(ticks[ticks <= low + 1e-9 * (high - low)][-1]), float(ticks[ticks >= high - 1e-9 * (high - low)][0])


def _look(place: int) -> dict[str, Any]:
    """Colour and dash of the series with this index."""
    return {"color": LIGHT[place % len(LIGHT)], "linestyle": DASHES[place % len(DASHES)]}


def _mark(place: int) -> dict[str, Any]:
    return {"marker": MARKERS[place % len(MARKERS)], "markersize": 5.5, "markeredgewidth": 0}


def _reference(place: int) -> dict[str, Any]:
    dash = (0, REFERENCE_DASHES[place % len(REFERENCE_DASHES)])
    return {"color": INK, "alpha": 0.75, "linewidth": 1.3, "linestyle": dash}


# --- lines


def _lines(made: Drawing, axes: Axes, frame: Frame, content: Lines) -> None:
    figure = made.figure
    x = np.concatenate([line.x[~np.isnan(line.x)] for line in content.lines])
    ends = [values for line in content.lines for values in (line.y, line.low, line.high)]
    y = np.concatenate([*ends, [one.y for one in content.references]])
    _scales(axes, frame, whole=bool((x == np.round(x)).all()))
    _labels(figure, axes, frame)
    axes.set_xlim(*_padded(float(x.min()), float(x.max()), frame.x_log))
    axes.set_ylim(*(frame.y_range or _holding(float(np.nanmin(y)), float(np.nanmax(y)), frame.y_log)))
    for place, line in enumerate(content.lines):
        _spread(axes, place, line)
        axes.plot(line.x, line.y, gid=f"line-{place}", **_look(place))
        _markers(made, axes, place, line.name, (line.x, line.y))
    for place, one in enumerate(content.references):
        axes.axhline(one.y, gid=f"reference-{place}", **_reference(place))
    handles = [Line2D([], [], **_look(place), **_mark(place)) for place in range(len(content.lines))]
    handles += [Line2D([], [], **_reference(place)) for place in range(len(content.references))]
    _legend(figure, handles, [one.name for one in (*content.lines, *content.references)])


def _padded(low: float, high: float, log: bool) -> tuple[float, float]:
    """Limits with 3 % of room on both sides."""
    if low == high:
        return _holding(low, high, log)
    if log:
        return low / (high / low) ** 0.03, high * (high / low) ** 0.03
    return low - 0.03 * (high - low), high + 0.03 * (high - low)


def _runs(known: np.ndarray) -> list[slice]:
    """The stretches without a gap."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    return [slice(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _spread(axes: Axes, place: int, line: Line) -> None:
    """A band over each stretch of points; error bars where they were asked for, and at a point without neighbours."""
    colour = LIGHT[place % len(LIGHT)]
    for run in _runs(~np.isnan(line.x + line.low + line.high)):
        if line.bars or run.stop - run.start == 1:
            _error_bars(axes, line.x[run], line.low[run], line.high[run], colour)
        else:
            axes.fill_between(line.x[run], line.low[run], line.high[run], color=colour, alpha=0.16, linewidth=0)


def _error_bars(axes: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str) -> None:
    """Bars from low to high; a measured value need not be inside."""
    axes.errorbar(x, (low + high) / 2, (high - low) / 2, fmt="none", ecolor=colour, elinewidth=1, capsize=2.6)


def _markers(made: Drawing, axes: Axes, place: int, name: str, points: tuple[np.ndarray, np.ndarray]) -> None:
    """Markers at all points of a short line, and at some of a long one, with their numbers for the mouse."""
    (x, y), (bottom, top) = points, axes.get_ylim()
    known = ~np.isnan(x + y)
    shown = np.flatnonzero(known)
    if len(shown) > MARKED:
        alone = [run.start for run in _runs(known) if run.stop - run.start == 1]
        step = len(shown) // FEW
        shown = np.union1d(shown[(step * place // 3) % step :: step], np.array(alone, int))  # lines take turns
    shown = shown[(y[shown] >= bottom) & (y[shown] <= top)]
    gid = f"points-{place}"
    axes.plot(
        x[shown], y[shown], linestyle="none", color=LIGHT[place % len(LIGHT)], gid=gid, clip_on=False, zorder=3,
        **_mark(place),
    )  # fmt: skip
    made.tips[gid] = [f"{name}: {number(float(x[i]))}, {number(float(y[i]))}" for i in shown]


# --- bars


def _bars(made: Drawing, axes: Axes, frame: Frame, content: Groups) -> None:
    figure, kinds = made.figure, content.kinds
    count = len(content.groups)
    width = max(frame.width, count * len(kinds) * BAR / FILLED + 90)
    figure.set_size_inches(width / DPI, frame.height / DPI)
    part = (width - 90) / count
    pitch = min(part * FILLED / len(kinds), 64.0) / part  # from bar to bar, where groups are 1 apart
    texts = [number(float(value), 3) for one in kinds for value in one.values[~np.isnan(one.values)]]
    widest = max(_width(figure, text, 8) for text in texts)
    upright = widest + 2 > pitch * part
    _scales(axes, frame)
    axes.grid(False, axis="x")
    _labels(figure, axes, frame)
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(*(frame.y_range or _bar_limits(kinds, (widest if upright else 12) + 8, frame.height - 130)))
    _names_below(figure, axes, content.groups, part)
    axes.spines["bottom"].set_visible(False)
    axes.axhline(0, color=INK, linewidth=0.7)
    for place, one in enumerate(kinds):
        centres = np.arange(count) + (place - (len(kinds) - 1) / 2) * pitch
        _bars_of(made, axes, (place, one), centres, pitch * 0.9)
        for group in np.flatnonzero(~np.isnan(one.values)):
            made.tips[f"bar-{place}-{group}"] = [f"{one.name}, {content.groups[group]}: {number(one.values[group])}"]
            _bar_value(axes, one, centres, group, upright)
    _legend(figure, [Patch(**_fill(place)) for place in range(len(kinds))], [one.name for one in kinds])


def _bar_limits(kinds: Sequence[Kind], text: float, height: float) -> tuple[float, float]:
    """From 0 to the ends of bars, with room for values that take `text` of `height` pixels."""
    top = max(0.0, *(float(np.nanmax(np.fmax(one.values, one.high))) for one in kinds))
    bottom = min(0.0, *(float(np.nanmin(np.fmin(one.values, one.low))) for one in kinds))
    room = (top - bottom) * text / max(height, 60.0)
    return _holding(bottom - room if bottom < 0 else 0.0, top + room if top > 0 else 0.0, False)


def _fill(place: int) -> dict[str, Any]:
    """A tint with hatching, so that grey print tells kinds apart; the first kind is plain."""
    colour, hatch = LIGHT[place % len(LIGHT)], HATCHES[place % len(HATCHES)]
    return {"facecolor": (colour, 0.3 if hatch else 0.85), "edgecolor": colour, "hatch": hatch, "linewidth": 0.8}


def _bars_of(made: Drawing, axes: Axes, kind: tuple[int, Kind], centres: np.ndarray, width: float) -> None:
    place, one = kind
    for group, bar in enumerate(axes.bar(centres, np.nan_to_num(one.values), width, **_fill(place))):
        bar.set_gid(f"bar-{place}-{group}")
        bar.set_visible(not np.isnan(one.values[group]))
    known = ~np.isnan(one.low + one.high)
    if known.any():
        _error_bars(axes, centres[known], one.low[known], one.high[known], INK)


def _bar_value(axes: Axes, one: Kind, centres: np.ndarray, group: int, upright: bool) -> None:
    """The value beyond the end of the bar and its error bar."""
    value = float(one.values[group])
    end = np.fmin(value, one.low[group]) if value < 0 else np.fmax(value, one.high[group])
    end = float(np.clip(end, *axes.get_ylim()))
    axes.annotate(
        number(value, 3), (float(centres[group]), end), (0, -3 if value < 0 else 3), textcoords="offset points",
        ha="center", va="top" if value < 0 else "bottom", rotation=90 if upright else 0, fontsize=8,
    )  # fmt: skip


# --- heat maps


def _heat(made: Drawing, axes: Axes, frame: Frame, content: Grid) -> None:
    figure, grid = made.figure, content.values
    rows, columns = grid.shape
    known = grid[~np.isnan(grid)]
    texts = [number(float(value), 3) for value in known] + (content.missing.split() if len(known) < grid.size else [])
    cell = max(_width(figure, text, 9) for text in texts) + 12
    names = [wrapped(figure, name, 170, 9) for name in content.rows]
    beside = max(_width(figure, line, 9) for name in names for line in name.split("\n")) + 45
    width = max(frame.width, beside + columns * cell)
    part = (width - beside) / columns
    empty = wrapped(figure, content.missing, part - 8, 7.5)
    lines = max(*(name.count("\n") + 1 for name in names), empty.count("\n") + 1, 2)
    figure.set_size_inches(width / DPI, (170 + rows * (lines * 14 + 10)) / DPI)
    scale = Normalize(*(content.scale or _holding(float(known.min()), float(known.max()), False)))
    colours = matplotlib.colormaps[RAMP]
    for place in np.ndindex(rows, columns):
        value = float(grid[place])
        colour = None if math.isnan(value) else colours(float(np.clip(scale(value), 0, 1)))
        _cell(axes, place, colour, empty if colour is None else number(value, 3))
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    axes.set_yticks(range(rows), names)
    axes.spines[:].set_visible(False)
    _names_below(figure, axes, content.columns, part)
    _labels(figure, axes, Frame("", frame.x_label, frame.y_label, width=width, height=figure.get_figheight() * DPI))
    bar = figure.colorbar(
        ScalarMappable(scale, colours.resampled(32)), ax=axes, location="bottom", fraction=0.05, aspect=30, shrink=0.6
    )
    bar.ax.set_xlabel(wrapped(figure, content.scale_label, 0.6 * (width - beside), 9))
    bar.outline.set_visible(False)


def _cell(axes: Axes, place: tuple[int, ...], colour: tuple[float, ...] | None, text: str) -> None:
    """One cell in its colour; without one it is empty and has a dashed edge."""
    row, column = place
    look = {"facecolor": colour, "edgecolor": "none"}
    if colour is None:
        look = {"facecolor": "none", "edgecolor": (INK, 0.45), "linestyle": (0, (3, 3))}
    axes.add_patch(Rectangle((column - 0.485, row - 0.47), 0.97, 0.94, gid=f"cell-{row}-{column}", **look))
    ink = INK if colour is None else readable_on(colour)
    axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=9 if colour else 7.5)


def readable_on(colour: Sequence[float]) -> str:
    """Black or white, whichever has the larger contrast with these red, green and blue shares (WCAG 2)."""
    light = luminance(colour)
    return "#ffffff" if 1.05 / (light + 0.05) > (light + 0.05) / 0.05 else "#000000"


def luminance(colour: Sequence[float]) -> float:
    """Relative luminance of red, green and blue shares, from 0 (black) to 1 (white), as WCAG 2 defines it."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# --- ROC curves


def _roc(made: Drawing, axes: Axes, frame: Frame, content: Rates) -> None:
    """(ε, δ) allows what is below the dashed line of its run; that region is shaded."""
    low = EDGE if content.log else 0.0
    grid = np.geomspace(EDGE, 1.0, 240) if content.log else np.linspace(0.0, 1.0, 240)
    _scales(axes, frame)
    _labels(made.figure, axes, frame)
    axes.set(xlim=(low, 1.0), ylim=(low, 1.0))
    axes.plot([low, 1], [low, 1], gid="reference-0", **_reference(0))
    for place, one in enumerate(content.allowed, 1):
        x = np.union1d(grid, max(one.corner, low))
        axes.plot(x, one.most(x), gid=f"reference-{place}", **_reference(place))
        if one.epsilon < SHADED:
            axes.fill_between(x, low, one.most(x), color=INK, alpha=0.07, linewidth=0)
    for place, (name, fpr, tpr) in enumerate(content.curves):
        axes.plot(*_bent(fpr, tpr, grid, low), gid=f"line-{place}", clip_on=False, **_look(place))
        seen = (fpr >= low) & (tpr >= low)
        _markers(made, axes, place, name, (fpr[seen], tpr[seen]))
    handles = [Line2D([], [], **_look(place), **_mark(place)) for place in range(len(content.curves))]
    handles += [Line2D([], [], **_reference(place)) for place in range(1 + len(content.allowed))]
    names = [name for name, _, _ in content.curves] + ["chance"] + [one.name for one in content.allowed]
    _legend(made.figure, handles, names)


def _bent(fpr: np.ndarray, tpr: np.ndarray, grid: np.ndarray, low: float) -> tuple[np.ndarray, np.ndarray]:
    """The curve from `low` on, with points between its own: what is straight on linear axes is bent on log axes."""
    if low == 0.0:
        return fpr, tpr
    inside = grid[(grid >= fpr[0]) & (grid <= fpr[-1])]
    x, y = np.append(fpr, inside), np.append(tpr, np.interp(inside, fpr, tpr))
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    return x[x >= low], np.maximum(y[x >= low], low)
