"""The lab under requests that nobody meant: made from its own OpenAPI schema, and cut, held back or led astray by hand."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedveil.config import from_dict, resolve, to_toml

Server = Any
CALLS = 3600  # requests that are asked for; of operations without parameters fewer are made
LIMITS = ("--minutes", "0.1", "--memory", "3")


def write_run(path: Path) -> Path:
    """A small run that has ended."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(to_toml(resolve(from_dict({"train": {"rounds": 2}}))))
    result = {"accuracy": 0.5, "split": "validation", "loss": 1.0, "seconds": 1.0, "ledger": []}
    (path / "run.json").write_text(json.dumps({"status": "done", "rounds_done": 2, "result": result}))
    (path / "metrics.jsonl").write_text('{"round": 0, "accuracy": 0.1}\n{"round": 1, "accuracy": 0.5}\n')
    return path


@pytest.fixture(scope="module")
def lab(lab_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("fuzzed")
    write_run(folder / "runs" / "sound")
    with lab_server(folder, *LIMITS) as served:
        yield served


# --- from the schema


def fuzzed(lab: Server, calls: int) -> dict[int, int]:
    """Statuses of at least `calls` requests made from the schema, half of them against it; by how often."""
    schemathesis = pytest.importorskip("schemathesis")
    hypothesis = pytest.importorskip("hypothesis")
    schema = schemathesis.openapi.from_url(f"{lab.url}/api/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    each = -(-calls // (2 * len(operations))) + 1
    told: dict[int, int] = {}

    def call(case: Any) -> None:
        if case.path.endswith("/events"):
            return  # a stream without an end where the job goes on
        answer = case.call(timeout=150)
        told[answer.status_code] = told.get(answer.status_code, 0) + 1
        assert answer.status_code < 500, (case.method, case.path, case.body, case.query, answer.text)

    quiet = hypothesis.settings(
        max_examples=each,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    for operation in operations:
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # nothing can be wrong about such a request
                given = hypothesis.given(case=operation.as_strategy(generation_mode=mode))
                quiet(given(lambda case: call(case)))()
    return told


def test_the_schema_tells_every_request(lab: Server) -> None:
    status, told = lab.ask("/api/openapi.json")
    assert status == 200 and told["info"]["title"] == "Fedveil lab"
    paths = told["paths"]
    for path in ("/api/leak", "/api/leak/script", "/api/account", "/api/trade", "/api/train", "/api/uploads"):
        assert paths[path]["post"]["requestBody"]["required"], path
    text = json.dumps(told)
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in told["components"]["schemas"], name
    defense = told["components"]["schemas"]["TradeRequest"]["properties"]["defense"]
    assert {"fed-cdp", "none"} <= set(defense["properties"]["name"]["enum"])


def test_requests_from_the_schema(lab: Server) -> None:
    told = fuzzed(lab, 60)
    assert sum(told.values()) >= 60 and told.get(200) and told.get(422)


@pytest.mark.slow
def test_many_requests_from_the_schema(lab: Server) -> None:
    told = fuzzed(lab, CALLS)
    print(f"{sum(told.values())} requests from the schema, by status: {told}")
    assert sum(told.values()) >= 1500
    assert lab.ask("/api/account", {"trade": {}})[0] == 200  # it still answers


# --- extreme values


EXTREME = (1e308, 1e-308, -1e308, 1e200, 1e-200, 10**400, 5e-324, 1e15, -1.0, 0.0, 0)


@pytest.mark.parametrize("name", ["fed-cdp", "fed-sdp", "2dp-fl", "dpfl", "lip", "nbafl"])
def test_extreme_values_of_a_defence(lab: Server, name: str) -> None:
    keys = {"lip": ("clip", "epsilon"), "dpfl": ("clip", "epsilon"), "nbafl": ("clip", "epsilon")}
    for key in keys.get(name, ("clip", "noise")):
        for value in EXTREME:
            status, told = lab.ask("/api/account", {"trade": {"defense": {"name": name, key: value}, "rounds": 2}})
            assert status in (200, 422), (name, key, value, told)
            assert status == 422 or (value == 0 and key == "noise"), (name, key, value, told)


# --- run folders


NASTY: dict[str, dict[str, bytes]] = {
    "a list": {"run.json": b"[]"},
    "a number": {"run.json": b"3", "metrics.jsonl": b"3\n[]\n"},
    "result a list": {"run.json": b'{"result": [1]}'},
    "result a text": {"run.json": b'{"result": "good", "status": 3}'},
    "ledger a number": {"run.json": b'{"result": {"ledger": 4, "accuracy": "high"}}'},
    "rows of lists": {"run.json": b'{"result": {"ledger": [[], 1, {"tap": [], "epsilon": "a"}]}}'},
    "deep": {"run.json": b"[" * 200_000, "config.toml": b"a = " + b"[" * 200_000, "metrics.jsonl": b"[" * 200_000},
    "long number": {"run.json": b'{"rounds_done": ' + b"9" * 6000 + b"}"},
    "large number": {"run.json": b'{"rounds_done": ' + b"9" * 400 + b"}"},
    "half characters": {"run.json": b'{"status": "\\ud800", "result": {"split": "\\udfff"}}'},
    "not a number": {"run.json": b'{"result": {"accuracy": NaN, "loss": Infinity}}'},
    "binary": {"run.json": bytes(range(256)), "config.toml": bytes(range(256)), "metrics.jsonl": bytes(range(256))},
    "sections of numbers": {"config.toml": b"data = 3\ntrain = []\nmodel = 'x'\ndefense = 4\n"},
    "defences of numbers": {"config.toml": b"defense = [1, [], 'a']\n"},
    "a date": {"config.toml": b"[data]\nname = 1979-05-27\nclients = 07:32:00\n"},
    "metrics of texts": {"metrics.jsonl": b'{"round": "a", "accuracy": {}}\n{"round": [[]]}\n'},
}


def test_malformed_runs_do_not_hide_the_others(lab: Server) -> None:
    runs = lab.folder / "runs"
    for name, contents in NASTY.items():
        path = write_run(runs / name)
        for file, content in contents.items():
            (path / file).write_bytes(content)
    folder = write_run(runs / "folders")
    for name in ("run.json", "metrics.jsonl"):
        (folder / name).unlink()
        (folder / name).mkdir()
    pipe = write_run(runs / "pipe")
    (pipe / "run.json").unlink()
    os.mkfifo(pipe / "run.json")
    began = time.monotonic()
    status, told = lab.ask("/api/runs")
    assert status == 200 and {run["name"] for run in told["runs"]} == {*NASTY, "sound", "folders", "pipe"}
    for name in (*NASTY, "folders", "pipe"):
        status, told = lab.ask("/api/runs/" + name.replace(" ", "%20"))
        assert status == 200, (name, told)
        status, _, page = lab.raw("/report?run=" + name.replace(" ", "%20")) if name != "pipe" else (200, {}, b"")
        assert status in (200, 422), (name, page[:300])
    assert lab.ask("/api/trade", {"trade": {}})[0] == 200
    assert time.monotonic() - began < 120


def test_links_out_of_the_runs_folder_are_not_followed(lab: Server) -> None:
    runs, secret = lab.folder / "runs", lab.folder / "secret.txt"
    secret.write_text("[data]\nname = 'the secret'\n")
    (runs / "away").symlink_to(write_run(lab.folder / "elsewhere" / "outside"))
    run = write_run(runs / "links")
    for name in ("metrics.jsonl", "run.json"):
        (run / name).unlink()
        (run / name).symlink_to(secret)
    config = write_run(runs / "config")
    (config / "config.toml").unlink()
    (config / "config.toml").symlink_to(secret)
    attacks = write_run(runs / "attacks")
    (attacks / "attacks").symlink_to(lab.folder)
    answers = [lab.raw(path)[2] for path in ("/api/runs", *(f"/api/runs/{n}" for n in ("away", "links", "config")))]
    answers += [lab.raw(f"/report?run={name}")[2] for name in ("away", "links", "config", "attacks")]
    assert not any(b"the secret" in answer for answer in answers)
    names = {run["name"] for run in lab.ask("/api/runs")[1]["runs"]}
    assert "links" in names and not names & {"away", "config"}
    status, told = lab.ask("/report?run=attacks")
    assert status == 422 and "is a link, which the lab does not follow" in told["error"]


# --- half a request


def connected(lab: Server, sent: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", lab.port), timeout=30)
    made.sendall(sent)
    return made


POST = b"POST /api/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: %s\r\n"
HALVES = (
    b"",
    b"GET /api/ru",
    b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    POST % (b"account", b"application/json") + b"Content-Length: 900\r\n\r\n{",
    POST % (b"uploads", b"image/png") + b"Transfer-Encoding: chunked\r\n\r\nff\r\nab",
)


def test_half_requests_do_not_starve_others(lab: Server) -> None:
    """600 connections that never send a whole request: more than the lab serves at a time."""
    open_ones: list[socket.socket] = []
    try:
        for number in range(600):
            open_ones.append(connected(lab, HALVES[number % len(HALVES)]))
            if number % 60 == 59:
                began = time.monotonic()
                assert lab.ask("/api/runs")[0] == 200
                assert time.monotonic() - began < 10
    finally:
        for one in open_ones:
            one.close()
    assert lab.ask("/api/choices")[0] == 200


def test_a_half_request_is_dropped_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol itself, with a short deadline: also a second request on a connection that was used already."""
    pytest.importorskip("uvicorn")
    import uvicorn

    from fedveil.lab import connections

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    monkeypatch.setattr(connections, "SECONDS", 0.5)
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(answer, http=connections.Connection, ws="none", lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[bound]), daemon=True)
    thread.start()
    try:
        whole = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        for sent in (*HALVES, whole + b"GET"):
            made = socket.create_connection(bound.getsockname(), timeout=20)
            made.sendall(sent)
            if sent.startswith(whole):
                assert made.recv(1000).startswith(b"HTTP/1.1 200")
            began = time.monotonic()
            with contextlib.suppress(ConnectionResetError):
                while made.recv(1000):
                    pass
            assert time.monotonic() - began < 7, sent
            made.close()
    finally:
        server.should_exit = True
        thread.join(10)
    assert not connections._half_open


# --- redirects


def test_redirects_stay_on_the_site(lab_server: Callable[..., Any], tmp_path: Path) -> None:
    """With a token, the first visit is redirected to the same path without it."""
    token = "a-token-of-enough-length"
    paths = ["//evil.example/", "/\\evil.example", "/%5Cevil.example", "/%2F/evil.example", "///evil.example", "/leak/"]
    paths += [
        "/%0d%0aset-cookie:%20a=b",
        "/api/runs/",
        "/static//evil.example",
        "/%09/evil.example",
        "/.//evil.example",
    ]
    with lab_server(tmp_path, "--token", token) as served:
        for path in paths:
            for query in (f"?token={token}", f"?token={token}&next=//evil.example"):
                head = head_of(served.port, path + query)
                assert head.startswith("http/1.1 303"), head
                (location,) = re.findall(r"^location: (.*)$", head, re.MULTILINE)
                assert re.match(r"/(?![/\\\t])", location.strip()) and "set-cookie: a=b" not in head, (path, location)
            head = head_of(served.port, path, f"Authorization: Bearer {token}\r\n")
            assert "location:" not in head, (path, head)


def head_of(port: int, path: str, more: str = "") -> str:
    """Status and headers of an answer, in small letters; the path is sent as it is."""
    sent = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{more}Connection: close\r\n\r\n"
    return whole(port, sent.encode()).partition(b"\r\n\r\n")[0].decode("latin-1").lower()


def whole(port: int, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as made:
        made.sendall(sent)
        parts = []
        while part := made.recv(65536):
            parts.append(part)
    return b"".join(parts)


# --- soak


def memory(pid: int) -> float:
    """Resident memory of a process and its children in bytes."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            own = int(path.parent.name)
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if own == pid or parent == pid:
                pages = int((path.parent / "statm").read_text().split()[1])
                total += pages * os.sysconf("SC_PAGE_SIZE")
    return total


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
def test_memory_stays_level(lab_server: Callable[..., Any], tmp_path: Path) -> None:
    """A soak of LAB_SOAK seconds (600): after the first minute, memory stays within 10 %."""
    seconds = float(os.environ.get("LAB_SOAK", "600"))
    first = min(60.0, seconds / 5)
    write_run(tmp_path / "runs" / "sound")
    drawn = random.Random(0)
    with lab_server(tmp_path) as served:
        requests = level = 0
        most = 0.0
        began = time.monotonic()
        while (spent := time.monotonic() - began) < seconds:
            noise = round(drawn.uniform(0.5, 8.0), 3)
            trade = {"defense": {"name": "fed-cdp", "noise": noise}, "rounds": drawn.randint(1, 200)}
            status, _ = served.ask("/api/account", {"trade": trade, "page": "soak"})
            assert status == 200
            first_picture = drawn.randrange(1300)
            for path in ("/api/runs", "/api/choices", "/leak", f"/api/gallery?first={first_picture}", "/api/jobs"):
                assert served.raw(path)[0] == 200
            assert served.raw("/api/account", b"{", {"content-type": "application/json"})[0] == 422
            connected(served, HALVES[requests % len(HALVES)]).close()
            requests += 8
            used = memory(served.process.pid)
            if spent < first:
                level = max(level, used)
            else:
                most = max(most, used)
        told = f"{level / 1e6:.0f} MB in the first {first:.0f} s, {most / 1e6:.0f} MB later"
        print(f"{requests} requests in {spent:.0f} s: {told}")
        assert most <= 1.1 * level
