"""A lab for tests: the real command in a separate process, queried over HTTP with the standard library."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

MISSING = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]


@dataclass
class Served:
    """A running lab."""

    port: int
    folder: Path
    process: subprocess.Popen[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def raw(
        self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None, method: str | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """One JSON request."""
        sent = None if body is None else json.dumps(body).encode()
        status, _, text = self.raw(path, sent, {"content-type": "application/json"})
        return status, json.loads(text)

    def wait(self, name: str, state: tuple[str, ...] = ("done", "failed", "cancelled"), most: float = 240) -> Any:
        """The job once it is in one of these states."""
        end = time.monotonic() + most
        while True:
            told = self.ask(f"/api/jobs/{name}")[1]
            if told["state"] in state:
                return told
            assert time.monotonic() < end, told
            time.sleep(0.1)


@contextlib.contextmanager
def serve(folder: Path, *arguments: str) -> Iterator[Served]:
    if MISSING:
        pytest.skip(f"needs the extra: pip install 'fedveil[lab]' (no {MISSING[0]})")
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fedveil", "lab", "--port", "0", "--json", *arguments]
    log = (folder / "stderr.log").open("w")
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    told = json.loads(_document(process))
    try:
        yield Served(told["port"], folder, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()
            log.close()


def _document(process: subprocess.Popen[str]) -> str:
    """The one JSON document that the command prints when it is ready."""
    assert process.stdout is not None
    lines: list[str] = []
    timer = threading.Timer(60, process.kill)
    timer.start()
    for line in process.stdout:
        lines.append(line)
        if line.startswith("}"):
            break
    timer.cancel()
    return "".join(lines)


@pytest.fixture(scope="session")
def lab_server() -> Callable[..., contextlib.AbstractContextManager[Served]]:
    return serve


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are kept: LAB_ARTEFACTS, or a temporary folder."""
    folder = Path(os.environ.get("LAB_ARTEFACTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
