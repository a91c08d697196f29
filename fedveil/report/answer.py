"""The top of the page: what leaks, to whom, at which ε and at which accuracy, and what to set against it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from fedveil.accounting.ledger import Row
from fedveil.report.gather import Run
from fedveil.report.html import Markup, join, table, tag
from fedveil.report.tables import number
from fedveil.report.verdict import (
    CLASSES,
    HINTS,
    LEAKS,
    LIMITED,
    MEANS,
    OPEN,
    UNKNOWN,
    WEAK,
    Verdict,
    guessed_text,
    rate,
    rebuilt_text,
    tells_apart,
    verdict,
)
from fedveil.report.words import ADJACENCY, SEATS, STATUS, UNIT, WHO, delta_text, limit, percent, weak

GOAL = 2  # the ε that the advice reaches for


def answer(runs: Sequence[Run]) -> Markup:
    """One run: sentences, then a table of its seats. Several: a table of seats by runs, then sentences on each."""
    if len(runs) == 1:
        seen = verdicts(runs[0])
        return join(tag("div", _sentences(runs[0], seen), _seats(seen), class_="answer"), _legend(runs))
    cards = [tag("div", tag("h3", run.label), _sentences(run, verdicts(run)), class_="answer") for run in runs]
    return join(_compared(runs), _legend(runs), *cards)


def verdicts(run: Run) -> list[Verdict]:
    return [verdict(run, tap) for tap in SEATS]


# --- sentences on one run


def _sentences(run: Run, seen: Sequence[Verdict]) -> Markup:
    points = [_accuracy(run), *_found(seen), *_limits(seen), *_failures(seen), *_unknown(run, seen)]
    return tag("ul", *(tag("li", point) for point in points))


def _accuracy(run: Run) -> Markup:
    accuracy, loss, after = run.scores
    made = f"{run.rounds} of {run.planned} rounds made; " if run.rounds else ""
    status = f"The training: {made}{STATUS.get(run.status, run.status)}."
    if after is None:
        return join(tag("strong", "Accuracy was never measured."), " ", status)
    if accuracy is None:
        return join(
            tag("strong", f"After {after} rounds the accuracy is not a number"), ": the training went astray. ", status
        )
    astray = " Its loss is not a number: the training went astray." if loss is None else ""
    told = f" of held-out records right ({run.split} part), after {after} rounds.{astray} {status}"
    return join(tag("strong", f"Accuracy {percent(accuracy)}"), told)


def _found(seen: Sequence[Verdict]) -> list[Markup]:
    """What attacks got, seats with the same result together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in seen:
        if one.rebuilt is not None and rate(one.rebuilt.document):
            told = f"An attack {rebuilt_text(one.rebuilt.document)} training examples."
            groups.setdefault(("Leaks to", told), []).append(_name(one))
        if one.guessed is not None and tells_apart(one.guessed.document):
            told = f"An attack {guessed_text(one.guessed.document)}."
            groups.setdefault(("Gives hints to", told), []).append(_name(one))
    return [join(tag("strong", f"{what} {_and(names)}."), " ", told) for (what, told), names in groups.items()]


def _limits(seen: Sequence[Verdict]) -> list[Markup]:
    """What is proved, seats with the same certificate together."""
    groups: dict[tuple[float, float, str], list[str]] = {}
    for one in seen:
        for row in _proofs(one):
            groups.setdefault((row.epsilon or 0.0, row.delta or 0.0, row.unit), []).append(_name(one))
    return [
        join(
            tag("strong", f"Proved against {_and(names)}, for {UNIT[unit]}: ε = {number(epsilon, 3)}"),
            f" (δ = {delta_text(delta)}). {limit(epsilon, delta)}",
        )
        for (epsilon, delta, unit), names in groups.items()
    ]


def _failures(seen: Sequence[Verdict]) -> list[Markup]:
    failed = [_name(one) for one in seen if one.tried and one.word not in (LEAKS, HINTS)]
    told = " That proves nothing by itself: another attack may succeed."
    return [join(tag("strong", f"Attacks by {_and(failed)} failed."), told)] if failed else []


def _unknown(run: Run, seen: Sequence[Verdict]) -> list[Markup]:
    untried = [_name(one) for one in seen if not one.tried]
    unproved = [_name(one) for one in seen if not _proofs(one)]
    found = []
    if untried:
        found.append(
            join(tag("strong", f"Attacks by {_and(untried)} were not tried."), " Nothing is shown, either way.")
        )
    if not run.rounds:
        found.append(join(tag("strong", "No account."), " No round was made, so there is no ε to speak of."))
    elif unproved:
        found.append(tag("strong", f"Nothing is proved against {_and(unproved)}."))
    return found


def _name(one: Verdict) -> str:
    name = WHO[one.tap].name
    return name[0].lower() + name[1:]


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _proofs(one: Verdict) -> list[Row]:
    return [row for row in (one.record, one.client) if row is not None]


# --- tables


def _seats(seen: Sequence[Verdict]) -> Markup:
    """All seats of one run."""
    rows = [[WHO[one.tap].name, WHO[one.tap].sees, _tag(one), _attacks(one), _proof(one)] for one in seen]
    return table(("who", "sees", "verdict", "what attacks got", "what is proved"), rows, stacks=True)


def _tag(one: Verdict) -> Markup:
    return tag("span", one.word, class_=f"tag {CLASSES[one.word]}", title=MEANS[one.word])


def _attacks(one: Verdict) -> str:
    got = [] if one.rebuilt is None else [rebuilt_text(one.rebuilt.document)]
    got += [] if one.guessed is None else [guessed_text(one.guessed.document)]
    return "; ".join(got) or "not attacked"


def _proof(one: Verdict) -> Markup:
    lines = [
        f"{UNIT[row.unit]}: ε = {number(row.epsilon, 3)}, δ = {delta_text(row.delta)} ({ADJACENCY[row.adjacency]})"
        for row in _proofs(one)
    ]
    return join(*(tag("div", line) for line in lines)) if lines else join("nothing (", one.why_open, ")")


def _compared(runs: Sequence[Run]) -> Markup:
    """Seats by runs: the word, what attacks got, the ε that is proved."""
    rows: list[list[object]] = [["Accuracy on held-out records", *(_measured(run) for run in runs)]]
    for tap in SEATS:
        who = join(WHO[tap].name, tag("div", WHO[tap].sees, class_="soft sees"))
        rows.append([who, *(_short(verdict(run, tap)) for run in runs)])
    note = (
        "Each run is attacked on its own model, on few examples: where the 95 % intervals of two runs overlap, these "
        "figures do not say that one leaks more than the other."
    )
    head = ["who", *(run.label for run in runs)]
    return tag("div", table(head, rows, stacks=True), _cost(runs), tag("p", note, class_="soft"), class_="answer")


def _measured(run: Run) -> str:
    accuracy, _, after = run.scores
    if accuracy is None:
        return "not measured" if after is None else "not a number"
    return percent(accuracy)


def _short(one: Verdict) -> Markup:
    lines: list[Markup] = [tag("div", _tag(one))]
    if one.rebuilt is not None:
        lines.append(tag("div", rebuilt_text(one.rebuilt.document)))
    if one.guessed is not None:
        lines.append(tag("div", f"guessing members: AUC {number(one.guessed.document['auc'], 3)} (chance 0.5)"))
    if not one.tried:
        lines.append(tag("div", "not attacked", class_="soft"))
    lines += [tag("div", f"proved: ε = {number(row.epsilon, 3)}, {UNIT[row.unit]}") for row in _proofs(one)]
    if not _proofs(one):
        lines.append(tag("div", "nothing proved", class_="soft"))
    return join(*lines)


def _cost(runs: Sequence[Run]) -> Markup:
    """What each run costs in accuracy, against the most accurate one, and what it buys."""
    known = [(run, accuracy) for run in runs if (accuracy := run.scores[0]) is not None]
    if len(known) < 2:
        return join()
    top, most = max(known, key=lambda pair: pair[1])
    lines = []
    for run, accuracy in known:
        if run is not top:
            leaks = [_name(one) for one in verdicts(run) if one.word == LEAKS]
            tells = f"still leaks to {_and(leaks)}" if leaks else "no attack tried here rebuilt anything"
            lines.append(
                f"{run.label} costs {100 * (most - accuracy):.0f} points of accuracy against {top.label}; {tells}."
            )
    return tag("ul", *(tag("li", line) for line in lines))


def _legend(runs: Sequence[Run]) -> Markup:
    """The words that are used, and what ε is."""
    used = {one.word for run in runs for one in verdicts(run)}
    words = [word for word in (LEAKS, HINTS, WEAK, LIMITED, OPEN, UNKNOWN) if word in used]
    lines = [tag("li", tag("span", word, class_=f"tag {CLASSES[word]}"), " ", MEANS[word], ".") for word in words]
    told = [
        "ε bounds what anyone can learn of one record or one client, whatever they know besides: smaller is better, 0 "
        "would be nothing at all. δ is the chance that the bound fails. Both hold only under the assumptions at the end "
        "of the page."
    ]
    if any(_odd(run) for run in runs):
        told.append(
            "Where ε for one record is larger than for all of one client, the two answer different questions: the client "
            "is there or not there, while a changed record may turn its client's message into any other."
        )
    return join(tag("ul", *lines, class_="soft plain"), *(tag("p", text, class_="soft") for text in told))


def _odd(run: Run) -> bool:
    pairs = [(run.best(tap, "example"), run.best(tap, "client")) for tap in SEATS]
    return any(a and b and (a.epsilon or 0.0) > (b.epsilon or 0.0) for a, b in pairs)


# --- what to set


def advice(runs: Sequence[Run]) -> Markup:
    """For each seat that some run leaves without a limit that means something: what gives one, and what does so here."""
    lines = []
    for tap in SEATS:
        here = [(run, verdict(run, tap)) for run in runs]
        if all(one.word == LIMITED for _, one in here):
            continue
        proved = [f"{run.label} has ε = {_smallest(one)}" for run, one in here if _proofs(one)]
        said = f" Of these runs, {_and(proved)}." if proved and len(runs) > 1 else ""
        lines.append(tag("li", tag("strong", WHO[tap].name), ": ", WHO[tap].closes, ".", said))
    commands = [command for run in runs for command in _calibrations(run)]
    parts = [tag("p", "Settings that put a limit on what each seat can learn:"), tag("ul", *lines)] if lines else []
    if commands:
        told = (
            "A limit is there but large? More noise, fewer rounds or more clients lower it. These find the noise for "
        )
        parts.append(tag("p", f"{told}ε = {GOAL}, for one run each and the seat that needs most:"))
        parts.append(tag("ul", *(tag("li", tag("code", command)) for command in commands)))
    if not parts:
        parts = [tag("p", "Every seat has a limit that means something, under the assumptions of its certificate.")]
    return join(*parts)


def _smallest(one: Verdict) -> str:
    row = min(_proofs(one), key=lambda row: row.epsilon or 0.0)
    return f"{number(row.epsilon, 3)} for {UNIT[row.unit]}"


def _calibrations(run: Run) -> list[str]:
    """How to reach a small ε at the seat whose certificate is largest."""
    rows = [row for one in verdicts(run) for row in _proofs(one)[:1] if weak(row.epsilon or 0.0, row.delta or 0.0)]
    if not rows:
        return []
    worst = max(rows, key=lambda row: row.epsilon or 0.0)
    file = shlex.quote(f"{run.path}/config.toml")
    return [f"fedveil calibrate {file} --epsilon {GOAL} --tap {worst.tap} --unit {worst.unit}"]
