"""Writes a report: run folders as one HTML page, on request with charts and tables as files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError, RunError
from fedveil.core.files import SHARED, clear_leftovers, locked, write_text

Folder = str | Path
LOCK = ".{}.lock"  # of a page, not of its run: a report on a running training is welcome


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
    pdf: Folder | None = None,
    pgf: Folder | None = None,
    tables: Folder | None = None,
    registry: Folder | None = None,
) -> Report:
    """Writes one HTML page about runs: what leaks, to whom, at which ε and accuracy. Several runs are compared.

    `runs`: a run folder, or several. `out`: the page; by default `report.html` in the run, or beside the runs. `svg`,
    `png`, `pdf`, `pgf`: folders for the charts. `tables`: a folder for the tables as CSV and LaTeX. `registry`: a TOML file
    of facts; an entry of OpenDP's deployments registry is then written beside the page for each run.
    """
    paths = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
    charts = {"svg": svg, "png": png, "pdf": pdf, "pgf": pgf}
    for key, value in {"out": out, **charts, "tables": tables}.items():
        if value == "":
            raise ConfigError(f"--{key}", value, "takes a path to write to")
    from fedveil.report.registry import read_facts

    facts = None if registry is None else read_facts(Path(registry))
    return Report(_write(paths, _target(paths, out), charts, tables, facts))


def _target(paths: Sequence[Path], out: str | Path | None) -> Path:
    """Where the page goes: into the run's folder, or for several runs into the one that holds them all."""
    if out is not None:
        target = Path(out)
        if target.is_dir():
            return target / "report.html"
        if target.suffix.lower() not in (".html", ".htm"):
            takes = "takes the name of a page, such as report.html, or a folder that is there"
            raise ConfigError("--out", str(out), takes)
        return target
    if len(paths) == 1:
        return paths[0] / "report.html"
    parents = {path.resolve().parent for path in paths}
    return Path(os.path.relpath(parents.pop())) / "report.html" if len(parents) == 1 else Path("report.html")


def _write(
    paths: Sequence[Path],
    target: Path,
    charts: Mapping[str, Folder | None],
    tables: Folder | None,
    facts: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Writes the page, charts and tables; returns the JSON document with their paths and the main results."""
    from fedveil.report.charts import write
    from fedveil.report.figures import figures
    from fedveil.report.gather import gather
    from fedveil.report.page import page
    from fedveil.report.registry import entry, slug, yaml
    from fedveil.report.table_export import export

    runs = gather(paths)
    damage = [f"{run.path}: {line}" for run in runs for line in run.damage]
    if damage and target.exists():
        raise RunError(f"{damage[0]}: {target} from before is kept; name another page with --out, or repair the run")
    entries = [] if facts is None else [(run.label, entry(run, facts)) for run in runs]
    drawn = figures(runs)
    made: dict[str, list[str]] = {form: [] for form in (*charts, "tables", "registry")}
    try:
        with locked(target.parent, LOCK.format(target.name)):
            clear_leftovers(target)
            write_text(target, page(runs, drawn), SHARED)
            for form, folder in charts.items():
                for figure in drawn if folder is not None else []:
                    path = Path(folder or "") / f"{figure.name}.{form}"
                    write(path, figure.chart)
                    made[form].append(str(path))
            for label, one in entries:
                name = slug(f"{one['url_slug']} {label if len(runs) > 1 else ''}", "_")
                write_text(target.parent / f"{name}.yaml", yaml(one), SHARED)
                made["registry"].append(str(target.parent / f"{name}.yaml"))
            if tables is not None:
                made["tables"] = [str(path) for path in export(runs, Path(tables))]
    except OSError as error:
        takes = f"cannot be written ({error.strerror}): give a path that you can write to"
        raise ConfigError("--out", str(error.filename or target), takes) from None
    return {"report": str(target), "damage": damage, "runs": [_headline(run) for run in runs], **made}


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
        "defense": [d.name for d in run.config.defense],
        "status": run.status,
        "rounds": run.rounds,
        "accuracy": accuracy,
        "chance": run.chance,
        "learned": run.learned,
        "loss": loss,
        "measured_after": after,
        "attacks": len(run.attacks),
        "seats": seats,
        "problems": list(run.problems),
    }
