"""Where what can be made or fetched again is kept: a folder of the user's own."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache(part: str) -> Path:
    """`$XDG_CACHE_HOME/fedveil/PART`, by default below `~/.cache`. Nothing is made here."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedveil" / part
