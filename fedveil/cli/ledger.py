"""`fedveil ledger` and `fedveil calibrate`: the account of a config or a run, and the noise that a given ε takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedveil.accounting.ledger import Row
from fedveil.accounting.published import CLAIMED
from fedveil.accounting.transcript import Transcript
from fedveil.cli import show
from fedveil.config import load
from fedveil.core.errors import ConfigError
from fedveil.core.taps import ACCOUNTED_TAPS, UNITS
from fedveil.run_account import account, calibrate, check_delta


def run_ledger(
    file: str | None,
    settings: list[str],
    rounds: str | None,
    delta: float | None,
    accountant: str | None,
    json: bool,
    curves: bool = False,
) -> None:
    """Rows for a config, or for the rounds that a run has executed."""
    folder = file is not None and Path(file).is_dir()
    if folder and settings:
        raise ConfigError("-s", settings[0], "a run has its own config: leave out -s, or give its config.toml")
    with show.as_options("delta", "accountant"):
        check_delta(delta)
        given = file if folder else load(file, settings)
        found = account(given, rounds=_rounds(rounds), delta=delta, accountant=accountant, curves=curves)
    if json:
        show.print_json(found.as_dict())
        return
    for transcript, rows in found.parts:
        _print(transcript.rounds, rows)
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


def _print(rounds: int, rows: Sequence[Row]) -> None:
    """A line per tap and unit, then what the papers claim, then the conditions. All other rows are left to `--json`."""
    lines, notes = [], []
    for tap in ACCOUNTED_TAPS:
        before: tuple[object, ...] = ()
        for unit in UNITS:
            here = [r for r in rows if (r.tap, r.unit) == (tap, unit) and r.rule not in CLAIMED]
            if not here:
                continue
            plain = _best([r for r in here if r.adjacency != "replace"])
            swapped = _best([r for r in here if r.adjacency == "replace"])
            shown = plain or swapped or here[0]
            sure = "yes" if shown.certified else "no"
            values = (_epsilon(plain), shown.adjacency if plain else "", _epsilon(swapped), sure, shown.reason)
            same_as_before = values == before and shown.epsilon is not None
            lines.append((tap, unit, *values[:-1], "the same: no copies" if same_as_before else values[-1]))
            before = values
            notes += [line for line in shown.assumptions if line not in notes]
    delta = next((r.delta for r in rows if r.epsilon is not None and r.rule not in CLAIMED), None)
    title = f"privacy after {rounds} rounds" + (f", δ = {delta:g}" if delta is not None else "")
    if lines:
        show.print_table(title, ("tap", "unit", "ε", "adjacency", "ε, replace", "certified", "why"), lines)
    claims = [r for r in rows if r.rule in CLAIMED]
    if claims:
        columns = ("tap", "unit", "rule", "ε", "δ", "remark")
        told = [(r.tap, r.unit, f"{r.rule} ({r.accountant})", _epsilon(r), r.delta, r.reason) for r in claims]
        show.print_table("as published, not certified", columns, told)
    if notes:
        show.note("certified rows assume: " + "; ".join(notes) + ".")


def _best(rows: Sequence[Row]) -> Row | None:
    """The row of the smallest certified ε over all accountants; else of the smallest ε."""
    known = [(not row.certified, row.epsilon, index) for index, row in enumerate(rows) if row.epsilon is not None]
    return rows[min(known)[2]] if known else None


def _epsilon(row: Row | None) -> str:
    return "none" if row is None or row.epsilon is None else f"{row.epsilon:.4g}"


def run_calibrate(file: str | None, settings: list[str], goal: Mapping[str, Any], json: bool) -> None:
    """The noise for an ε, or with a given noise the rounds."""
    folder = file is not None and Path(file).is_dir()
    with show.as_options(*goal):
        given = load(str(Path(file) / "config.toml") if folder and file else file, settings)
        done = calibrate(given, **goal)
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
    show.print_table(f"for ε = {goal['epsilon']:g}", ("what", "value"), lines)


def _rounds(text: str | None) -> list[int]:
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 10_000_000 for part in parts):
        raise ConfigError("--rounds", text, "takes whole numbers from 1, with commas between: 10,60,100")
    return [int(part) for part in parts]
