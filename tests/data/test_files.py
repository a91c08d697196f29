"""Finding files: folders are searched in order, damaged copies are never used, messages name the remedy."""

from __future__ import annotations

import gzip
import os

import pytest

from fedveil.core.errors import DataError
from fedveil.data import files
from fedveil.data.registry import DATASETS

A, B = b"alpha" * 100, b"beta" * 100


def test_folders_are_searched_in_order(monkeypatch, tmp_path, tiny):
    monkeypatch.setenv("FEDVEIL_DATA", os.pathsep.join(["/c", "/d", ""]))
    folders = list(map(str, files.search_folders(os.pathsep.join(["/a", "/b"]))))
    assert folders == ["/a", "/b", "/c", "/d", str(tmp_path / "cache/fedveil/data"), str(tmp_path / "system")]


@pytest.mark.parametrize("layout", ["tiny", "TINY/raw", "."])
def test_layouts(tmp_path, tiny, place, layout):
    place(tmp_path / "data" / layout, a_bin=A)
    assert files.read(tiny, "a.bin", str(tmp_path / "data")) == A


def test_the_datasets_own_folder_may_be_given(tmp_path, tiny, place):
    place(tmp_path / "tiny", a_bin=A)
    assert files.read(tiny, "a.bin", str(tmp_path / "tiny")) == A


def test_compressed_files_are_read(tmp_path, tiny, place):
    place(tmp_path / "system" / "tiny")
    (tmp_path / "system/tiny/a.bin.gz").write_bytes(gzip.compress(A))
    assert files.read(tiny, "a.bin") == A
    assert files.find(tiny, "a.bin") == tmp_path / "system/tiny/a.bin.gz" and files.find(tiny, "b.bin") is None


def test_missing(tmp_path, tiny, one_line):
    with pytest.raises(DataError) as caught:
        files.read(tiny, "a.bin", str(tmp_path))
    assert "run 'fedveil data get tiny'" in one_line(caught) and str(tmp_path) in one_line(caught)


@pytest.mark.parametrize(("content", "words"), [(b"ALPHA" * 100, "sha256"), (A[:7], "cut short: 7 bytes")])
def test_damaged(tmp_path, tiny, place, one_line, content, words):
    place(tmp_path / "tiny", a_bin=content, b_bin=B)
    with pytest.raises(DataError, match=words) as caught:
        files.read(tiny, "a.bin", str(tmp_path))
    assert "delete it and run 'fedveil data get tiny'" in one_line(caught)
    assert str(tmp_path / "tiny") in one_line(caught)
    assert [status.status for status in files.check(tiny, str(tmp_path))] == ["damaged", "ok"]


def test_a_damaged_compressed_file(tmp_path, tiny, place):
    place(tmp_path / "tiny")
    (tmp_path / "tiny/a.bin.gz").write_bytes(gzip.compress(A)[:-12])
    with pytest.raises(DataError, match="damaged"):
        files.read(tiny, "a.bin", str(tmp_path))


def test_a_good_copy_in_a_later_folder_is_used(tmp_path, tiny, place):
    place(tmp_path / "one/tiny", a_bin=b"bad")
    place(tmp_path / "two/tiny", a_bin=A)
    assert files.read(tiny, "a.bin", f"{tmp_path / 'one'}{os.pathsep}{tmp_path / 'two'}") == A


def test_embedded_datasets_need_nothing():
    (status,) = files.check(DATASETS["cancer"])
    assert (status.status, status.detail) == ("embedded", "ships with scikit-learn")


@pytest.mark.parametrize("name", ["lfw", "cifar100", "xray"])
def test_a_missing_file_that_has_no_source_is_described(tmp_path, tiny, one_line, name):
    file = DATASETS[name].files[0]
    with pytest.raises(DataError, match="is not here; run .* --from FILE.* or put ") as caught:
        files.read(DATASETS[name], file.name, str(tmp_path))
    assert file.holds in one_line(caught) and file.sha256 in one_line(caught)
