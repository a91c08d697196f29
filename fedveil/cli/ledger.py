"""`fedveil ledger` and `fedveil calibrate`: the account of a config or a run, and what a wished-for account takes."""

from __future__ import annotations

import math
from pathlib import Path

from fedveil.accounting.accountants import ACCOUNTANTS
from fedveil.accounting.accounts import CERTIFYING
from fedveil.accounting.ledger import Row
from fedveil.accounting.published import RULES
from fedveil.accounting.transcript import Transcript
from fedveil.cli import show
from fedveil.config import load
from fedveil.core.errors import ConfigError, unknown_name
from fedveil.core.taps import ACCOUNTED_TAPS, ADJACENCIES, UNITS

PUBLISHED = (*RULES, "joint", "as-published")


def run_ledger(
    file: str | None,
    settings: list[str],
    rounds: str | None,
    delta: float | None,
    accountant: str | None,
    json: bool,
    curves: bool = False,
) -> None:
    """Rows for a config, or for the rounds that a run has behind it."""
    _check_delta(delta)
    if accountant is not None and accountant not in ACCOUNTANTS:
        raise unknown_name("--accountant", accountant, ACCOUNTANTS)
    asked = _rounds(rounds)
    from fedveil.accounting import ledger

    chosen = (accountant,) if accountant else ("paper", *CERTIFYING)
    made = _transcripts(file, settings, asked)
    found = [(one, ledger.rows(one, delta, accountants=chosen)) for one in made]
    if json:
        show.print_json([_document(one, row, curves) for one, rows in found for row in rows])
        return
    for one, rows in found:
        _print(one.rounds, rows)
        if curves:
            _print_curves(one, rows)


def _document(transcript: Transcript, row: Row, curves: bool) -> dict[str, object]:
    """A row, with its curve where one is asked for and there is one."""
    from fedveil.accounting import ledger

    found = ledger.curve(transcript, row) if curves and row.certified else None
    return {**row.as_dict(), **(found.as_dict() if found is not None else {})}


def _print_curves(transcript: Transcript, rows: list[Row]) -> None:
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


def _print(rounds: int, rows: list[Row]) -> None:
    """A line per tap and unit, then what the papers claim, then the conditions. All other rows are left to `--json`."""
    lines, notes = [], []
    for tap in ACCOUNTED_TAPS:
        before: tuple[object, ...] = ()
        for unit in UNITS:
            here = [r for r in rows if (r.tap, r.unit) == (tap, unit) and r.rule not in PUBLISHED]
            if not here:
                continue
            plain = _best([r for r in here if r.adjacency != "replace"])
            swapped = _best([r for r in here if r.adjacency == "replace"])
            shown = plain or swapped or here[0]
            values = (_epsilon(plain), shown.adjacency if plain else "", _epsilon(swapped), _sure(shown), shown.reason)
            same_as_before = values == before and shown.epsilon is not None
            lines.append((tap, unit, *values[:-1], "the same: no copies" if same_as_before else values[-1]))
            before = values
            notes += [line for line in shown.assumptions if line not in notes]
    delta = next((r.delta for r in rows if r.epsilon is not None and r.rule not in PUBLISHED), None)
    title = f"privacy after {rounds} rounds" + (f", δ = {delta:g}" if delta is not None else "")
    if lines:
        show.print_table(title, ("tap", "unit", "ε", "adjacency", "ε, replace", "certified", "why"), lines)
    claims = [r for r in rows if r.rule in PUBLISHED]
    if claims:
        columns = ("tap", "unit", "rule", "ε", "δ", "remark")
        told = [(r.tap, r.unit, f"{r.rule} ({r.accountant})", _epsilon(r), r.delta, r.reason) for r in claims]
        show.print_table("as published, not certified", columns, told)
    if notes:
        show.note("certified rows assume: " + "; ".join(notes) + ".")


def _best(rows: list[Row]) -> Row | None:
    """The smallest certified ε, of whichever accountant; else the smallest there is."""
    known = [(not row.certified, row.epsilon, place) for place, row in enumerate(rows) if row.epsilon is not None]
    return rows[min(known)[2]] if known else None


def _epsilon(row: Row | None) -> str:
    return "none" if row is None or row.epsilon is None else f"{row.epsilon:.4g}"


def _sure(row: Row) -> str:
    return "yes" if row.certified else "no"


def run_calibrate(
    file: str | None,
    settings: list[str],
    epsilon: float,
    delta: float | None,
    tap: str,
    unit: str,
    adjacency: str | None,
    noise: float | None,
    json: bool,
) -> None:
    """The noise for an ε, or with a given noise the rounds."""
    _check(epsilon, delta, tap, unit, adjacency, noise)
    from fedveil.accounting import calibrate
    from fedveil.federation import plan

    folder = file is not None and Path(file).is_dir()
    planned = plan(load(str(Path(file) / "config.toml") if folder and file else file, settings))
    delta = planned.transcript(1).delta if delta is None else delta
    goal = calibrate.Goal(epsilon, delta, tap, unit, adjacency)
    if noise is None:
        found = calibrate.noise_for(planned.defenses, planned.setting, goal)
    else:
        found = calibrate.rounds_with(planned.defenses, planned.setting, goal, noise)
    where = "defense" if len(planned.defenses) == 1 else f"defense.{found.place}"
    answer = {
        f"{where}.{found.key}": found.value,
        "noise": found.value,
        "rounds": found.rounds,
        "epsilon": found.row.epsilon,
        "row": found.row.as_dict(),
    }
    if json:
        show.print_json(answer)
        return
    row = found.row
    lines = [
        (f"{where}.{found.key}", repr(found.value)),
        ("train.rounds", found.rounds),
        ("ε", row.epsilon),
        ("δ", row.delta),
        ("tap, unit, adjacency", f"{row.tap}, {row.unit}, {row.adjacency}"),
        ("assumes", "; ".join(row.assumptions)),
    ]
    show.print_table(f"for ε = {epsilon:g}", ("what", "value"), lines)


def _transcripts(file: str | None, settings: list[str], rounds: list[int]) -> list[Transcript]:
    """Of a config the plan, for each number of rounds; of a run folder what it executed, or its first rounds."""
    if file is None or not Path(file).is_dir():
        from fedveil.federation import plan

        planned = plan(load(file, settings))
        return [planned.transcript(count) for count in rounds or [planned.setting.rounds]]
    if settings:
        raise ConfigError("-s", settings[0], "a run has its own config: leave out -s, or give its config.toml")
    from fedveil.run_account import transcript_of

    return [transcript_of(Path(file), count) for count in rounds] or [transcript_of(Path(file))]


def _rounds(text: str | None) -> list[int]:
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 10_000_000 for part in parts):
        raise ConfigError("--rounds", text, "takes whole numbers from 1, with commas between: 10,60,100")
    return [int(part) for part in parts]


def _check_delta(delta: float | None) -> None:
    if delta is not None and not 0 < delta < 1:
        raise ConfigError("--delta", delta, "takes a number above 0 and below 1: 1e-5, say")


def _check(
    epsilon: float, delta: float | None, tap: str, unit: str, adjacency: str | None, noise: float | None
) -> None:
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ConfigError("--epsilon", epsilon, "takes a number above 0")
    _check_delta(delta)
    if noise is not None and not (noise > 0 and math.isfinite(noise)):
        raise ConfigError("--noise", noise, "takes a number above 0, the defence's noise multiplier")
    for key, value, known in (
        ("--tap", tap, ACCOUNTED_TAPS),
        ("--unit", unit, UNITS),
        ("--adjacency", adjacency, ADJACENCIES),
    ):
        if value is not None and value not in known:
            raise unknown_name(key, value, known)
