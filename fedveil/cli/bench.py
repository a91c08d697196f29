"""`fedveil bench`: ratios measured side by side in one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from fedveil.cli import show
from fedveil.core.errors import ConfigError, unknown_name
from fedveil.core.system import to_json

TITLES = {
    "round": "seconds per client and local iteration; ratio = ours / theirs",
    "attack": "seconds per attacked image; ratio = ours / theirs",
    "shadows": "seconds per shadow federation; ratio = in a batch / alone",
    "ledger": "seconds per account; ratio = ours / dp_accounting's, where both find the same ε",
    "roofline": "operations or bytes per second; ratio = achieved / what the machine shows",
    "growth": "seconds per unit of size; ratio = at the largest / at the smallest",
    "start": "seconds of a fresh process; ratio = command / bare interpreter",
}
SUITES = tuple(TITLES)
COLUMNS = ("name", "ratio", "low", "high", "ours", "theirs", "device")
MORE = {
    "ledger": ("epsilon_ours", "epsilon_theirs"),
    "growth": ("exponent", "exponent_low", "exponent_high"),
    "start": ("cpu", "limit", "imported"),
}


def run_bench(suite: str, repeats: int, json: bool, out: str | None = None) -> None:
    """Runs a suite, writes its rows to a file, a JSON document per line, if there is to be one, and prints them."""
    if suite not in SUITES:
        raise unknown_name("bench", suite, SUITES)
    file = None if out is None else Path(out)
    if file is not None and not file.parent.is_dir():
        raise ConfigError("--out", out, "takes a file in a folder that exists")
    found = import_module(f"fedveil.bench.{suite}").run(repeats=repeats, progress=show.note)
    rows = list(found if file is None else _written(found, file))
    if json:
        show.print_json(rows)
        return
    columns = (*COLUMNS, *MORE.get(suite, ()))
    show.print_table(TITLES[suite], columns, [_cells(row, columns) for row in rows])


def _written(rows: Iterable[dict[str, object]], file: Path) -> Iterator[dict[str, object]]:
    """The rows, each in the file as soon as it is measured: whoever stops a long bench keeps what there is."""
    with file.open("w", encoding="utf-8") as lines:
        for row in rows:
            lines.write(to_json(row) + "\n")
            lines.flush()
            yield row


def _cells(row: dict[str, object], columns: Sequence[str]) -> list[object]:
    return [row.get(column) for column in columns]
