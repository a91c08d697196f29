"""Find and check a dataset's files.

Files are looked for in `data.dir`, in `FEDVEIL_DATA`, in the cache folder and in a system folder. Each is checked
against its known digest before use. `fetch.py` downloads what is missing.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedveil.core.errors import DataError
from fedveil.core.system import user_cache
from fedveil.data.info import DatasetInfo, FileInfo
from fedveil.data.sources import gunzipped, reason

Log = Callable[[str], None]

SYSTEM_FOLDERS = (Path("/usr/share/datasets"),)


@dataclass(frozen=True)
class FileStatus:
    """The state of one file of a dataset."""

    dataset: str
    file: str
    path: Path | None
    status: Literal["ok", "missing", "damaged", "embedded"]
    detail: str = ""


def search_folders(dir: str | None = None) -> list[Path]:
    """The folders to search, in order: `data.dir`, `FEDVEIL_DATA`, the cache, the system folder."""
    folders = [*_split(dir), *_split(os.environ.get("FEDVEIL_DATA")), cache_folder(), *SYSTEM_FOLDERS]
    return list(dict.fromkeys(folders))


def cache_folder() -> Path:
    """The user's folder for fetched data."""
    return user_cache("data")


def _split(folders: str | None) -> list[Path]:
    """Folders written as one string, split at the path separator."""
    return [Path(folder).expanduser() for folder in (folders or "").split(os.pathsep) if folder]


@dataclass(frozen=True)
class _Copy:
    """A copy of a file that was found: its uncompressed content, and its fault or an empty text."""

    path: Path
    content: bytes
    fault: str


def read(info: DatasetInfo, file_name: str, dir: str | None = None) -> bytes:
    """The checked, uncompressed content of a file. `DataError` with a remedy where it is missing or damaged."""
    file, folders = info.file(file_name), search_folders(dir)
    copy = _best_copy(info, file, folders)
    if copy is not None and not copy.fault:
        return copy.content
    to_do = remedy(info, file, folders)
    if copy is not None:
        where = f"{copy.path.name} in {copy.path.parent}"
        raise DataError(f"{info.name}: {where} is damaged ({copy.fault}); delete it and {to_do}")
    looked = f" (looked in {', '.join(map(str, folders))})" if info.needs_fetch else ""
    raise DataError(f"{info.name}: {file.name} is not here{looked}; {to_do}")


def find(info: DatasetInfo, file_name: str, dir: str | None = None) -> Path | None:
    """The path of a file, unchecked; None where it is missing."""
    return find_in(info, info.file(file_name), search_folders(dir))


def find_in(info: DatasetInfo, file: FileInfo, folders: list[Path]) -> Path | None:
    """The path of a file in these folders, unchecked; None where it is missing."""
    return next(_candidates(info, file, folders), None)


def find_whole(info: DatasetInfo, file_name: str) -> bytes | None:
    """The content of the first copy of a file whose digest is right."""
    copy = _best_copy(info, info.file(file_name), search_folders())
    return copy.content if copy is not None and not copy.fault else None


def check(info: DatasetInfo, dir: str | None = None) -> list[FileStatus]:
    """The state of each file of a dataset, by its digest. Does not raise."""
    if not info.files:
        return [FileStatus(info.name, info.name, None, "embedded", info.origin)]
    folders = search_folders(dir)
    return [check_file(info, file, folders) for file in info.files]


def check_file(info: DatasetInfo, file: FileInfo, folders: list[Path]) -> FileStatus:
    """The state of one file: the first whole copy counts, else the first damaged one."""
    copy = _best_copy(info, file, folders)
    to_do = remedy(info, file, folders)
    if copy is None:
        return FileStatus(info.name, file.name, None, "missing", to_do)
    if copy.fault:
        return FileStatus(info.name, file.name, copy.path, "damaged", f"{copy.fault}; delete it and {to_do}")
    return FileStatus(info.name, file.name, copy.path, "ok")


def remedy(info: DatasetInfo, file: FileInfo, folders: list[Path]) -> str:
    """What the user can do about a missing file."""
    if info.needs_fetch:
        return f"run 'fedveil data get {info.name}'"
    # No registry and no publisher has these files in the form used here.
    own = ", ".join(str(folder) for folder in folders if folder not in SYSTEM_FOLDERS)
    put = f"put {file.name} ({file.holds}; sha256 {file.sha256}) into one of: {own}"
    return f"run '{info.get_command}' with {info.originals[0].label}, or {put}" if info.originals else put


def _candidates(info: DatasetInfo, file: FileInfo, folders: list[Path]) -> Iterator[Path]:
    """Existing files with the right name, plain or compressed, in the order of the folders."""
    for folder in folders:
        parents = [folder / sub for sub in info.folders]
        if folder.name in info.folders:  # the user gave the dataset's own folder
            parents.append(folder)
        for parent in parents:
            for path in (parent / file.name, parent / f"{file.name}.gz"):
                if path.is_file():
                    yield path


def _best_copy(info: DatasetInfo, file: FileInfo, folders: list[Path]) -> _Copy | None:
    """The first whole copy of a file, else the first damaged one, else None."""
    damaged = None
    for path in _candidates(info, file, folders):
        copy = _examine(path, file)
        if not copy.fault:
            return copy
        damaged = damaged or copy
    return damaged


def _examine(path: Path, file: FileInfo) -> _Copy:
    try:
        with path.open("rb") as opened:  # no more than one byte too many: what is larger is not read
            content = gunzipped(opened, file.size) if path.suffix == ".gz" else opened.read(file.size + 1)
    except (OSError, EOFError, zlib.error) as error:
        return _Copy(path, b"", f"cannot be read: {reason(error)}")
    return _Copy(path, content, file.fault(content))
