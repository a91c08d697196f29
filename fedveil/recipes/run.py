"""Runs the cells of recipes, each once however many tables show it, and tells how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fedveil.errors import FedveilError
from fedveil.recipes.cache import Cache
from fedveil.recipes.cell import Job, Recipe, Size


@dataclass
class Progress:
    """Where a reproduction stands."""

    total: int
    done: int = 0
    cached: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # digest: what went wrong
    spent: float = 0.0
    now: str = ""

    @property
    def left(self) -> float | None:
        """Seconds left if the cells to come take as long as those that were measured; None before the first."""
        measured = self.done - self.cached
        return self.spent / measured * (self.total - self.done) if measured else None


def jobs_of(recipes: Iterable[Recipe], size: Size) -> dict[str, tuple[str, Job]]:
    """All work of the recipes by digest: the name of the first table that asks for it, and the job."""
    found: dict[str, tuple[str, Job]] = {}
    for recipe in recipes:
        for cell in recipe.cells(size):
            for job in cell.jobs():
                found.setdefault(job.digest, (recipe.name, job))
    return found


def run(
    recipes: Iterable[Recipe],
    size: Size,
    cache: Cache,
    *,
    seconds: float | None = None,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Measures what the cache does not hold yet; stops before a new cell once `seconds` have passed.

    A cell that fails is named and left out, and the others go on.
    """
    from fedveil.recipes.kinds import KINDS
    from fedveil.runs import environment

    work = jobs_of(recipes, size)
    progress = Progress(len(work))
    started = time.monotonic()
    for digest, (name, job) in work.items():
        progress.now = f"{name} {' '.join(job.settings[:4])}"
        if cache.get(job) is not None:
            progress.done, progress.cached = progress.done + 1, progress.cached + 1
            continue
        if seconds is not None and time.monotonic() - started > seconds:
            break
        tell(progress)
        begun = time.monotonic()
        try:
            result = KINDS[job.kind](job)
            cache.put(job, result, time.monotonic() - begun, environment())
        except FedveilError as error:
            progress.failed[digest] = f"{name}: {error}"
        progress.done += 1
        progress.spent += time.monotonic() - begun
    tell(progress)
    return progress
