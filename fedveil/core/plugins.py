"""Registries that third parties can extend: by a call in Python, or by an entry point of an installed package.

An entry point names an object. Nobody needs to import its package: entry points are read when an unknown name is looked up,
or when all names are listed.

    [project.entry-points."fedveil.defenses"]
    loud = "my_package.defense:Loud"
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_type_hints

from fedveil.core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel

Item = TypeVar("Item")


@cache
def schema(kind: Any) -> type[BaseModel]:
    """A strict pydantic model of the fields of a dataclass, a defence or an attack: types, ranges and descriptions."""
    from pydantic import ConfigDict, create_model

    hints: dict[str, Any] = {}
    for base in kind.__mro__:  # a field that a subclass gives another default keeps its range
        for key, hint in get_type_hints(base, include_extras=True).items():
            if key not in hints or (hasattr(hint, "__metadata__") and not hasattr(hints[key], "__metadata__")):
                hints[key] = hint
    fields: dict[str, Any] = {f.name: (hints[f.name], f.default) for f in dataclasses.fields(kind)}
    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return create_model(kind.__name__, __config__=strict, **fields)


def keys(kind: Any) -> tuple[str, ...]:
    """The keys of a defence or an attack in a config: its dataclass fields."""
    return tuple(f.name for f in dataclasses.fields(kind))


def from_keys(kind: Any, given: Mapping[str, Any], where: str, unknown: str) -> Any:
    """A defence or an attack from its table of keys: names, then types and ranges.

    `where` names the table in errors, and `unknown` says that a key is none of them.
    """
    from pydantic import ValidationError

    from fedveil.core.validation import one_line

    for key, value in given.items():
        if key not in keys(kind):
            hint = did_you_mean(key, ("name", *keys(kind)))
            raise ConfigError(f"{where}.{key}", value, f"{unknown}; {hint}")
    try:
        checked = schema(kind).model_validate(given)
    except ValidationError as error:
        raise one_line(error, prefix=where) from None
    return kind(**{key: getattr(checked, key) for key in keys(kind)})


class Registry(MutableMapping[str, Item], Generic[Item]):
    """Items by name. `group` names the entry points to read, `register` adds what one of them holds."""

    def __init__(self, group: str, register: Callable[[Item], object], built_in: dict[str, Item] | None = None) -> None:
        self.group, self._register = group, register
        self._items: dict[str, Item] = dict(built_in or {})
        self._discovered = False

    def __getitem__(self, name: str) -> Item:
        if name not in self._items:
            self._discover()
        return self._items[name]

    def __setitem__(self, name: str, item: Item) -> None:
        self._items[name] = item

    def __delitem__(self, name: str) -> None:
        del self._items[name]

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(self._items)

    def __len__(self) -> int:
        self._discover()
        return len(self._items)

    def _discover(self) -> None:
        """Loads the entry points, once. One that fails costs a line on stderr: the others still work."""
        if self._discovered:
            return
        self._discovered = True
        for entry in entry_points(group=self.group):
            try:
                self._load(entry)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".replace("\n", " ")
                print(f"fedveil: plug-in '{entry.name}' of {self.group} is left out ({reason})", file=sys.stderr)

    def _load(self, entry: EntryPoint) -> None:
        """Registers an entry point's object. A module registers what it holds when it is imported."""
        found = entry.load()
        if isinstance(found, ModuleType):
            return
        known = self._items.get(getattr(found, "name", entry.name))
        if known is None:
            self._register(found)
        elif known is not found and type(known) is not found:
            raise ValueError(f"the name {getattr(found, 'name', entry.name)!r} is taken")
