"""What commands print: JSON, tables, progress. Results go to stdout, progress and notes to stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
from rich.table import Table

from fedveil.attacks.base import LiveProgress
from fedveil.core.errors import ConfigError
from fedveil.core.system import to_json
from fedveil.core.taps import ACCOUNTED_TAPS, UNITS

if TYPE_CHECKING:
    from fedveil.accounting.ledger import Row
    from fedveil.federation import Federation
    from fedveil.training import Result


def print_json(value: object) -> None:
    sys.stdout.write(to_json(value, indent=2) + "\n")
    sys.stdout.flush()


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    Console().print(table)


def print_text(text: str) -> None:
    """Prints a paragraph, broken at the width of the terminal."""
    Console().print(text, markup=False, highlight=False)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(v) for v in value)
    return "" if value is None else str(value)


class Counter:
    """`with Counter("attacks") as count: count(3, 10)`: how much is done, on a terminal's stderr."""

    def __init__(self, what: str) -> None:
        self.what, self.live = what, sys.stderr.isatty()

    def __enter__(self) -> Counter:
        return self

    def __call__(self, done: int, total: int) -> None:
        if self.live:
            print(f"\r{self.what}: {done} of {total}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self.live:
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)


class Live(LiveProgress):
    """The state of an attack on stderr, from the first second on: how much is done, the best match, the time left.

    On a terminal one line that changes twice a second; elsewhere a line every `RARELY` seconds.
    """

    RARELY = 15.0

    def __init__(self, what: str) -> None:
        self.what, self.terminal = what, sys.stderr.isatty()
        self.began, self.deadline = time.monotonic(), float("inf")
        self.count, self.fit = "preparing", ""
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Live:
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._ticker.join()
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def __call__(self, done: int, total: int) -> None:
        self.count = f"{self.what}: {done} of {total} done"

    def limit(self, deadline: float | None) -> None:
        self.deadline = float("inf") if deadline is None else deadline
        self.count = f"{self.what}: compiling"

    def match(self, best: float, guess: float | None, what: str) -> None:
        beside = "" if guess is None else f" (a guess: {guess:.2g})"
        self.fit = f", best match so far {what} {best:.2g}{beside}"

    def line(self) -> str:
        now = time.monotonic()
        left = f", {max(0.0, self.deadline - now):.0f} s left" if self.deadline < float("inf") else ""
        return f"{self.count}{self.fit}, {now - self.began:.0f} s{left}"

    def _tick(self) -> None:
        while not self._ended.wait(0.5 if self.terminal else self.RARELY):
            if self.terminal:
                print(f"\r\033[K{self.line()}", end="", file=sys.stderr, flush=True)
            else:
                print(self.line(), file=sys.stderr, flush=True)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def as_options(*keys: str) -> Iterator[None]:
    """Within it, an error about one of these arguments names the option of the command line: `--delta` for `delta`."""
    try:
        yield
    except ConfigError as error:
        if error.key in keys:
            raise ConfigError(f"--{error.key.replace('_', '-')}", error.got, error.takes) from None
        raise


# --- training


class Bar:
    """Progress over rounds on stderr; silent where stderr is not a terminal.

    `first`: lines that are printed once a round is done, or the training ends well. So an error is the only line.
    """

    def __init__(self, rounds: int, first: Sequence[str] = ()):
        self.first = list(first)
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

    def __exit__(self, kind: object, *_: object) -> None:
        self.bar.stop()
        if kind is None:
            self._say()

    def _say(self) -> None:
        while self.first:
            note(self.first.pop(0))

    def __call__(self, row: dict[str, Any]) -> None:
        self._say()
        self.bar.update(self.task, completed=row["round"] + 1)
        if "accuracy" in row:
            self.bar.update(self.task, scores=f"accuracy {row['accuracy']:.4f}  loss {row['loss']:.4f}")


def print_training(federation: Federation, result: Result) -> None:
    """The result of a training as a table."""
    config = federation.config
    rows = [
        ("dataset", f"{config.data.name}, {config.data.partition}, {config.data.clients} clients"),
        ("model", f"{config.model.name}, {config.train.optimizer}, learning rate {config.train.lr}"),
        ("defence", ", ".join(d.name for d in config.defense)),
        (f"accuracy ({result.split})", f"{result.accuracy:.4g}{'' if result.learned else ', no better than chance'}"),
        ("chance (most common class)", result.chance),
        ("loss", result.loss),
        ("rounds", f"{result.rounds} with {config.train.per_round} clients each"),
        *([("stopped by", result.stopped)] if result.stopped else []),
        ("seconds", f"{result.seconds:.2f} (and {result.compile_seconds:.2f} to compile)"),
        ("privacy", _privacy(result.ledger)),
        ("run", str(result.run)),
    ]
    print_table("Training", ("what", "result"), rows)
    if federation.dataset.note:
        note(f"note: {federation.dataset.note}")
    if result.diagnosis:
        note(f"warning: {result.diagnosis}")


def _privacy(rows: Sequence[Row]) -> str:
    """The certificates in one line per unit, at the tap that shows least; or that there are none."""
    from fedveil.accounting.ledger import SEEDED

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
