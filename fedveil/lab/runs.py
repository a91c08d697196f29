"""Run folders as the Runs page shows them, read without JAX: names, settings, results, metrics.

A run is found by listing the folder of runs. A name from a request is never joined to a path: a run that is not listed does
not exist. Links to other folders are not listed.
"""

from __future__ import annotations

import json
import time
import tomllib
from pathlib import Path
from typing import Any

from fedveil.config import from_dict, resolve
from fedveil.core.errors import FedveilError

ACTIVE = 30.0  # seconds since its last write for which an unfinished run counts as running
MAX_RUNS = 500


def listed(root: Path) -> dict[str, Path]:
    """Runs by name, newest first."""
    try:
        real = root.resolve()
        found = [path for path in root.iterdir() if (path / "config.toml").is_file() and path.resolve().parent == real]
    except OSError:
        return {}
    found.sort(key=_changed, reverse=True)
    return {path.name: path for path in found[:MAX_RUNS]}


def _changed(path: Path) -> float:
    """The time of the last write to a run."""
    times = []
    for name in ("config.toml", "metrics.jsonl", "run.json"):
        try:
            times.append((path / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)


def summary(path: Path) -> dict[str, Any]:
    """One line of the list."""
    info, config = read_info(path), read_config(path)
    result = info.get("result") or {}
    data, train, model = config.get("data", {}), config.get("train", {}), config.get("model", {})
    return {
        "name": path.name,
        "status": status(path, info),
        "changed": _changed(path),
        "dataset": data.get("name"),
        "clients": data.get("clients"),
        "model": model.get("name"),
        "defense": [d.get("name") for d in config.get("defense", []) if isinstance(d, dict)],
        "rounds": train.get("rounds"),
        "rounds_done": info.get("rounds_done"),
        "accuracy": result.get("accuracy"),
        "split": result.get("split"),
        "loss": result.get("loss"),
        "seconds": result.get("seconds"),
        "ledger": [_ledger_row(row) for row in result.get("ledger") or [] if isinstance(row, dict)],
    }


def status(path: Path, info: dict[str, Any]) -> str:
    """`done`, `stopped`, `running`, or `left`: unfinished, and without a write for `ACTIVE` seconds."""
    given = str(info.get("status", "running"))
    abandoned = given == "running" and time.time() - _changed(path) > ACTIVE
    return "left" if abandoned else given


def _ledger_row(row: dict[str, Any]) -> dict[str, Any]:
    names = ("tap", "unit", "epsilon", "delta", "adjacency", "certified", "accountant", "rule", "reason")
    return {name: row.get(name) for name in names}


def detail(path: Path, first: int = 0) -> dict[str, Any]:
    """A run with its config and its metrics from round `first` on."""
    return {**summary(path), "config": _text(path / "config.toml"), "metrics": read_metrics(path)[first:]}


def read_info(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path / "run.json"))
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def read_config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path / "config.toml"))
    except tomllib.TOMLDecodeError:
        return {}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete lines; a line that is still being written is read next time."""
    rows = []
    for line in _text(path / "metrics.jsonl").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
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
    train, defense = config.get("train", {}), (config.get("defense") or [{}])[0]
    names = ("rounds", "per_round", "local_steps", "batch", "lr", "seed")
    return {
        **{key: train.get(key) for key in names},
        "clients": config.get("data", {}).get("clients"),
        **{f"defense.{key}": value for key, value in defense.items()},
    }


def fingerprint(document: dict[str, Any]) -> str | None:
    """Everything that decides the result of a run, as text; None for an invalid config."""
    try:
        config = resolve(from_dict(document))
    except FedveilError:
        return None
    decisive = config.model_dump(exclude={"speed": True, "attack": True, "train": {"eval_every"}})
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
