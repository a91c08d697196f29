"""Run folders as the Runs page shows them, read without JAX: names, settings, results, metrics.

A run is named by its folder's name and found by listing the runs' folder, never by joining a name from outside to a path:
what is not listed does not exist. Links that lead elsewhere are not listed.
"""

from __future__ import annotations

import json
import time
import tomllib
from pathlib import Path
from typing import Any

from fedveil.config import from_dict, resolve
from fedveil.core.errors import FedveilError

FRESH = 30.0  # seconds after its last line in which a run that has not ended counts as under way
MOST_RUNS = 500


def listed(root: Path) -> dict[str, Path]:
    """Runs by name, the newest first."""
    try:
        real = root.resolve()
        found = [path for path in root.iterdir() if (path / "config.toml").is_file() and path.resolve().parent == real]
    except OSError:
        return {}
    found.sort(key=lambda path: _changed(path), reverse=True)
    return {path.name: path for path in found[:MOST_RUNS]}


def _changed(path: Path) -> float:
    """When anything in it was last written."""
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
        "ledger": [_seat(row) for row in result.get("ledger") or [] if isinstance(row, dict)],
    }


def status(path: Path, info: dict[str, Any]) -> str:
    """done, stopped, running, or `left`: it says that it runs, but has written nothing for a while."""
    said = str(info.get("status", "running"))
    if said == "running" and time.time() - _changed(path) > FRESH:
        return "left"
    return said


def _seat(row: dict[str, Any]) -> dict[str, Any]:
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
    """All whole lines; a line that is just being written is left for the next time."""
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
    """Runs that have an accuracy, with what tells them apart."""
    found = []
    for path in listed(root).values():
        told = summary(path)
        if told["accuracy"] is not None:
            config = read_config(path)
            found.append({**told, "settings": settings(config), "fingerprint": fingerprint(config)})
    return found


def settings(config: dict[str, Any]) -> dict[str, Any]:
    """What tells runs apart on the page, of a resolved config."""
    train, defense = config.get("train", {}), (config.get("defense") or [{}])[0]
    names = ("rounds", "per_round", "local_steps", "batch", "lr", "seed")
    return {
        **{key: train.get(key) for key in names},
        "clients": config.get("data", {}).get("clients"),
        **{f"defense.{key}": value for key, value in defense.items()},
    }


def fingerprint(document: dict[str, Any]) -> str | None:
    """What decides a run's result, as text; None for a config that does not hold up."""
    try:
        config = resolve(from_dict(document))
    except FedveilError:
        return None
    said = config.model_dump(exclude={"speed": True, "attack": True, "train": {"eval_every"}})
    return json.dumps(said, sort_keys=True, default=str)


def new_name(root: Path, document: dict[str, Any]) -> str:
    """A name for a new run that nothing in the folder has yet."""
    defense = document.get("defense", {})
    names = defense.get("name", "none") if isinstance(defense, dict) else "several"
    base = f"lab-{document['data']['name']}-{names}-{time.strftime('%Y%m%d-%H%M%S')}"
    name, number = base, 1
    while (root / name).exists():
        number += 1
        name = f"{base}-{number}"
    return name
