"""What this process may use of the machine, and what the machine says of itself. Imports nothing heavy."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def processor() -> str:
    """What the system says of its processors; nothing where it does not say."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
