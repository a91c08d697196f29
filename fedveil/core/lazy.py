"""Modules imported on first use, so that tables, ledgers and `--help` do not wait for JAX."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Lazy:
    """Stands for a module until one of its names is needed."""

    def __init__(self, module: str):
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)
