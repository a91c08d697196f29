"""What commands print: JSON, tables, progress. Results go to stdout, progress and notes to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from fedveil.core.system import to_json


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


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
