"""What a reader signs: the verdict in a few sentences, who is protected against whom, and digests.

Every sentence follows from the run folders. Where there is neither an attack nor a certificate, the page says not
known, never safe.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from fedveil.accounting.ledger import Row
from fedveil.accounting.transcript import FILE
from fedveil.report.gather import Run
from fedveil.report.glossary import ADJACENCY, UNIT, delta_text, percent, weak
from fedveil.report.summary import Point, failure, joined
from fedveil.report.tables import number
from fedveil.report.verdict import HINTS, LEAKS, Verdict, guessed_text, rebuilt_text, verdicts

PROTECTED = ("against", "who is protected", "ε", "in the sense of", "largest ε", "in the sense of (largest)", "δ")


def today() -> str:
    """The day on which the page is made."""
    return datetime.now(UTC).date().isoformat()


# --- the verdict in one sentence


def headline(run: Run) -> Point:
    """The verdict on one run, in a few sentences."""
    seen = verdicts(run)
    parts = (_finished(run), _proved(run, seen), _learned(run))
    return Point(_leaks(seen), "".join(f" {part}" for part in parts if part))


def _finished(run: Run) -> str:
    """That a training did not finish, which everything else on it depends on."""
    if run.status in ("done", "attacked"):
        return ""
    made = f"{run.rounds} of {run.planned} rounds were made" if run.planned else f"{run.rounds} rounds were made"
    return f"The training did not finish: {made}, and all that is said here is about them."


def _leaks(seen: Sequence[Verdict]) -> str:
    """What attacks got. Adversaries with the same result share a clause."""
    leaks: dict[str, list[str]] = {}
    hints: dict[str, list[str]] = {}
    for one in seen:
        if one.word == LEAKS and one.rebuilt is not None:
            leaks.setdefault(rebuilt_text(one.rebuilt.document), []).append(one.adversary.inside)
        if one.word == HINTS and one.guessed is not None:
            hints.setdefault(guessed_text(one.guessed.document), []).append(one.adversary.inside)
    told = []
    if leaks:
        told.append(f"Training examples leak: {_clauses(leaks)}.")
    if hints:
        told.append(f"{'Hints leak too' if leaks else 'Hints leak'}: {_clauses(hints)}.")
    if told:
        return " ".join(told)
    failed: dict[str, list[str]] = {}
    for one in seen:
        if one.tried:
            failed.setdefault(failure(one), []).append(one.adversary.inside)
    if failed:
        return f"The attacks that were made got nothing, which proves nothing: {_clauses(failed)}."
    return "No attack was made on this run."


def _clauses(groups: Mapping[str, Sequence[str]]) -> str:
    """ "an attack by A and B rebuilt 3 of 4; an attack by C rebuilt 1 of 4"."""
    made = []
    for told, names in groups.items():
        *first, last = names
        who = f"{', '.join(first)} or {last}" if first else last
        made.append(f"an attack by {who} {told}")
    return "; ".join(made)


def _proved(run: Run, seen: Sequence[Verdict]) -> str:
    """Every certificate for a record or a client, and against whom there is none."""
    if run.account_lost:
        return "Its account cannot be computed here, so no ε is known."
    if not any(one.proofs for one in seen):
        return "No ε is certified against anyone." if run.rounds else "No round was made, so there is no ε."
    told = [_certified(seen, loose) for loose in (False, True)]
    bare = [one.adversary.inside for one in seen if not one.proofs]
    if run.config.train.secure_aggregation:
        told.append("The ε at the server needs secure aggregation, which this run simulates.")
    if any(one.proofs and one.word in (LEAKS, HINTS) for one in seen):
        told.append("A certified ε bounds what leaks and does not exclude it.")
    if bare:
        told.append(f"Nothing is certified against {joined(bare)}.")
    return " ".join(filter(None, told))


def _certified(seen: Sequence[Verdict], loose: bool) -> str:
    """The certificates that rule something out, or those that do not; equal ones share a clause."""
    groups: dict[tuple[float, str], list[str]] = {}
    for one in seen:
        for row in one.proofs:
            if weak(row.epsilon or 0.0, row.delta or 0.0) is loose:
                groups.setdefault((row.epsilon or 0.0, row.unit), []).append(one.adversary.inside)
    if not groups:
        return ""
    told = "; ".join(f"ε = {number(e, 3)} for {UNIT[unit]} against {joined(who)}" for (e, unit), who in groups.items())
    return f"Certified, but so large that it rules out next to nothing: {told}." if loose else f"Certified: {told}."


def _learned(run: Run) -> str:
    accuracy = run.scores[0]
    if accuracy is None:
        return "What the model learned is not known."
    if run.learned is False:
        return f"The model learned nothing: accuracy {percent(accuracy)} is no better than chance."
    beside = "" if run.chance is None else f" (chance {percent(run.chance)})"
    blown = " Its loss diverged." if "diverged" in run.diagnosis else ""
    return f"Accuracy {percent(accuracy)}{beside}.{blown}"


# --- who is protected


COPIES: dict[tuple[str, ...], str] = {("example", "image"): "one record, also with all its copies"}


def protected(run: Run) -> list[list[object]]:
    """The certificates: the smallest ε of a unit, and the largest of all adjacencies that have one.

    Adversaries and units with the same certificates share a row.
    """
    groups: dict[tuple[object, ...], dict[str, list[str]]] = {}  # values -> adversary -> units
    for unit in ("example", "image", "client"):
        for one in verdicts(run):
            row = run.best(one.tap, unit)
            if row is not None:
                worst = _worst(run, one.tap, unit)
                names = (ADJACENCY[row.adjacency], ADJACENCY[worst.adjacency])
                key = (row.epsilon, names[0], worst.epsilon, names[1], delta_text(row.delta))
                groups.setdefault(key, {}).setdefault(one.adversary.short, []).append(unit)
    made: list[list[object]] = []
    for values, found in groups.items():
        alike: dict[tuple[str, ...], list[str]] = {}
        for name, units in found.items():
            alike.setdefault(tuple(units), []).append(name)
        for together, who in alike.items():
            made.append([joined(who), COPIES.get(together, " and ".join(UNIT[unit] for unit in together)), *values])
    return made


def _worst(run: Run, tap: str, unit: str) -> Row:
    """Of the adjacencies' certificates (each by its best accountant), the one with the largest ε."""
    here = [r for r in run.ledger if (r.tap, r.unit) == (tap, unit) and r.certified and r.epsilon is not None]
    least: dict[str, Row] = {}
    for row in here:
        known = least.get(row.adjacency)
        if known is None or (row.epsilon or 0.0) < (known.epsilon or 0.0):
            least[row.adjacency] = row
    return max(least.values(), key=lambda row: row.epsilon or 0.0)


# --- what is signed


def digests(run: Run) -> list[tuple[str, str]]:
    """The SHA-256 digests of the files that the page is made from, so that a signature holds for this run alone."""
    found = []
    for name in ("config.toml", FILE, "model.safetensors"):
        path = run.path / name
        if path.is_file():
            found.append((name, hashlib.sha256(path.read_bytes()).hexdigest()))
    return found


def seal(runs: Sequence[Run]) -> str:
    """One digest of the digests of all runs, for the signature."""
    lines = [f"{run.path} {name} {digest}" for run in runs for name, digest in digests(run)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
