"""What a reader signs: the verdict in one sentence, who is protected against whom, the run to take, and digests.

Every sentence follows from the run folders. Where there is neither an attack nor a certificate, the page says not
known, never safe.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fedveil.accounting.ledger import Row
from fedveil.accounting.transcript import FILE
from fedveil.report.gather import Run
from fedveil.report.glossary import ADJACENCY, UNIT, delta_text, percent
from fedveil.report.summary import Point, joined
from fedveil.report.verdict import HINTS, LEAKS, LIMITED, Verdict, guessed_text, rebuilt_text, verdicts

PROTECTED = ("against", "who is protected", "ε", "in the sense of", "largest ε", "in the sense of (largest)", "δ")


def today() -> str:
    """The day on which the page is made."""
    return datetime.now(UTC).date().isoformat()


# --- the verdict in one sentence


def headline(run: Run) -> Point:
    """The verdict on one run, in one sentence."""
    seen = verdicts(run)
    return Point(_leaks(seen), f" {_proved(run, seen)}{_learned(run)}")


def _leaks(seen: Sequence[Verdict]) -> str:
    leaks = [one for one in seen if one.word == LEAKS]
    hints = [one.adversary.inside for one in seen if one.word == HINTS]
    if leaks:
        worst = leaks[0]
        assert worst.rebuilt is not None
        told = f"Training examples leak to {joined([one.adversary.inside for one in leaks])}"
        return f"{told}: an attack {rebuilt_text(worst.rebuilt.document)}."
    if hints:
        first = next(one for one in seen if one.word == HINTS)
        assert first.guessed is not None
        return f"Hints leak to {joined(hints)}: an attack {guessed_text(first.guessed.document)}."
    tried = [one.adversary.inside for one in seen if one.tried]
    if tried:
        return f"The attacks that were made by {joined(tried)} found nothing."
    return "No attack was made on this run."


def _proved(run: Run, seen: Sequence[Verdict]) -> str:
    limited = [one.adversary.inside for one in seen if one.word == LIMITED]
    bare = [one.adversary.inside for one in seen if not one.proofs]
    if run.account_lost:
        return "Its account cannot be computed here, so no ε is known."
    if not any(one.proofs for one in seen):
        return "No ε is certified against anyone." if run.rounds else "No round was made, so there is no ε."
    told = f"A limit that rules something out is certified against {joined(limited)}." if limited else ""
    weak = [one.adversary.inside for one in seen if one.proofs and one.word not in (LIMITED, LEAKS, HINTS)]
    if weak:
        told += f" Against {joined(weak)} the certified ε is too large to rule anything out."
    both = [one.adversary.inside for one in seen if one.proofs and one.word in (LEAKS, HINTS)]
    if both:
        told += f" Against {joined(both)} an ε is certified, and the attack succeeded within it."
    if bare:
        told += f" Nothing is certified against {joined(bare)}."
    return told.strip()


def _learned(run: Run) -> str:
    accuracy = run.scores[0]
    if accuracy is None:
        return " What the model learned is not known."
    if run.learned is False:
        return f" The model learned nothing: accuracy {percent(accuracy)} is no better than chance."
    beside = "" if run.chance is None else f" (chance {percent(run.chance)})"
    return f" Accuracy {percent(accuracy)}{beside}."


# --- who is protected


def protected(run: Run) -> list[list[object]]:
    """For each adversary and unit with a certificate: the smallest ε, and the largest of all adjacencies that have one."""
    made: list[list[object]] = []
    for one in verdicts(run):
        for unit in ("example", "image", "client"):
            row = run.best(one.tap, unit)
            if row is None:
                continue
            worst = _worst(run, one.tap, unit)
            names = (ADJACENCY[row.adjacency], ADJACENCY[worst.adjacency])
            made.append(
                [one.adversary.name, UNIT[unit], row.epsilon, names[0], worst.epsilon, names[1], delta_text(row.delta)]
            )
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


# --- the run to take


@dataclass(frozen=True)
class Choice:
    """The recommended run, if any, and the reasons for and against each."""

    run: Run | None
    text: str


def choice(runs: Sequence[Run]) -> Choice:
    """Of the runs on the page: the most accurate one that learned, leaked to no attack, and has a limit somewhere."""
    against = [(run, objections(run)) for run in runs]
    fit = [run for run, reasons in against if not reasons]
    if not fit:
        told = "; ".join(f"{run.label}: {joined(reasons)}" for run, reasons in against)
        what = "This run is not recommended" if len(runs) == 1 else "None of these runs is recommended"
        return Choice(None, f"{what}. {told}.")
    taken = max(fit, key=lambda run: run.scores[0] or 0.0)
    limited = [one.adversary.inside for one in verdicts(taken) if one.word == LIMITED]
    rest = [one.adversary.inside for one in verdicts(taken) if one.word != LIMITED]
    told = (
        f"{taken.label}, as it was run: accuracy {percent(taken.scores[0] or 0.0)}, limits against {joined(limited)}."
    )
    if rest:
        told += f" It is no answer to {joined(rest)}, who must be trusted or kept out."
    untried = [one.adversary.inside for one in verdicts(taken) if not one.tried]
    if untried:
        told += f" It was not attacked by {joined(untried)}."
    return Choice(taken, told)


def objections(run: Run) -> list[str]:
    """Why a run cannot be recommended; empty if nothing on the page speaks against it."""
    seen, found = verdicts(run), []
    if run.status != "done":
        found.append("it did not finish")
    if run.scores[0] is None:
        found.append("its accuracy is not known")
    elif run.learned is False:
        found.append("it learned nothing")
    elif run.learned is None:
        found.append("it is not known whether it learned more than chance")
    leaks = [one.adversary.inside for one in seen if one.word in (LEAKS, HINTS)]
    if leaks:
        found.append(f"it leaks to {joined(leaks)}")
    if run.account_lost:
        found.append("its account is not known")
    elif not any(one.word == LIMITED for one in seen):
        found.append("no certificate rules anything out")
    return found


def tried(runs: Sequence[Run]) -> list[list[object]]:
    """What was tried: a row for each run, its settings and what came of them."""
    return [
        [
            run.label,
            ", ".join(f"{k} {v}" for d in run.config.defense for k, v in _keys(d).items()) or "–",
            None if run.scores[0] is None else percent(run.scores[0]),
            _epsilon(run, "server"),
            _epsilon(run, "release"),
            joined([one.adversary.inside for one in verdicts(run) if one.word in (LEAKS, HINTS)])
            if any(one.word in (LEAKS, HINTS) for one in verdicts(run))
            else ("nobody tried" if all(not one.tried for one in verdicts(run)) else "none that was tried"),
        ]
        for run in runs
    ]


def _keys(defense: object) -> dict[str, object]:
    from fedveil.defenses.catalog import resolved

    table = resolved(defense)  # type: ignore[arg-type]
    return {
        key: value for key, value in table.items() if key in ("clip", "noise", "epsilon", "placement", "clip_scope")
    }


def _epsilon(run: Run, tap: str) -> float | None:
    row = run.best(tap, "example")
    return None if row is None else row.epsilon


# --- what is signed


def digests(run: Run) -> list[tuple[str, str]]:
    """The SHA-256 digests of the files that the page is made from, so that a signature holds for this run alone."""
    found = []
    for name in ("config.toml", FILE, "model.safetensors"):
        path = run.path / name
        if path.is_file():
            found.append((name, hashlib.sha256(path.read_bytes()).hexdigest()))
    return found
