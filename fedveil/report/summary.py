"""The top of the page: what leaks, to whom, at which ε and at which accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedveil.attacks.score import wilson
from fedveil.report.gather import Run
from fedveil.report.glossary import ADJACENCY, SHOWN, STATUS, UNIT, delta_text, limit, percent
from fedveil.report.tables import number
from fedveil.report.verdict import (
    HINTS,
    LEAKS,
    MEANS,
    Verdict,
    guessed_text,
    rebuilt_text,
    tells_apart,
    verdict,
    verdicts,
)


@dataclass(frozen=True)
class Point:
    """One sentence of the summary: its first words are printed bold."""

    strong: str
    rest: str = ""


# --- sentences on one run


def points(run: Run) -> list[Point]:
    """Accuracy, what attacks found, what is certified, which attacks failed, and what is unknown."""
    seen = verdicts(run)
    return [_accuracy(run), *_found(seen), *_limits(seen), *_failures(seen), *_unknown(run, seen)]


def _accuracy(run: Run) -> Point:
    accuracy, loss, after = run.scores
    made = f"{run.rounds} of {run.planned} rounds made; " if run.rounds else ""
    status = f"The training: {made}{STATUS.get(run.status, run.status)}."
    if after is None:
        return Point("Accuracy was never measured.", f" {status}")
    if accuracy is None:
        return Point(f"After {after} rounds the accuracy is not a number", f": the training diverged. {status}")
    diverged = " Its loss is not a number: the training diverged." if loss is None else ""
    beside = "" if run.chance is None else f"; naming the most common class always gets {percent(run.chance)}"
    span = _interval(accuracy, run.info.get("held_out"))
    told = f" of held-out records right{span} ({run.split} part), after {after} rounds{beside}.{diverged} {status}"
    if run.diagnosis:
        told += f" {run.diagnosis}"
    strong = "No better than chance: accuracy" if run.learned is False else "Accuracy"
    return Point(f"{strong} {percent(accuracy)}", told)


def _interval(accuracy: float, records: object) -> str:
    """The 95 % interval of an accuracy on so many records; empty where their number is not known."""
    if not isinstance(records, int) or isinstance(records, bool) or records < 1:
        return ""
    low, high = wilson(accuracy, records)
    return f" (95 % interval {100 * low:.0f} to {100 * high:.0f} %)"


def _found(seen: Sequence[Verdict]) -> list[Point]:
    """What attacks got; adversaries with the same result share a sentence."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in seen:
        if one.word == LEAKS and one.rebuilt is not None:
            told = f" An attack {rebuilt_text(one.rebuilt.document)}."
            groups.setdefault(("Leaks to", told), []).append(one.adversary.inside)
        if one.guessed is not None and tells_apart(one.guessed.document):
            told = f" An attack {guessed_text(one.guessed.document)}."
            groups.setdefault(("Gives hints to", told), []).append(one.adversary.inside)
    return [Point(f"{what} {joined(names)}.", told) for (what, told), names in groups.items()]


def _limits(seen: Sequence[Verdict]) -> list[Point]:
    """What is proved; adversaries with the same certificate share a sentence."""
    groups: dict[tuple[float, float, str, str], list[str]] = {}
    for one in seen:
        for row in one.proofs:
            key = (row.epsilon or 0.0, row.delta or 0.0, row.unit, row.adjacency)
            groups.setdefault(key, []).append(one.adversary.inside)
    return [
        Point(
            f"Proved against {joined(names)}, for {UNIT[unit]}: ε = {number(epsilon, 3)}",
            f" (δ = {delta_text(delta)}; {UNIT[unit]} {ADJACENCY[adjacency]}). {limit(epsilon, delta, adjacency)}",
        )
        for (epsilon, delta, unit, adjacency), names in groups.items()
    ]


def _failures(seen: Sequence[Verdict]) -> list[Point]:
    """The adversaries whose attacks got nothing, with how little the number of tries excludes."""
    failed = [one for one in seen if one.tried and one.word not in (LEAKS, HINTS)]
    if not failed:
        return []
    got = dict.fromkeys(failure(one) for one in failed)
    told = f" Results: {'; '.join(got)}. That proves nothing by itself: another attack may succeed."
    return [Point(f"Attacks by {joined([one.adversary.inside for one in failed])} failed.", told)]


def failure(one: Verdict) -> str:
    """What the attacks at a tap got that got nothing."""
    tried = [] if one.rebuilt is None else [rebuilt_text(one.rebuilt.document)]
    return " and ".join([*tried, *([] if one.guessed is None else [guessed_text(one.guessed.document)])])


def _unknown(run: Run, seen: Sequence[Verdict]) -> list[Point]:
    untried = [one.adversary.inside for one in seen if not one.tried]
    unproved = [one.adversary.inside for one in seen if not one.proofs]
    found = []
    if untried:
        found.append(Point(f"Attacks by {joined(untried)} were not tried.", " Nothing is shown, either way."))
    if not run.rounds:
        found.append(Point("No account.", " No round was made, so there is no ε."))
    elif run.account_lost:
        found.append(Point("No account.", " It cannot be computed here, so no ε is known."))
    elif unproved:
        found.append(Point(f"Nothing is proved against {joined(unproved)}."))
    return found


def joined(names: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


# --- several runs


def measured(run: Run) -> str:
    """The accuracy in a table cell."""
    accuracy, _, after = run.scores
    if accuracy is None:
        return "not measured" if after is None else "not a number"
    beside = "" if run.chance is None else f" (chance {percent(run.chance)})"
    return f"{percent(accuracy)}{beside}{', not learned' if run.learned is False else ''}"


def costs(runs: Sequence[Run]) -> list[str]:
    """The accuracy that each run loses against the most accurate one, and what still leaks."""
    known = [(run, accuracy) for run in runs if (accuracy := run.scores[0]) is not None]
    if len(known) < 2:
        return []
    top, most = max(known, key=lambda pair: pair[1])
    lines = []
    for run, accuracy in known:
        if run is not top:
            points = f"{100 * (most - accuracy):.0f} points of accuracy"
            lines.append(f"{run.label} costs {points} against {top.label}; {_still(verdicts(run))}.")
    return lines


def _still(seen: Sequence[Verdict]) -> str:
    """What is left to attacks."""
    leaks = [one.adversary.inside for one in seen if one.word == LEAKS]
    if leaks:
        return f"still leaks to {joined(leaks)}"
    rebuilds = any(one.rebuilt is not None for one in seen)
    return "no attack tried here rebuilt anything" if rebuilds else "no attack that rebuilds examples was tried"


def used_words(runs: Sequence[Run]) -> list[str]:
    """The verdict words on the page."""
    used = {one.word for run in runs for one in verdicts(run)}
    return [word for word in MEANS if word in used]


def record_exceeds_client(runs: Sequence[Run]) -> bool:
    """Whether some ε for one record exceeds that for all records of a client, which the page then explains."""
    pairs = [(run.best(tap, "example"), run.best(tap, "client")) for run in runs for tap in SHOWN]
    return any(a and b and (a.epsilon or 0.0) > (b.epsilon or 0.0) for a, b in pairs)


def holder_too(runs: Sequence[Run]) -> bool:
    """Whether an attack on the final model got something, which concerns all who hold it or its predecessors."""
    return any(verdict(run, "release").word in (LEAKS, HINTS) for run in runs)
