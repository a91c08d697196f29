"""The run to take, of those on the page: what it keeps, on which conditions, and what it costs.

Nothing is recommended that was not trained and attacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedveil.report.gather import Run
from fedveil.report.glossary import percent, weak
from fedveil.report.summary import joined
from fedveil.report.verdict import HINTS, LEAKS, Verdict, verdicts

TRIED = (
    "run",
    "settings",
    "accuracy",
    "points lost",
    "ε, server, one record",
    "ε, final model, one record",
    "leaked to",
)
OUTSIDE = ("server", "broadcast", "release")  # what leaves a client; the other taps are inside its machine
FRONT = 4  # runs that the first pages show


@dataclass(frozen=True)
class Choice:
    """The recommended run, if any, and the reasons for and against each."""

    run: Run | None
    text: str
    next: str = ""  # the command that looks for a setting, where no run is recommended


def choice(runs: Sequence[Run]) -> Choice:
    """Of the runs on the page: the most accurate one that learned, was attacked, and keeps what leaves a client.

    What an observer inside a client sees is no objection, but a condition: nobody may watch a client train.
    """
    against = [(run, objections(run)) for run in runs]
    fit = [run for run, reasons in against if not reasons]
    if not fit:
        named = {run.label for run in front(runs, None)}
        told = "; ".join(f"{run.label}: {joined(reasons)}" for run, reasons in against if run.label in named)
        what = "This run is not recommended" if len(runs) == 1 else "None of these runs is recommended"
        return Choice(None, f"{what}. {told}.", _advise(runs[0]))
    taken = max(fit, key=lambda run: (run.scores[0] or 0.0, sum(map(_limited, verdicts(run)))))
    beside = "" if taken.chance is None else f" (chance {percent(taken.chance)})"
    told = f"{taken.label}, as it was run: accuracy {percent(taken.scores[0] or 0.0)}{beside}."
    return Choice(taken, " ".join([told, *_conditions(taken), _price(taken, runs)]))


def _conditions(run: Run) -> list[str]:
    """Against whom a recommended run has a limit, and who must be trusted or kept out."""
    seen = verdicts(run)
    limited = [one for one in seen if _limited(one)]
    rest = [one.adversary.inside for one in seen if not _limited(one)]
    untried = [one.adversary.inside for one in seen if not one.tried]
    told = [f"It has a limit that rules something out against {joined([one.adversary.inside for one in limited])}."]
    if run.config.train.secure_aggregation:
        told.append("That needs secure aggregation: without it, the server sees single messages.")
    if rest:
        told.append(f"It is no answer to {joined(rest)}, who must be trusted or kept out.")
    if untried:
        told.append(f"No attack by {joined(untried)} was made.")
    return told


def _price(run: Run, runs: Sequence[Run]) -> str:
    """What a run costs against training without a defence, where that is on the page."""
    lost = _lost(run, runs)
    if lost is None:
        return "What it costs is not known: no training without a defence is on this page."
    return f"It costs {lost:.0f} points of accuracy against training without a defence."


def _lost(run: Run, runs: Sequence[Run]) -> float | None:
    """Points of accuracy below the best training without a defence that is on the page."""
    bare = [one.scores[0] for one in runs if one.defense == "none" and one.scores[0] is not None]
    if not bare or run.scores[0] is None:
        return None
    return 100 * (max(bare) - run.scores[0])


def _limited(one: Verdict) -> bool:
    """Whether a certificate at the tap rules something out."""
    return any(not weak(row.epsilon or 0.0, row.delta or 0.0) for row in one.proofs)


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
    outside = [one for one in seen if one.tap in OUTSIDE]
    leaks = [one for one in outside if one.word == LEAKS or (one.word == HINTS and not _limited(one))]
    if leaks:
        found.append(f"it leaks to {joined([one.adversary.inside for one in leaks])}")
    if not any(one.tried for one in seen):
        found.append("no attack was made on it")
    if run.account_lost:
        found.append("its account is not known")
    elif not any(one.proofs for one in outside):
        found.append("nothing is certified against those outside of a client")
    elif not any(_limited(one) for one in outside):
        found.append("every ε against those outside of a client is so large that it rules out next to nothing")
    return found


def _advise(run: Run) -> str:
    """The command that trains and attacks settings for data of this size before it names one."""
    data = run.config.data
    if data.sizes is not None or run.info.get("own_model") or data.per_client is None:
        return ""
    name = data.file if data.name == "file" else data.name
    if not name or " " in name:
        return ""
    secure = " --secure-aggregation" if run.config.train.secure_aggregation else ""
    return f"fedveil advise --clients {data.clients} --records {data.per_client} --data {name} --epsilon 3{secure}"


def front(runs: Sequence[Run], taken: Run | None) -> list[Run]:
    """The runs of the first pages: all of them, or the recommended one, the undefended and the most accurate."""
    if len(runs) <= FRONT:
        return list(runs)
    order = sorted(runs, key=lambda run: (run is not taken, run.defense != "none", -(run.scores[0] or 0.0)))
    chosen = {run.label for run in order[:FRONT]}  # labels differ
    return [run for run in runs if run.label in chosen]


def tried(runs: Sequence[Run]) -> list[list[object]]:
    """What was tried: a row for each run, its settings and what came of them."""
    return [
        [
            run.label,
            _settings(run),
            None if run.scores[0] is None else percent(run.scores[0]),
            None if (lost := _lost(run, runs)) is None or run.defense == "none" else f"{lost:.0f}",
            _epsilon(run, "server"),
            _epsilon(run, "release"),
            _leaked(run),
        ]
        for run in runs
    ]


def _leaked(run: Run) -> str:
    seen = verdicts(run)
    found = [one.adversary.short for one in seen if one.word in (LEAKS, HINTS)]
    return joined(found) if found else "none that was tried" if any(one.tried for one in seen) else "nobody tried"


def _settings(run: Run) -> str:
    """The defence's main keys and what else bears on privacy."""
    told = [f"{k} {v}" for d in run.config.defense for k, v in _keys(d).items()]
    told += ["secure aggregation"] if run.config.train.secure_aggregation else []
    return ", ".join(told) or "–"


def _keys(defense: object) -> dict[str, object]:
    from fedveil.defenses.catalog import resolved

    table = resolved(defense)  # type: ignore[arg-type]
    return {
        key: value for key, value in table.items() if key in ("clip", "noise", "epsilon", "placement", "clip_scope")
    }


def _epsilon(run: Run, tap: str) -> float | None:
    row = run.best(tap, "example")
    return None if row is None else row.epsilon
