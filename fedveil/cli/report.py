"""`fedveil report`: run folders as one HTML page, with charts and tables as files where asked."""

from __future__ import annotations

from fedveil.cli import show
from fedveil.report.write import report


def run_report(
    folders: list[str], out: str | None, svg: str | None, png: str | None, tables: str | None, json: bool
) -> None:
    """Writes the page and what was asked for besides; prints where."""
    document = report(folders, out, svg=svg, png=png, tables=tables).as_dict()
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
