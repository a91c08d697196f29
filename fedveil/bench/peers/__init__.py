"""Other projects, set to the same work; each needs the extra `[bench]`."""

from __future__ import annotations

import warnings
from importlib import import_module


def absent(*packages: str) -> str:
    """The first of these packages that is not installed, or the empty string."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for package in packages:
                import_module(package)
    except ImportError as error:
        return str(error.name or error)
    return ""
