"""Charts drawn by matplotlib: one function for each kind of chart.

Series differ by colour, and without colour by marker, dash and hatching. The six colours stay apart for readers with any of
the three kinds of colour blindness. Text is never read as mathematics: names may hold `$` or `_`.
"""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedveil.report.charts import Allowed, Chart, Frame, Points, Reference, quiet
from fedveil.report.tables import FORBIDDEN, number

with quiet():  # the first import on a machine builds the font cache
    import matplotlib
    from matplotlib import ticker
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Rectangle

LIGHT = ("#0955c6", "#e0480f", "#0a9268", "#922281", "#6b4a1b", "#1e9fd3")
DARK = ("#3b8cff", "#f0652f", "#20cd95", "#b07ab8", "#e5de32", "#a9e0fe")  # the same on a dark page
INK, DARK_INK = "#1f2328", "#e6e8eb"  # text and axes
PAPER = ("#ffffff", "#16191d")  # light and dark, behind a chart that stands alone
DASHES = ("-", (0, (7, 3)), (0, (2.5, 2.5)), (0, (9, 3, 2.5, 3)), (0, (12, 3)))
REFERENCE_DASHES = ((2, 4), (6, 4), (11, 4, 2, 4), (1.5, 2.5), (14, 5), (6, 3, 1.5, 3, 1.5, 3))
MARKERS = "os^DvXP"
HATCHES = ("", "///", "xx", "\\\\\\", "---", "++", "|||")
RAMP = "YlGnBu"  # lightness falls all the way, so that grey print keeps the order

DPI = 96  # pixels of the screen per inch
STYLE: Any = {
    "figure.dpi": DPI,
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "text.parse_math": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.formatter.limits": (-4, 5),
    "axes.formatter.useoffset": False,
    **{f"axes.spines.{side}": False for side in ("top", "right", "left")},
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK
    ),
    **dict.fromkeys(("axes.linewidth", "grid.linewidth", "hatch.linewidth"), 0.7),
    **dict.fromkeys(("ytick.major.size", "ytick.minor.size"), 0),
    "grid.alpha": 0.13,
    "lines.linewidth": 1.6,
    "lines.scale_dashes": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedveil",
    "pdf.fonttype": 42,
    "pgf.rcfonts": False,
}
PAD = 0.08  # inches around the chart
AROUND = 86.0  # pixels that a one-line title, ticks and labels take of a frame's height
TALL = 4000.0  # pixels: more than any chart needs
EDGE = 1e-3  # where the log axes of a ROC chart begin
SHADED = 8.0  # a larger ε allows nearly everything: shading it would hide the others
MARKED, FEW = 30, 10  # a line with more points than MARKED has markers at about FEW of them
SLANT = 40  # degrees by which names turn that are too wide for a horizontal line
BAR = 14.0  # least pixels from bar to bar, so that their upright values stay apart
FILLED = 0.8  # share of a group's width that bars take

_LOCK = threading.RLock()  # matplotlib's settings belong to the process
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass
class Drawing:
    """A figure, and the tooltips of its marks by the gid of their artist."""

    figure: Figure
    axes: Axes
    tips: dict[str, list[str]] = field(default_factory=dict)

    def width(self, text: str, size: float = 9, weight: str = "normal") -> float:
        """How wide a text is drawn, in pixels."""
        font = FontProperties(size=size, weight=weight)
        return max(_renderer(self.figure).get_text_width_height_descent(t, font, False)[0] for t in text.split("\n"))

    def wrap(self, text: str, width: float, size: float = 9, weight: str = "normal") -> str:
        """Text in lines that are at most this wide, in pixels; a longer word is cut."""
        text = " ".join(clean(text).split())
        letter = self.width(text, size, weight) / max(1, len(text))
        for count in range(max(5, int(1.3 * width / max(letter, 1.0))), 3, -1):
            lines = textwrap.fill(text, count, break_on_hyphens=False)
            if self.width(lines, size, weight) <= width:
                break
        return lines


@contextmanager
def style() -> Iterator[None]:
    """Replaces the user's matplotlib settings by ours. A lock admits one thread at a time: the settings are global."""
    with _LOCK, quiet(), matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def draw(chart: Chart) -> Drawing:
    """The figure of a chart, with its layout settled."""
    frame = chart.frame
    with style():
        engine = ConstrainedLayoutEngine(w_pad=PAD, h_pad=PAD)
        figure = Figure(figsize=(frame.width / DPI, frame.height / DPI), layout=engine)
        FigureCanvasAgg(figure)
        made = Drawing(figure, figure.add_subplot())
        title = made.wrap(frame.title, frame.width - 30, 11, "bold")
        figure.suptitle(title, x=10 / frame.width, ha="left", fontsize=11, fontweight="bold")
        _fit(made, _KINDS[chart.kind](made, frame, *chart.content))
        figure.set_layout_engine("none")
        return made


def _fit(made: Drawing, height: float) -> None:
    """Sets the figure's height so that its axes are `height` pixels high, beside titles, labels and legends."""
    made.figure.set_figheight(TALL / DPI)
    for _ in range(5):  # one step is exact unless a colour bar takes its share
        made.figure.draw_without_rendering()
        off = height - made.axes.get_window_extent().height
        if abs(off) < 1:
            break
        made.figure.set_figheight(made.figure.get_figheight() + off / DPI)


def clean(text: object) -> str:
    """Text without the characters that XML forbids."""
    return FORBIDDEN.sub("\ufffd", str(text))


def _renderer(figure: Figure) -> Any:
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    return canvas.get_renderer()  # type: ignore[no-untyped-call]


# --- labels, legend, axes


def _labels(made: Drawing, frame: Frame) -> None:
    made.axes.set_xlabel(made.wrap(frame.x_label, frame.width - 100, 9.5), fontsize=9.5)
    made.axes.set_ylabel(made.wrap(frame.y_label, frame.height - 100, 9.5), fontsize=9.5)


def _legend(made: Drawing, handles: Sequence[Line2D | Patch], names: Sequence[str]) -> None:
    """The names below the chart, in as many columns as there is room for."""
    wide = made.figure.get_figwidth() * DPI
    texts = [made.wrap(name, wide - 80) for name in names]
    columns = int((wide - 20) // (max(made.width(text) for text in texts) + 60))
    look: dict[str, Any] = {"handlelength": 3.0, "columnspacing": 1.5, "labelspacing": 0.4}
    look["ncols"] = max(1, min(len(texts), columns))
    made.figure.legend(handles, texts, loc="outside lower left", **look)


def _names_below(made: Drawing, names: Sequence[str], part: float) -> None:
    """Names under equal parts of the x axis, each `part` pixels wide; slanted where a word does not fit."""
    slanted = any(made.width(word) > part - 6 for name in names for word in clean(name).split())
    texts = [made.wrap(name, 300 if slanted else part - 6) for name in names]
    turn: dict[str, Any] = {"rotation": SLANT, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    made.axes.set_xticks(range(len(names)), texts, **turn)
    made.axes.tick_params(axis="x", length=0)


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
    """Sets log or linear axes with round ticks. `whole` restricts the ticks of the x axis to whole numbers."""
    for axis, log in ((axes.xaxis, frame.x_log), (axes.yaxis, frame.y_log)):
        if log:
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
            axis.set_major_formatter(_LogFormatter(minor_thresholds=(1.5, 0.6)))
            axis.set_minor_formatter(_LogFormatter(minor_thresholds=(1.5, 0.6)))
        else:
            count: int | Literal["auto"] = "auto" if axis is axes.xaxis else 7
            whole_only = whole and axis is axes.xaxis
            axis.set_major_locator(ticker.MaxNLocator(count, steps=[1, 2, 5, 10], integer=whole_only))
    axes.grid(True)


def _holding(values: np.ndarray, log: bool = False) -> tuple[float, float]:
    """Axis limits around the values: round numbers, or with a margin on a log axis."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = (low / 2, high * 2) if log else (low - abs(low) / 10, high + abs(high) / 10) if low else (0.0, 1.0)
    if log:
        room = (high / low) ** 0.05
        return low / room, high * room
    ticks = np.asarray(ticker.MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high))
    slack = 1e-9 * (high - low)
    return float(ticks[ticks <= low + slack][-1]), float(ticks[ticks >= high - slack][0])


def _colour(place: int) -> str:
    return LIGHT[place % len(LIGHT)]


def _look(place: int) -> dict[str, Any]:
    return {"color": _colour(place), "linestyle": DASHES[place % len(DASHES)]}


def _mark(place: int) -> dict[str, Any]:
    return {"marker": MARKERS[place % len(MARKERS)], "markersize": 5.5, "markeredgewidth": 0}


def _reference(place: int) -> dict[str, Any]:
    dash = (0, REFERENCE_DASHES[place % len(REFERENCE_DASHES)])
    return {"color": INK, "alpha": 0.75, "linewidth": 1.3, "linestyle": dash}


def _line_legend(made: Drawing, lines: Sequence[Points], references: Sequence[str]) -> None:
    handles = [Line2D([], [], **_look(place), **_mark(place)) for place in range(len(lines))]
    handles += [Line2D([], [], **_reference(place)) for place in range(len(references))]
    _legend(made, handles, [*(line.name for line in lines), *references])


# --- lines


def _lines(made: Drawing, frame: Frame, lines: Sequence[Points], references: Sequence[Reference]) -> float:
    axes = made.axes
    x = np.concatenate([line.x[~np.isnan(line.x)] for line in lines])
    ends = [values for line in lines for values in (line.y, line.low, line.high)]
    _scales(axes, frame, whole=bool((x == np.round(x)).all()))
    _labels(made, frame)
    axes.margins(x=0.03)
    axes.set_ylim(*(frame.y_range or _holding(np.concatenate([*ends, [one.y for one in references]]), frame.y_log)))
    for place, line in enumerate(lines):
        _spread(axes, place, line)
        axes.plot(line.x, line.y, gid=f"line-{place}", **_look(place))
        _markers(made, place, line.name, line.x, line.y)
    for place, one in enumerate(references):
        axes.axhline(one.y, gid=f"reference-{place}", **_reference(place))
    _line_legend(made, lines, [one.name for one in references])
    return frame.height - AROUND


def _runs(known: np.ndarray) -> list[slice]:
    """The stretches without a gap."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    return [slice(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _spread(axes: Axes, place: int, line: Points) -> None:
    """A band over each stretch of points; error bars where they were asked for, and at a point without neighbours."""
    for run in _runs(~np.isnan(line.x + line.low + line.high)):
        x, low, high = line.x[run], line.low[run], line.high[run]
        if line.bars or len(x) == 1:
            _error_bars(axes, x, low, high, _colour(place))
        else:
            axes.fill_between(x, low, high, color=_colour(place), alpha=0.16, linewidth=0)


def _error_bars(axes: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str) -> None:
    """Draws error bars from low to high; the measured value may be outside of them."""
    axes.errorbar(x, (low + high) / 2, (high - low) / 2, fmt="none", ecolor=colour, elinewidth=1, capsize=2.6)


def _markers(made: Drawing, place: int, name: str, x: np.ndarray, y: np.ndarray) -> None:
    """Markers at all points of a short line, and at some of a long one, with their numbers for the mouse."""
    known, (bottom, top) = ~np.isnan(x + y), made.axes.get_ylim()
    shown = np.flatnonzero(known)
    if len(shown) > MARKED:
        alone = np.array([run.start for run in _runs(known) if run.stop - run.start == 1], int)
        step = len(shown) // FEW
        shown = np.union1d(shown[(step * place // 3) % step :: step], alone)  # markers of several lines take turns
    shown = shown[(y[shown] >= bottom) & (y[shown] <= top)]
    gid = f"points-{place}"
    look = {**_mark(place), "color": _colour(place), "linestyle": "none", "clip_on": False, "zorder": 3}
    made.axes.plot(x[shown], y[shown], gid=gid, **look)
    made.tips[gid] = [f"{name}: {number(float(x[i]))}, {number(float(y[i]))}" for i in shown]


# --- bars


def _bars(made: Drawing, frame: Frame, kinds: Sequence[Points], groups: Sequence[str]) -> float:
    axes = made.axes
    width = max(frame.width, len(groups) * len(kinds) * BAR / FILLED + 90)
    made.figure.set_figwidth(width / DPI)
    part = (width - 90) / len(groups)
    pitch = min(part * FILLED / len(kinds), 64.0) / part  # from bar to bar, where groups are 1 apart
    widest = max(made.width(number(float(value), 3), 8) for one in kinds for value in one.y[~np.isnan(one.y)])
    upright = widest + 2 > pitch * part
    _scales(axes, frame)
    axes.grid(False, axis="x")
    axes.spines["bottom"].set_visible(False)
    axes.axhline(0, color=INK, linewidth=0.7)
    _labels(made, frame)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_ylim(*(frame.y_range or _bar_limits(kinds, (widest if upright else 12) + 8, frame.height - AROUND)))
    _names_below(made, groups, part)
    for place, one in enumerate(kinds):
        centres = one.x + (place - (len(kinds) - 1) / 2) * pitch
        known = ~np.isnan(one.low + one.high)
        for group in map(int, np.flatnonzero(~np.isnan(one.y))):
            gid = f"bar-{place}-{group}"
            axes.bar(centres[group], one.y[group], pitch * 0.9, gid=gid, **_fill(place))
            made.tips[gid] = [f"{one.name}, {groups[group]}: {number(one.y[group])}"]
            _bar_value(axes, one, float(centres[group]), group, upright)
        if known.any():
            _error_bars(axes, centres[known], one.low[known], one.high[known], INK)
    _legend(made, [Patch(**_fill(place)) for place in range(len(kinds))], [one.name for one in kinds])
    return frame.height - AROUND


def _bar_limits(kinds: Sequence[Points], text: float, height: float) -> tuple[float, float]:
    """From 0 to the ends of bars, with room for values that take `text` of `height` pixels."""
    ends = np.concatenate([[0.0], *(values for one in kinds for values in (one.y, one.low, one.high))])
    bottom, top = float(np.nanmin(ends)), float(np.nanmax(ends))
    room = (top - bottom) * text / max(height, 60.0)
    return _holding(np.array([bottom - room * (bottom < 0), top + room * (top > 0)]))


def _fill(place: int) -> dict[str, Any]:
    """Hatching, so that grey print tells kinds apart; the first kind is plain. In SVG, a tint would hide the hatching."""
    colour, hatch = _colour(place), HATCHES[place % len(HATCHES)]
    return {"facecolor": "none" if hatch else (colour, 0.85), "edgecolor": colour, "hatch": hatch, "linewidth": 0.8}


def _bar_value(axes: Axes, one: Points, x: float, group: int, upright: bool) -> None:
    """Draws the value of a bar, beyond the end of the bar and of its error bar."""
    value = float(one.y[group])
    end = np.fmin(value, one.low[group]) if value < 0 else np.fmax(value, one.high[group])
    look: dict[str, Any] = {"ha": "center", "rotation": 90 if upright else 0, "fontsize": 8}
    look |= {"xytext": (0, -3), "va": "top"} if value < 0 else {"xytext": (0, 3), "va": "bottom"}
    at = x, float(np.clip(end, *axes.get_ylim()))
    axes.annotate(number(value, 3), at, textcoords="offset points", **look)


# --- heat maps


def _heat(
    made: Drawing,
    frame: Frame,
    grid: np.ndarray,
    names: tuple[Sequence[str], Sequence[str]],
    scale_label: str,
    missing: str,
    ends: tuple[float, float] | None,
) -> float:
    axes, (rows, columns) = made.axes, grid.shape
    known = grid[~np.isnan(grid)]
    texts = [number(float(value), 3) for value in known] + (missing.split() if len(known) < grid.size else [])
    beside = [made.wrap(name, 170) for name in names[0]]
    upright = 1 + made.wrap(frame.y_label, rows * 38, 9.5).count("\n")  # lines of the label at the left edge
    left = max(made.width(name) for name in beside) + 30 + 15 * upright
    width = max(frame.width, left + columns * (max(made.width(text) for text in texts) + 12))
    part = (width - left) / columns
    empty = made.wrap(missing, part - 8, 7.5)
    lines = 1 + max(text.count("\n") for text in (*beside, empty, "\n"))
    high = rows * (lines * 14 + 10)
    made.figure.set_figwidth(width / DPI)
    scale, colours = Normalize(*(ends or _holding(known))), matplotlib.colormaps[RAMP]
    for row, column in np.ndindex(rows, columns):
        value = float(grid[row, column])
        colour = None if np.isnan(value) else colours(float(np.clip(scale(value), 0, 1)))
        _cell(axes, (column, row), colour, empty if colour is None else number(value, 3))
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    axes.set_yticks(range(rows), beside)
    axes.spines[:].set_visible(False)
    _names_below(made, names[1], part)
    _labels(made, Frame("", frame.x_label, frame.y_label, width=width, height=high + 100))
    _colour_bar(made, ScalarMappable(scale, colours.resampled(32)), scale_label, 0.6 * (width - left))
    return high


def _colour_bar(made: Drawing, shades: ScalarMappable, label: str, length: float) -> None:
    """A colour bar, with as many ticks as fit into its length in pixels."""
    widest = max(made.width(number(float(end), 3)) for end in shades.get_clim())
    look: dict[str, Any] = {"location": "bottom", "fraction": 0.15, "aspect": length / 10, "shrink": 0.6}
    look["ticks"] = ticker.MaxNLocator(max(1, min(5, int(length / (2 * widest + 12)))), steps=[1, 2, 5, 10])
    bar = made.figure.colorbar(shades, ax=made.axes, format=lambda value, _: number(value, 3), **look)
    bar.ax.set_xlabel(made.wrap(label, length))
    bar.outline.set_visible(False)


def _cell(axes: Axes, at: tuple[int, int], colour: tuple[float, ...] | None, text: str) -> None:
    """One cell in its colour; without one it is empty and has a dashed edge."""
    look: dict[str, Any] = {"facecolor": colour, "edgecolor": "none"}
    if colour is None:
        look = {"facecolor": "none", "edgecolor": (INK, 0.45), "linestyle": (0, (3, 3))}
    axes.add_patch(Rectangle((at[0] - 0.485, at[1] - 0.47), 0.97, 0.94, gid=f"cell-{at[1]}-{at[0]}", **look))
    ink = INK if colour is None else readable_on(colour)
    axes.text(*at, text, ha="center", va="center", color=ink, fontsize=9 if colour else 7.5)


def readable_on(colour: Sequence[float]) -> str:
    """Black or white, whichever has the larger contrast with these red, green and blue shares (WCAG 2)."""
    light = luminance(colour)
    return "#ffffff" if 1.05 / (light + 0.05) > (light + 0.05) / 0.05 else "#000000"


def luminance(colour: Sequence[float]) -> float:
    """Relative luminance of red, green and blue shares, from 0 (black) to 1 (white), as WCAG 2 defines it."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# --- ROC curves


def _roc(made: Drawing, frame: Frame, curves: Sequence[Points], allowed: Sequence[Allowed]) -> float:
    """Draws ROC curves, and for each (ε, δ) a dashed line with the region that it allows shaded below."""
    axes, log = made.axes, frame.x_log
    low = EDGE if log else 0.0
    grid = np.geomspace(EDGE, 1.0, 240) if log else np.linspace(0.0, 1.0, 240)
    _scales(axes, frame)
    _labels(made, frame)
    axes.set(xlim=(low, 1.0), ylim=(low, 1.0))
    axes.plot([low, 1], [low, 1], gid="reference-0", **_reference(0))
    for place, one in enumerate(allowed, 1):
        x = np.union1d(grid, max(one.corner, low))
        axes.plot(x, one.most(x), gid=f"reference-{place}", **_reference(place))
        if one.epsilon < SHADED:
            axes.fill_between(x, low, one.most(x), color=INK, alpha=0.07, linewidth=0)
    for place, line in enumerate(curves):
        drawn = _bent(line.x, line.y, grid) if log else (line.x, line.y)
        axes.plot(*drawn, gid=f"line-{place}", clip_on=False, **_look(place))
        seen = (line.x >= low) & (line.y >= low)
        _markers(made, place, line.name, line.x[seen], line.y[seen])
    _line_legend(made, curves, ["chance", *(one.name for one in allowed)])
    return frame.height - AROUND


def _bent(fpr: np.ndarray, tpr: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The curve for log axes, with points added between its own: a straight line bends there."""
    inside = grid[(grid >= fpr[0]) & (grid <= fpr[-1])]
    x, y = np.append(fpr, inside), np.append(tpr, np.interp(inside, fpr, tpr))
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    return x[x >= EDGE], np.maximum(y[x >= EDGE], EDGE)


# Each draws its content and returns the height of the axes in pixels.
_KINDS: dict[str, Any] = {"lines": _lines, "bars": _bars, "heat": _heat, "roc": _roc}
