"""A node's own privacy ledger: a file on the node's disk with one line for each round in which it took part.

A line is written and synced before anything of its round is sent, so a crash can only leave a ledger that is too high.
Lines are never removed: a repeated request, a restart or a second run each add lines. A line holds the full cost of its
round (noise, steps, sampling rate), so ε follows from this file alone.

The ledger counts the rounds that happened (rule `realised`), so it needs no assumption on how the server samples clients.
A privacy filter enforces the budget: a server may choose its next request after it has seen a reply, and composition of
privacy loss distributions holds only for mechanisms that were chosen beforehand.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedveil.accounting.accountants import Round
from fedveil.accounting.accounts import realised_epsilon
from fedveil.accounting.filters import RenyiFilter
from fedveil.core.errors import RunError
from fedveil.core.system import to_json
from fedveil.core.taps import NODE_UNITS
from fedveil.deploy.limits import Limits, Refused

FILE = "ledger.jsonl"
VERSION = 2
ADJACENT = ("zero-out", "replace")  # the presence of a node is public: add-remove has no meaning here


@dataclass(frozen=True)
class Use:
    """The mechanism that one round applies to one unit of this node; the fields are those of `accountants.Round`."""

    z: float
    steps: int = 1
    rate: float = 1.0
    hidden: bool = False
    law: str = "gaussian"
    replace: bool = False

    @classmethod
    def of(cls, cost: Round) -> Use:
        z = min(value for _, value in cost.noise)
        return cls(z, cost.steps, cost.rate, cost.hidden, cost.distribution, cost.replace)

    @property
    def round(self) -> Round:
        law: Any = self.law
        return Round(((1.0, self.z),), self.steps, self.rate, self.hidden, distribution=law, replace=self.replace)


@dataclass(frozen=True)
class Entry:
    """One round of one run. A unit whose use is None has no certificate from this round on."""

    run: str
    round: int
    config: str  # digest of the requested config
    uses: Mapping[str, Mapping[str, Use | None]]  # by unit and adjacency
    time: str = ""

    def use(self, unit: str, adjacency: str) -> Use | None:
        return self.uses[unit][adjacency]


class NodeLedger:
    """The ledger in a node's folder."""

    def __init__(self, home: Path) -> None:
        self.path = home / FILE

    def create(self) -> None:
        """Writes an empty ledger, unless there is one already."""
        if not self.path.exists():
            self._write([])

    def entries(self) -> list[Entry]:
        """All entries. A missing or damaged ledger raises an error: starting again from zero would hide what was spent."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise RunError(f"{self.path} is missing: restore it; the node sends nothing without its ledger") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path} cannot be read ({error}): the node sends nothing without its ledger") from None
        try:
            header = json.loads(lines[0])
            found = [_entry(json.loads(line)) for line in lines[1:]]
            if header.get("ledger") not in (1, VERSION) or header.get("entries") != len(found):
                raise ValueError("lines are missing")
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise RunError(
                f"{self.path} is damaged ({error}): restore a good copy; the node sends nothing without its ledger"
            ) from None
        return found

    def epsilon(self, unit: str, delta: float, adjacency: str = "zero-out") -> float:
        """ε of everything sent so far; infinite if a round had no certificate."""
        return total(self.entries(), unit, delta, adjacency)

    def spend(self, entry: Entry, limits: Limits) -> float | None:
        """Records a round before it is sent; raises `Refused` if it would exceed the budget.

        Returns ε after the round, or None without a budget: composing all rounds takes a second.
        """
        with self._locked():
            entries = [*self.entries(), entry]
            after = self._within(entries, limits) if limits.epsilon is not None else None
            self._write(entries)
        return after

    @staticmethod
    def _within(entries: Sequence[Entry], limits: Limits) -> float:
        """ε after the last entry, by the privacy filter of the budget; raises `Refused` if it exceeds the budget."""
        assert limits.epsilon is not None
        budget = RenyiFilter.for_budget(limits.epsilon, limits.delta)
        uses = [entry.use(limits.unit, limits.adjacency) for entry in entries]
        costs = [math.inf if use is None else budget.cost(use.round) for use in uses]
        after = budget.epsilon(costs)
        if not budget.allows(costs):
            spent = budget.epsilon(costs[:-1])
            raise Refused(
                f"over budget: {spent:.4g} of ε = {limits.epsilon:g} is spent (δ = {limits.delta:g}, unit {limits.unit}, "
                f"adjacency {limits.adjacency}); this round would raise it to {after:.4g}"
            )
        return after

    def _write(self, entries: Sequence[Entry]) -> None:
        from fedveil.runs import write_text

        header = {"ledger": VERSION, "entries": len(entries)}
        write_text(self.path, "".join(to_json(line) + "\n" for line in (header, *map(asdict, entries))))
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename must survive a power cut too
        finally:
            os.close(folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Admits one writer at a time: a node may work on two messages at once."""
        with self.path.with_suffix(".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _entry(line: dict[str, Any]) -> Entry:
    given = line["uses"] if "uses" in line else {unit: _from_version_1(line[unit]) for unit in NODE_UNITS}
    uses = {unit: {a: given[unit][a] and Use(**given[unit][a]) for a in ADJACENT} for unit in NODE_UNITS}
    return Entry(line["run"], line["round"], line["config"], uses, line["time"])


def _from_version_1(use: dict[str, Any] | None) -> dict[str, Any]:
    """A use from version 1 of the file, which recorded zero-out only; replacing a record counts it twice."""
    return {"zero-out": use, "replace": None if use is None else {**use, "replace": True}}


def total(entries: Sequence[Entry], unit: str, delta: float, adjacency: str = "zero-out") -> float:
    """ε at δ of all rounds composed under one neighbouring relation; infinite if one round has no certificate."""
    uses = [entry.use(unit, adjacency) for entry in entries]
    return realised_epsilon([None if use is None else use.round for use in uses], delta)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
