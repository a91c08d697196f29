"""Fetching: sources are tried in order, damaged and partial downloads leave no file, messages name the remedy."""

from __future__ import annotations

import errno
import gzip
import os
import stat
import subprocess
import sys

import pytest
import requests

from fedveil.core.errors import DataError
from fedveil.data.fetch import get
from fedveil.data.registry import DATASETS
from fedveil.data.sources import downloader

CONTENT = {"a.bin": b"alpha" * 100, "b.bin": b"beta" * 100}


def good(work):
    return downloader(CONTENT.__getitem__)


def damaged(work):
    return downloader(lambda name: b"ALPHA" * 100)


def never(work):
    raise AssertionError("this source must not be tried")


def test_get_and_again(tmp_path, tiny, from_sources, everything_in):
    lines: list[str] = []
    paths = get(from_sources(good), tmp_path / "data", lines.append)
    assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    assert everything_in(tmp_path / "data") == ["tiny/a.bin", "tiny/b.bin"]
    assert stat.S_IMODE(paths[0].stat().st_mode) == 0o644
    assert get(from_sources(never), tmp_path / "data", lines.append) == paths
    assert "already here" in lines[-1]


def test_get_goes_to_the_cache_by_default(tmp_path, from_sources):
    assert get(from_sources(good))[0] == tmp_path / "cache/fedveil/data/tiny/a.bin"
    assert get(from_sources(never))[0] == tmp_path / "cache/fedveil/data/tiny/a.bin"


def test_get_replaces_what_is_damaged_and_keeps_what_is_good(tmp_path, from_sources, place):
    place(tmp_path / "tiny", a_bin=b"bad", b_bin=CONTENT["b.bin"])
    before = (tmp_path / "tiny/b.bin").stat().st_mtime_ns
    get(from_sources(good), tmp_path)
    assert (tmp_path / "tiny/a.bin").read_bytes() == CONTENT["a.bin"]
    assert (tmp_path / "tiny/b.bin").stat().st_mtime_ns == before


def test_a_system_folder_is_taken_before_the_network(tmp_path, from_sources, place):
    place(tmp_path / "system/tiny")
    for name, content in CONTENT.items():
        (tmp_path / f"system/tiny/{name}.gz").write_bytes(gzip.compress(content))
    assert get(from_sources(never), tmp_path / "data")[1].read_bytes() == CONTENT["b.bin"]


def test_a_source_delivers_only_what_the_system_folder_lacks(tmp_path, from_sources, place):
    place(tmp_path / "system/tiny", b_bin=CONTENT["b.bin"])
    asked = []

    def counted(work):
        return downloader(lambda name: asked.append(name) or CONTENT[name])

    get(from_sources(counted), tmp_path / "data")
    assert asked == ["a.bin"]


def test_the_next_source_is_tried(tmp_path, from_sources, everything_in):
    def cut(work):
        raise requests.exceptions.ChunkedEncodingError("Connection broken: IncompleteRead")

    def half(work):
        def content(name):
            if name == "b.bin":
                raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            return CONTENT[name]

        return downloader(content)

    lines: list[str] = []
    get(from_sources(damaged, cut, half, good), tmp_path, lines.append)
    assert everything_in(tmp_path) == ["tiny/a.bin", "tiny/b.bin"]
    assert sum("did not help" in line for line in lines) == 4  # this machine's folders, and three sources


@pytest.mark.parametrize(("error", "words"), [(None, "sha256 is not"), (ValueError("no JSON"), "no JSON")])
def test_all_sources_fail(tmp_path, from_sources, one_line, everything_in, error, words):
    def opened(work):
        def content(name):
            if error is not None:
                raise error
            return b"ALPHA" * 100

        return downloader(content)

    with pytest.raises(DataError, match=f"a.bin came damaged, {words}") as caught:
        get(from_sources(opened), tmp_path)
    assert "put a.bin, b.bin into" in one_line(caught)
    assert everything_in(tmp_path) == []


def test_a_damaged_download_never_replaces_a_file(tmp_path, from_sources, place, everything_in):
    place(tmp_path / "tiny", a_bin=b"the old one")
    with pytest.raises(DataError, match="came damaged"):
        get(from_sources(damaged), tmp_path)
    assert everything_in(tmp_path) == ["tiny/a.bin"]
    assert (tmp_path / "tiny/a.bin").read_bytes() == b"the old one"


def test_an_interrupt_leaves_nothing(tmp_path, from_sources, everything_in):
    def interrupted(work):
        (work / "package.tgz").write_bytes(b"half a package")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(from_sources(interrupted), tmp_path)
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize("moment", ["fsync", "chmod", "rename"])
def test_an_interrupt_while_writing_leaves_nothing(monkeypatch, tmp_path, from_sources, place, everything_in, moment):
    def interrupted(*_):
        raise KeyboardInterrupt

    place(tmp_path / "tiny", a_bin=b"the old one")
    monkeypatch.setattr(os, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        get(from_sources(good), tmp_path)
    assert everything_in(tmp_path) == ["tiny/a.bin"]
    assert (tmp_path / "tiny/a.bin").read_bytes() == b"the old one"


def test_a_full_disk(monkeypatch, tmp_path, from_sources, one_line, everything_in):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="no space left in .*; free about 1 MB there, or give another folder") as caught:
        get(from_sources(good, never), tmp_path)
    one_line(caught)
    assert everything_in(tmp_path) == []


def test_a_folder_that_cannot_be_written(tmp_path, from_sources):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot write to .*give another folder"):
        get(from_sources(good), tmp_path / "file")


@pytest.mark.parametrize("name", ["lfw", "cifar100", "xray"])
def test_a_dataset_without_a_source_says_where_to_put_its_file(tmp_path, tiny, one_line, name):
    file = DATASETS[name].files[0].name
    with pytest.raises(DataError, match=f"put {file} .* into one of: {tmp_path / 'data'}, ") as caught:
        get(DATASETS[name], tmp_path / "data")
    one_line(caught)


def test_embedded_datasets_need_nothing(tmp_path):
    assert get(DATASETS["digits"], tmp_path) == []


def test_pooch_is_imported_by_a_download_only():
    code = "import sys, fedveil.data.fetch, fedveil.cli.data; sys.exit('pooch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
