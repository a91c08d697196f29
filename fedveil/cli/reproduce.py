"""`fedveil reproduce`: measures the papers' tables and figures and compares them with the published values."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.cli import show
from fedveil.core.errors import ConfigError, RunError
from fedveil.recipes.cache import Cache, default_folder
from fedveil.recipes.catalog import choose, recipes
from fedveil.recipes.cell import FULL, QUICK, Recipe, Size
from fedveil.recipes.largest import run_largest
from fedveil.recipes.published import claims_of
from fedveil.recipes.run import Progress, run
from fedveil.recipes.table import HEADER, cells_of, chart, entries


@dataclass(frozen=True)
class Limits:
    """Minutes after which no cell is begun, minutes of one cell if its largest run is wanted, and cells in parallel."""

    minutes: float | None = None
    largest: float | None = None
    workers: int = 1

    @property
    def seconds(self) -> float | None:
        return None if self.minutes is None else 60 * self.minutes


def run_reproduce(name: str | None, full: bool, cells: str | None, limits: Limits, out: str | None, json: bool) -> None:
    """Lists the recipes, or runs one, those of a paper, or all. Largest runs are shown in the tables of the full size."""
    if limits.largest is not None and limits.workers > 1:
        raise ConfigError("--workers", limits.workers, "takes 1 with --largest: each run decides the size of the next")
    if name is None:
        _list(json)
        return
    size = QUICK if not full and limits.largest is None else FULL
    chosen = choose(name)
    cache = Cache(Path(cells) if cells else default_folder())
    with cache.locked(), _Bar() as bar:
        if limits.largest is not None:
            progress = run_largest(chosen, cache, 60 * limits.largest, seconds=limits.seconds, tell=bar)
        else:
            progress = run(chosen, size, cache, seconds=limits.seconds, workers=limits.workers, tell=bar)
    if out is not None:
        _draw(chosen, size, cache, Path(out))
    if json:
        show.print_json([_document(recipe, size, cache) for recipe in chosen])
    else:
        for recipe in chosen:
            _print(recipe, size, cache)
    _report(progress)


def _list(json: bool) -> None:
    rows = [{"name": r.name, "summary": r.title, "keys": []} for r in recipes().values()]
    if json:
        show.print_json(rows)
        return
    show.print_table("recipes", ("name", "what"), [(r["name"], r["summary"]) for r in rows])


def _document(recipe: Recipe, size: Size, cache: Cache) -> dict[str, Any]:
    return {
        "recipe": recipe.name,
        "title": recipe.title,
        "size": size.name,
        "quick": None if size.full else recipe.quick,
        "why": recipe.why,
        "claims": claims_of(recipe.name),
        "entries": [entry.as_dict() for entry in entries(recipe, size, cache)],
    }


def _print(recipe: Recipe, size: Size, cache: Cache) -> None:
    found = entries(recipe, size, cache)
    show.print_table(f"{recipe.name}: {recipe.title} ({size.name})", HEADER, [cells_of(entry) for entry in found])
    smaller: dict[str, list[str]] = {}
    for entry in found:
        if entry.reduced:
            smaller.setdefault(", ".join(entry.reduced), []).append(f"{entry.row}, {entry.column}")
    for reduced, names in smaller.items():
        print(f"  * {reduced}: {'; '.join(dict.fromkeys(names))}")
    for claim in claims_of(recipe.name):
        print(f"  The paper says: {claim}")
    if recipe.why:
        print(f"  Why the values differ: {recipe.why}")
    if not size.full:
        print(f"  Quick size: {recipe.quick}")


def _draw(chosen: list[Recipe], size: Size, cache: Cache, folder: Path) -> None:
    from fedveil.report.charts import write

    for recipe in chosen:
        picture = chart(recipe, size, cache)
        if picture is not None:
            write(folder / f"{recipe.name.replace('/', '-')}.svg", picture)


class _Bar:
    """Progress on stderr: one line that is updated on a terminal, a line per job elsewhere."""

    def __enter__(self) -> _Bar:
        self.live = sys.stderr.isatty()
        return self

    def __call__(self, progress: Progress) -> None:
        left = "" if progress.left is None else f", about {progress.left / 60:.0f} min left"
        text = f"{progress.done} of {progress.total} cells ({progress.cached} from the cache){left}: {progress.now}"
        if self.live:
            print("\r" + text[:150].ljust(150), end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self.live:
            print(file=sys.stderr)


def _report(progress: Progress) -> None:
    """Says how many cells are left; raises `RunError` if cells failed."""
    if progress.done < progress.total:
        show.note(f"{progress.total - progress.done} cells are left: run the same command again to resume")
    if progress.failed:
        raise RunError(f"{len(progress.failed)} cells failed; the first: {next(iter(progress.failed.values()))}")
