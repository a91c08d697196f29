"""The verdict on one run and one adversary: what attacks got, what is proved, and one word for both together.

A failed attack proves nothing, and a certificate with a large ε rules nothing out: the words keep these apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedveil.accounting.ledger import Row
from fedveil.attacks.results import Stored
from fedveil.attacks.score import wilson
from fedveil.report.gather import Run
from fedveil.report.glossary import ADVERSARIES, SHOWN, Adversary, percent, weak
from fedveil.report.tables import finite, number

LEAKS, HINTS, LIMITED, WEAK, OPEN, UNKNOWN = "leaks", "hints", "limited", "weak limit", "no limit", "not known"
CLASSES = {LEAKS: "leak", HINTS: "weak", LIMITED: "limited", WEAK: "weak", OPEN: "open", UNKNOWN: "unknown"}
MEANS = {
    LEAKS: "an attack rebuilt training examples here, in the share of cases that is given",
    HINTS: "no attack rebuilt an example here, but one guesses better than chance (95 %) something about the data",
    WEAK: "a limit is proved, but its ε is so large that it rules out next to nothing; attacks failed, or none was tried",
    LIMITED: "a limit is proved that rules something out; attacks failed here, or none was tried",
    OPEN: "the attacks tried here failed, which proves nothing: another may succeed, and no limit is known",
    UNKNOWN: "nobody tried an attack here, and no limit is known: this is not safety",
}


@dataclass(frozen=True)
class Verdict:
    """One adversary of one run."""

    tap: str
    word: str
    rebuilt: Stored | None  # the reconstruction that got most, if any was tried
    guessed: Stored | None  # the membership or property attack that got most
    record: Row | None  # the certificate for one record
    client: Row | None  # the certificate for all of one client
    why_open: str

    @property
    def tried(self) -> bool:
        return self.rebuilt is not None or self.guessed is not None

    @property
    def proofs(self) -> list[Row]:
        return [row for row in (self.record, self.client) if row is not None]

    @property
    def adversary(self) -> Adversary:
        return ADVERSARIES[self.tap]


def verdicts(run: Run) -> list[Verdict]:
    """The verdicts on all adversaries, in the order of the summary."""
    return [verdict(run, tap) for tap in SHOWN]


def verdict(run: Run, tap: str) -> Verdict:
    """What the attacks at this tap got, and what the ledger proves there."""
    here = [attack for attack in run.attacks if attack.document.get("tap") == tap]
    rates = [(rate(a.document) or 0.0, a) for a in here if rate(a.document) is not None]
    areas = [(area(a.document) or 0.0, a) for a in here if area(a.document) is not None]
    rebuilt, guessed = (max(found, key=lambda pair: pair[0], default=(0.0, None))[1] for found in (rates, areas))
    record, client = run.best(tap, "example"), run.best(tap, "client")
    proofs = [row for row in (record, client) if row is not None]
    if rebuilt and beats_guess(rebuilt.document):
        word = LEAKS
    elif guessed and tells_apart(guessed.document):
        word = HINTS
    elif proofs:
        word = WEAK if all(weak(row.epsilon or 0.0, row.delta or 0.0) for row in proofs) else LIMITED
    else:
        word = OPEN if rebuilt or guessed else UNKNOWN
    return Verdict(tap, word, rebuilt, guessed, record, client, run.why_open(tap, "example"))


def rate(document: Mapping[str, Any]) -> float | None:
    """The share of examples that a reconstruction rebuilt; None for other attacks."""
    return finite(document.get("success_rate"))


def beats_guess(document: Mapping[str, Any]) -> bool:
    """Whether a reconstruction got more than a guess from other data gets; where that is not known, more than nothing."""
    share, span = rate(document) or 0.0, document.get("interval")
    low = finite(span[0]) if isinstance(span, list) and len(span) == 2 else None
    return (share if low is None else low) > (finite(document.get("guess_rate")) or 0.0) if share else False


def area(document: Mapping[str, Any]) -> float | None:
    """The area under the ROC curve of a membership or property attack; None for other attacks."""
    return finite(document.get("auc"))


def tells_apart(document: Mapping[str, Any]) -> bool:
    """Whether the lower end of the 95 % interval of the area is above chance."""
    span = document.get("interval")
    low = finite(span[0]) if isinstance(span, list) and len(span) == 2 else None
    return low is not None and low > 0.5


def rebuilt_text(document: Mapping[str, Any]) -> str:
    """ "rebuilt 10 of 15 (67 %; 95 % interval 42 to 85 %)", and what was left out of it."""
    share, images, seeds = rate(document) or 0.0, document.get("images"), document.get("seeds")
    victims = document.get("victims")
    messages = victims if isinstance(victims, int) and isinstance(images, int) and 0 < victims < images else None
    span = document.get("interval")
    known = isinstance(span, list) and len(span) == 2
    if isinstance(images, int) and seeds in (None, 1):
        count = round(share * images)
        text = f"rebuilt {count} of {images}{f' examples in {messages} messages' if messages else ''}"
        # The examples of one message are found or lost together: the messages are what was tried independently.
        span = span if known or not images else list(wilson(count / images, messages or images))
    else:
        text = f"rebuilt {percent(share)} of {images} in {seeds} tries each"
    if isinstance(span, list) and len(span) == 2 and all(finite(end) is not None for end in span):
        text += f" (95\u00a0% interval {100 * span[0]:.0f} to {100 * span[1]:.0f}\u00a0%)"
    if share and not beats_guess(document):
        text += ", no more than a guess gets"
    return text + _cut(document)


def rebuilt_cell(document: Mapping[str, Any]) -> str:
    """The same, short: "rebuilt 10 of 15 (42 to 85 %)"."""
    return rebuilt_text(document).replace("95\u00a0% interval ", "").replace(" examples in", " in")


def _cut(document: Mapping[str, Any]) -> str:
    """How many attacks the time limit cut off."""
    counts = document.get("attacks")
    if not isinstance(counts, Mapping):
        return ""
    lost = sum(int(counts.get(key) or 0) for key in ("unfinished", "not_started"))
    return f", {lost} of {counts.get('planned')} attacks not finished" if lost else ""


GUESSES = {"melis": "which batches have a property", "client-membership": "which clients took part"}
MEMBERS = "which records were trained on"  # what all other guessing attacks ask


def guess_text(document: Mapping[str, Any]) -> str:
    """What a membership or property attack got, in a table cell."""
    asked = GUESSES.get(str(document["attack"]), MEMBERS)
    return f"guessing {asked}: AUC {number(area(document), 3)} (chance 0.5)"


def guessed_text(document: Mapping[str, Any]) -> str:
    """What a membership or property attack got, compared with chance."""
    asked = GUESSES.get(str(document["attack"]), MEMBERS)
    span = document.get("interval")
    between = f", 95 % interval {number(span[0], 3)} to {number(span[1], 3)}" if isinstance(span, list) else ""
    better = "better than chance" if tells_apart(document) else "not clearly better than chance"
    return f"guesses {asked} {better}: AUC {number(area(document), 3)} (chance 0.5{between})"
