"""The field's standard names for defences: where they lead here, or which defence comes closest and what differs.

A standard name is accepted only where a defence here is that method: it then stands for the defence with some of its keys
fixed. Any other standard name is answered with the closest defence and the difference, never taken for a look-alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedveil.core.errors import ConfigError

# Name → the defence and the keys that make it the method of that name.
SAME: dict[str, dict[str, Any]] = {
    "dp-sgd": {"name": "fed-cdp", "placement": "batch", "clip_scope": "flat"},
    "dp-fedavg": {"name": "fed-sdp", "placement": "server-sum", "clip_scope": "flat"},
    "central-dp": {"name": "fed-sdp", "placement": "server-sum", "clip_scope": "flat"},
    "ldp": {"name": "fed-sdp", "placement": "client", "clip_scope": "flat"},
}
# Name → what comes closest, and how it differs.
CLOSEST: dict[str, str] = {
    "dp-ftrl": "is not here: it adds noise that is correlated over rounds and needs no sampling; the closest is fed-sdp "
    "with placement server-sum, whose noise is independent in each round and whose ε relies on sampled clients",
    "pate": "is not here: it trains teachers that vote on public data; no defence here is like it",
}


def named(defenses: object) -> object:
    """Tables of defences with standard names replaced by what they stand for."""
    if isinstance(defenses, Mapping):
        return _one(defenses)
    if isinstance(defenses, list | tuple):
        return [named(one) for one in defenses]
    return defenses


def _one(table: Mapping[str, Any]) -> Mapping[str, Any]:
    name = table.get("name")
    if not isinstance(name, str) or (name not in SAME and name not in CLOSEST):
        return table
    if name in CLOSEST:
        raise ConfigError("defense.name", name, CLOSEST[name])
    for key, value in SAME[name].items():
        if key != "name" and table.get(key, value) != value:
            takes = f"{name} is {SAME[name]['name']} with {key} = {value}: leave it out, or name {SAME[name]['name']}"
            raise ConfigError(f"defense.{key}", table[key], takes)
    return {**table, **SAME[name]}
