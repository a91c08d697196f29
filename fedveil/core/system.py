"""Small services that every layer uses: imports on first use, JSON text, the machine's cores, the cache folder.

Imports nothing heavy.
"""

from __future__ import annotations

import json
import math
import os
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


class Lazy:
    """Stands for a module until one of its names is needed: tables, ledgers and `--help` do not wait for JAX."""

    def __init__(self, module: str):
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)


def to_json(value: object, indent: int | None = None) -> str:
    """Strict JSON: numbers that are not finite become null, paths become text."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, str | int | float):
        value = value.item()  # a numpy number
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def processor() -> str:
    """The system's description of its processors; empty where it has none."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def user_cache(part: str) -> Path:
    """`$XDG_CACHE_HOME/fedveil/PART`, by default below `~/.cache`: for what can be made or fetched again.

    The folder is not created here.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedveil" / part
