"""The tables of a report as files: CSV with all digits, LaTeX with rounded numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedveil.core.files import SHARED, write_text
from fedveil.report.gather import Run
from fedveil.report.glossary import SHOWN
from fedveil.report.tables import table_csv, table_latex

UNITS = ("example", "client")
CERTIFICATES = ("tap", "unit", "adjacency", "accountant", "rule", "certified", "epsilon", "delta", "rounds", "reason")
SCORES = ("success_rate", "label_success_rate", "ssim", "mse", "psnr", "iterations", "images")
METRICS = ("clients", "lost", "not_finite", "train_loss", "update_norm", "lr", "accuracy", "loss")
HEADINGS = {"epsilon": "ε", "delta": "δ", "reason": "why"}


@dataclass(frozen=True)
class Table:
    """One table."""

    name: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]


def export(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Writes every table as NAME.csv and, except the metrics of each round, as NAME.tex; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for table in (_runs(runs), _certificates(runs), _attacks(runs), _metrics(runs)):
        if not table.rows:
            continue
        exact = [["" if c is None else repr(c) if isinstance(c, float) else c for c in row] for row in table.rows]
        texts = {".csv": table_csv(table.header, exact)}  # with all digits of a number
        if table.name != "metrics":
            texts[".tex"] = table_latex(table.header, table.rows)
        for ending, text in texts.items():
            path = folder / f"{table.name}{ending}"
            write_text(path, text, SHARED)
            made.append(path)
    return made


def _runs(runs: Sequence[Run]) -> Table:
    header = ["run", "defence", "status", "rounds", "accuracy", "chance", "loss", "split"]
    header += [f"ε {tap} {unit}" for tap in SHOWN for unit in UNITS]
    rows = []
    for run in runs:
        accuracy, loss, _ = run.scores
        found = [run.best(tap, unit) for tap in SHOWN for unit in UNITS]
        epsilons = [None if row is None else row.epsilon for row in found]
        rows.append([run.label, run.defense, run.status, run.rounds, accuracy, run.chance, loss, run.split, *epsilons])
    return Table("runs", header, rows)


def _certificates(runs: Sequence[Run]) -> Table:
    header = ["run", *(HEADINGS.get(key, key) for key in CERTIFICATES)]
    rows = [[run.label, *(getattr(row, key) for key in CERTIFICATES)] for run in runs for row in run.ledger]
    return Table("privacy", header, rows)


def _attacks(runs: Sequence[Run]) -> Table:
    header = ["run", "attack", "tap", "round", *SCORES]
    header += ["low", "high", "auc", "tpr at fpr 0.01", "ε at least", "ε certified"]
    rows = []
    for run in runs:
        for attack in run.attacks:
            found = attack.document
            span, tpr = found.get("interval"), found.get("tpr_at_fpr")
            low, high = span if isinstance(span, list) and len(span) == 2 else (None, None)
            at = tpr.get("0.01", {}).get("tpr") if isinstance(tpr, dict) else None
            scores = [found.get(key) for key in SCORES]
            head = [run.label, found["attack"], found.get("tap"), found.get("round")]
            more = [found.get("auc"), at, found.get("epsilon_low"), found.get("epsilon")]
            rows.append([*head, *scores, low, high, *more])
    return Table("attacks", header, rows)


def _metrics(runs: Sequence[Run]) -> Table:
    rows = [[run.label, row["round"], *(row.get(key) for key in METRICS)] for run in runs for row in run.metrics]
    return Table("metrics", ["run", "round", *METRICS], rows)
