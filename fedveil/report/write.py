"""Writes a report: run folders as one HTML page, on request with charts and tables as files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError

Folder = str | Path


@dataclass(frozen=True)
class Report:
    """The files of a report, and the figures that its page begins with."""

    document: dict[str, Any]

    @property
    def path(self) -> Path:
        """The page."""
        return Path(self.document["report"])

    def as_dict(self) -> dict[str, Any]:
        """The JSON document of `fedveil report`."""
        return self.document


def report(
    runs: Folder | Sequence[Folder],
    out: Folder | None = None,
    *,
    svg: Folder | None = None,
    png: Folder | None = None,
    tables: Folder | None = None,
) -> Report:
    """Writes one HTML page about runs: what leaks, to whom, at which ε and accuracy. Several runs are compared.

    `runs`: a run folder, or several. `out`: the page; by default `report.html` in the run, or beside the runs. `svg`,
    `png`: folders for the charts. `tables`: a folder for the tables as CSV and LaTeX.
    """
    paths = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
    for key, value in (("--out", out), ("--svg", svg), ("--png", png), ("--tables", tables)):
        if value == "":
            raise ConfigError(key, value, "takes a path to write to")
    folders = [None if folder is None else str(folder) for folder in (svg, png, tables)]
    return Report(_write(paths, _target(paths, out), *folders))


def _target(paths: Sequence[Path], out: str | Path | None) -> Path:
    """Where the page goes: into the run's folder, or for several runs into the one that holds them all."""
    if out is not None:
        target = Path(out)
        if target.is_dir():
            return target / "report.html"
        if target.suffix.lower() not in (".html", ".htm"):
            raise ConfigError(
                "--out", str(out), "takes the name of a page, such as report.html, or a folder that is there"
            )
        return target
    if len(paths) == 1:
        return paths[0] / "report.html"
    parents = {path.resolve().parent for path in paths}
    return Path(os.path.relpath(parents.pop())) / "report.html" if len(parents) == 1 else Path("report.html")


def _write(
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
