"""Helpers of the recipe tests. Worker processes import this module, so it must import quickly."""

from __future__ import annotations

import os

from fedveil.config import load
from fedveil.recipes import run

measure = run.measured


def config_of(cell):
    return load(None, list(cell.settings))


def dies_at_five(job):
    """Replaces `run.measured`: kills its process at one job, and measures the others."""
    if "data.clients=5" in job.settings:
        os._exit(1)
    return measure(job)
