"""The verdict on an attack: one or two sentences that a reader can quote, made from the attack's document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEVEL = 0.95
SEEN = {
    "example": "the gradient of single examples",
    "batch": "the gradient of a client's batch",
    "client": "the update of a client, before it leaves",
    "server": "the update of a client, as the server receives it",
}


def at_most(victims: int, level: float = LEVEL) -> float:
    """The largest success rate at which no success among `victims` is not yet surprising: exact, one-sided."""
    return 1 - (1 - level) ** (1 / victims)


def of_reconstruction(document: Mapping[str, Any]) -> str:
    """What was rebuilt, from where, against the guess rate; then the labels, and what was not finished."""
    return " ".join(filter(None, (_content(document), _labels(document), _unfinished(document))))


def _content(told: Mapping[str, Any]) -> str:
    where, rebuilt, examples = SEEN.get(told["tap"], f"tap {told['tap']}"), told["rebuilt"], told["examples"]
    if not rebuilt:
        bound = at_most(told["victims"])
        return (
            f"Nothing was rebuilt in {_count(told['attacks']['started'], 'attack')} on {where}: this attack, with this "
            f"time, succeeds on at most {_percent(bound)} of such messages ({_percent(LEVEL)} confidence)."
        )
    rate, chance = rebuilt / examples, told["guess_rate"]
    sentence = f"{rebuilt} of {_count(examples, 'example')} rebuilt from {where} ({told['rule']})"
    if chance is None:
        return f"{sentence}."
    low = (told["interval"] or [rate, rate])[0]
    beside = f"a guess from other data reaches that in {_percent(chance)} of cases"
    return f"{sentence}; {beside}." if low > chance else f"{sentence}: no more than a guess, since {beside}."


def _labels(told: Mapping[str, Any]) -> str:
    rate, chance = told["label_success_rate"], told["label_guess_rate"]
    if rate is None:
        return ""
    if rate <= chance:
        return f"Labels: {_percent(rate)} right, no more than one constant guess ({_percent(chance)})."
    return f"Labels: {_percent(rate)} right; one constant guess gets {_percent(chance)}."


def _unfinished(told: Mapping[str, Any]) -> str:
    counts = told["attacks"]
    parts = []
    if counts["hopeless"]:
        parts.append(
            f"{counts['hopeless']} of {counts['planned']} attacks were given up: their objective no longer fell, "
            "at a match no better than a guess."
        )
    if told["stopped"] == "time limit":
        unfinished = (
            f"{counts['unfinished']} of {counts['planned']} attacks ended in the time limit of {told['limit']:g} s"
        )
        parts.append(f"{unfinished}; {counts['not_started']} not started (attack.seconds sets the limit).")
    return " ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share in (0, 1) or 0.01 <= share <= 0.99 else f"{100 * share:.2g} %"
