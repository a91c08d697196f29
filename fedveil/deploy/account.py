"""A node's own privacy account: a file on its own disk, one line for each round that it took part in.

A line is written, synced and in place before anything of that round is sent, so that a crash can only leave an account
that is too high. Nothing is ever taken back: a round asked for again, a restart, a second run all add lines. What a round
costs is written out in full (noise, steps, sampling rate), so that ε follows from this file alone.

The account counts the rounds that really happened (rule `realised`), so it needs no assumption on how the server draws its
clients. The budget is kept by a privacy filter: a server may choose its next request after it has seen an answer, and
composition of privacy loss distributions holds only for mechanisms that were chosen beforehand.
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
ADJACENT = ("zero-out", "replace")  # presence at a node is visible: add-remove has no meaning there


@dataclass(frozen=True)
class Use:
    """What one round does to one unit of this node: see `accountants.Round`."""

    z: float
    steps: int = 1
    rate: float = 1.0
    hidden: bool = False
    law: str = "gaussian"
    replace: bool = False

    @classmethod
    def of(cls, one: Round) -> Use:
        z = min(value for _, value in one.noise)
        return cls(z, one.steps, one.rate, one.hidden, one.distribution, one.replace)

    @property
    def round(self) -> Round:
        law: Any = self.law
        return Round(((1.0, self.z),), self.steps, self.rate, self.hidden, distribution=law, replace=self.replace)


@dataclass(frozen=True)
class Entry:
    """One round that was taken part in. A unit whose use is None has no certificate from then on."""

    run: str
    round: int
    config: str  # digest of the config that was asked for
    uses: Mapping[str, Mapping[str, Use | None]]  # by unit and adjacency
    time: str = ""

    def use(self, unit: str, adjacency: str) -> Use | None:
        return self.uses[unit][adjacency]


class NodeLedger:
    """The account in a node's folder."""

    def __init__(self, home: Path) -> None:
        self.path = home / FILE

    def create(self) -> None:
        """An empty account. One that is there already is kept."""
        if not self.path.exists():
            self._write([])

    def entries(self) -> list[Entry]:
        """All lines; a missing or damaged account stops the node rather than starting again from zero."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise RunError(f"{self.path} is missing: put it back; without the account nothing is sent") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path} cannot be read ({error}): nothing is sent without the account") from None
        try:
            header = json.loads(lines[0])
            found = [_entry(json.loads(line)) for line in lines[1:]]
            if header.get("ledger") not in (1, VERSION) or header.get("entries") != len(found):
                raise ValueError("lines are missing")
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise RunError(
                f"{self.path} is damaged ({error}): put a good copy back; nothing is sent without it"
            ) from None
        return found

    def epsilon(self, unit: str, delta: float, adjacency: str = "zero-out") -> float:
        """ε of all that was sent so far; infinite where something had no certificate."""
        return total(self.entries(), unit, delta, adjacency)

    def spend(self, entry: Entry, limits: Limits) -> float | None:
        """Writes a round before it is sent, or raises `Refused` where it would exceed the budget.

        Returns ε after it; None where there is no budget, since composing takes a second.
        """
        with self._locked():
            entries = [*self.entries(), entry]
            after = self._within(entries, limits) if limits.epsilon is not None else None
            self._write(entries)
        return after

    @staticmethod
    def _within(entries: Sequence[Entry], limits: Limits) -> float:
        """ε after the last entry by the budget's filter; or `Refused`."""
        assert limits.epsilon is not None
        budget = RenyiFilter.for_budget(limits.epsilon, limits.delta)
        uses = [entry.use(limits.unit, limits.adjacency) for entry in entries]
        costs = [math.inf if use is None else budget.cost(use.round) for use in uses]
        after = budget.epsilon(costs)
        if not budget.allows(costs):
            spent = budget.epsilon(costs[:-1])
            raise Refused(
                f"over budget: ε = {spent:.4g} of {limits.epsilon:g} is spent (δ = {limits.delta:g}, one {limits.unit}, "
                f"{limits.adjacency}), this round would make it {after:.4g}"
            )
        return after

    def _write(self, entries: Sequence[Entry]) -> None:
        from fedveil.runs import write_text

        header = {"ledger": VERSION, "entries": len(entries)}
        write_text(self.path, "".join(to_json(line) + "\n" for line in (header, *map(asdict, entries))))
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name itself must survive a power cut
        finally:
            os.close(folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time: two messages of one node may be worked on at once."""
        with self.path.with_suffix(".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _entry(line: dict[str, Any]) -> Entry:
    told = line["uses"] if "uses" in line else {unit: _both(line[unit]) for unit in NODE_UNITS}
    uses = {unit: {a: None if told[unit][a] is None else Use(**told[unit][a]) for a in ADJACENT} for unit in NODE_UNITS}
    return Entry(line["run"], line["round"], line["config"], uses, line["time"])


def _both(use: dict[str, Any] | None) -> dict[str, Any]:
    """A use of the first version, which knew zero-out alone: replaced, a record counts twice."""
    return {"zero-out": use, "replace": None if use is None else {**use, "replace": True}}


def total(entries: Sequence[Entry], unit: str, delta: float, adjacency: str = "zero-out") -> float:
    """ε of these rounds at δ, composed, all under one neighbouring relation; infinite where one has no certificate."""
    uses = [entry.use(unit, adjacency) for entry in entries]
    return realised_epsilon([None if use is None else use.round for use in uses], delta)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
