"""What the page offers, made from the tables that check configs: names, keys, types, limits, defaults."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedveil.attacks.registry import ATTACKS
from fedveil.core.taps import TAPS
from fedveil.data import sources
from fedveil.data.catalog import DATASETS
from fedveil.defenses.base import Defense
from fedveil.defenses.catalog import DEFENSES
from fedveil.lab import requests
from fedveil.models.catalog import MODELS

# The keys that make a defence stronger or weaker: they stand first, the others behind "more".
STRENGTH = ("noise", "clip", "epsilon", "scale", "share", "server_noise", "steps", "placement", "stage")
MEASURES = {
    "clip": "bound on a norm",
    "noise": "times clip (σ)",
    "server_noise": "times the sensitivity",
    "delta": "δ",
    "epsilon": "ε asked for",
    "share": "of all entries",
    "scale": "in gradient units",
    "steps": "local steps",
}


def choices() -> dict[str, Any]:
    """Everything the page needs to build its forms."""
    return {
        "datasets": [_dataset(name) for name in requests.TRAIN_SETS],
        "picture_sets": list(requests.PICTURE_SETS),
        "models": [{"name": n, "summary": MODELS[n].summary, "images": MODELS[n].images} for n in MODELS],
        "leak_models": list(requests.LEAK_MODELS),
        "attacks": [{"name": n, "summary": ATTACKS[n].summary} for n in requests.LEAK_ATTACKS],
        "taps": [{"name": n, "summary": TAPS[n]} for n in requests.LEAK_TAPS],
        "seats": [{"name": n, "summary": s} for n, s in TAPS.items() if n != "batch"],
        "defenses": [_defense(kind) for kind in DEFENSES.values()],
    }


def here(name: str) -> bool:
    """Whether a dataset can be loaded without fetching anything. LFW needs only the file of its size."""
    files = [f for f in DATASETS[name].files if f.name != "lfw_128.npz"]
    return all(sources.find(name, file.name) is not None for file in files)


def _dataset(name: str) -> dict[str, Any]:
    info = DATASETS[name]
    return {
        "name": name,
        "summary": info.summary,
        "kind": info.kind,
        "classes": info.classes,
        "model": info.model,
        "here": here(name),
        "get": f"fedveil data get {name}"
        if info.needs_fetch
        else "put its files into a folder that FEDVEIL_DATA names",
        "defaults": {"rounds": info.rounds, "local_steps": info.local_steps, "batch": info.batch, "lr": info.lr},
    }


def _defense(kind: type[Defense]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    fields = [_field(f.name, hints[f.name], f.default) for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    known = [field for field in fields if field is not None]
    known.sort(key=lambda f: STRENGTH.index(f["key"]) if f["key"] in STRENGTH else len(STRENGTH))
    return {"name": kind.name, "summary": kind.summary, "private": kind.private, "keys": known}


def _field(key: str, hint: Any, default: Any) -> dict[str, Any] | None:
    """One key of a defence as a form field; None for lists, which stay with the command line."""
    limits: dict[str, Any] = {}
    optional = False
    while get_origin(hint) in (Union, types.UnionType) or hasattr(hint, "__metadata__"):
        if hasattr(hint, "__metadata__"):
            limits |= _limits(hint.__metadata__)
            hint = get_args(hint)[0]
        else:
            optional = True
            hint = next(arg for arg in get_args(hint) if arg is not type(None))
    made = {
        "key": key,
        "default": default,
        "optional": optional,
        "unit": MEASURES.get(key, ""),
        "main": key in STRENGTH,
        **limits,
    }
    if get_origin(hint) is Literal:
        return {**made, "type": "choice", "choices": list(get_args(hint))}
    kinds = {float: "number", int: "whole", bool: "switch"}
    return {**made, "type": kinds[hint]} if hint in kinds else None


def _limits(metadata: tuple[Any, ...]) -> dict[str, Any]:
    """`gt`, `ge`, `lt`, `le` of a pydantic field."""
    found = {}
    for item in metadata:
        for limit in getattr(item, "metadata", [item]):
            for name in ("gt", "ge", "lt", "le"):
                if hasattr(limit, name):
                    found[name] = getattr(limit, name)
    return found
