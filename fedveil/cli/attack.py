"""`fedveil attack`: attack what a tap shows of a config's round, of a run, or of gradients from a file."""

from __future__ import annotations

from typing import Any

from fedveil.attacks.inference.base import InferenceAttack
from fedveil.attacks.registry import attack_kind
from fedveil.cli import show
from fedveil.config import Config, load
from fedveil.core.errors import ConfigError

FLAGS = ("run", "gradients", "out", "pictures")  # arguments of `fedveil.attack` that are options here


def run_attack(
    file: str | None,
    settings: list[str],
    run: str | None,
    gradients: str | None,
    pictures: str | None,
    json: bool,
    out: str | None = None,
) -> None:
    """Runs one attack and prints its result."""
    if run is not None and file is not None:
        takes = "has a config of its own: leave out FILE, and give [attack] by -s attack.key=value"
        raise ConfigError("--run", run, takes)
    chosen: Config | list[str] = settings if run is not None else load(file, settings)
    from fedveil.attacks.orchestrate import attack

    with show.as_options(*FLAGS), show.Live(_counted(chosen)) as live:
        done = attack(chosen, run=run, gradients=gradients, out=out, pictures=pictures, progress=live)
    (show.print_json if json else _print)(done.as_dict())


def _counted(chosen: Config | list[str]) -> str:
    """The unit of the progress bar. For a run, it is steps: the run's config is not read yet."""
    if isinstance(chosen, list):
        return "steps"
    return "rounds" if issubclass(attack_kind(chosen.attack.name), InferenceAttack) else "attacks"


def _print(document: dict[str, Any]) -> None:
    """Prints the verdict, single values as one table, and each list of entries (such as classes) as another."""
    if document.get("verdict"):
        print(document["verdict"])
    document = {key: value for key, value in document.items() if key != "verdict"}
    lists = {key: value for key, value in document.items() if isinstance(value, list) and value and _is_table(value)}
    lines = [line for key, value in document.items() if key not in lists for line in _lines(key, value)]
    show.print_table("Attack", ("what", "result"), lines)
    for key, rows in lists.items():
        columns = list(rows[0])
        show.print_table(key.replace("_", " "), columns, [[row[column] for column in columns] for row in rows])


def _is_table(rows: list[Any]) -> bool:
    return all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows)


def _lines(name: str, value: Any) -> list[tuple[str, Any]]:
    """The lines of one entry; a nested entry has a line for each of its values."""
    if isinstance(value, dict):
        return [line for key, inner in value.items() for line in _lines(f"{name} {key}", inner)]
    return [] if value is None else [(name.replace("_", " "), value)]
