"""`fedveil report`: run folders as one HTML page, with charts and tables as files where asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedveil.cli import show
from fedveil.core.errors import ConfigError


def run_report(
    folders: list[str], out: str | None, svg: str | None, png: str | None, tables: str | None, json: bool
) -> None:
    """Writes the page and what was asked for besides; prints where."""
    paths = [Path(folder) for folder in folders]
    for key, value in (("--out", out), ("--svg", svg), ("--png", png), ("--tables", tables)):
        if value == "":
            raise ConfigError(key, value, "takes a path to write to")
    document = write_report(paths, _target(paths, out), svg, png, tables)
    if json:
        show.print_json(document)
        return
    for run in document["runs"]:
        accuracy = "not measured" if run["accuracy"] is None else f"{run['accuracy']:.4g}"
        verdicts = ", ".join(f"{tap} {seat['verdict']}" for tap, seat in run["seats"].items())
        print(f"{run['label']}: accuracy {accuracy}; {verdicts}")
    for key in ("svg", "png", "tables"):
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
    paths: Sequence[Path], target: Path, svg: str | None = None, png: str | None = None, tables: str | None = None
) -> dict[str, Any]:
    """The page, charts and tables; returns the JSON document, with their paths and the figures that matter."""
    from fedveil.report import raster, sheets
    from fedveil.report.charts import write_svg
    from fedveil.report.figures import figures
    from fedveil.report.gather import gather
    from fedveil.report.page import page

    program = raster.find() if png is not None else None
    runs = gather(paths)
    drawn = figures(runs) if svg is not None or png is not None else []
    made: dict[str, list[str]] = {"svg": [], "png": [], "tables": []}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(runs), encoding="utf-8")
        for figure in drawn if svg is not None else []:
            write_svg(Path(svg or "") / f"{figure.name}.svg", figure.svg)
            made["svg"].append(str(Path(svg or "") / f"{figure.name}.svg"))
        if program is not None:
            for figure in drawn:
                path = Path(png or "") / f"{figure.name}.png"
                raster.write_png(program, path, figure.svg)
                made["png"].append(str(path))
        if tables is not None:
            made["tables"] = [str(path) for path in sheets.write(runs, Path(tables))]
    except OSError as error:
        where = error.filename or target
        raise ConfigError(
            "--out", str(where), f"cannot be written ({error.strerror}): give a place you can write"
        ) from None
    return {"report": str(target), "runs": [_headline(run) for run in runs], **made}


def _headline(run: Any) -> dict[str, Any]:
    """The figures of one run that the page begins with."""
    from fedveil.report.verdict import area, rate, verdict
    from fedveil.report.words import SEATS

    accuracy, loss, after = run.scores
    seats = {}
    for tap in SEATS:
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
        "defense": [d.name for d in run.config.defense],
        "status": run.status,
        "rounds": run.rounds,
        "accuracy": accuracy,
        "loss": loss,
        "measured_after": after,
        "attacks": len(run.attacks),
        "seats": seats,
        "problems": list(run.problems),
    }
