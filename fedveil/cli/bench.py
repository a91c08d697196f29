"""`fedveil bench`: runs a suite of `benchmarks/`, a folder of the source checkout that is not in the wheel."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path

import fedveil
from fedveil.cli import show
from fedveil.core.errors import ConfigError, FedveilError, unknown_name
from fedveil.core.system import to_json

TITLES = {
    "round": "seconds per client and local iteration; ratio = ours / theirs",
    "attack": "seconds per attacked image; ratio = ours / theirs",
    "shadows": "seconds per shadow federation; ratio = in a batch / alone",
    "ledger": "seconds per account; ratio = ours / dp_accounting's, where both find the same ε",
    "roofline": "operations or bytes per second; ratio = achieved / the machine's measured rate",
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

Row = dict[str, object]


class NoBenchmarks(FedveilError):
    """The benchmarks are not on this machine, or not where the command looks."""

    exit_code = 2


def run_bench(suite: str, repeats: int, json: bool, out: str | None = None) -> None:
    """Runs a suite, prints its rows, and writes them to the file `out`, one JSON document per line, where one is named."""
    if suite not in SUITES:
        raise unknown_name("bench", suite, SUITES)
    file = None if out is None else Path(out)
    if file is not None and not file.parent.is_dir():
        raise ConfigError("--out", out, "takes a file in a folder that exists")
    found = _runner(suite)(repeats=repeats, progress=show.note)
    rows = list(found if file is None else _written(found, file))
    if json:
        show.print_json(rows)
        return
    columns = (*COLUMNS, *MORE.get(suite, ()))
    show.print_table(TITLES[suite], columns, [[row.get(column) for column in columns] for row in rows])


def checkout() -> Path:
    """The root of the source checkout: the folder that holds this package, else the current folder."""
    for folder in (Path(fedveil.__file__).resolve().parents[1], Path.cwd()):
        if (folder / "benchmarks" / "__init__.py").is_file() and _is_ours(folder):
            return folder
    raise NoBenchmarks(
        "bench: the benchmarks are in Fedveil's source checkout, not in the installed package; clone the repository, "
        "then run 'fedveil bench' from its root, or install it with pip install -e '.[bench]'"
    )


def _is_ours(folder: Path) -> bool:
    """Whether the folder is the root of Fedveil: other projects have folders named `benchmarks` too."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return project.get("project", {}).get("name") == "fedveil"


def _runner(suite: str) -> Callable[..., Iterable[Row]]:
    """The function `run` of a suite, imported from the checkout."""
    root = str(checkout())
    if root not in sys.path:
        sys.path.insert(0, root)  # first, because another project may have installed a package named `benchmarks`
    return import_module(f"benchmarks.{suite}").run


def _written(rows: Iterable[Row], file: Path) -> Iterator[Row]:
    """The same rows, each written to the file as soon as it is measured: an interrupted bench keeps its finished rows."""
    with file.open("w", encoding="utf-8") as lines:
        for row in rows:
            lines.write(to_json(row) + "\n")
            lines.flush()
            yield row
