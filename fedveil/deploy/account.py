"""A node's own privacy ledger: a file on the node's disk with one line for each round in which it took part.

A line is written and synced before its round is computed, so after a crash the account can only be too high. Lines are
never removed: a repeated request, a restart or a second run each add lines. A line holds the full cost of its round
(noise, steps, sampling rate), so ε follows from this file alone. Every line also holds the digest of the line before it.
The last digest is written to a second file, and `deploy status` shows it. An old copy of the ledger does not contain it.

The ledger counts the rounds that happened (rule `realised`), so it needs no assumption on how the server samples clients.
A privacy filter enforces the budget: a server may choose its next request after it has seen a reply, and composition of
privacy loss distributions holds only for mechanisms that were chosen beforehand.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fedveil.accounting.accountants import Round
from fedveil.accounting.accounts import realised_epsilon
from fedveil.accounting.filters import RenyiFilter
from fedveil.core.errors import RunError
from fedveil.core.files import write_text
from fedveil.core.system import to_json
from fedveil.core.taps import NODE_UNITS
from fedveil.deploy.limits import Limits, Refused

FILE = "ledger.jsonl"
WITNESS = "ledger.last"  # the digest of the last line that was written
VERSION = 3
DAMAGE = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
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
    slip: float = 0.0  # of integer noise, and above zero for it alone

    @classmethod
    def of(cls, cost: Round) -> Use:
        z = min(value for _, value in cost.noise)
        return cls(z, cost.steps, cost.rate, cost.hidden, cost.distribution, cost.replace, cost.slip)

    @property
    def round(self) -> Round:
        law: Any = self.law
        own = Round(((1.0, self.z),), self.steps, self.rate, self.hidden, distribution=law, replace=self.replace)
        return replace(own, slip=self.slip)


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
            start = secrets.token_hex(16)
            self._write(_Stored((), start, (), (_digest(start),)))

    def entries(self) -> list[Entry]:
        """All entries. A missing or damaged ledger raises an error: starting again from zero would hide what was spent."""
        return list(self._read().entries)

    def digests(self) -> list[str]:
        """The digest of the empty ledger and of every line. The last one stands for the whole ledger."""
        return list(self._read().digests)

    def _read(self) -> _Stored:
        """What the file holds. Raises an error if it is damaged, or if an older copy was put back."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise RunError(f"{self.path} is missing: restore it; the node sends nothing without its ledger") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path} cannot be read ({error}): the node sends nothing without its ledger") from None
        known = _known.get(self.path.resolve())
        if known is None or known.text != text:
            try:
                known = _parse(text)
            except DAMAGE as error:
                raise RunError(
                    f"{self.path} is damaged ({' '.join(str(error).split())[:100]}): restore a good copy; the node sends "
                    "nothing without its ledger"
                ) from None
            _known[self.path.resolve()] = known
        self._check_witness(known.digests, chained=bool(known.start))
        return known

    def _check_witness(self, digests: Sequence[str], *, chained: bool) -> None:
        witness = self.path.with_name(WITNESS)
        last = witness.read_text(encoding="utf-8").strip() if witness.exists() else ""
        if last in digests or (not last and (not chained or len(digests) == 1)):
            return  # a file of an older version has no chain and no witness
        found = f"{WITNESS} beside it is missing" if not last else f"it does not contain the last digest {last}"
        raise RunError(
            f"{self.path} was replaced by an older or another copy ({found}): restore the newest copy of both"
        )

    def epsilon(self, unit: str, delta: float, adjacency: str = "zero-out") -> float:
        """ε of everything sent so far; infinite if a round had no certificate."""
        return total(self.entries(), unit, delta, adjacency)

    def spend(self, entry: Entry, limits: Limits) -> float | None:
        """Records a round before it is computed; raises `Refused` if it would exceed the budget.

        Returns ε after the round, or None without a budget: composing all rounds takes a second.
        """
        with self._locked():
            before = self._read()
            after = self._within([*before.entries, entry], limits) if limits.epsilon is not None else None
            self._write(before.plus(entry))
        return after

    @staticmethod
    def _within(entries: Sequence[Entry], limits: Limits) -> float:
        """ε after the last entry, by the privacy filter of the budget; raises `Refused` if it exceeds the budget."""
        assert limits.epsilon is not None
        uses = [entry.use(limits.unit, limits.adjacency) for entry in entries]
        slip = math.fsum(use.slip for use in uses if use is not None)
        budget = RenyiFilter.suiting(limits.epsilon, limits.delta, slip)
        costs = [math.inf if use is None else _cost(budget, use) for use in uses]
        after = budget.epsilon(costs)
        if not budget.allows(costs, slip):
            spent = budget.epsilon(costs[:-1])
            raise Refused(
                f"over budget: {spent:.4g} of ε = {limits.epsilon:g} is spent (δ = {limits.delta:g}, unit {limits.unit}, "
                f"adjacency {limits.adjacency}); this round would raise it to {after:.4g}"
            )
        return after

    def _write(self, stored: _Stored) -> None:
        write_text(self.path, stored.text)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename must survive a power cut too
        finally:
            os.close(folder)
        # The ledger may be ahead of the witness after a crash, never behind it.
        write_text(self.path.with_name(WITNESS), stored.digests[-1] + "\n")
        _known[self.path.resolve()] = stored

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Admits one writer at a time: a node may work on two messages at once."""
        with self.path.with_suffix(".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@dataclass(frozen=True)
class _Stored:
    """The content of a ledger: its entries, the random start of the chain, the lines and all digests."""

    entries: tuple[Entry, ...]
    start: str
    lines: tuple[str, ...]  # without the header; empty for a file of an older version
    digests: tuple[str, ...]  # of the empty ledger and of every line

    @cached_property
    def text(self) -> str:
        """The file."""
        header = {"ledger": VERSION, "entries": len(self.entries), "start": self.start, "last": self.digests[-1]}
        return "".join(line + "\n" for line in (to_json(header), *self.lines))

    def plus(self, entry: Entry) -> _Stored:
        """With another entry at the end, in the file's newest version."""
        if not self.start:
            start, (*before, last) = secrets.token_hex(16), (*self.entries, entry)
            made = _Stored((), start, (), (_digest(start),))
            for one in before:
                made = made.plus(one)
            return made.plus(last)
        line = to_json({**asdict(entry), "previous": self.digests[-1]})
        return _Stored((*self.entries, entry), self.start, (*self.lines, line), (*self.digests, _digest(line)))


_known: dict[Path, _Stored] = {}  # what this process has read or written last: it counts while the file is the same


@lru_cache(maxsize=4096)
def _cost(budget: RenyiFilter, use: Use) -> float:
    return budget.cost(use.round)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _parse(text: str) -> _Stored:
    """The ledger in a file; the start is empty for a file of an older version, which has no chain."""
    # Not `splitlines`: a run's name, which the server chooses, may hold other line separators of Unicode.
    lines = text.removesuffix("\n").split("\n")
    header = json.loads(lines[0])
    found = tuple(_entry(json.loads(line)) for line in lines[1:])
    if header.get("ledger") not in (1, 2, VERSION) or header.get("entries") != len(found):
        raise ValueError("lines are missing")
    if header["ledger"] != VERSION:
        return _Stored(found, "", (), (_digest("\n".join(lines)),))
    digests = [_digest(str(header["start"]))]
    for number, line in enumerate(lines[1:], 1):
        if json.loads(line)["previous"] != digests[-1]:
            raise ValueError(f"line {number} does not follow the one before it")
        digests.append(_digest(line))
    if header["last"] != digests[-1]:
        raise ValueError("the last line is not the one that was written last")
    return _Stored(found, str(header["start"]), tuple(lines[1:]), tuple(digests))


def _entry(line: dict[str, Any]) -> Entry:
    given = line["uses"] if "uses" in line else {unit: _from_version_1(line[unit]) for unit in NODE_UNITS}
    uses = {
        unit: {a: None if given[unit][a] is None else _use(given[unit][a]) for a in ADJACENT} for unit in NODE_UNITS
    }
    return Entry(str(line["run"]), int(line["round"]), str(line["config"]), uses, str(line["time"]))


def _use(values: dict[str, Any]) -> Use:
    """A use from the file; raises ValueError for values that no round can have."""
    use = Use(**values)
    numbers = all(type(n) in (int, float) for n in (use.z, use.rate, use.slip)) and type(use.steps) is int
    kinds = type(use.hidden) is bool and type(use.replace) is bool and use.law in ("gaussian", "laplace")
    if not (numbers and kinds and use.z > 0 and 0 <= use.rate <= 1 and use.steps >= 1 and 0 <= use.slip < 1):
        raise ValueError(f"no round has the cost {str(values)[:60]}")
    return use


def _from_version_1(use: dict[str, Any] | None) -> dict[str, Any]:
    """A use from version 1 of the file, which recorded zero-out only; replacing a record counts it twice."""
    return {"zero-out": use, "replace": None if use is None else {**use, "replace": True}}


def total(entries: Sequence[Entry], unit: str, delta: float, adjacency: str = "zero-out") -> float:
    """ε at δ of all rounds composed under one neighbouring relation; infinite if one round has no certificate."""
    uses = [entry.use(unit, adjacency) for entry in entries]
    return realised_epsilon([None if use is None else use.round for use in uses], delta)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
