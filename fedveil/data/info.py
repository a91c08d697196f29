"""What describes a dataset: its files, their sources, its loader and its usual training. Cheap to import: no arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

    from fedveil.data.dataset import Raw


@dataclass(frozen=True)
class FileInfo:
    """One file of a dataset. Size and digests are those of the uncompressed content."""

    name: str
    size: int  # bytes
    sha256: str
    md5: str = ""  # the publisher's own digest, where there is one
    holds: str = ""  # description of the content, for files that have no source

    def fault(self, content: bytes) -> str:
        """How a content differs from this file; empty if it does not."""
        if len(content) < self.size:
            return f"cut short: {len(content)} bytes instead of {self.size}"
        if len(content) > self.size:
            return f"more than {self.size} bytes"
        for algorithm, known in (("sha256", self.sha256), ("md5", self.md5)):
            got = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest() if known else ""
            if got != known:
                return f"{algorithm} {got} instead of {known}"
        return ""


# A downloader as pooch calls it: (name of the file, path to write, None).
Downloader = Callable[[str, str, object], None]


@dataclass(frozen=True)
class Source:
    """A source of a dataset's files. `open` gets a temporary work folder and returns a downloader."""

    label: str  # in messages
    open: Callable[[Path], Downloader]


@dataclass(frozen=True)
class Original:
    """A file from outside that `fedveil data get` converts: the publisher's archive, or a user's own file."""

    label: str  # in messages
    convert: Callable[[bytes], Mapping[str, np.ndarray]]  # raises DataError for content that it cannot convert
    file: FileInfo | None = None  # name and digests of the file itself; None: any content
    address: str = ""  # where it can be downloaded


@dataclass(frozen=True)
class Converted:
    """The arrays that were made from an original."""

    arrays: Mapping[str, np.ndarray]
    source: str  # the original, for readers of results


@dataclass(frozen=True)
class LoadRequest:
    """What a loader gets: its own description, access to its files, and the keys of `[data]` that it may read."""

    info: DatasetInfo
    read: Callable[[str], bytes]  # file name -> checked, uncompressed content
    converted: Callable[[], Converted | None]  # what was made from an original, if there is one
    min_images: int = 20
    size: int = 32
    file: str | None = None


@dataclass(frozen=True)
class DatasetInfo:
    """One dataset: description, loader, files and sources.

    `rounds` to `per_client` are the training that a config gets by default. They are those of the Fed-CDP paper's
    Table I where it has the dataset: rounds T, local steps L, batch B, examples per client N_i.
    """

    name: str
    summary: str
    kind: Literal["image", "attributes"]
    shape: tuple[int, ...]
    classes: int
    load: Callable[[LoadRequest], Raw]
    model: str
    partition: str
    rounds: int
    local_steps: int
    batch: int
    lr: float
    per_client: int | None = None  # None: the partition decides (all examples for `copies`)
    classes_per_client: int = 2
    files: tuple[FileInfo, ...] = ()
    folders: tuple[str, ...] = ()  # subfolders of a data folder that may hold the files; files are fetched to the first
    sources: tuple[Source, ...] = ()  # in the order in which `fedveil data get` tries them
    originals: tuple[Original, ...] = ()  # files from outside, preferred to `files` once one is converted
    origin: str = "needs no file"  # said of a dataset without files
    trainable: bool = True
    keys: tuple[str, ...] = ("split", "dir")  # keys of [data] that select a version of the dataset
    note: str = ""
    train_sizes: tuple[tuple[str, int], ...] = ()  # (split, training examples): accounts need them without the data
    position: int = 1000  # in listings; equal positions are sorted by name

    @property
    def needs_fetch(self) -> bool:
        """Whether `fedveil data get` can fetch the files."""
        return bool(self.sources)

    @property
    def get_command(self) -> str:
        """The command that gets the dataset; `FILE` stands for a file that the user has."""
        return f"fedveil data get {self.name}{' --from FILE' if self.originals else ''}"

    def train_size(self, split: str) -> int | None:
        """Examples in the training part, or None where only the files tell."""
        return dict(self.train_sizes).get(split)

    def file(self, name: str) -> FileInfo:
        """The description of one file."""
        return next(file for file in self.files if file.name == name)
