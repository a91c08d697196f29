"""`fedveil audit`: tests of the noise, and measured lower bounds on ε beside the certified ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from fedveil.audit.rows import AuditRow, check_certificates
from fedveil.audit.run import METHODS, audit
from fedveil.cli import show
from fedveil.cli.options import AuditOptions
from fedveil.config import load
from fedveil.core.errors import ConfigError

BOUNDS = ("method", "unit", "tap", "ε at least", "certified", "", "if broken", "score", "seconds")
TESTS = ("test", "unit", "tap", "on", "result", "p", "", "where")


def run_audit(file: str | None, settings: list[str], options: AuditOptions, json: bool) -> None:
    """Audits a config or a run and prints the rows; fails where a bound is above its certificate or a test alarms."""
    given = asdict(options)
    method, run = given.pop("method"), given.pop("run")
    if run is not None and (file is not None or settings):
        raise ConfigError("--run", run, "a run has its own config: leave the file and -s out")
    asked = None if run is not None else load(file, settings)
    rows = audit(asked, run=run, progress=show.note, methods=(method,) if method else METHODS, **given)
    if json:
        show.print_json(rows.as_dict())
    else:
        _print(rows, options.confidence)
    check_certificates(rows)


def _print(rows: Sequence[AuditRow], confidence: float) -> None:
    """Two tables, then a line for each alarm and each bound."""
    tests = [row for row in rows if row.test != "bound"]
    bounds = [row for row in rows if row.test == "bound"]
    if tests:
        cells = [_test_cells(row) for row in _worst(tests)]
        show.print_table(f"noise and clip as executed, {len(tests)} tests, the worst of each kind", TESTS, cells)
    if bounds:
        show.print_table("lower bounds on ε", BOUNDS, [_bound_cells(row) for row in bounds])
    for row in [*(row for row in tests if row.alarm), *bounds]:
        show.note(_details(row))
    show.note(f"confidence {confidence:g} for all tests and bounds together")


def _worst(rows: Iterable[AuditRow]) -> list[AuditRow]:
    """Of each test on each path the row that says most."""
    found: dict[tuple[str, str, str, str], AuditRow] = {}
    for row in rows:
        key = (row.tap, row.unit, row.path, row.test)
        if key not in found or _rank(row) < _rank(found[key]):
            found[key] = row
    return list(found.values())


def _rank(row: AuditRow) -> tuple[bool, float, float]:
    less = (row.statistic or 0.0) if row.test == "scale" else -abs(row.statistic or 0.0)
    return not row.alarm, row.p_value if row.p_value is not None else 1.0, less if row.p_value is not None else 1e9


def _test_cells(row: AuditRow) -> tuple[object, ...]:
    words = {"scale": "{:.3g} of the declared z", "correlation": "r = {:+.3g}", "clip": "{:.4g} of the bound passes"}
    told = row.p_value is not None or row.test == "clip"
    result = words[row.test].format(row.statistic or 0.0) if told else row.reason
    p = "exact" if row.p_value is None else f"{row.p_value:.2g}"
    return (row.test, row.unit, row.tap, row.path, result, p, "ALARM" if row.alarm else "holds", row.score)


def _bound_cells(row: AuditRow) -> tuple[object, ...]:
    verdict = "violated" if row.violated else ("" if row.epsilon_certified is None else "holds")
    certified = "none" if row.epsilon_certified is None else row.epsilon_certified
    cells = (row.method, row.unit, row.tap, row.epsilon_lower, certified, verdict, row.reach)
    return (*cells, row.score, f"{row.seconds:.1f}")


def _details(row: AuditRow) -> str:
    """What was attacked or tested and what was seen, in a line."""
    if row.test != "bound":
        return f"{row.test} on {row.path}, {row.unit} at {row.tap}: {row.reason}"
    if row.method == "trials":
        seen = f"error rates {row.false_positive:.4f} and {row.false_negative:.4f} in {row.trials} trials each"
    else:
        seen = f"{row.correct} of {row.guesses} guesses right on {row.canaries} canaries by score '{row.score}'"
    return f"{row.method}, {row.unit} at {row.tap}, δ = {row.delta:.1g}: {seen}; {row.reason}"
