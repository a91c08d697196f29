"""Axes: which stretch of numbers is shown, and where its ticks are.

Ticks are at 1, 2 or 5 times a power of ten. On a log axis they are at powers of ten, or also at 2 and 5 times these where
there would be fewer than three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.report.svg import text_width

TICK_SIZE = 11.5  # of the font
PADDING = 0.03  # free room at the ends of a padded axis, as a share of its length
_SLACK = 1e-9  # of a step: 0.3 / 0.1 is a little less than 3
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers with ticks and their texts."""

    label: str
    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]
    texts: tuple[str, ...]
    minor: tuple[float, ...] = ()  # ticks without text

    def share(self, values: np.ndarray | float) -> np.ndarray:
        """How far along the axis values lie: 0 at its low end, 1 at its high end."""
        low, high = _scaled([self.low, self.high], self.log)
        return (_scaled(values, self.log) - low) / (high - low)

    def holds(self, values: np.ndarray) -> np.ndarray:
        """Which of the values lie on the axis, its ends included."""
        share = self.share(values)
        return (share >= -_SLACK) & (share <= 1 + _SLACK)

    def widest(self) -> float:
        """The width of the widest tick text, in pixels."""
        return max((text_width(text, TICK_SIZE) for text in self.texts), default=0.0)


def between(label: str, low: float, high: float, *, log: bool = False, count: int = 5, whole: bool = False) -> Axis:
    """The axis from low to high, with about so many ticks; `whole` keeps them to whole numbers."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"axis {label!r}: a range goes from a lower number to a higher one, got ({low}, {high})")
    if log and low <= 0:
        raise ValueError(f"axis {label!r}: a log axis starts above 0, got ({low}, {high})")
    ticks, minor = _log_ticks(low, high, count) if log else ([], [])
    if ticks:
        return Axis(label, low, high, log, tuple(ticks), tuple(_log_text(tick) for tick in ticks), tuple(minor))
    step = _step(high - low, count)
    return _stepped(label, low, high, log, max(step, 1.0) if whole else step)


def reaching(label: str, values: np.ndarray, *, log: bool = False, count: int = 5) -> Axis:
    """The axis that holds the values and ends on round numbers."""
    low, high = _limits(values, log)
    if log:
        return between(label, _round_number(low, up=False), _round_number(high, up=True), log=True, count=count)
    step = _step(high - low, count)
    first, last = math.floor(low / step + _SLACK), math.ceil(high / step - _SLACK)
    return _stepped(label, _exact(first * step), _exact(last * step), log, step)


def around(label: str, values: np.ndarray, *, log: bool = False, length: float) -> Axis:
    """The axis that holds the values with some room at the ends, its tick texts side by side on so many pixels."""
    ends = _scaled(_limits(values, log), log)
    room = (ends[1] - ends[0]) * PADDING
    low, high = (10.0**end if log else end for end in (float(ends[0] - room), float(ends[1] + room)))
    whole = bool(np.all(values == np.round(values)))
    return fitting(label, low, high, log=log, length=length, whole=whole)


def fitting(label: str, low: float, high: float, *, log: bool = False, length: float, whole: bool = False) -> Axis:
    """The axis from low to high with as many ticks as have room for their texts on so many pixels."""
    for count in range(max(5, int(length // 60)), 1, -1):
        axis = between(label, low, high, log=log, count=count, whole=whole)
        if all(gap * length > axis.widest() + 8 for gap in np.diff(axis.share(np.array(axis.ticks)))):
            return axis
    return between(label, low, high, log=log, count=1, whole=whole)


def _scaled(values: np.ndarray | float | Sequence[float], log: bool) -> np.ndarray:
    return np.log10(values) if log else np.asarray(values, float)


def _limits(values: np.ndarray, log: bool) -> tuple[float, float]:
    """The least and the greatest value; some room about them where they are the same."""
    low, high = float(np.min(values)), float(np.max(values))
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    if log:
        return low / 2, high * 2
    return (low - abs(low) / 10, high + abs(high) / 10) if low else (0.0, 1.0)


def _step(span: float, count: int) -> float:
    """The least of 1, 2, 5, 10 … that takes at most so many steps over the span."""
    wanted = span / count
    power = 10.0 ** math.floor(math.log10(wanted))
    return next((times * power for times in (1, 2, 5) if times * power >= wanted * (1 - _SLACK)), 10 * power)


def _stepped(label: str, low: float, high: float, log: bool, step: float) -> Axis:
    """The axis with ticks at the multiples of a step."""
    first, last = math.ceil(low / step - _SLACK), math.floor(high / step + _SLACK)
    ticks = [_exact(place * step) for place in range(first, last + 1)]
    return Axis(label, low, high, log, tuple(ticks), tuple(_texts(ticks, step)))


def _exact(value: float) -> float:
    """Three times 0.1 as 0.3."""
    return float(f"{value:.12g}")


def _log_ticks(low: float, high: float, count: int) -> tuple[list[float], list[float]]:
    """Ticks with text and ticks without; none on a stretch so short that no two are round."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)

    def marks(times: Sequence[int]) -> list[float]:
        exact = [float(f"{m}e{power}") for power in powers for m in times]
        return [mark for mark in exact if low * (1 - _SLACK) <= mark <= high * (1 + _SLACK)]

    decades, finer = marks([1]), marks([1, 2, 5])
    if len(decades) > count + 2:
        stride = math.ceil(len(decades) / (count + 2))
        return [mark for mark in decades if round(math.log10(mark)) % stride == 0], decades
    if len(decades) >= 3 or (len(decades) == 2 and len(finer) > count + 2):
        return decades, marks(range(1, 10))
    if len(finer) >= 2:
        return finer, marks(range(1, 10))
    return [], []


def _round_number(value: float, up: bool) -> float:
    """The nearest of 1, 2 and 5 times a power of ten that is not below (or not above) the value."""
    power = math.floor(math.log10(value))
    marks = [float(f"{m}e{power + more}") for more in (-1, 0, 1) for m in (1, 2, 5)]
    if up:
        return min(mark for mark in marks if mark >= value * (1 - _SLACK))
    return max(mark for mark in marks if mark <= value * (1 + _SLACK))


def _texts(ticks: Sequence[float], step: float) -> list[str]:
    """All with the same number of places after the point, and in powers of ten where they are very large or small."""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    power = math.floor(math.log10(largest)) if largest else 0
    scientific = power >= 7 or power < -3
    unit = 10.0**power if scientific else 1.0
    places = max(0, -math.floor(math.log10(step / unit) + _SLACK))
    after = f"×10{str(power).translate(_SUPERSCRIPTS)}" if scientific else ""
    return [_signed(f"{tick / unit:,.{places}f}", largest) + after if tick else "0" for tick in ticks]


def _signed(text: str, largest: float) -> str:
    """With a true minus, and thousands set apart from 10 000 on."""
    return text.replace(",", "\u202f" if largest >= 10_000 else "").replace("-", "−")


def _log_text(tick: float) -> str:
    mantissa, power = f"{tick:.0e}".split("e")
    if 1e-3 <= tick < 1e5:
        return _signed(f"{tick:,.{max(0, -int(power))}f}", tick)
    times = "" if mantissa == "1" else f"{mantissa}×"
    return f"{times}10{str(int(power)).translate(_SUPERSCRIPTS)}"
