"""Results of cells, kept by digest in a folder: a stopped reproduction goes on, and only what changed is done again.

One line per result in `cells.jsonl`, appended and synced as soon as it is known, so that a killed process loses at most the
cell it was at. Of two lines with one digest the later counts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fedveil.core.system import to_json, user_cache
from fedveil.recipes.cell import Job


def default_folder() -> Path:
    """Where results are kept if no folder is named."""
    return user_cache("cells")


class Cache:
    """The results in one folder."""

    def __init__(self, folder: Path):
        self.path = folder / "cells.jsonl"
        self.rows: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                self._take(line)

    def _take(self, line: str) -> None:
        """A line cut off by a crash is left out: its cell is done again."""
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            return
        self.rows[row["digest"]] = row

    def get(self, job: Job) -> dict[str, Any] | None:
        return self.rows.get(job.digest)

    def put(
        self, job: Job, result: dict[str, Any], seconds: float, environment: dict[str, object], *, workers: int = 1
    ) -> dict[str, Any]:
        """Stores a result with all that made it; `workers`: how many cells were measured at a time."""
        row: dict[str, Any] = {
            "digest": job.digest,
            "kind": job.kind,
            "settings": list(job.settings),
            "options": dict(job.options),
            "result": result,
            "seconds": round(seconds, 3),
            "workers": workers,
            "device": environment.get("device"),
            "versions": environment.get("versions"),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(to_json(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows[row["digest"]] = row
        return row
