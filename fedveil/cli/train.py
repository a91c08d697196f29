"""`fedveil train`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedveil.accounting.ledger import SEEDED, Row
from fedveil.cli import show
from fedveil.config import Config, load
from fedveil.core.errors import ConfigError, Interrupted
from fedveil.core.taps import ACCOUNTED_TAPS, UNITS


class Bar:
    """Progress over rounds on stderr; silent where stderr is not a terminal."""

    def __init__(self, rounds: int):
        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[scores]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self.task: TaskID = self.bar.add_task("rounds", total=rounds, scores="compiling")

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def __call__(self, row: dict[str, Any]) -> None:
        self.bar.update(self.task, completed=row["round"] + 1)
        if "accuracy" in row:
            self.bar.update(self.task, scores=f"accuracy {row['accuracy']:.4f}  loss {row['loss']:.4f}")


def run_train(file: str | None, settings: list[str], out: str | None, resume: str | None, json: bool) -> None:
    """Trains, or goes on with a run; writes the run folder; prints the result."""
    if resume is not None:
        if file is not None or settings:
            raise ConfigError("--resume", resume or None, "takes the run's own config: leave out FILE and -s")
        _train(None, _resumed(resume, _folder(out)), json)
        return
    _train(load(file, settings), _folder(out), json)


def _folder(out: str | None) -> Path | None:
    if out == "":
        raise ConfigError("--out", out, "takes the folder of a run: leave it out for one below runs/")
    return None if out is None else Path(out)


def _resumed(resume: str, out: Path | None) -> Path:
    from fedveil.runs import newest_unfinished

    if resume:
        return Path(resume)
    return out or newest_unfinished()


def _train(config: Config | None, path: Path | None, json: bool) -> None:
    """With a config: a new run. Without: the run in `path` goes on."""
    from fedveil.federation import prepare
    from fedveil.runs import RunFolder, default_path
    from fedveil.training import train

    if config is None:
        assert path is not None
        run = RunFolder.open(path)
        if run.read_info().get("own_model"):
            takes = "was trained with a model of its own: go on with it from Python, fedveil.train(..., resume=True)"
            raise ConfigError("--resume", str(path), takes)
        own = load(run.config)
        federation = prepare(own, draws=run.draws(own.train.noise_seed))
    else:
        federation = prepare(config)
        names = "+".join(d.name for d in config.defense)
        run = RunFolder.create(path or default_path(f"{config.data.name}-{names}"))
    try:
        with Bar(federation.rounds) as bar:
            result = train(federation, run, bar)
    except KeyboardInterrupt:  # a second Ctrl-C: what the last checkpoint holds is kept
        if not run.config.exists():
            raise
        raise Interrupted(f"interrupted; {run.how_to_go_on}") from None
    if json:
        show.print_json(result.as_dict())
        return
    settled = federation.config
    described = [
        ("dataset", f"{settled.data.name}, {settled.data.partition}, {settled.data.clients} clients"),
        ("model", f"{settled.model.name}, {settled.train.optimizer}, learning rate {settled.train.lr}"),
        ("defence", ", ".join(d.name for d in settled.defense)),
        (f"accuracy ({result.split})", result.accuracy),
        ("loss", result.loss),
        ("rounds", f"{result.rounds} with {settled.train.per_round} clients each"),
        *([("stopped by", result.stopped)] if result.stopped else []),
        ("seconds", f"{result.seconds:.2f} (and {result.compile_seconds:.2f} to compile)"),
        ("privacy", _privacy(result.ledger)),
        ("run", str(result.run)),
    ]
    show.print_table("Training", ("what", "result"), described)
    if federation.dataset.note:
        show.note(f"note: {federation.dataset.note}")


def _privacy(rows: list[Row]) -> str:
    """The certificates in one line per unit, at the tap that shows least; or that there are none."""
    lines = []
    for unit in UNITS:
        best = [row for row in rows if row.unit == unit and row.certified and row.tap == "release"]
        for row in best[:1]:
            lines.append(f"one {unit}: ε = {row.epsilon:.4g}, δ = {row.delta:g}, {row.adjacency}, tap {row.tap}")
    closed = {row.tap for row in rows if row.certified}
    still_open = [tap for tap in ACCOUNTED_TAPS if tap not in closed]
    if not closed:
        seeded = any(SEEDED in row.reason for row in rows)
        return "nothing is certified at any tap" + (f": {SEEDED.partition(': ')[2]}" if seeded else "")
    return "; ".join(lines) + (f"; nothing certified at: {', '.join(still_open)}" if still_open else "")
