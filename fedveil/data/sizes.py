"""The records of each client without the records: a list, or a CSV file with one client per line."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from fedveil.core.errors import ConfigError

KEY = "data.sizes"
TAKES = "takes the number of records of each client, 1 or more: a list, or a CSV file whose last column holds them"
MOST = 2**31 - 1  # records together


def read_sizes(given: str | Sequence[int] | None) -> list[int]:
    """The number of records of each client."""
    sizes = _of_file(Path(given).expanduser()) if isinstance(given, str) else list(given or [])
    wrong = next((size for size in sizes if size < 1), None)
    if not sizes or wrong is not None:
        raise ConfigError(KEY, given if wrong is None else wrong, TAKES)
    if sum(sizes) > MOST:
        raise ConfigError(KEY, sum(sizes), f"takes up to {MOST:,} records together")
    return sizes


def _of_file(path: Path) -> list[int]:
    """The last column of a CSV file; a first line of names is skipped."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            cells = [line[-1].strip() for line in csv.reader(file) if line]
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(KEY, str(path), f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if cells and not cells[0].lstrip("+-").isdigit():
        del cells[0]
    for number, cell in enumerate(cells, 1):
        if not cell.isdigit():
            raise ConfigError(KEY, f"{path}, client {number}: {cell}", TAKES)
    return [int(cell) for cell in cells]
