"""Convert a publisher's archive, or a user's own file, to the arrays that a dataset's loader reads.

The converted arrays are stored as one `converted.npz` in the dataset's subfolder of a data folder, with a digest that is
checked before every use. A loader prefers them to the prepared files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedveil.core.archives import load_npz
from fedveil.core.errors import ConfigError, DataError, FedveilError
from fedveil.core.files import PRIVATE, SHARED, digest_of, write_atomic
from fedveil.data import files
from fedveil.data.info import Converted, DatasetInfo, FileInfo, Original
from fedveil.data.sources import LARGEST, SourceFailed, http_content, reason

NAME = "converted.npz"
_SOURCE, _DIGEST = "source", "digest"  # texts that are stored beside the arrays


# --- reading


def find(info: DatasetInfo, folders: list[Path]) -> Path | None:
    """The path of the converted arrays, unchecked; None where no original was converted."""
    if not info.originals:
        return None
    for folder in folders:
        # The second place: the user gave the dataset's own folder.
        for parent in (folder / info.name, *((folder,) if folder.name == info.name else ())):
            if (parent / NAME).is_file():
                return parent / NAME
    return None


def read(info: DatasetInfo, dir: str | None = None) -> Converted | None:
    """The converted arrays, checked; None where no original was converted."""
    path = find(info, files.search_folders(dir))
    return None if path is None else read_path(info, path)


def read_path(info: DatasetInfo, path: Path) -> Converted:
    """The converted arrays of this file, checked."""
    found = _examine(path)
    if isinstance(found, str):
        raise DataError(f"{info.name}: {path} is damaged ({found}); delete it and run '{info.get_command}'")
    return found


def check(info: DatasetInfo, dir: str | None = None) -> list[files.FileStatus]:
    """The state of a dataset's files: of the converted arrays where they exist, since they are preferred."""
    path = find(info, files.search_folders(dir))
    if path is None:
        return files.check(info, dir)
    found = _examine(path)
    if isinstance(found, str):
        return [files.FileStatus(info.name, NAME, path, "damaged", f"{found}; delete it and run '{info.get_command}'")]
    return [files.FileStatus(info.name, NAME, path, "ok", f"made from {found.source}")]


def _examine(path: Path) -> Converted | str:
    """The content of a converted file, or a text that says what is wrong with it."""
    try:
        arrays = load_npz(path)
        source, digest = str(arrays.pop(_SOURCE)), str(arrays.pop(_DIGEST))
    except FedveilError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise many kinds of errors for a damaged archive
        return f"cannot be read: {reason(error)}"
    return Converted(arrays, source) if digest_of(arrays) == digest else "its digest is wrong"


# --- converting


def convert_file(info: DatasetInfo, path: Path, target: Path | None = None, unchecked: bool = False) -> Path:
    """Converts a file that the user has. Returns the path of the result, in the target folder or the cache.

    The digest must be the publisher's, unless `unchecked`. Nothing is written if the file cannot be converted.
    """
    if not info.originals:
        raise ConfigError("--from", str(path), f"{info.name} is not made from a file; run '{info.get_command}'")
    return _convert(info, path.name, _content(info, path), target, unchecked)


def convert_found(info: DatasetInfo, target: Path | None, log: files.Log) -> Path | None:
    """Converts an original that somebody has put into a data folder; None where there is none."""
    folders = files.search_folders() if target is None else [target, *files.search_folders()]
    for original in info.originals:
        path = files.find_in(info, original.file, folders) if original.file else None
        if path is not None:
            log(f"{info.name}: converting {path}")
            return convert_file(info, path, target)
    return None


def download(info: DatasetInfo, target: Path | None, log: files.Log) -> Path:
    """Downloads and converts an original. `SourceFailed` says why none could be had."""
    failures = []
    for original in info.originals:
        if original.address and original.file:
            log(f"{info.name}: trying {original.address} ({original.file.size / 1e6:.0f} MB)")
            try:
                content = http_content(original.address)
                if fault := original.file.fault(content):
                    raise SourceFailed(f"{original.file.name} came damaged, {fault}")
                return _convert(info, original.file.name, content, target)
            except SourceFailed as failure:
                failures.append(f"{original.file.name}: {failure}")
                log(f"{info.name}: {failures[-1]}")
    raise SourceFailed("; ".join(failures))


def _content(info: DatasetInfo, path: Path) -> bytes:
    """The content of the user's file."""
    if not path.is_file():
        why = "that is a folder" if path.is_dir() else "there is no such file"
        raise ConfigError("--from", str(path), f"{why}; takes {' or '.join(one.label for one in info.originals)}")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise ConfigError("--from", str(path), f"cannot be read: {reason(error)}") from error
    if len(content) > LARGEST:
        raise ConfigError("--from", str(path), f"takes a file of at most {LARGEST / 1e9:g} GB")
    return content


def _convert(info: DatasetInfo, name: str, content: bytes, target: Path | None, unchecked: bool = False) -> Path:
    """Converts the content of an original of this name and stores the arrays."""
    original = next((one for one in info.originals if one.file is None or not one.file.fault(content)), None)
    if original is not None:
        arrays, source = _made(info, original, name, content), name
    elif unchecked:
        arrays, source = _by_format(info, content), f"{name}, which is not the publisher's file"
    else:
        raise DataError(f"{info.name}: {name} {_difference(info, name, content)}")
    mode = PRIVATE if original is not None and original.file is None else SHARED
    return _store(info, arrays, source, target or files.cache_folder(), mode)


def _made(info: DatasetInfo, original: Original, name: str, content: bytes) -> Mapping[str, np.ndarray]:
    try:
        return original.convert(content)
    except DataError as error:
        raise DataError(f"{info.name}: {name} cannot be converted: {error}; takes {original.label}") from error


def _by_format(info: DatasetInfo, content: bytes) -> Mapping[str, np.ndarray]:
    """The arrays of a file of unknown digest: the first conversion that accepts its format."""
    faults = []
    for original in info.originals:
        try:
            return original.convert(content)
        except DataError as error:
            faults.append(f"{error}; takes {original.label}")
    raise DataError(f"{info.name}: cannot be converted: {' / '.join(faults)}")


def _difference(info: DatasetInfo, name: str, content: bytes) -> str:
    """How a file differs from the original of its name, or from all of them."""
    known: list[FileInfo] = [one.file for one in info.originals if one.file is not None]
    same = next((file for file in known if file.name == name), None)
    fault = same.fault(content) if same else f"its digest is that of none of: {', '.join(f.name for f in known)}"
    return f"is not the publisher's file ({fault}); get that file, or convert this one with --unchecked"


def _store(info: DatasetInfo, arrays: Mapping[str, np.ndarray], source: str, target: Path, mode: int) -> Path:
    path = target / info.name / NAME
    stored = {**arrays, _SOURCE: np.array(source), _DIGEST: np.array(digest_of(arrays))}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lambda out: np.savez(out, **stored), mode)  # type: ignore[arg-type]
    except OSError as error:
        text = f"cannot write to {path.parent} ({reason(error)}); give another folder with --data-dir"
        raise DataError(f"{info.name}: {text}") from error
    return path
