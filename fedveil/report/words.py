"""Plain words for what accounts and attacks say, for a reader who has to decide and has not read the papers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedveil.report.roc import Allowed
from fedveil.report.tables import number


@dataclass(frozen=True)
class Who:
    """Who stands at a tap."""

    tap: str
    name: str
    sees: str
    closes: str  # which settings limit what is seen there


WHO: dict[str, Who] = {
    who.tap: who
    for who in (
        Who(
            "server",
            "The server",
            "what each client sends, one message at a time (leakage type 0)",
            "noise before the message leaves: defense.name=fed-cdp, or defense.name=fed-sdp with defense.placement=client. "
            "train.secure_aggregation=true hides single messages, which is no proof by itself",
        ),
        Who(
            "client",
            "Whoever reads a client's update before it leaves",
            "the same update, on the client's machine (leakage type 1)",
            "noise while the client trains: defense.name=fed-cdp, or defense.name=fed-sdp with defense.placement=client",
        ),
        Who(
            "example",
            "Whoever watches a client train",
            "the gradient of every single example (leakage type 2)",
            "noise on every single gradient: defense.name=fed-cdp with defense.placement=example",
        ),
        Who("batch", "Whoever watches a client's batches", "the gradient of each batch", "defense.name=fed-cdp"),
        Who(
            "broadcast",
            "Any other client",
            "the model that goes out in every round",
            "noise on the sum or before it: defense.name=fed-sdp or fed-cdp",
        ),
        Who(
            "release",
            "Whoever gets the final model",
            "the model after the last round",
            "noise on the sum or before it: defense.name=fed-sdp or fed-cdp",
        ),
    )
}
SEATS = (
    "server",
    "client",
    "example",
    "broadcast",
    "release",
)  # in the order of the answer: types 0, 1, 2, then models

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

UNIT = {
    "example": "one record",
    "image": "one record with all its copies",
    "client": "all of one client",
}
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


def limit(epsilon: float, delta: float) -> str:
    """What (ε, δ) leaves to someone who guesses whether a given record was there, in numbers of people."""
    if weak(epsilon, delta):
        return "So large an ε rules out next to nothing: with 1 false alarm in 100, one may find nearly all who were there."
    caught = float(Allowed(epsilon, delta).most(0.01)) * 100
    return f"Guessing who was there with 1 false alarm in 100, nobody can find more than {number(caught, 2)} in 100."


def weak(epsilon: float, delta: float) -> bool:
    """Whether a certificate is one in form only."""
    return float(Allowed(epsilon, delta).most(0.01)) > 0.95


def delta_text(delta: float | None) -> str:
    """δ as a power of ten where it is one."""
    power = round(math.log10(delta)) if delta else 0
    if delta and math.isclose(delta, 10.0**power):
        return f"10{str(power).translate(_SUPERSCRIPTS)}"
    return number(delta)


def percent(share: float) -> str:
    """A share as a percentage, with one place where it is small or nearly whole."""
    value = 100 * share
    return f"{value:.0f} %" if 10 <= value <= 90 or value in (0, 100) else f"{value:.1f} %"
