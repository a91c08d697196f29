"""A setting that names another defence than the file: the file's keys that the new defence lacks are left out.

A defence is switched by `-s defense.name=X`. Keys that are set beside it are the user's own: an unknown one stays an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedveil.core.plugins import keys
from fedveil.defenses.catalog import DEFENSES, SAME, standard

Table = Mapping[str, Any]


def switched(name: str, before: Table, after: Table, given: Collection[str]) -> tuple[dict[str, Any], str]:
    """A table without what its new defence lacks, and a line that says so; empty where nothing was switched.

    `name` is the setting, `before` the file's table, `after` the same with the settings, `given` the keys that these set.
    """
    old, new = before.get("name"), after.get("name")
    if new == old or not isinstance(new, str) or not isinstance(old, str):
        return dict(after), ""
    fixed = SAME.get(standard(new), {"name": new})
    if fixed["name"] not in DEFENSES:
        return dict(after), ""  # an unknown name is refused where defences are made
    own = keys(DEFENSES[fixed["name"]])
    lost = [
        key
        for key in after
        if key != "name" and key not in given and (key not in own or fixed.get(key, after[key]) != after[key])
    ]
    rest = {key: value for key, value in after.items() if key not in lost}
    kept = [key for key in before if key != "name" and key in rest and key not in given]
    said = f"{name} = {new!r} replaces {old!r} of the file"
    if lost:
        said += f"; left out: {', '.join(lost)}"
    if kept:
        said += f"; kept: {', '.join(f'{key} = {rest[key]!r}' for key in kept)}"
    return rest, said
