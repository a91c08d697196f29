"""Largest runs: what a cell shows while it is not measured at the paper's size.

A **smaller run** of a cell has the cell's config in everything but its sizes (`SIZES`, `COUNTS` and the number of seeds),
and no size is larger. It is found among the stored results by its settings, so any result that was ever measured can
serve, and none can pass for another experiment: one more key that differs, and it is not a run of this cell. Of all
smaller runs a cell shows the one with the largest share of the paper's size. It is marked, says what was reduced, and
never enters an average of full runs.

`ladder` makes the smaller jobs of a job, `run_largest` measures the largest of them that fits a time limit.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from fedveil.core.errors import FedveilError
from fedveil.recipes.cache import RECONSTRUCTIONS, Cache, document
from fedveil.recipes.cell import FULL, Cell, Job, Recipe
from fedveil.recipes.run import Progress, jobs_of, measured

# Keys that only say how much is done, and their names on the page.
SIZES = {
    "attack.images": "images",
    "attack.seeds": "starts",
    "attack.iterations": "iterations",
    "train.rounds": "rounds",
    "train.local_steps": "local steps",
    "train.per_round": "clients per round",
    "data.clients": "clients",
    "data.per_client": "examples per client",
}
COUNTS = {"seeds": "seeds", "rounds": "timed rounds", "repeats": "repeats", "draws": "draws"}  # options of a job
SEEDS = ("train.seed", "train.noise_seed")
IGNORED = ("train.eval_every",)  # decides when accuracy is looked at, not what it is

Sizes = dict[str, float]


@dataclass(frozen=True)
class Smaller:
    """The smaller runs that a cell shows: their stored rows, one for each seed, and what was reduced."""

    rows: tuple[dict[str, Any], ...]
    share: float  # of the paper's size, all reductions multiplied
    reduced: tuple[str, ...]  # "images 4 of 100"


def split(job: Job) -> tuple[str, Sizes]:
    """Splits a job into its experiment, as text, and the sizes at which it runs."""
    return _split(job.kind, job.settings, json.dumps(dict(job.options), sort_keys=True))


@lru_cache(maxsize=1 << 14)
def _split(kind: str, settings: tuple[str, ...], options: str) -> tuple[str, Sizes]:
    flat, sizes = dict(_flat(document(kind, settings))), {}
    for key in (*SEEDS, *IGNORED):
        flat.pop(key, None)
    for key, name in SIZES.items():
        if isinstance(flat.get(key), int | float):
            sizes[name] = float(flat.pop(key))
    rest = json.loads(options)
    for key, name in COUNTS.items():
        if key in rest:
            sizes[name] = float(rest.pop(key))
    return json.dumps([kind, flat, rest], sort_keys=True, default=str), sizes


def _flat(value: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """The leaves of nested mappings by dotted key."""
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{before}{key}.")
        else:
            yield f"{before}{key}", inner


# --- finding


class Index:
    """The stored results, by experiment."""

    def __init__(self, cache: Cache):
        self.rows: dict[str, list[tuple[Sizes, dict[str, Any]]]] = {}
        for row in cache.rows.values():
            job = Job(row["kind"], tuple(row["settings"]), row["options"])
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FutureWarning)  # a key that has another name now
                    current, (experiment, sizes) = job.digest == row["digest"], split(job)
            except FedveilError:  # a key or a name that is no more
                continue
            if current:  # otherwise the code has changed since
                self.rows.setdefault(experiment, []).append((sizes, row))

    def best(self, cell: Cell) -> Smaller | None:
        """The largest smaller run of a cell; None where there is none."""
        job = cell.jobs()[0]
        experiment, full = split(job)
        groups: dict[tuple[tuple[str, float], ...], list[dict[str, Any]]] = {}
        for sizes, row in self.rows.get(experiment, []):
            if sizes.keys() == full.keys() and all(sizes[name] <= full[name] for name in full):
                groups.setdefault(tuple(sizes.items()), []).append(row)
        found = [_smaller(dict(sizes), full, rows[: cell.seeds], cell.seeds) for sizes, rows in groups.items()]
        return max((one for one in found if one.reduced), key=lambda one: one.share, default=None)


def _smaller(sizes: Sizes, full: Sizes, rows: list[dict[str, Any]], seeds: int) -> Smaller:
    did, of = {**sizes, "seeds of the cell": len(rows)}, {**full, "seeds of the cell": seeds}
    share, reduced = 1.0, []
    for name, value in of.items():
        if did[name] < value:
            share *= did[name] / value
            reduced.append(f"{name.removesuffix(' of the cell')} {did[name]:g} of {value:g}")
    return Smaller(tuple(rows), share, tuple(reduced))


_indexes: WeakKeyDictionary[Cache, tuple[int, Index]] = WeakKeyDictionary()


def smaller_run(cell: Cell, cache: Cache) -> Smaller | None:
    """The largest stored run of a cell that is below the paper's size; None where there is none."""
    count, index = _indexes.get(cache, (-1, None))
    if index is None or count != len(cache.rows):
        index = Index(cache)
        _indexes[cache] = (len(cache.rows), index)
    return index.best(cell)


# --- measuring

SHARES = (0.002, 0.01, 0.05, 0.2, 0.5)


def ladder(job: Job) -> list[Job]:
    """Smaller jobs of a job, the smallest first: fewer starts, then images, of attacks; fewer rounds of trainings."""
    found: dict[str, Job] = {}
    for share in SHARES:
        settings, options = _reduced(job, share)
        made = replace(job, settings=(*job.settings, *settings), options=options)
        if made.digest != job.digest:
            found.setdefault(made.digest, made)
    return list(found.values())


def _reduced(job: Job, share: float) -> tuple[list[str], dict[str, Any]]:
    """The settings and options of a job at a share of its size."""
    sizes, options = split(job)[1], dict(job.options)

    def part(name: str, of: float) -> int:
        return max(1, round(sizes[name] * of))

    if job.kind in RECONSTRUCTIONS:
        images, starts = sizes["images"], sizes["starts"]
        if images * starts == 1:
            return [f"attack.iterations={part('iterations', share)}"], options
        wanted = max(1, round(images * starts * share))
        kept = max(1, min(int(starts), int(wanted // images)))
        return [f"attack.images={max(1, min(int(images), wanted // kept))}", f"attack.seeds={kept}"], options
    if job.kind == "infer":
        return [f"attack.seeds={part('starts', share)}"], options
    if "repeats" in options:  # times the noise alone
        return [], {**options, "repeats": part("repeats", share)}
    if "seeds" in options:
        options["seeds"] = 1
    if "timed rounds" in sizes:
        options["rounds"] = max(2, part("timed rounds", share))
    if job.kind == "round-time":  # the time is one of a client and step
        return [f"train.per_round={part('clients per round', share)}"], options
    return [f"train.rounds={part('rounds', share)}"] if "rounds" in sizes else [], options


def run_largest(
    recipes: Iterable[Recipe],
    cache: Cache,
    limit: float,
    *,
    seconds: float | None = None,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Measures the largest run of each cell that has no full one, within `limit` seconds each.

    The smallest job of the ladder is measured first. The next is the largest that, at the same time for the same share
    of the work, stays within what is left of the limit: the full job, if that one does. Compilation counts as work,
    so a run takes less than foreseen. No cell is begun after `seconds`.
    """
    jobs = {job.digest: (name, job) for _, (name, job) in jobs_of(recipes, FULL).items() if _first_seed(job)}
    left = {digest: entry for digest, entry in jobs.items() if cache.get(entry[1]) is None}
    progress = Progress(len(jobs), done=len(jobs) - len(left), cached=len(jobs) - len(left))
    end = None if seconds is None else time.monotonic() + seconds
    for digest, (name, job) in left.items():
        if end is not None and time.monotonic() > end:
            break
        progress.now, progress.running = f"{name} {' '.join(job.settings[:4])}", {digest}
        tell(progress)
        error, spent = _climb(job, cache, limit)
        if error is not None:
            progress.failed[digest] = f"{name}: {error}"
        progress.done += 1
        progress.spent += spent
    progress.running.clear()
    tell(progress)
    return progress


def _first_seed(job: Job) -> bool:
    return "train.seed=0" in job.settings


def _climb(job: Job, cache: Cache, limit: float) -> tuple[str | None, float]:
    """Measures the smallest job of the ladder, then the largest that fits. The error message, and the seconds spent."""
    steps = [*ladder(job), job]
    first = steps[0]
    row = cache.get(first)
    spent = 0.0
    if row is None:
        done = measured(first)
        spent = done.seconds
        if done.error is not None:
            return done.error, spent
        row = cache.put(first, done.result, done.seconds, done.environment)
    took = float(row["seconds"] or limit)
    fits = [step for step in steps[1:] if took * _work(step) / _work(first) <= limit - spent]
    if not fits or cache.get(fits[-1]) is not None:
        return None, spent
    done = measured(fits[-1])
    if done.error is None:
        cache.put(fits[-1], done.result, done.seconds, done.environment)
    return done.error, spent + done.seconds


def _work(job: Job) -> float:
    """What a job's time is in proportion to: the product of its sizes."""
    product = 1.0
    for size in split(job)[1].values():
        product *= size
    return product
