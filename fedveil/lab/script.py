"""A request as text to copy: a TOML file and a command line that give the same config."""

from __future__ import annotations

import json
import shlex
import tomllib
from typing import Any

Document = dict[str, Any]


def toml(document: Document) -> str:
    """The document as a config file: keys outside of sections first, such as `preset`, and `[defense]` last."""
    alone = _items({name: value for name, value in document.items() if not isinstance(value, dict)})
    order = sorted(_sections(document), key=lambda name: name == "defense")
    lines = [line for name in order for line in (f"[{name}]", *_items(document[name]), "")]
    return "\n".join([*alone, *([""] if alone else []), *lines]).rstrip() + "\n"


def settings(document: Document) -> list[str]:
    """The document as `section.key=value` settings; keys outside of sections, such as `preset=paper`, come first."""
    alone = [f"{n}={_bare(v)}" for n, v in document.items() if not isinstance(v, dict) and v is not None]
    return alone + [
        f"{name}.{key}={_bare(value)}"
        for name in sorted(_sections(document), key=lambda name: name == "defense")
        for key, value in document[name].items()
        if value is not None
    ]


def _sections(document: Document) -> list[str]:
    return [name for name, value in document.items() if isinstance(value, dict)]


def command(name: str, document: Document, *options: str) -> str:
    """The document as a shell command."""
    parts = ["fedveil", name, *options]
    for setting in settings(document):
        parts += ["-s", setting]
    return shlex.join(parts)


def both(name: str, document: Document, file: str, *options: str) -> dict[str, str]:
    """The document as TOML and as a command, and the command that reads the TOML file."""
    by_file = shlex.join(["fedveil", name, file, *options])
    return {"toml": toml(document), "cli": command(name, document, *options), "with_file": by_file, "file": file}


def _items(section: dict[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in section.items() if value is not None]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(_items(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _bare(value: Any) -> str:
    """A value for `-s`: text without quotes, unless it would then be parsed as another value."""
    if not isinstance(value, str):
        return _value(value)
    try:
        tomllib.loads(f"v = {value}")
    except tomllib.TOMLDecodeError:
        return value if value == value.strip() and value not in ("null", "None", "") else _value(value)
    return _value(value)
