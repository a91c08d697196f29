"""`fedveil report`: run folders as one HTML page, and on request charts and tables as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedveil.cli import show
from fedveil.cli.options import ReportOptions
from fedveil.core.errors import RunError
from fedveil.report.write import report

FORMS = ("svg", "png", "pdf", "pgf")  # of charts


def run_report(folders: list[str], options: ReportOptions, json: bool) -> None:
    """Writes the page, the charts in each form that was requested, and the tables; prints the paths."""
    document = report(folders, **asdict(options)).as_dict()
    if json:
        show.print_json(document)
    else:
        _print(document)
    if document["damage"]:
        raise RunError(f"{document['damage'][0]}: the page says what else is missing")


def _beside(run: Mapping[str, Any]) -> str:
    chance = "" if run["chance"] is None else f" (chance {run['chance']:.4g})"
    return chance + (", no better than chance" if run["learned"] is False else "")


def _print(document: Mapping[str, Any]) -> None:
    for run in document["runs"]:
        accuracy = "not measured" if run["accuracy"] is None else f"{run['accuracy']:.4g}{_beside(run)}"
        verdicts = ", ".join(f"{tap} {seat['verdict']}" for tap, seat in run["seats"].items())
        print(f"{run['label']}: accuracy {accuracy}; {verdicts}")
    for key in (*FORMS, "tables", "registry"):
        if document[key]:
            print(f"{key}: {', '.join(document[key])}")
    print(f"report: {document['report']}")
