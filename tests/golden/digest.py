"""A model's parameters as a few numbers, and comparisons that name what differs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

DIGITS = 13  # significant digits that are stored
FIRST = 3  # values of each array that are stored
PROJECTIONS = 2

TRAINING = 1e-9  # of an array's norm
EPSILON = 1e-6  # relative
ATTACK = 1e-6, 1e-9  # relative, and absolute for what is nearly zero
ROW = ("tap", "unit", "accountant", "rule", "adjacency")  # compared exactly, and so are certified and δ


def digest(leaves: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """For each array: its shape, its L2 norm, projections on fixed directions, its first values."""
    return {
        name: [list(array.shape), *_numbers(np.asarray(array, np.float64).ravel())] for name, array in leaves.items()
    }


def _numbers(flat: np.ndarray) -> list[float]:
    numbers = [np.linalg.norm(flat), *(direction @ flat for direction in _directions(flat.size)), *flat[:FIRST]]
    return [rounded(float(number)) for number in numbers]


def _directions(size: int) -> np.ndarray:
    """Unit vectors. `RandomState`, because its stream never changes."""
    drawn = np.random.RandomState(size).standard_normal((PROJECTIONS, size))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def rounded(value: Any) -> Any:
    """The value with its floats at the digits that are stored."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def different_models(where: str, stored: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each array that differs; all its numbers are compared at the scale of its norm."""
    if list(stored) != list(found):
        yield f"{where}: arrays {list(stored)} in the record, {list(found)} now"
        return
    for leaf, (shape, *numbers) in stored.items():
        now_shape, *now = found[leaf]
        if shape != now_shape:
            yield f"{where}, {leaf}: shape {shape} in the record, {now_shape} now"
            continue
        for what, was, is_ in zip(_names(len(numbers)), numbers, now, strict=True):
            if not _near(was, is_, TRAINING * abs(numbers[0])):
                yield f"{where}, {leaf}, {what}: {was!r} in the record, {is_!r} now"
                break


def _names(count: int) -> list[str]:
    names = ["norm", *(f"projection {i}" for i in range(PROJECTIONS))]
    return [*names, *(f"value {i}" for i in range(count - len(names)))]


def row(fields: Mapping[str, Any]) -> list[Any]:
    """A ledger row as it is stored: what is compared exactly as one text, then ε."""
    certified = ["certified"] if fields["certified"] else []
    delta = [] if fields["delta"] is None else [f"δ={fields['delta']:.9g}"]
    epsilon = None if fields["epsilon"] is None else float(f"{fields['epsilon']:.9g}")
    return [" ".join([*(fields[key] for key in ROW), *certified, *delta]), epsilon]


def different_rows(where: str, stored: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]]) -> Iterator[str]:
    """A line for each ledger row that differs, is missing or is new."""
    was, now = _by_text(stored), _by_text(found)
    for text in [*was, *(text for text in now if text not in was)]:
        if text not in was or text not in now:
            yield f"{where}, row {text}: {'only in the record' if text in was else 'not in the record'}"
        elif len(was[text]) != len(now[text]) or not all(map(_same_epsilon, was[text], now[text])):
            yield f"{where}, row {text}: ε = {was[text]} in the record, {now[text]} now"


def _by_text(rows: Sequence[Sequence[Any]]) -> dict[str, list[float | None]]:
    """The values of ε of all rows with the same text, in order: a config may have several such rows."""
    made: dict[str, list[float | None]] = {}
    for text, epsilon in sorted(rows, key=lambda row: (row[0], -1.0 if row[1] is None else row[1])):
        made.setdefault(text, []).append(epsilon)
    return made


def _same_epsilon(was: float | None, now: float | None) -> bool:
    if was is None or now is None:
        return was is now
    return _near(was, now, EPSILON * abs(was))


def different_numbers(where: str, stored: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each number of an attack that differs."""
    relative, absolute = ATTACK
    for key in [*stored, *(key for key in found if key not in stored)]:
        if key not in stored or key not in found:
            yield f"{where}, {key}: {'only in the record' if key in stored else 'not in the record'}"
        elif isinstance(stored[key], dict):
            yield from different_numbers(f"{where}, {key}", stored[key], found[key])
        elif not _same(stored[key], found[key], relative, absolute):
            yield f"{where}, {key}: {stored[key]!r} in the record, {found[key]!r} now"


def _same(was: Any, now: Any, relative: float, absolute: float) -> bool:
    if isinstance(was, float) and isinstance(now, float | int):
        return _near(was, now, max(absolute, relative * abs(was)))
    return was == now


def _near(was: float, now: float, tolerance: float) -> bool:
    """Equal up to the tolerance; values that are not finite must be the same."""
    if not (math.isfinite(was) and math.isfinite(now)):
        return str(was) == str(now)
    return abs(was - now) <= tolerance
