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
        entries = _grouped(entries) if kind == "defenses" else entries
    else:
        raise unknown_name("list", kind, TABLES)
    if json:
        show.print_json(entries)
    elif kind == "defenses":
        _print_defenses(entries)
    else:
        rows = [(e["name"], e["summary"], e["keys"]) for e in entries]
        show.print_table(kind or "kinds", ("name", "summary", "keys"), rows)


# What a certificate of a defence with the default keys protects, by the unit of its mechanisms.
PROTECTS = {"example": "records", "client": "clients, and so their records", "": "nothing certified by default"}


def _grouped(entries: list[dict[str, object]]) -> list[dict[str, object]]:
    """Defences by what they protect, with the values of their keys under each preset."""
    from fedveil.defenses.catalog import DEFENSES
    from fedveil.defenses.presets import described

    told = [
        {**entry, "protects": _protects(str(entry["name"])), "presets": described(DEFENSES[str(entry["name"])])}
        for entry in entries
    ]
    return sorted(told, key=lambda entry: list(PROTECTS.values()).index(str(entry["protects"])))


def _protects(name: str) -> str:
    """Read off the mechanisms that the defence places in a small federation, as the ledger does."""
    from fedveil.config import from_dict
    from fedveil.federation import plan

    made = plan(from_dict({"defense": {"name": name}}))
    placed = [one for defense in made.defenses for one in defense.mechanisms(made.setting)]
    units = {one.unit for one in placed if not one.reason}
    return PROTECTS["example" if "example" in units else "client" if "client" in units else ""]


def _print_defenses(entries: list[dict[str, object]]) -> None:
    """One table for each group, and the field's standard names."""
    from fedveil.defenses.catalog import SAME

    for group in PROTECTS.values():
        rows = [(e["name"], e["summary"], e["keys"]) for e in entries if e["protects"] == group]
        if rows:
            show.print_table(
                f"protects {group}" if "nothing" not in group else group, ("name", "summary", "keys"), rows
            )
    known = "; ".join(f"{name}: {', '.join(map(str, of.values()))}" for name, of in SAME.items())
    show.print_text(f"Standard names that stand for one of these: {known}.")
    show.print_text(
        "Other names of the field (dp-ftrl, pate, secagg, user-level-dp) are answered with what comes closest."
    )


def _entry(name: str, info: Any) -> dict[str, object]:
    """A name with its summary and its config keys; of a dataclass, the keys are its fields."""
    if isinstance(info, str):
        return {"name": name, "summary": info, "keys": []}
    keys = [field.name for field in fields(info)] if isinstance(info, type) else info.keys
    return {"name": name, "summary": info.summary, "keys": list(keys)}
