"""Files that survive crashes and other processes: atomic writes, whole lines, one writer for each folder, digests."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fedveil.core.errors import RunError

if TYPE_CHECKING:
    import numpy as np

try:
    import fcntl
except ImportError:  # Windows has no such locks: there, nothing keeps two writers apart
    fcntl = None  # type: ignore[assignment]

PRIVATE, SHARED = 0o600, 0o666  # modes of new files; the umask of the process is taken off
LOCK = ".lock"


def write_atomic(path: Path, write: Callable[[IO[bytes]], object], mode: int = PRIVATE) -> None:
    """Writes a file atomically: its name refers to the old or to the complete new content at every moment.

    A link of that name is replaced, not followed.
    """
    work = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(work, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(work, path)
    except BaseException:
        with contextlib.suppress(OSError):
            work.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str, mode: int = PRIVATE) -> None:
    write_atomic(path, lambda file: file.write(text.encode()), mode)


def clear_leftovers(path: Path) -> None:
    """Removes the temporary files of a process that was killed while it wrote this file; the name may be a pattern."""
    for left in path.parent.glob(f".{path.name}.????????"):
        left.unlink(missing_ok=True)


def append_lines(path: Path, lines: str) -> None:
    """Adds whole lines to a file and waits until they are on the disk."""
    drop_cut_line(path)
    with path.open("a", encoding="utf-8") as file:
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


def drop_cut_line(path: Path) -> None:
    """Removes a last line that a crash cut short, so that the next line is not appended to it."""
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return
    with file:
        size = end = file.seek(0, os.SEEK_END)
        while end:
            first = max(0, end - 65536)
            file.seek(first)
            found = file.read(end - first).rfind(b"\n")
            if found >= 0:
                end = first + found + 1
                break
            end = first
        if end < size:
            file.truncate(end)


def read_regular(path: Path, most: int) -> bytes:
    """The content of a plain file of at most `most` bytes. Links, devices and pipes are not opened."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is no plain file")
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"is larger than {most:,} bytes")
        return file.read(most)


@contextlib.contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Makes this process the only writer of a folder. If another process holds the lock, `RunError` names it.

    The operating system releases the lock when the process ends, even if it is killed. The lock file holds the process id
    and is removed at the end. A lock file that a killed process left behind locks nothing.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    handle = _take(folder / name, folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)  # while the lock is held, so that it is our file
        os.close(handle)
        with contextlib.suppress(OSError):  # a folder in which something was written stays
            for path in made:
                path.rmdir()


def _take(path: Path, folder: Path) -> int:
    """The handle of the locked lock file."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            _flock(handle, folder)
            if _same(handle, path):  # else the last holder has removed the file: a lock on it excludes nobody
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _flock(handle: int, folder: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise  # this file system has no locks
        holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
        who = f"process {holder}" if holder.isdecimal() else "another process"
        raise RunError(f"{folder} is in use by {who}: wait until it has ended, or stop it") from None


def _same(handle: int, path: Path) -> bool:
    """Whether the name still refers to the open file."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """The digest of named arrays: names, types, shapes and content."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        found.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        found.update(array.tobytes())
    return found.hexdigest()
