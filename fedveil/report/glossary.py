"""Plain words for taps, units, adjacencies and (ε, δ), for readers who have not read the papers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedveil.report.charts import Allowed
from fedveil.report.tables import number


@dataclass(frozen=True)
class Adversary:
    """The adversary at one tap."""

    tap: str
    name: str
    sees: str
    short: str  # the name in a table

    @property
    def inside(self) -> str:
        """The name inside a sentence."""
        return self.name[0].lower() + self.name[1:]


ADVERSARIES: dict[str, Adversary] = {
    one.tap: one
    for one in (
        Adversary(
            "server", "The server", "what each client sends, one message at a time (leakage type 0)", "the server"
        ),
        Adversary(
            "client",
            "An observer who reads a client's update before it leaves",
            "the same update, on the client's machine (leakage type 1)",
            "an observer of a client's update",
        ),
        Adversary(
            "example",
            "An observer who watches a client train",
            "the gradient of every single example (leakage type 2)",
            "an observer of a client's training",
        ),
        Adversary(
            "batch",
            "An observer of a client's batches",
            "the gradient of each batch",
            "an observer of a client's batches",
        ),
        Adversary("broadcast", "Any other client", "the model that goes out in every round", "other clients"),
        Adversary(
            "release", "A recipient of the final model", "the model after the last round", "recipients of the model"
        ),
    )
}
SHOWN = (
    "server",
    "client",
    "example",
    "broadcast",
    "release",
)  # in the order of the summary: types 0, 1, 2, then models

UNIT = {"example": "one record", "image": "one record with all its copies", "client": "all of one client"}
ADJACENCY = {
    "add-remove": "there or not there",
    "zero-out": "its contribution replaced by nothing",
    "replace": "replaced by any other",
}
STATUS = {
    "done": "finished",
    "running": "not finished: still running, or its process was killed",
    "stopped": "stopped before its end",
    "attacked": "no training: attacks alone",
}

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


GUESSED = {  # what an attack guesses, in the sense of each adjacency
    "add-remove": "who was there",
    "zero-out": "whose contribution was counted",
    "replace": "which of two candidates was there",
}


def limit(epsilon: float, delta: float, adjacency: str = "add-remove") -> str:
    """The best that (ε, δ) allows an attack that guesses whether a unit was used, in numbers of units."""
    if weak(epsilon, delta):
        return "So large an ε rules out next to nothing: with 1 false alarm in 100, one may find nearly all who were there."
    caught = float(Allowed(epsilon, delta).most(0.01)) * 100
    what = GUESSED[adjacency]
    return f"Guessing {what} with 1 false alarm in 100, nobody can find more than {number(caught, 2)} in 100."


def sees(tap: str, sums: bool) -> str:
    """What the adversary at a tap sees; `sums`: under secure aggregation."""
    if tap == "server" and sums:
        return "the sum of what a round's clients send, and no single message (secure aggregation)"
    return ADVERSARIES[tap].sees


def weak(epsilon: float, delta: float) -> bool:
    """Whether a certificate rules out next to nothing."""
    return float(Allowed(epsilon, delta).most(0.01)) > 0.95


def delta_text(delta: float | None) -> str:
    """δ, as a power of ten where it is one."""
    power = round(math.log10(delta)) if delta else 0
    if delta and math.isclose(delta, 10.0**power):
        return f"10{str(power).translate(_SUPERSCRIPTS)}"
    return number(delta)


def percent(share: float) -> str:
    """A share as a percentage, with one digit after the point below 10 % and above 90 %."""
    value = 100 * share
    return f"{value:.0f} %" if 10 <= value <= 90 or value in (0, 100) else f"{value:.1f} %"
