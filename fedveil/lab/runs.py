"""Run folders as the Runs page shows them, read without JAX: names, settings, results, metrics.

A run is found by listing the folder of runs. A name from a request is never joined to a path: a run that is not listed does
not exist. Links are not followed: neither to other folders nor from a run's files. Whatever a file holds, the page shows
the other runs.
"""

from __future__ import annotations

import json
import os
import stat
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedveil.config import from_dict, resolve
from fedveil.core.errors import FedveilError
from fedveil.core.files import read_regular

ACTIVE = 30.0  # seconds since its last write for which an unfinished run counts as running
MAX_RUNS = 500
MAX_BYTES = 64_000_000  # of one file of a run
Table = dict[str, Any]


def listed(root: Path) -> dict[str, Path]:
    """Runs by name, newest first."""
    try:
        found = [path for path in root.iterdir() if not path.is_symlink() and _is_plain(path / "config.toml")]
    except OSError:
        return {}
    found.sort(key=_changed, reverse=True)
    return {path.name: path for path in found[:MAX_RUNS]}


def _is_plain(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def link_in(path: Path) -> str | None:
    """The name of a symbolic link inside a run's folder, or None. The lab follows no links, so it reports no such run."""
    for parent, folders, names in os.walk(path):
        for name in (*folders, *names):
            if os.path.islink(os.path.join(parent, name)):
                return name
    return None


def _changed(path: Path) -> float:
    """The time of the last write to a run."""
    times = []
    for name in ("config.toml", "metrics.jsonl", "run.json"):
        try:
            times.append((path / name).lstat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)


def summary(path: Path) -> dict[str, Any]:
    """One line of the list."""
    info, config = read_info(path), read_config(path)
    result = _table(info, "result")
    data, train, model = (_table(config, name) for name in ("data", "train", "model"))
    return {
        "name": path.name,
        "status": status(path, info),
        "changed": _changed(path),
        "dataset": _text_of(data, "name"),
        "clients": _number(data, "clients"),
        "model": _text_of(model, "name"),
        "defense": [str(d["name"]) for d in _tables(config, "defense") if "name" in d],
        "rounds": _number(train, "rounds"),
        "rounds_done": _number(info, "rounds_done"),
        "accuracy": _number(result, "accuracy"),
        "chance": _number(info, "chance"),
        "learned": result.get("learned") if isinstance(result.get("learned"), bool) else None,
        "diagnosis": _text_of(result, "diagnosis"),
        "split": _text_of(result, "split"),
        "loss": _number(result, "loss"),
        "seconds": _number(result, "seconds"),
        "ledger": [_ledger_row(row) for row in _tables(result, "ledger")],
    }


# A damaged file may hold anything: values of another type count as missing.


def _table(found: Table, key: str) -> Table:
    value = found.get(key)
    return value if isinstance(value, dict) else {}


def _tables(found: Table, key: str) -> list[Table]:
    value = found.get(key)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _number(found: Table, key: str) -> float | None:
    value = found.get(key)
    sound = isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300
    return value if sound else None


def _text_of(found: Table, key: str) -> str | None:
    value = found.get(key)
    return value if isinstance(value, str) else None


def status(path: Path, info: dict[str, Any]) -> str:
    """`done`, `stopped`, `running`, or `left`: unfinished, and without a write for `ACTIVE` seconds."""
    given = _text_of(info, "status") or "running"
    abandoned = given == "running" and time.time() - _changed(path) > ACTIVE
    return "left" if abandoned else given


def _ledger_row(row: dict[str, Any]) -> dict[str, Any]:
    texts = ("tap", "unit", "adjacency", "accountant", "rule", "reason")
    numbers = {name: _number(row, name) for name in ("epsilon", "delta")}
    return {**{name: _text_of(row, name) for name in texts}, **numbers, "certified": row.get("certified") is True}


def detail(path: Path, first: int = 0) -> dict[str, Any]:
    """A run with its config and its metrics from round `first` on."""
    return {**summary(path), "config": _text(path / "config.toml"), "metrics": read_metrics(path)[first:]}


def read_info(path: Path) -> Table:
    return _parsed(json.loads, _text(path / "run.json"))


def read_config(path: Path) -> Table:
    return _parsed(tomllib.loads, _text(path / "config.toml"))


def _parsed(parse: Callable[[str], Any], text: str) -> Table:
    try:
        found = parse(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_metrics(path: Path) -> list[Table]:
    """All complete lines; a line that is still being written is read next time."""
    rows = []
    for line in _text(path / "metrics.jsonl").splitlines():
        row = _parsed(json.loads, line)
        if "round" not in row:
            break
        rows.append({key: _number(row, key) for key in row})
    return rows


def _text(path: Path) -> str:
    try:
        return read_regular(path, MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


# --- runs of the same settings ------------------------------------------------------------------------------------


def finished(root: Path) -> list[dict[str, Any]]:
    """Runs that have an accuracy, with their settings."""
    found = []
    for path in listed(root).values():
        run = summary(path)
        if run["accuracy"] is not None:
            config = read_config(path)
            found.append({**run, "settings": settings(config), "fingerprint": fingerprint(config)})
    return found


def settings(config: dict[str, Any]) -> dict[str, Any]:
    """The settings by which the page distinguishes runs, from a resolved config."""
    train, defense = _table(config, "train"), (_tables(config, "defense") or [{}])[0]
    names = ("rounds", "per_round", "local_steps", "batch", "lr", "seed")
    return {
        **{key: train.get(key) for key in names},
        "clients": _table(config, "data").get("clients"),
        **{f"defense.{key}": value for key, value in defense.items()},
    }


def fingerprint(document: dict[str, Any]) -> str | None:
    """Everything that decides the result of a run, as text; None for an invalid config."""
    try:
        config = resolve(from_dict(document))
    except (FedveilError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):  # nobody checked it
        return None
    decisive = config.model_dump(exclude={"preset": True, "speed": True, "attack": True, "train": {"eval_every"}})
    return json.dumps(decisive, sort_keys=True, default=str)


def new_name(root: Path, document: dict[str, Any]) -> str:
    """An unused name for a new run."""
    defense = document.get("defense", {})
    names = defense.get("name", "none") if isinstance(defense, dict) else "several"
    base = f"lab-{document['data']['name']}-{names}-{time.strftime('%Y%m%d-%H%M%S')}"
    name, number = base, 1
    while (root / name).exists():
        number += 1
        name = f"{base}-{number}"
    return name
