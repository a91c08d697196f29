"""`fedveil.sweep`: runs the cells of a sweep and compares them.

`DIR/cells.jsonl` gets a line as soon as a cell is finished. A cell is found there by the digest of its resolved config, so
the same command resumes a stopped sweep, and a changed file repeats only the cells that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedveil.config import Config, Settings, read
from fedveil.core.errors import ConfigError
from fedveil.recipes.cache import Cache
from fedveil.recipes.run import Progress, run_jobs
from fedveil.sweeps.grid import Cell, cells_of
from fedveil.sweeps.page import write_files
from fedveil.sweeps.results import Sweep

Tell = Callable[[list[Cell], Cache, Progress], None]


def sweep(
    settings: Settings = None,
    out: str | Path | None = None,
    *,
    workers: int = 1,
    seconds: float | None = None,
    progress: Tell | None = None,
) -> Sweep:
    """Trains and attacks every combination of the lists in `[sweep]`, and compares them.

    `settings`: the path of a TOML file, nested dicts, or a list of `section.key=value`; with a section `sweep`. `out`: the
    folder for `cells.jsonl`, `cells.csv`, `chart.svg` and `report.html`; finished cells in it are not repeated.
    `workers`: cells at a time, each in its own process. `seconds`: start no new cell after this time. `progress`: called
    with the cells, the cache of results and the progress whenever a cell begins or ends.
    """
    cells = cells_of(document_of(settings))
    if out == "":
        raise ConfigError("out", out, "takes a folder: leave it out to write none")
    if isinstance(workers, bool) or workers < 1:
        raise ConfigError("workers", workers, "takes the number of processes, 1 or more")
    if out is None:
        with TemporaryDirectory() as folder:
            return _run(cells, Path(folder), workers, seconds, progress)
    done = _run(cells, Path(out), workers, seconds, progress)
    return replace(done, files=write_files(done, Path(out)))


def document_of(settings: Settings) -> Mapping[str, Any]:
    """A caller's settings as nested tables, with the section `sweep`."""
    if isinstance(settings, Config):
        raise ConfigError(
            "settings", "a Config", "takes the path of a TOML file or nested dicts: a Config has no lists"
        )
    if isinstance(settings, str | Path):
        return read(settings)
    return read(None, list(settings)) if isinstance(settings, list | tuple) else dict(settings or {})


def _run(cells: list[Cell], folder: Path, workers: int, seconds: float | None, tell: Tell | None) -> Sweep:
    cache = Cache(folder)
    work = {cell.job.digest: (cell.label, cell.job) for cell in cells}
    with cache.locked():
        done = run_jobs(
            work,
            cache,
            seconds=seconds,
            workers=workers,
            tell=lambda now: None if tell is None else tell(cells, cache, now),
        )
    return Sweep.of(cells, cache, done.failed)
