"""Runs the jobs of recipes and reports progress. A job that several tables show runs once."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from typing import Any

from fedveil.core.errors import FedveilError
from fedveil.recipes.cache import Cache
from fedveil.recipes.cell import Job, Recipe, Size

TIMED = frozenset({"round-time", "noise-time", "noised-epoch"})  # kinds that measure time: never in parallel
Work = dict[str, tuple[str, Job]]  # digest → the first recipe that needs the job, and the job


@dataclass(frozen=True)
class Measured:
    """The outcome of a job, as it is passed between processes."""

    result: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    environment: dict[str, object] = field(default_factory=dict)
    error: str | None = None


@dataclass
class Progress:
    """The progress of a reproduction."""

    total: int
    done: int = 0
    cached: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # digest → error message
    spent: float = 0.0
    now: str = ""
    workers: int = 1
    running: set[str] = field(default_factory=set)  # digests of the jobs at work

    @property
    def left(self) -> float | None:
        """Estimated seconds left, from the mean time of the measured jobs; None before the first."""
        measured = self.done - self.cached
        return self.spent / measured * (self.total - self.done) / self.workers if measured else None


def jobs_of(recipes: Iterable[Recipe], size: Size) -> Work:
    """All jobs of the recipes by digest, each with the name of the first recipe that needs it."""
    found: Work = {}
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
    workers: int = 1,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Runs the jobs of the recipes that the cache does not have; see `run_jobs`."""
    return run_jobs(jobs_of(recipes, size), cache, seconds=seconds, workers=workers, tell=tell)


def run_jobs(
    work: Work,
    cache: Cache,
    *,
    seconds: float | None = None,
    workers: int = 1,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Runs the jobs that the cache does not have; starts no new one after `seconds`.

    A job that fails is recorded, and the others continue. With several workers, that number of processes runs jobs in
    parallel; jobs that measure time run last and alone.
    """
    left = {digest: entry for digest, entry in work.items() if cache.get(entry[1]) is None}
    progress = Progress(len(work), done=len(work) - len(left), cached=len(work) - len(left), workers=workers)
    end = None if seconds is None else time.monotonic() + seconds
    together = {d: entry for d, entry in left.items() if workers > 1 and entry[1].kind not in TIMED}
    if together:
        _in_processes(together, workers, cache, progress, end, tell)
    _one_by_one({d: entry for d, entry in left.items() if d not in together}, cache, progress, end, tell)
    tell(progress)
    return progress


def _one_by_one(
    work: Work, cache: Cache, progress: Progress, end: float | None, tell: Callable[[Progress], None]
) -> None:
    """Runs jobs in this process."""
    for digest, (name, job) in work.items():
        if end is not None and time.monotonic() > end:
            return
        progress.now, progress.running = _label(name, job), {digest}
        tell(progress)
        _store(digest, name, job, measured(job), cache, progress)


def _in_processes(
    work: Work, workers: int, cache: Cache, progress: Progress, end: float | None, tell: Callable[[Progress], None]
) -> None:
    """Runs jobs in `workers` processes, each with its share of the cores. A process that dies fails only its own job."""
    waiting = list(work.items())[::-1]
    running: dict[Future[Measured], tuple[str, str, Job]] = {}
    pools = [_pool(worker, workers) for worker in range(workers)]
    free = list(range(workers))
    held: dict[Future[Measured], int] = {}
    try:
        while waiting or running:
            while waiting and free and (end is None or time.monotonic() <= end):
                digest, (name, job) = waiting.pop()
                worker = free.pop()
                future = pools[worker].submit(measured, job)
                running[future], held[future] = (digest, name, job), worker
                progress.now = _label(name, job)
                progress.running.add(digest)
                tell(progress)
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                (digest, name, job), worker = running.pop(future), held.pop(future)
                try:
                    found = future.result()
                except BrokenProcessPool:
                    found = Measured(error="its worker process died (out of memory, or killed)")
                    pools[worker] = _pool(worker, workers)
                free.append(worker)
                _store(digest, name, job, found, cache, progress)
    finally:
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)


def _pool(worker: int, workers: int) -> ProcessPoolExecutor:
    """A pool of one spawned process: JAX does not work in a forked one."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin, initargs=(worker, workers))


def _begin(worker: int, workers: int) -> None:
    """What a worker process does before its first job."""
    share_machine(worker, workers)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process when its parent was killed: a pool's worker would wait for jobs forever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def share_machine(worker: int, workers: int) -> None:
    """Limits a worker to its share of the cores and to the GPU memory that it uses. Runs before JAX is imported."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // workers)
        first = worker * share % len(cores)
        os.sched_setaffinity(0, cores[first : first + share])


def measured(job: Job) -> Measured:
    """Runs one job in the current process."""
    from fedveil.recipes.kinds import KINDS
    from fedveil.runs import environment

    begun = time.monotonic()
    try:
        result = KINDS[job.kind](job)
    except FedveilError as error:
        return Measured(error=str(error), seconds=time.monotonic() - begun)
    finally:
        gc.collect()  # datasets in reference cycles would pile up from job to job
    return Measured(result, time.monotonic() - begun, environment())


def _store(digest: str, name: str, job: Job, found: Measured, cache: Cache, progress: Progress) -> None:
    """Caches a result, or records a failure."""
    if found.error is None:
        alone = progress.workers == 1 or job.kind in TIMED
        cache.put(job, found.result, found.seconds, found.environment, workers=1 if alone else progress.workers)
    else:
        progress.failed[digest] = f"{name}: {found.error}"
    progress.running.discard(digest)
    progress.done += 1
    progress.spent += found.seconds


def _label(name: str, job: Job) -> str:
    return f"{name} {' '.join(job.settings[:4])}"
