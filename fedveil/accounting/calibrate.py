"""Calibration: the noise that a given ε takes, or the rounds that a given noise affords.

Both search over the ledger's own certificate (`ledger.certified`), so the result agrees with what the ledger prints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedveil.accounting import ledger, transcript
from fedveil.core.errors import ConfigError
from fedveil.core.setting import Setting
from fedveil.defenses.base import Defense, Dial

MOST_ROUNDS = 10_000_000
CLOSE = 0.995  # a found ε is at least this share of the one that was asked for


@dataclass(frozen=True)
class Goal:
    """The ε and δ to keep, for one tap and unit."""

    epsilon: float
    delta: float
    tap: str
    unit: str
    adjacency: str | None = None  # None: the one that the ledger prints first

    def row(self, defenses: Sequence[Defense], setting: Setting, rounds: int) -> ledger.Row:
        """The certificate of the plan. The search does not depend on whether draws follow a seed."""
        planned = transcript.planned(defenses, ledger.as_planned(setting), rounds)
        return ledger.certified(planned, self.tap, self.unit, self.delta, self.adjacency)

    def result(self, defenses: Sequence[Defense], setting: Setting, rounds: int) -> ledger.Row:
        """The ledger row of the calibrated setting. It is not certified if the draws follow a seed."""
        row = self.row(defenses, setting, rounds)
        return row if setting.secret_draws else ledger.uncertified([row])[0]

    @property
    def observer(self) -> str:
        return f"tap {self.tap}, unit {self.unit}"


@dataclass(frozen=True)
class Found:
    """A setting that keeps a goal: `key` of defence number `index` set to `value`, over `rounds` rounds."""

    index: int
    key: str
    value: float
    rounds: int
    row: ledger.Row


def noise_for(defenses: Sequence[Defense], setting: Setting, goal: Goal) -> Found:
    """The least noise that keeps the goal over the setting's rounds."""
    index, dial = _dial(defenses, goal)
    key, start = dial.key, dial.value or 1.0

    def at(value: float) -> ledger.Row:
        return goal.row(_turned(defenses, index, dial, value), setting, setting.rounds)

    def keeps(row: ledger.Row) -> bool:
        return row.certified and row.epsilon is not None and row.epsilon <= goal.epsilon

    factor = 0.5 if dial.rises else 2.0
    if not at(start).certified and at(start).epsilon is None and not keeps(at(start * factor**10)):
        raise _impossible(goal, at(start), key)
    if keeps(at(start)):
        found = _first(lambda v: not keeps(at(v)), start, 1.0 / factor)
        if found is None:
            raise ConfigError("epsilon", goal.epsilon, f"any {key} keeps it at {goal.observer}: ask for less")
        enough, short = found * factor, found
    else:
        found = _first(lambda v: keeps(at(v)), start, factor)
        if found is None:
            raise _impossible(goal, at(start * factor**40), key)
        enough, short = found, found / factor
    for _ in range(40):
        row = at(enough)
        if row.epsilon is not None and row.epsilon >= CLOSE * goal.epsilon:
            break
        middle = (enough * short) ** 0.5
        enough, short = (middle, short) if keeps(at(middle)) else (enough, middle)
    turned = _turned(defenses, index, dial, enough)
    return Found(index, key, enough, setting.rounds, goal.result(turned, setting, setting.rounds))


def rounds_with(defenses: Sequence[Defense], setting: Setting, goal: Goal, noise: float) -> Found:
    """The most rounds that keep the goal with this noise."""
    index, dial = _dial(defenses, goal)
    key, turned = dial.key, _turned(defenses, index, dial, noise)
    rounds = rounds_for(turned, setting, goal)
    if rounds == 0:
        one = goal.row(turned, setting, 1)
        shown = "more than can be computed" if one.epsilon is None else f"{one.epsilon:.4g}"
        takes = f"one round alone costs {shown} at {goal.observer} with {key} = {noise:g}: raise it, or --epsilon"
        raise ConfigError("noise", noise, takes)
    return Found(index, key, noise, rounds, goal.result(turned, setting, rounds))


def rounds_for(defenses: Sequence[Defense], setting: Setting, goal: Goal, most: int = MOST_ROUNDS) -> int:
    """The largest number of rounds, at most `most`, that keeps the goal; 0 if even one round misses it."""
    first = goal.row(defenses, setting, 1)
    if not first.certified:
        raise _impossible(goal, first, None)

    def keeps(rounds: int) -> bool:
        row = goal.row(defenses, setting, rounds)
        return row.epsilon is not None and row.epsilon <= goal.epsilon

    low, high = 0, 1
    while keeps(high):
        if high == most:
            return most
        low, high = high, min(most, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _first(holds: Callable[[float], bool], start: float, factor: float) -> float | None:
    """The first of start·factor, start·factor², … for which it holds."""
    value = start
    for _ in range(40):
        value *= factor
        if holds(value):
            return value
    return None


def _dial(defenses: Sequence[Defense], goal: Goal) -> tuple[int, Dial]:
    """Which key of which defence holds the noise that this tap and unit are behind."""
    for index, defense in enumerate(defenses):
        dial = defense.dial(goal.unit)
        if dial is not None:
            return index, dial
    names = ", ".join(d.name for d in defenses)
    raise ConfigError("defense", names, "has no privacy account: calibrate fed-cdp, fed-sdp, 2dp-fl, nbafl or dpfl")


def _turned(defenses: Sequence[Defense], index: int, dial: Dial, value: float) -> list[Defense]:
    """The defences with one dial turned."""
    made = list(defenses)
    made[index] = made[index].turned(dial, value)
    return made


def _impossible(goal: Goal, row: ledger.Row, key: str | None) -> ConfigError:
    if row.epsilon is not None and row.certified and key is not None:
        return ConfigError("epsilon", goal.epsilon, f"no {key} reaches it at {goal.observer} with δ = {goal.delta:g}")
    takes = f"nothing can be certified at {goal.observer}: {row.reason}"
    return ConfigError("tap", goal.tap, takes)
