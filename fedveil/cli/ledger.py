"""`fedveil ledger` and `fedveil calibrate`: the account of a config or a run, and the noise that a given ε takes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fedveil.accounting.ledger import Row
from fedveil.accounting.published import CLAIMED
from fedveil.accounting.transcript import Transcript
from fedveil.cli import show
from fedveil.cli.options import GoalOptions
from fedveil.config import load
from fedveil.core.errors import ConfigError
from fedveil.run_account import account, best_rows, calibrate, check_delta, smallest

LINES = 40  # of the short account, at most


def run_ledger(
    file: str | None,
    settings: list[str],
    rounds: str | None,
    delta: float | None,
    accountant: str | None,
    json: bool,
    curves: bool = False,
    every: bool = False,
) -> None:
    """Rows for a config, or for the rounds that a run has executed; without `every` one per tap and unit."""
    folder = file is not None and Path(file).is_dir()
    if folder and settings:
        raise ConfigError("-s", settings[0], "a run has its own config: leave out -s, or give its config.toml")
    with show.as_options("delta", "accountant"):
        check_delta(delta)
        given = file if folder else load(file, settings)
        found = account(given, rounds=_rounds(rounds), delta=delta, accountant=accountant, curves=curves)
    if json:
        show.print_json((found if every else found.best()).as_dict())
        return
    for transcript, rows in found.parts:
        (_print_all if every else _print_short)(transcript.rounds, rows)
        if curves:
            _print_curves(transcript, rows)


def _print_curves(transcript: Transcript, rows: Sequence[Row]) -> None:
    """For each certified tap and unit μ, and the least share of misses at a few shares of false alarms."""
    from fedveil.accounting import ledger

    alphas, lines, seen = (0.001, 0.01, 0.1), [], set()
    for row in rows:
        named = (row.tap, row.unit, row.adjacency)
        if row.certified and row.accountant == "pld" and named not in seen:
            seen.add(named)
            found = ledger.curve(transcript, row, alphas)
            if found is not None:
                lines.append((*named, found.mu, *(f"{miss:.4f}" for _, miss in found.trade_off)))
    if lines:
        columns = ("tap", "unit", "adjacency", "μ", *(f"misses at {alpha:g}" for alpha in alphas))
        title = "trade-off: the least share of misses of any test, by its share of false alarms"
        show.print_table(title, columns, lines)


def _print_short(rounds: int, rows: Sequence[Row]) -> None:
    """A line per tap and unit with its best row, the reasons below, and one line each for claims and assumptions.

    At most `LINES` lines of 80 columns; `--all` has the rest.
    """
    reasons: list[str] = []
    lines: list[tuple[str, ...]] = []
    for row in best_rows(rows):
        swapped = smallest([r for r in rows if (r.tap, r.unit, r.adjacency) == (row.tap, row.unit, "replace")])
        if row.reason and row.reason not in reasons:
            reasons.append(row.reason)
        why = f"({reasons.index(row.reason) + 1})" if row.reason else ""
        own = (_epsilon(row), row.adjacency) if row.epsilon is not None else ("none", "")
        lines.append((row.tap, row.unit, *own, _epsilon(swapped), "yes" if row.certified else "no", why))
    delta = next((r.delta for r in rows if r.epsilon is not None and r.rule not in CLAIMED), None)
    title = f"privacy after {rounds} rounds" + (f", δ = {delta:g}" if delta is not None else "")
    show.print_table(title, ("tap", "unit", "ε", "adjacency", "ε, replace", "certified", "why"), lines)
    notes = [*_claims(rows), *_assumed(rows)]
    left = LINES - len(lines) - 5 - len(notes)
    for line in _fitting(reasons, left):
        print(line)
    for line in notes:
        print(line)


def _fitting(reasons: Sequence[str], room: int) -> list[str]:
    """The numbered reasons, broken at 80 columns; those that `room` lines do not hold are counted."""
    made: list[str] = []
    for number, reason in enumerate(reasons, 1):
        broken = textwrap.wrap(f"({number}) {reason}", 79, subsequent_indent="    ")
        if len(made) + len(broken) > room - (number < len(reasons)):
            return [*made, f"({number}) and {len(reasons) - number} more: --all prints them"][:room]
        made += broken
    return made


def _claims(rows: Sequence[Row]) -> list[str]:
    """What a paper claims, in one line for the release and its first unit; the rest is left to `--all`."""
    claims = [r for r in rows if r.rule in CLAIMED and r.epsilon is not None]
    if not claims:
        return []
    first = claims[0]
    own = [r for r in claims if (r.tap, r.unit) == (first.tap, first.unit) and r.accountant == "paper"] or claims[:1]
    told = ", ".join(f"{r.rule} {_epsilon(r)}" for r in own)
    line = f"As published, not certified (tap {first.tap}, unit {first.unit}): ε {told}."
    return textwrap.wrap(line, 79)


def _assumed(rows: Sequence[Row]) -> list[str]:
    """How many conditions the certified rows have."""
    count = len({line for row in best_rows(rows) if row.certified for line in row.assumptions})
    return [f"Certified rows assume {count} conditions: --all prints them, and all rows."] if count else []


def _print_all(rounds: int, rows: Sequence[Row]) -> None:
    """Every row with its reason, then what the papers claim, then the conditions."""
    delta = next((r.delta for r in rows if r.epsilon is not None and r.rule not in CLAIMED), None)
    title = f"privacy after {rounds} rounds" + (f", δ = {delta:g}" if delta is not None else "")
    own = [r for r in rows if r.rule not in CLAIMED]
    columns: tuple[str, ...] = ("tap", "unit", "accountant", "rule", "adjacency", "ε", "certified")
    lines, reasons = [], []
    for row in own:
        sure = "yes" if row.certified else "no"
        lines.append((row.tap, row.unit, row.accountant, row.rule, row.adjacency, _epsilon(row), sure))
        told = f"{row.tap}, {row.unit}: {row.reason}"
        reasons += [told] if row.reason and told not in reasons else []
    if lines:
        show.print_table(title, columns, lines)
    for told in reasons:
        show.print_text(told)
    claims = [r for r in rows if r.rule in CLAIMED]
    if claims:
        columns = ("tap", "unit", "rule", "ε", "δ", "remark")
        said = [(r.tap, r.unit, f"{r.rule} ({r.accountant})", _epsilon(r), r.delta, r.reason) for r in claims]
        show.print_table("as published, not certified", columns, said)
    notes = dict.fromkeys(line for row in own if row.certified for line in row.assumptions)
    if notes:
        show.note("certified rows assume: " + "; ".join(notes) + ".")


def _epsilon(row: Row | None) -> str:
    return "none" if row is None or row.epsilon is None else f"{row.epsilon:.4g}"


def run_calibrate(file: str | None, settings: list[str], goal: GoalOptions, json: bool) -> None:
    """The noise for an ε, or with a given noise the rounds."""
    folder = file is not None and Path(file).is_dir()
    asked = asdict(goal)
    with show.as_options(*asked):
        given = load(str(Path(file) / "config.toml") if folder and file else file, settings)
        done = calibrate(given, **asked)
    if json:
        show.print_json(done.as_dict())
        return
    row = done.found.row
    lines = [
        (done.key, repr(done.found.value)),
        ("train.rounds", done.found.rounds),
        ("ε", row.epsilon),
        ("δ", row.delta),
        ("tap, unit, adjacency", f"{row.tap}, {row.unit}, {row.adjacency}"),
        ("assumes", "; ".join(row.assumptions)),
    ]
    show.print_table(f"for ε = {goal.epsilon:g}", ("what", "value"), lines)


def _rounds(text: str | None) -> list[int]:
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 10_000_000 for part in parts):
        raise ConfigError("--rounds", text, "takes whole numbers from 1, with commas between: 10,60,100")
    return [int(part) for part in parts]
