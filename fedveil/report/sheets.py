"""The tables of a report, for papers and spreadsheets: CSV in full precision, LaTeX rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedveil.report.gather import Run
from fedveil.report.tables import table_csv, table_latex
from fedveil.report.words import SEATS

SCORES = ("success_rate", "label_success_rate", "ssim", "mse", "psnr", "iterations", "images")
METRICS = ("clients", "lost", "not_finite", "train_loss", "update_norm", "lr", "accuracy", "loss")


@dataclass(frozen=True)
class Sheet:
    """One table."""

    name: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]


def sheets(runs: Sequence[Run]) -> list[Sheet]:
    """All tables; those without rows are left out."""
    made = [_runs(runs), _certificates(runs), _attacks(runs), _metrics(runs)]
    return [sheet for sheet in made if sheet.rows]


def write(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Every table as NAME.csv and, but for the metrics of each round, as NAME.tex."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for sheet in sheets(runs):
        texts = {".csv": table_csv(sheet.header, [[_exact(cell) for cell in row] for row in sheet.rows])}
        if sheet.name != "metrics":
            texts[".tex"] = table_latex(sheet.header, sheet.rows)
        for ending, text in texts.items():
            path = folder / f"{sheet.name}{ending}"
            path.write_text(text, encoding="utf-8")
            made.append(path)
    return made


def _exact(cell: object) -> object:
    """All digits of a number; nothing where there is none."""
    return "" if cell is None else repr(cell) if isinstance(cell, float) else cell


def _runs(runs: Sequence[Run]) -> Sheet:
    header = ["run", "defence", "status", "rounds", "accuracy", "loss", "split"]
    header += [f"ε {tap} {unit}" for tap in SEATS for unit in ("example", "client")]
    rows = []
    for run in runs:
        accuracy, loss, _ = run.scores
        found = [run.best(tap, unit) for tap in SEATS for unit in ("example", "client")]
        epsilons = [None if row is None else row.epsilon for row in found]
        rows.append([run.label, run.defense, run.status, run.rounds, accuracy, loss, run.split, *epsilons])
    return Sheet("runs", header, rows)


def _certificates(runs: Sequence[Run]) -> Sheet:
    header = ["run", "tap", "unit", "adjacency", "accountant", "rule", "certified", "ε", "δ", "rounds", "why"]
    rows = [
        [
            run.label,
            r.tap,
            r.unit,
            r.adjacency,
            r.accountant,
            r.rule,
            r.certified,
            r.epsilon,
            r.delta,
            r.rounds,
            r.reason,
        ]
        for run in runs
        for r in run.ledger
    ]
    return Sheet("privacy", header, rows)


def _attacks(runs: Sequence[Run]) -> Sheet:
    header = [
        "run",
        "attack",
        "tap",
        "round",
        *SCORES,
        "low",
        "high",
        "auc",
        "tpr at fpr 0.01",
        "ε at least",
        "ε certified",
    ]
    rows = []
    for run in runs:
        for attack in run.attacks:
            found = attack.document
            span = found.get("interval")
            low, high = span if isinstance(span, list) and len(span) == 2 else (None, None)
            tpr = found.get("tpr_at_fpr")
            at = tpr.get("0.01", {}).get("tpr") if isinstance(tpr, dict) else None
            scores = [found.get(key) for key in SCORES]
            head = [run.label, found["attack"], found.get("tap"), found.get("round")]
            more = [found.get("auc"), at, found.get("epsilon_low"), found.get("epsilon")]
            rows.append([*head, *scores, low, high, *more])
    return Sheet("attacks", header, rows)


def _metrics(runs: Sequence[Run]) -> Sheet:
    rows = [[run.label, row["round"], *(row.get(key) for key in METRICS)] for run in runs for row in run.metrics]
    return Sheet("metrics", ["run", "round", *METRICS], rows)
