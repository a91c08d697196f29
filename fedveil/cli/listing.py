"""`fedveil list`: the names that configs take, from the same tables that check them."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any

from fedveil.cli import show
from fedveil.core.errors import unknown_name

# Kind -> the module and the name of its table, which is imported when the kind is listed.
TABLES = {
    "datasets": ("fedveil.data.registry", "DATASETS"),
    "models": ("fedveil.models.catalog", "MODELS"),
    "partitions": ("fedveil.data.partition", "PARTITIONS"),
    "defenses": ("fedveil.defenses.catalog", "DEFENSES"),
    "attacks": ("fedveil.attacks.registry", "ATTACKS"),
    "inits": ("fedveil.attacks.reconstruction.matching", "INITS"),
    "taps": ("fedveil.core.taps", "TAPS"),
}


def run_list(kind: str | None, json: bool) -> None:
    """All names of a kind, or the kinds."""
    if kind is None:
        entries = [_entry(k, f"fedveil list {k}") for k in TABLES]
    elif kind in TABLES:
        module, table = TABLES[kind]
        entries = [_entry(name, info) for name, info in getattr(import_module(module), table).items()]
        entries = [_with_presets(entry) for entry in entries] if kind == "defenses" else entries
    else:
        raise unknown_name("list", kind, TABLES)
    if json:
        show.print_json(entries)
    else:
        rows = [(e["name"], e["summary"], e["keys"]) for e in entries]
        show.print_table(kind or "kinds", ("name", "summary", "keys"), rows)


def _with_presets(entry: dict[str, object]) -> dict[str, object]:
    """A defence with the values of its keys under each preset."""
    from fedveil.defenses.catalog import DEFENSES
    from fedveil.defenses.presets import described

    return {**entry, "presets": described(DEFENSES[str(entry["name"])])}


def _entry(name: str, info: Any) -> dict[str, object]:
    """A name with its summary and its keys: those of the table, or the fields of a dataclass."""
    if isinstance(info, str):
        return {"name": name, "summary": info, "keys": []}
    keys = [field.name for field in fields(info)] if isinstance(info, type) else info.keys
    return {"name": name, "summary": info.summary, "keys": list(keys)}
