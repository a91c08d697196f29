"""A dataset of two small files, with search folders and sources that a test chooses."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from fedveil.data import files
from fedveil.data.info import DatasetInfo, FileInfo, Source
from fedveil.data.registry import DATASETS

CONTENT = {"a.bin": b"alpha" * 100, "b.bin": b"beta" * 100}


def describe(name, content):
    return FileInfo(name, len(content), hashlib.sha256(content).hexdigest(), holds="what it holds")


def no_loader(request):
    raise AssertionError("no test loads this dataset")


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The dataset; the cache and the system folder are below `tmp_path`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDVEIL_DATA", "")
    monkeypatch.setattr(files, "SYSTEM_FOLDERS", (tmp_path / "system",))
    return DatasetInfo(
        name="tiny",
        summary="for tests",
        kind="image",
        shape=(1,),
        classes=2,
        load=no_loader,
        model="mlp",
        partition="iid",
        rounds=1,
        local_steps=1,
        batch=1,
        lr=0.1,
        files=tuple(describe(*item) for item in CONTENT.items()),
        folders=("tiny", "TINY/raw", ""),
        sources=(Source("nowhere", lambda work: no_loader),),
    )


@pytest.fixture
def from_sources(tiny):
    """The dataset with these sources, each a function that opens one."""

    def use(*opened):
        return replace(tiny, sources=tuple(Source(f"source {n}", one) for n, one in enumerate(opened)))

    return use


@pytest.fixture
def place():
    """Writes files into a folder: `a_bin` is the name a.bin."""

    def write(folder, **contents):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name.replace("_", ".")).write_bytes(content)

    return write


@pytest.fixture
def everything_in():
    return lambda folder: sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def one_line():
    """The text of a caught error, which has one line."""

    def text(caught):
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return text


@pytest.fixture
def need():
    """Skips a test where the files of a dataset are missing."""

    def check(name):
        info = DATASETS[name]
        if any(status.status == "missing" for status in files.check(info)):
            remedy = f"run 'fedveil data get {name}'" if info.needs_fetch else "put its file into FEDVEIL_DATA"
            pytest.skip(f"{name} is not here: {remedy}")

    return check
