"""What a report is made from: one run folder, read as far as it can be, with a line on everything that cannot.

Nothing is trained or attacked here. Only the account is computed anew, for several rounds, since it needs no data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.accounting.ledger import Row
from fedveil.accounting.published import RULES
from fedveil.attacks.results import Stored, read_all
from fedveil.config import Config, load
from fedveil.core.errors import ConfigError, FedveilError
from fedveil.core.taps import ACCOUNTED_TAPS

CLAIMS = (*RULES, "joint", "as-published")
SERVER_ONLY = ("train_loss", "update_norm")  # carry no noise, see the assumptions of certified rows
POINTS = 8  # rounds at which the account is drawn


@dataclass(frozen=True)
class Run:
    """One run folder."""

    path: Path
    label: str
    config: Config
    toml: str
    info: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    rounds: int  # that are accounted for: whatever any file shows
    ledger: Sequence[Row]
    over_rounds: Sequence[tuple[int, Sequence[Row]]]  # certified rows after so many rounds
    attacks: Sequence[Stored]
    problems: Sequence[str]

    @property
    def status(self) -> str:
        return str(self.info.get("status") or "unknown")

    @property
    def planned(self) -> int | None:
        return self.config.train.rounds

    @property
    def defense(self) -> str:
        return " + ".join(d.name for d in self.config.defense)

    @property
    def scores(self) -> tuple[float | None, float | None, int | None]:
        """The last accuracy and loss that were measured and are numbers, and after how many rounds."""
        for row in reversed(self.metrics):
            if "accuracy" in row:
                return _finite(row["accuracy"]), _finite(row.get("loss")), int(row["round"]) + 1
        return None, None, None

    @property
    def split(self) -> str:
        result = self.info.get("result")
        return str(result.get("split", "held-out")) if isinstance(result, dict) else "held-out"

    def best(self, tap: str, unit: str) -> Row | None:
        """The certificate at a tap: of being there or not where there is one, else of being replaced; None if none."""
        return best(self.ledger, tap, unit)

    def why_open(self, tap: str, unit: str) -> str:
        """Why nothing is certified there."""
        rows = [r for r in self.ledger if (r.tap, r.unit) == (tap, unit) and not r.certified and not claimed(r)]
        if not rows:
            return "there is no account of this run"
        return "no noise lies between the data and this seat" if rows[0].reason.startswith("open:") else rows[0].reason


def claimed(row: Row) -> bool:
    """Whether a row repeats what a paper claims."""
    return row.rule in CLAIMS


def best(rows: Sequence[Row], tap: str, unit: str) -> Row | None:
    """Of the certificates for a tap and a unit, the one whose adjacency asks least, and of these the smallest ε."""
    here = [r for r in rows if (r.tap, r.unit) == (tap, unit) and r.certified and r.epsilon is not None]
    return min(here, key=lambda r: (r.adjacency == "replace", r.epsilon), default=None)


def gather(paths: Sequence[Path]) -> list[Run]:
    """The runs in the order given, with labels that tell them apart."""
    if not paths:
        raise ConfigError("RUN", None, "takes the folders of one or more runs")
    runs = [_read(path) for path in paths]
    labels = ["no defence" if run.defense == "none" else run.defense for run in runs]
    return [
        replace(run, label=label if labels.count(label) == 1 else f"{label} ({run.path.resolve().name})")
        for run, label in zip(runs, labels, strict=True)
    ]


def _read(path: Path) -> Run:
    own = path / "config.toml"
    if not own.is_file():
        what = "is no folder" if not path.is_dir() else "holds no run (no config.toml)"
        raise ConfigError("RUN", str(path), f"{what}: give the folder that 'fedveil train' wrote")
    config, toml = load(own), own.read_text(encoding="utf-8")
    problems: list[str] = []
    info = _info(path, problems)
    metrics = _metrics(path, problems)
    rounds = max(len(metrics), _checkpoint(path, problems))
    ledger, over = _accounts(path, info, rounds, problems)
    attacks, unread = read_all(path)
    shown = _publishable(metrics, ledger)
    return Run(path, "", config, toml, info, shown, rounds, ledger, over, attacks, [*problems, *unread])


def _publishable(metrics: list[dict[str, Any]], ledger: Sequence[Row]) -> list[dict[str, Any]]:
    """The metrics that a certificate covers: those measured on clients' data without noise stay with the server."""
    if not any(row.certified for row in ledger):
        return metrics
    return [{key: value for key, value in row.items() if key not in SERVER_ONLY} for row in metrics]


def _info(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        found = json.loads((path / "run.json").read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
        problems.append("run.json holds no table: status and versions are not known")
    except (OSError, ValueError) as error:
        problems.append(f"run.json cannot be read ({type(error).__name__}): status and versions are not known")
    return {}


def _metrics(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """All whole lines; what follows a line that was cut by a crash is left out."""
    file = path / "metrics.jsonl"
    if not file.exists():
        return []
    rows: list[dict[str, Any]] = []
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        try:
            row = json.loads(line)
            rows.append({**row, "round": int(row["round"])})
        except (ValueError, TypeError, KeyError):
            problems.append(f"metrics.jsonl is cut after {len(rows)} of {len(lines)} lines")
            break
    return rows


def _checkpoint(path: Path, problems: list[str]) -> int:
    file = path / "checkpoint.npz"
    if not file.exists():
        return 0
    try:
        with np.load(file) as stored:
            return int(stored["#round"])
    except Exception as error:
        problems.append(f"checkpoint.npz is damaged ({type(error).__name__})")
        return 0


def _accounts(
    path: Path, info: Mapping[str, Any], rounds: int, problems: list[str]
) -> tuple[list[Row], list[tuple[int, list[Row]]]]:
    """The account of the rounds behind the run, and of several rounds on the way."""
    if rounds == 0:
        return [], []
    from fedveil.accounting import ledger
    from fedveil.run_account import transcript_of

    try:
        now = ledger.rows(transcript_of(path), accountants=("paper", "pld"))
        if not any(row.certified for row in now):
            return now, []
        at = sorted({max(1, round(rounds * part / POINTS)) for part in range(1, POINTS + 1)})
        over = [(n, ledger.rows(transcript_of(path, n), accountants=("pld",), units=("example", "client"))) for n in at]
    except FedveilError as error:
        problems.append(f"the account cannot be computed here ({error})")
        return _stored_account(info, problems), []
    return now, over


def _stored_account(info: Mapping[str, Any], problems: list[str]) -> list[Row]:
    """The account that a finished run wrote down: its data or its model are not here to compute it anew."""
    result = info.get("result")
    rows = result.get("ledger") if isinstance(result, dict) else None
    try:
        made = [Row(**{**row, "assumptions": tuple(row["assumptions"])}) for row in rows or []]
    except (TypeError, KeyError):
        made = []
    made = [row for row in made if row.tap in ACCOUNTED_TAPS]
    if not made:
        problems.append("the run was made with data or a model of its own and wrote down no account: ε is not known")
    return made


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
