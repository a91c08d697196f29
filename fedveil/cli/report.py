"""`fedveil report`: run folders as one HTML page, and on request charts and tables as files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedveil.cli import show
from fedveil.core.errors import ConfigError

FORMS = ("svg", "png", "pdf", "pgf")  # of charts


def run_report(
    folders: list[str], out: str | None, charts: Mapping[str, str | None], tables: str | None, json: bool
) -> None:
    """Writes the page, the charts into one folder for each form, and the tables; prints the paths."""
    paths = [Path(folder) for folder in folders]
    for key, value in {"out": out, **charts, "tables": tables}.items():
        if value == "":
            raise ConfigError(f"--{key}", value, "takes a path to write to")
    document = write_report(paths, _target(paths, out), charts, tables)
    if json:
        show.print_json(document)
        return
    for run in document["runs"]:
        accuracy = "not measured" if run["accuracy"] is None else f"{run['accuracy']:.4g}"
        verdicts = ", ".join(f"{tap} {seat['verdict']}" for tap, seat in run["seats"].items())
        print(f"{run['label']}: accuracy {accuracy}; {verdicts}")
    for key in (*FORMS, "tables"):
        if document[key]:
            print(f"{key}: {', '.join(document[key])}")
    print(f"report: {document['report']}")


def _target(paths: Sequence[Path], out: str | None) -> Path:
    """Where the page goes: into the run's folder, or for several runs into the one that holds them all."""
    if out is not None:
        target = Path(out)
        if target.is_dir():
            return target / "report.html"
        if target.suffix.lower() not in (".html", ".htm"):
            raise ConfigError("--out", out, "takes the name of a page, such as report.html, or a folder that is there")
        return target
    if len(paths) == 1:
        return paths[0] / "report.html"
    parents = {path.resolve().parent for path in paths}
    return Path(os.path.relpath(parents.pop())) / "report.html" if len(parents) == 1 else Path("report.html")


def write_report(
    paths: Sequence[Path], target: Path, charts: Mapping[str, str | None] | None = None, tables: str | None = None
) -> dict[str, Any]:
    """Writes the page, charts and tables; returns the JSON document with their paths and the main results."""
    from fedveil.report.charts import write
    from fedveil.report.figures import figures
    from fedveil.report.gather import gather
    from fedveil.report.page import page
    from fedveil.report.table_export import export

    runs = gather(paths)
    folders = {form: folder for form, folder in (charts or {}).items() if folder is not None}
    drawn = figures(runs)
    made: dict[str, list[str]] = {form: [] for form in (*FORMS, "tables")}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(runs, drawn), encoding="utf-8")
        for form, folder in folders.items():
            for figure in drawn:
                path = Path(folder) / f"{figure.name}.{form}"
                write(path, figure.chart)
                made[form].append(str(path))
        if tables is not None:
            made["tables"] = [str(path) for path in export(runs, Path(tables))]
    except OSError as error:
        where = error.filename or target
        raise ConfigError(
            "--out", str(where), f"cannot be written ({error.strerror}): give a path that you can write to"
        ) from None
    return {"report": str(target), "runs": [_headline(run) for run in runs], **made}


def _headline(run: Any) -> dict[str, Any]:
    """The results of one run that the page begins with."""
    from fedveil.report.glossary import SHOWN
    from fedveil.report.verdict import area, rate, verdict

    accuracy, loss, after = run.scores
    seats = {}
    for tap in SHOWN:
        one = verdict(run, tap)
        seats[tap] = {
            "verdict": one.word,
            "success_rate": None if one.rebuilt is None else rate(one.rebuilt.document),
            "auc": None if one.guessed is None else area(one.guessed.document),
            "epsilon": {row.unit: row.epsilon for row in (one.record, one.client) if row is not None} or None,
            "delta": next((row.delta for row in (one.record, one.client) if row is not None), None),
        }
    return {
        "run": str(run.path),
        "label": run.label,
        "defense": [d["name"] for d in run.config.defense],
        "status": run.status,
        "rounds": run.rounds,
        "accuracy": accuracy,
        "loss": loss,
        "measured_after": after,
        "attacks": len(run.attacks),
        "seats": seats,
        "problems": list(run.problems),
    }
