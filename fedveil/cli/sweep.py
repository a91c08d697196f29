"""`fedveil sweep`: trains and attacks every combination of a file's lists, with a live table, and compares them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedveil.cli import show
from fedveil.config import read
from fedveil.core.errors import ConfigError, RunError
from fedveil.recipes.cache import Cache
from fedveil.recipes.run import Progress
from fedveil.sweeps.grid import Cell
from fedveil.sweeps.results import Line, Sweep

ROWS = 24  # of the live table
NUMBERS = ("chance", "ε server", "ε release", "leak")  # ε for one record; the leak is that of the best attack


def run_sweep(
    file: str | None, settings: list[str], out: str | None, workers: int, minutes: float | None, json: bool
) -> None:
    """Runs a sweep in its folder and prints the comparison."""
    from fedveil.sweeps.page import accuracy_of
    from fedveil.sweeps.run import sweep

    if out == "":
        raise ConfigError("--out", out, "takes a folder: leave it out for one below runs/")
    folder = Path(out) if out is not None else Path("runs") / f"sweep-{Path(file).stem if file else 'settings'}"
    seconds = None if minutes is None else 60 * minutes
    with Live() as live:
        done = sweep(read(file, settings), folder, workers=workers, seconds=seconds, progress=live)
    if json:
        show.print_json(done.as_dict())
    else:
        rows = [(line.name, accuracy_of(line, spans=False), *_numbers(line)) for line in done.lines]
        show.print_table("Sweep", ("setting", "accuracy", *NUMBERS), rows)
        for name, path in done.files.items():
            print(f"{name}: {path}")
    if done.left:
        show.note(f"{done.left} cells are left: run the same command again to resume")
    if done.failed:
        raise RunError(f"{len(done.failed)} cells failed; the first: {done.failed[0]}")


class Live:
    """The settings as a live table on a terminal's stderr; elsewhere a line for each cell that begins."""

    def __init__(self) -> None:
        self.table: Any = None
        self.begun = time.monotonic()

    def __enter__(self) -> Live:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live as Screen

            self.table = Screen(console=Console(stderr=True), transient=True, refresh_per_second=4)
            self.table.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.table is not None:
            self.table.stop()

    def __call__(self, cells: list[Cell], cache: Cache, progress: Progress) -> None:
        head = self._head(progress)
        if self.table is None:
            for cell in [cell for cell in cells if cell.job.digest in progress.running][-1:]:
                show.note(f"{head}: {cell.label}, seed {cell.seed}")
            return
        found = Sweep.of(cells, cache, progress.failed)
        running = {cell.label for cell in cells if cell.job.digest in progress.running}
        self.table.update(_drawn(head, found.lines, running))

    def _head(self, progress: Progress) -> str:
        left = "" if progress.left is None else f", about {progress.left / 60:.0f} min left"
        cached = f" ({progress.cached} from before)" if progress.cached else ""
        return f"{progress.done} of {progress.total} cells{cached}{left}"


def _drawn(head: str, lines: Sequence[Line], running: set[str]) -> Any:
    """The rows around the one at work."""
    from rich.table import Table

    names = [line.name for line in lines]
    now = max((names.index(name) for name in running if name in names), default=len(lines) - 1)
    first = max(0, min(now - ROWS // 2, len(lines) - ROWS))
    made = Table(title=head, title_justify="left", header_style="bold")
    for column in ("setting", "accuracy", *NUMBERS, "seeds"):
        made.add_column(column)
    for line in lines[first : first + ROWS]:
        seeds = f"{line.seeds} of {line.planned}" + (", running" if line.name in running else "")
        values = (line.accuracy, *_numbers(line))
        made.add_row(line.name, *("" if value is None else f"{value:.3g}" for value in values), seeds)
    return made


def _numbers(line: Line) -> tuple[float | None, ...]:
    return line.chance, line.epsilon.get("server"), line.epsilon.get("release"), line.leak
