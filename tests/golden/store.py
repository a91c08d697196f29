"""Reads and writes the record.

Configs are stored as a whole `base` and, for each case, what differs from it. Ledger rows that are the same as those of an
earlier case are stored as that case's name, `same_as`.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

Document = dict[str, Any]
FOLDER = Path(__file__).parent
WIDTH = 150  # what fits in this many characters is written on one line


def read(name: str) -> Document:
    """The record called `name`, with whole configs."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return {}
    stored = json.loads(path.read_text(encoding="utf-8"))
    base, cases = stored["base"], stored["cases"]
    made = {case: {**entry, "config": _whole(base, entry["config"])} for case, entry in cases.items()}
    for entry in made.values():
        if "same_as" in entry:
            entry["rows"] = made[entry.pop("same_as")]["rows"]
    return made


def write(name: str, cases: Document) -> None:
    """Writes a record. The first case's config is the base."""
    base = next(iter(cases.values()))["config"]
    short = {case: {**entry, "config": _changes(base, entry["config"])} for case, entry in cases.items()}
    first: dict[str, str] = {}
    for case, entry in short.items():
        same = first.setdefault(json.dumps(entry.get("rows")), case)
        if "rows" in entry and same != case:
            del entry["rows"]
            entry["same_as"] = same
    text = _text({"base": base, "cases": short}) + "\n"
    (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


def _whole(base: Document, changes: Document) -> Document:
    """The config that `_changes` made these changes from."""
    whole = copy.deepcopy({**base, "defense": changes["defense"]})
    for section in changes.keys() - {"defense"}:
        dropped = changes[section].get("-", [])
        merged = {**whole[section], **changes[section]}
        whole[section] = {key: value for key, value in merged.items() if key not in (*dropped, "-")}
    return whole


def _changes(base: Document, config: Document) -> Document:
    """What differs from the base, by sections; "-" lists keys of the base that a section lacks. Defences are whole."""
    made: Document = {}
    for section in config.keys() - {"defense"}:
        own, usual = config[section], base[section]
        changed = {key: value for key, value in own.items() if key not in usual or usual[key] != value}
        dropped = [key for key in usual if key not in own]
        if changed or dropped:
            made[section] = {**changed, **({"-": dropped} if dropped else {})}
    return {**dict(sorted(made.items())), "defense": config["defense"]}


def _text(value: Any, indent: int = 0) -> str:
    """JSON with one line for each entry that fits on it."""
    line = json.dumps(value, ensure_ascii=False)
    if (indent and len(line) + indent <= WIDTH) or not isinstance(value, dict | list):
        return line
    pad, end = "\n" + " " * (indent + 1), "\n" + " " * indent
    if isinstance(value, dict):
        inner = [f"{json.dumps(key, ensure_ascii=False)}: {_text(one, indent + 1)}" for key, one in value.items()]
        return "{" + pad + ("," + pad).join(inner) + end + "}"
    return "[" + pad + ("," + pad).join(_text(one, indent + 1) for one in value) + end + "]"
