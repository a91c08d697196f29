"""Compiled programs kept from one start to the next, so that the second start does not compile again.

Called by the command line before JAX is imported. They lie in the user's cache folder, apart for each kind of processor,
since a program made for one may not run on another. `FEDVEIL_COMPILED` names another folder, or `off`. Whoever sets JAX's
own `JAX_COMPILATION_CACHE_DIR` keeps it. `kept.py` keeps whole programs in a folder below.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

from fedveil.core.system import processor, user_cache

SETTING = "FEDVEIL_COMPILED"
MOST = 512 * 2**20  # bytes; beyond it the oldest programs go
SHORTEST = "0"  # seconds of compiling that are worth a file: small programs are a third of the demo's compiling


def keep() -> Path | None:
    """Tells JAX where to keep programs; None where it is not to."""
    asked = os.environ.get(SETTING, "")
    if asked.lower() in ("off", "0", "no") or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return None
    folder = Path(asked) if asked else _usual()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        make_room(folder, MOST)
    except OSError:  # a home that cannot be written: every start compiles
        return None
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", SHORTEST)
    return folder


def _usual() -> Path:
    return user_cache(f"compiled-{machine()}")


def machine() -> str:
    """Which processor, and which JAX: ten letters."""
    said = [platform.machine(), platform.processor()]
    lines = processor().splitlines()
    said += [next((line for line in lines if line.startswith(key)), "") for key in ("model name", "flags", "Features")]
    with contextlib.suppress(metadata.PackageNotFoundError):
        said.append(metadata.version("jaxlib"))
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:10]


def make_room(folder: Path, most: int, most_files: int | None = None) -> None:
    """Removes the programs that were written first, until the rest takes no more than it may."""
    found = [(path, path.stat()) for path in folder.iterdir() if path.is_file()]
    left, size = len(found), sum(its.st_size / its.st_nlink for _, its in found)
    for path, its in sorted(found, key=lambda one: one[1].st_mtime):
        if size <= most and (most_files is None or left <= most_files):
            return
        path.unlink(missing_ok=True)
        left, size = left - 1, size - its.st_size / its.st_nlink
