"""What a node or a server refused: a counter and the last reasons, in a file of bounded size for its owner."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

FILE = "refused.json"
LAST = 20  # reasons that are kept
LONGEST = 300  # characters of a reason


def note(folder: Path, reason: str, times: int = 1) -> str:
    """Counts a refusal and keeps its reason; returns the reason as one line."""
    line = " ".join(reason.split())[:LONGEST]
    with (folder / f"{FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = read(folder)
        entry = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "reason": line}
        document = {"count": found["count"] + times, "last": [*found["last"], entry][-LAST:]}
        made = folder / f".{FILE}.new"
        made.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.replace(made, folder / FILE)
    return line


def read(folder: Path) -> dict[str, Any]:
    """The counter and the last reasons. A damaged file counts from zero again: no account depends on it."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {"count": int(found["count"]), "last": list(found["last"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"count": 0, "last": []}
