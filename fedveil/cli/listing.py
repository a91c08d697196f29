"""`fedveil list`: the names that configs take, from the same tables that check them."""

from __future__ import annotations

from collections.abc import Callable

from fedveil.cli import show
from fedveil.core.errors import unknown_name

Entry = dict[str, object]


def _datasets() -> list[Entry]:
    from fedveil.data.registry import DATASETS

    return [{"name": i.name, "summary": i.summary, "keys": list(i.keys)} for i in DATASETS.values()]


def _models() -> list[Entry]:
    from fedveil.models.catalog import MODELS

    return [{"name": i.name, "summary": i.summary, "keys": list(i.keys)} for i in MODELS.values()]


def _partitions() -> list[Entry]:
    from fedveil.data.partition import PARTITIONS

    return [{"name": i.name, "summary": i.summary, "keys": list(i.keys)} for i in PARTITIONS.values()]


def _defenses() -> list[Entry]:
    from fedveil.defenses.catalog import DEFENSES, keys

    return [{"name": i.name, "summary": i.summary, "keys": list(keys(i))} for i in DEFENSES.values()]


def _attacks() -> list[Entry]:
    from fedveil.attacks.base import keys
    from fedveil.attacks.registry import attack_kind, attack_names

    kinds = [attack_kind(name) for name in attack_names()]
    return [{"name": kind.name, "summary": kind.summary, "keys": list(keys(kind))} for kind in kinds]


def _inits() -> list[Entry]:
    from fedveil.attacks.reconstruction.matching import INITS

    return [{"name": name, "summary": summary, "keys": []} for name, summary in INITS.items()]


def _taps() -> list[Entry]:
    from fedveil.core.taps import TAPS

    return [{"name": name, "summary": summary, "keys": []} for name, summary in TAPS.items()]


KINDS: dict[str, Callable[[], list[Entry]]] = {
    "datasets": _datasets,
    "models": _models,
    "partitions": _partitions,
    "defenses": _defenses,
    "attacks": _attacks,
    "inits": _inits,
    "taps": _taps,
}


def run_list(kind: str | None, json: bool) -> None:
    """All names of a kind, or the kinds."""
    if kind is None:
        entries: list[Entry] = [{"name": k, "summary": f"fedveil list {k}", "keys": []} for k in KINDS]
    elif kind in KINDS:
        entries = KINDS[kind]()
    else:
        raise unknown_name("list", kind, KINDS)
    if json:
        show.print_json(entries)
    else:
        show.print_table(
            kind or "kinds", ("name", "summary", "keys"), [(e["name"], e["summary"], e["keys"]) for e in entries]
        )
