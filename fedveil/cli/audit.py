"""`fedveil audit`: measured lower bounds on ε beside the certified ones."""

from __future__ import annotations

from fedveil.audit import AuditRow, check_certificates, run
from fedveil.cli import show
from fedveil.config import load

COLUMNS = ("method", "unit", "tap", "ε at least", "certified", "", "if broken", "seconds")


def run_audit(
    file: str | None,
    settings: list[str],
    *,
    tap: str | None,
    unit: str | None,
    method: str | None,
    trials: int,
    canaries: int,
    seeds: int,
    confidence: float,
    delta: float | None,
    rounds: int,
    steps: int,
    json: bool,
) -> None:
    """Audits a config and prints the rows; fails where a bound is above its certificate."""
    rows = run(
        load(file, settings),
        tap=tap,
        unit=unit,
        methods=(method,) if method else ("one-run", "trials"),
        trials=trials,
        canaries=canaries,
        seeds=seeds,
        confidence=confidence,
        delta=delta,
        rounds=rounds,
        steps=steps,
        progress=show.note,
    )
    if json:
        show.print_json([row.as_dict() for row in rows])
    else:
        together = f"confidence {confidence:g} for all of them and {seeds} seeds together"
        show.print_table(
            f"lower bounds on ε at δ = {rows[0].delta:g}, {together}", COLUMNS, [_cells(row) for row in rows]
        )
        for row in rows:
            show.note(_details(row))
    check_certificates(rows)


def _cells(row: AuditRow) -> tuple[object, ...]:
    verdict = "violated" if row.violated else ("" if row.epsilon_certified is None else "holds")
    certified = "none" if row.epsilon_certified is None else row.epsilon_certified
    return (row.method, row.unit, row.tap, row.epsilon_lower, certified, verdict, row.reach, f"{row.seconds:.1f}")


def _details(row: AuditRow) -> str:
    """What was attacked and what was seen, in a line."""
    if row.method == "one-run":
        seen = f"{row.correct} of {row.guesses} guesses right on {row.canaries} canaries"
    else:
        seen = f"error rates {row.false_positive:.4f} and {row.false_negative:.4f} in {row.trials} trials each"
    return f"{row.method}, {row.unit} at {row.tap}: {seen}; {row.reason}"
