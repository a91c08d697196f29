"""The results of a sweep: one document per cell, one line per setting over its seeds, and a CSV of the cells."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedveil.accounting.published import CLAIMED
from fedveil.recipes.cache import Cache
from fedveil.recipes.table import interval
from fedveil.sweeps.grid import Cell, label

Document = dict[str, Any]
SHOWN = ("server", "release")  # taps whose ε a table shows


def epsilon_at(ledger: Sequence[Mapping[str, Any]], tap: str, unit: str = "example") -> float | None:
    """The smallest certified ε at a tap: for presence or absence, else for replacement. None where there is none.

    If draws follow a seed, nothing is certified: then it is the ε that secret draws would have.
    """
    known = [
        (not row["certified"], row["adjacency"] == "replace", row["epsilon"])
        for row in ledger
        if (row["tap"], row["unit"]) == (tap, unit) and row["epsilon"] is not None and row["rule"] not in CLAIMED
    ]
    return min(known, default=(None, None, None))[2]


def leak_of(attack: Mapping[str, Any]) -> float | None:
    """How much an attack got, from 0 to 1: the share of rebuilt examples, or how far a guess is above chance."""
    if attack.get("success_rate") is not None:
        return float(attack["success_rate"])
    return None if attack.get("auc") is None else max(0.0, 2.0 * float(attack["auc"]) - 1.0)


@dataclass(frozen=True)
class Line:
    """One setting: means over its finished seeds."""

    values: Document
    seeds: int  # finished
    planned: int
    accuracy: float | None
    span: tuple[float, float] | None  # 95 % interval of the mean over seeds
    chance: float | None
    learned: bool  # every finished seed is clearly above chance
    epsilon: Mapping[str, float | None]  # by tap, for one record
    leaks: Mapping[str, float | None]  # by tap; None where the attack could not be made
    errors: tuple[str, ...]

    @property
    def name(self) -> str:
        return label(self.values)

    @property
    def leak(self) -> float | None:
        """The highest success of any attack; None without an attack."""
        return max((value for value in self.leaks.values() if value is not None), default=None)

    def as_dict(self) -> Document:
        span = None if self.span is None else list(self.span)
        return {
            "name": self.name,
            "values": self.values,
            "seeds": self.seeds,
            "accuracy": self.accuracy,
            "interval": span,
            "chance": self.chance,
            "learned": self.learned,
            "epsilon": dict(self.epsilon),
            "leak": dict(self.leaks),
            "errors": list(self.errors),
        }


@dataclass(frozen=True)
class Sweep:
    """The results of a sweep; cells that were not run yet are among them as `waiting`."""

    cells: tuple[Document, ...]
    lines: tuple[Line, ...]
    files: Mapping[str, str] = field(default_factory=dict)  # csv, chart and report, if a folder was named

    @classmethod
    def of(cls, cells: Sequence[Cell], cache: Cache, failed: Mapping[str, str]) -> Sweep:
        documents = [_document(cell, cache, failed) for cell in cells]
        groups: dict[str, list[Document]] = {}
        for document in documents:
            groups.setdefault(repr(document["values"]), []).append(document)
        return cls(tuple(documents), tuple(_line(group) for group in groups.values()))

    @property
    def left(self) -> int:
        """Cells that were neither finished nor tried."""
        return sum(cell["status"] == "waiting" for cell in self.cells)

    @property
    def failed(self) -> list[str]:
        return [f"{cell['name']}: {cell['error']}" for cell in self.cells if cell["status"] == "failed"]

    def as_dict(self) -> list[Document]:
        """The JSON document of `fedveil sweep`: a list of cells."""
        return [dict(cell) for cell in self.cells]

    def csv(self) -> str:
        """The cells as CSV: swept values, seed, accuracy, chance, ε by tap and unit, leak by tap."""
        taps = list(dict.fromkeys(attack["tap"] for cell in self.cells for attack in cell["attacks"]))
        keys = list(dict.fromkeys(key for cell in self.cells for key in cell["values"]))
        epsilons = [(tap, unit) for tap in ("example", "client", *SHOWN) for unit in ("example", "image", "client")]
        head = [*keys, "seed", "status", "accuracy", "chance", "loss", *(f"epsilon {t} {u}" for t, u in epsilons)]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*head, *(f"leak {tap}" for tap in taps)])
        for cell in self.cells:
            leaks = {attack["tap"]: leak_of(attack) for attack in cell["attacks"]}
            row = [cell["values"].get(key) for key in keys]
            row += [cell[key] for key in ("seed", "status", "accuracy", "chance", "loss")]
            row += [epsilon_at(cell["ledger"], tap, unit) for tap, unit in epsilons]
            writer.writerow([*row, *(leaks.get(tap) for tap in taps)])
        return text.getvalue()


RESULT = ("accuracy", "split", "loss", "chance", "learned", "rounds", "seconds", "stopped")


def _document(cell: Cell, cache: Cache, failed: Mapping[str, str]) -> Document:
    digest, row = cell.job.digest, cache.get(cell.job)
    result: Mapping[str, Any] = {} if row is None else row["result"]
    error = failed[digest].removeprefix(f"{cell.label}: ") if digest in failed else None
    return {
        "name": cell.label,
        "values": dict(cell.values),
        "seed": cell.seed,
        "status": "done" if row is not None else "failed" if error is not None else "waiting",
        "error": error,
        **{key: result.get(key) for key in RESULT},
        "ledger": list(result.get("ledger", [])),
        "attacks": [_with_tap(one, tap) for one, tap in zip(result.get("attacks", []), _taps(cell), strict=False)],
        "settings": list(cell.job.settings),
        "digest": digest,
    }


def _taps(cell: Cell) -> Sequence[str]:
    taps: Sequence[str] = cell.job.options.get("taps", ())
    return taps


def _with_tap(attack: Mapping[str, Any], tap: str) -> Document:
    return {**attack, "tap": tap}


def _line(group: Sequence[Document]) -> Line:
    done = [one for one in group if one["status"] == "done"]
    right = [one["accuracy"] for one in done if one["accuracy"] is not None]
    low, high = interval(right, True) if len(right) > 1 else (None, None)
    taps = dict.fromkeys(attack["tap"] for one in done for attack in one["attacks"])
    return Line(
        values=group[0]["values"],
        seeds=len(done),
        planned=len(group),
        accuracy=_mean(right),
        span=None if low is None or high is None else (low, high),
        chance=done[0]["chance"] if done else None,
        learned=bool(done) and all(one["learned"] for one in done),
        epsilon={tap: epsilon_at(done[0]["ledger"], tap) if done else None for tap in ("example", "client", *SHOWN)},
        leaks={tap: _mean([leak_of(a) for one in done for a in one["attacks"] if a["tap"] == tap]) for tap in taps},
        errors=tuple(dict.fromkeys(one["error"] for one in group if one["error"])),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
