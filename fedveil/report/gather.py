"""Reads run folders for a report: as much of each as can be read, and a line on every file that cannot.

Nothing is trained or attacked here. The account is computed again, after several numbers of rounds, since it needs no data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedveil.accounting.ledger import Row
from fedveil.accounting.published import CLAIMED
from fedveil.accounting.transcript import FILE
from fedveil.attacks.results import Stored, read_all
from fedveil.config import Config, from_dict, of_run
from fedveil.core.errors import ConfigError, FedveilError, RunError
from fedveil.core.taps import ACCOUNTED_TAPS
from fedveil.report.tables import finite
from fedveil.runs import RunFolder, metrics_of
from fedveil.simulation.learning import learned

SERVER_ONLY = ("train_loss", "update_norm")  # of clients' data without noise: left out where anything is certified
POINTS = 8  # how often on the way the account is computed


@dataclass(frozen=True)
class Run:
    """One run folder."""

    path: Path
    label: str
    config: Config
    toml: str
    info: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    rounds: int  # the largest number that a file of the folder shows
    ledger: Sequence[Row]
    over_rounds: Sequence[tuple[int, Sequence[Row]]]  # (rounds, certified rows after them)
    attacks: Sequence[Stored]
    problems: Sequence[str]
    damage: Sequence[str] = ()  # the problems that come from damaged files

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
        """The last accuracy and loss that were measured (None if not finite), and the number of rounds before them."""
        for row in reversed(self.metrics):
            if "accuracy" in row:
                return finite(row["accuracy"]), finite(row.get("loss")), int(row["round"]) + 1
        return None, None, None

    @property
    def split(self) -> str:
        result = self.info.get("result")
        return str(result.get("split", "held-out")) if isinstance(result, dict) else "held-out"

    @property
    def chance(self) -> float | None:
        """The accuracy of naming the most common class of the held-out part; None where the run does not know it."""
        value = self.info.get("chance")
        return finite(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def learned(self) -> bool | None:
        """Whether the last accuracy is clearly above chance; None where that is not known."""
        accuracy, _, after = self.scores
        records = self.info.get("held_out")
        if after is None or self.chance is None or not isinstance(records, int):
            return None
        return learned(accuracy, self.chance, records)

    @property
    def diagnosis(self) -> str:
        """Why a finished training did not learn, as it recorded itself; empty otherwise."""
        result = self.info.get("result")
        return str(result.get("diagnosis") or "") if isinstance(result, dict) else ""

    @property
    def certifies(self) -> bool:
        """Whether the run has a certificate for anything."""
        return any(row.certified for row in self.ledger)

    @property
    def account_lost(self) -> bool:
        """Whether rounds were made whose account cannot be computed: then no ε is known, in either direction."""
        return self.rounds > 0 and not self.ledger

    def best(self, tap: str, unit: str) -> Row | None:
        """The certificate at a tap for presence or absence, else for replacement; None where there is none."""
        return best(self.ledger, tap, unit)

    def why_open(self, tap: str, unit: str) -> str:
        """The reason why no ε is certified for a tap and a unit."""
        rows = [r for r in self.ledger if (r.tap, r.unit) == (tap, unit) and not r.certified and not claimed(r)]
        if not rows:
            return "there is no account of this run"
        bare = rows[0].reason.startswith("open:")
        return "there is no noise between the data and this adversary" if bare else rows[0].reason


def claimed(row: Row) -> bool:
    """Whether a row repeats the claim of a paper."""
    return row.rule in CLAIMED


def best(rows: Sequence[Row], tap: str, unit: str) -> Row | None:
    """Of the certificates for a tap and a unit, those for presence or absence first, and of these the smallest ε."""
    here = [r for r in rows if (r.tap, r.unit) == (tap, unit) and r.certified and r.epsilon is not None]
    return min(here, key=lambda r: (r.adjacency == "replace", r.epsilon), default=None)


def gather(paths: Sequence[Path]) -> list[Run]:
    """The runs in the given order, with labels that differ."""
    if not paths:
        raise ConfigError("RUN", None, "takes the folders of one or more runs")
    runs = [_read(path) for path in expanded(paths)]
    labels = ["no defence" if run.defense == "none" else run.defense for run in runs]
    own = [
        f" ({run.path.resolve().name})" if labels.count(one) > 1 else "" for run, one in zip(runs, labels, strict=True)
    ]
    return [replace(run, label=label + name) for run, label, name in zip(runs, labels, own, strict=True)]


def expanded(paths: Sequence[Path]) -> list[Path]:
    """The run folders: a folder that is no run stands for the runs in it, by name."""
    found = []
    for path in paths:
        inside = [] if (path / "config.toml").is_file() else sorted(one.parent for one in path.glob("*/config.toml"))
        found += inside or [path]
    return found


def _read(path: Path) -> Run:
    own = path / "config.toml"
    if not own.is_file():
        what = "is no folder" if not path.is_dir() else "holds no run (no config.toml)"
        raise ConfigError("RUN", str(path), f"{what}: give the folder that 'fedveil train' wrote")
    config, toml = from_dict(of_run(own)), own.read_text(encoding="utf-8")
    problems: list[str] = []
    damage: list[str] = []
    info = _info(path, problems, damage)
    try:
        RunFolder(path).check_config()
    except RunError as error:
        damage += [] if "is damaged" in str(error) else [str(error)]
    metrics = _metrics(path, problems, damage)
    rounds = max(len(metrics), _checkpoint(path, damage))
    ledger, over = _accounts(path, info, rounds, problems, damage)
    attacks, unread = read_all(path)
    damage += unread
    if any(row.certified for row in ledger):
        metrics = [{key: value for key, value in row.items() if key not in SERVER_ONLY} for row in metrics]
    return Run(path, "", config, toml, info, metrics, rounds, ledger, over, attacks, [*problems, *damage], damage)


def _info(path: Path, problems: list[str], damage: list[str]) -> dict[str, Any]:
    run = RunFolder(path)
    if not run.info.exists():
        problems.append("there is no run.json: status and versions are not known")
    try:
        return run.read_info()
    except RunError:
        damage.append("run.json is damaged: status and versions are not known")
        return {}


def _metrics(path: Path, problems: list[str], damage: list[str]) -> list[dict[str, Any]]:
    """All lines up to the first that a crash cut short or that is damaged."""
    file = RunFolder(path).metrics
    rows, fault = metrics_of(file)
    if fault:
        damage.append(f"metrics.jsonl is damaged ({fault})")
    elif rows and not file.read_bytes().endswith(b"\n"):
        problems.append(f"metrics.jsonl is cut after {len(rows)} of {len(rows) + 1} lines")
    return rows


def _checkpoint(path: Path, damage: list[str]) -> int:
    try:
        return RunFolder(path).checkpoint_round()
    except FedveilError as error:
        damage.append(f"checkpoint.npz is damaged ({type(error.__cause__ or error).__name__})")
        return 0


def _accounts(
    path: Path, info: Mapping[str, Any], rounds: int, problems: list[str], damage: list[str]
) -> tuple[list[Row], list[tuple[int, list[Row]]]]:
    """The account after all rounds of the run, and after several numbers of rounds on the way."""
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
        told = damage if os.path.lexists(path / FILE) else problems
        told.append(f"the account cannot be computed here ({error})")
        return _stored_account(info, problems), []
    return now, over


def _stored_account(info: Mapping[str, Any], problems: list[str]) -> list[Row]:
    """The account stored in the run folder: used where computing it needs data or a model that is not here."""
    result = info.get("result")
    rows = result.get("ledger") if isinstance(result, dict) else None
    try:
        made = [Row(**{**row, "assumptions": tuple(row["assumptions"])}) for row in rows or []]
    except (TypeError, KeyError):
        made = []
    made = [row for row in made if row.tap in ACCOUNTED_TAPS]
    if not made:
        problems.append("the run used data or a model from outside and stored no account: ε is not known")
    return made
