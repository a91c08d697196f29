"""Attacks over real processes on loopback: an outsider at the port, a foreign app bundle, replayed messages."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import signal
import socket
import ssl
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attacks import tally
from loopback import Loopback

pytestmark = pytest.mark.slow

CONFIG = """
[data]
name = "digits"
clients = 2
per_client = 60

[model]
name = "logistic"

[train]
rounds = 2
per_round = 2
sampling = "fixed"
local_steps = 1
batch = 5
eval_every = 100

[[defense]]
name = "fed-cdp"
clip = 1.0
noise = 4.0
"""

# What a foreign bundle does when it is executed, on a node or on the server: it writes a file and takes the data along.
STEAL = """
from pathlib import Path
Path({mark!r}).write_text("executed")
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedveil[flower]'")
    folder = tmp_path_factory.mktemp("attacks")
    (folder / "config.toml").write_text(CONFIG)
    with Loopback(folder / "federation", folder / "config.toml", nodes=2) as made:
        yield made


def refused(folder: Path) -> dict[str, Any]:
    from fedveil.deploy import refusals

    return refusals.read(folder)


def ledgers(made: Loopback) -> list[int]:
    return [len(made.entries(number)) for number in range(made.nodes)]


# --- an outsider at the port, with the public certificate and a key of its own


class Outsider:
    """Whoever reaches the port: sends requests by TLS and sees the answers."""

    def __init__(self, made: Loopback, key: Path) -> None:
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key

        self.made, self.key = made, load_ssh_private_key((key / "key").read_bytes(), None)
        self.trusted = ssl.create_default_context(cafile=made.folder / "server" / "ca.crt")

    def connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.made.port), 10)
        return self.trusted.wrap_socket(plain, server_hostname="127.0.0.1")

    def raw(self, data: bytes) -> bytes:
        with self.connect() as connection:
            connection.settimeout(20)
            got = b""
            with suppress(TimeoutError, OSError):
                connection.sendall(data)
                while more := connection.recv(65536):
                    got += more
            return got

    def post(self, path: str, body: bytes = b"", **headers: str) -> int:
        """The status of the answer; 0 for none."""
        lines = {"Host": "localhost", "Content-Type": "application/x-protobuf", "Content-Length": str(len(body)),
                 "Connection": "close", **{name.replace("_", "-"): value for name, value in headers.items()}}  # fmt: skip
        head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        answer = self.raw(head.encode() + b"\r\n" + body)
        return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0

    def signed(self, timestamp: str | None = None, public: bytes | None = None) -> dict[str, str]:
        """The headers of a node, signed with the outsider's key."""
        from flwr.supercore.date import now
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

        at = timestamp or now().isoformat()
        key: Any = self.key
        own = public_key_to_bytes(key.public_key()) if public is None else public
        signature = base64.b64encode(sign_message(key, at.encode())).decode()
        return {"flwr_public_key": base64.b64encode(own).decode(), "flwr_timestamp": at, "flwr_signature": signature}


def outside(made: Loopback, outsider: Outsider) -> dict[str, Callable[[], bool]]:
    """What an outsider tries; each returns whether the server withstood."""
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest, UnregisterNodeRequest
    from flwr.proto.fab_pb2 import GetFabRequest
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    from fedveil.deploy.credentials import public_bytes

    post, denied = outsider.post, (0, 400, 401, 404, 405, 408, 413)
    any_key: Any = outsider.key
    own = public_key_to_bytes(any_key.public_key())
    honest = public_bytes(made.folder / "server" / "nodes" / "0.pub")
    node = int((made.folder / "server" / "nodes" / "0.id").read_text().split()[0])
    control, fleet = "/v1/control", "/v1/fleet"

    def message(kind: Any, **values: Any) -> bytes:
        return bytes(kind(**values).SerializeToString())

    def tricks() -> bool:
        paths = ("//v1/control/list-nodes", f"{fleet}/../control/list-nodes", f"{fleet}/%2e%2e/control/list-nodes",
                 f"{fleet}/activate-node/../../control/list-nodes", f"{control}/list-nodes?/v1/fleet/get-run",
                 "/V1/CONTROL/list-nodes", f"{fleet}/activate-node%00", "https://x/v1/control/list-nodes")  # fmt: skip
        return all(post(path, **outsider.signed()) in denied for path in paths)

    def smuggle() -> bool:
        inner = b"POST /v1/control/list-nodes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        head = (
            f"POST {fleet}/get-run HTTP/1.1\r\nHost: l\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        ).encode()
        return b"200" not in outsider.raw(head + b"0\r\n\r\n" + inner)[:4096]

    def flood() -> bool:
        """Two hundred connections that say nothing: an honest node's request is still answered, and they are closed."""
        idle = [outsider.connect() for _ in range(200)]
        try:
            started = time.monotonic()
            served = post(f"{fleet}/get-run") == 401 and time.monotonic() - started < 10
            time.sleep(17)
            with suppress(OSError):
                return served and idle[0].recv(1) == b""
            return served
        finally:
            for one in idle:
                one.close()

    return {
        "list the nodes": lambda: post(f"{control}/list-nodes", message(ListNodesRequest)) in denied,
        "start a run": lambda: post(f"{control}/start-run", message(StartRunRequest)) in denied,
        "register a key": lambda: post(f"{control}/register-node", message(RegisterNodeRequest, public_key=own)) in denied,
        "remove an honest node": lambda: (
            post(f"{control}/unregister-node", message(UnregisterNodeRequest, node_id=node)) in denied
        ),
        "register through the nodes' API": lambda: (
            post(f"{fleet}/register-node", message(RegisterNodeFleetRequest, public_key=own), **outsider.signed()) in denied
        ),
        "come online with an own key": lambda: (
            post(f"{fleet}/activate-node",
                 message(ActivateNodeRequest, public_key=own, heartbeat_interval=30), **outsider.signed()) == 401
        ),
        "come online as an honest node": lambda: (
            post(f"{fleet}/activate-node", message(ActivateNodeRequest, public_key=honest, heartbeat_interval=30),
                 **outsider.signed(public=honest)) == 401
        ),
        "an old signature": lambda: (
            post(f"{fleet}/get-run", **outsider.signed("2020-01-01T00:00:00+00:00", honest)) == 401
        ),
        "fetch a bundle": lambda: post(f"{fleet}/get-fab", message(GetFabRequest), **outsider.signed()) in denied,
        "take a task of the server": lambda: post("/v1/runtime/acquire-task") in denied,
        "documentation, health and schema": lambda: all(
            post(path) in denied for path in ("/docs", "/openapi.json", "/health", "/", "/v1/health/live")
        ),
        "tricks with paths": tricks,
        "a body of 10 GB": lambda: post(f"{fleet}/push-object", Content_Length=str(10**10), **outsider.signed()) in denied,
        "headers of 1 MB": lambda: post(f"{fleet}/get-run", flwr_x="x" * 10**6) in denied,
        "two requests in one": smuggle,
        "plain text instead of TLS": lambda: not _plain(made),
        "two hundred idle connections": flood,
    }  # fmt: skip


def _plain(made: Loopback) -> bool:
    with socket.create_connection(("127.0.0.1", made.port), 5) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        plain.settimeout(5)
        try:
            return plain.recv(100).startswith(b"HTTP")
        except OSError:
            return False


def test_an_outsider_at_the_port_gets_nothing(federation: Loopback, tmp_path: Path) -> None:
    from fedveil.deploy.credentials import make_node_key

    make_node_key(tmp_path)
    before, counted = ledgers(federation), refused(federation.folder / "server")["count"]
    found = {name: attempt() for name, attempt in outside(federation, Outsider(federation, tmp_path)).items()}
    assert all(found.values()), [name for name, held in found.items() if not held]
    assert ledgers(federation) == before and federation.online() == 2
    time.sleep(2)
    noted = refused(federation.folder / "server")
    assert noted["count"] > counted and all(one["reason"].isprintable() for one in noted["last"])
    # Flower itself listens on loopback only, on another port than the one that others reach.
    assert federation.control != federation.port
    tally("an outsider at the port", len(found), sum(found.values()))


# --- a foreign bundle, started on the server's own machine


def foreign(mark: Path) -> bytes:
    """A bundle as an attacker makes it: both apps write a file when they are imported."""
    from fedveil.deploy.bundle import PYPROJECT

    told = PYPROJECT.replace("fedveil.deploy:none", "stolen.app:app")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("pyproject.toml", told)
        archive.writestr("stolen/__init__.py", "")
        archive.writestr("stolen/app.py", STEAL.format(mark=str(mark)))
        archive.writestr(".info/CONTENT", "")
    return file.getvalue()


def start_foreign(made: Loopback, bundle: bytes, values: dict[str, Any]) -> int:
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    from fedveil.deploy.control import Control

    with Control(made.control, made.folder / "server" / "ca.crt") as control:
        fab = fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}))
        request = StartRunRequest(fab=fab, override_config=user_config_to_proto(values))
        return int(control.client.StartRun(request).run_id)


def state_of(made: Loopback, run: int) -> str:
    return next((row["status"] for row in made.status()["runs"] if row["run"] == str(run)), "unknown")


def test_a_foreign_bundle_is_executed_neither_on_the_server_nor_on_a_node(federation: Loopback, tmp_path: Path) -> None:
    mark, server = tmp_path / "executed", federation.folder / "server"
    before = ledgers(federation)
    counted = refused(server)["count"]
    run = start_foreign(federation, foreign(mark), {"folder": str(tmp_path / "run")})
    federation.until(lambda: state_of(federation, run).startswith("finished"), 90)
    assert state_of(federation, run) == "finished:failed"
    assert not mark.exists() and ledgers(federation) == before
    noted = refused(server)
    assert noted["count"] == counted + 1 and "runs only the app with digest" in noted["last"][-1]["reason"]
    tally("a foreign bundle at the server", 1, 1)


def test_nodes_refuse_every_message_of_a_run_of_a_foreign_bundle(federation: Loopback, tmp_path: Path) -> None:
    """A hostile server accepts the foreign bundle, and asks the nodes on its behalf."""
    mark, toml = tmp_path / "executed", federation.folder / "federation.toml"
    bundle, honest = foreign(mark), toml.read_text()
    from fedveil.deploy.bundle import digest
    from fedveil.runs import RunFolder

    before = ledgers(federation)
    counted = [refused(federation.home(number))["count"] for number in range(2)]
    toml.write_text(honest.replace(digest(), hashlib.sha256(bundle).hexdigest()))
    try:
        RunFolder.create(tmp_path / "run")
        terms = {"quorum": 0.5, "timeout": 20.0, "wait": 20.0, "test": False}
        values = {"config": CONFIG, "folder": str(tmp_path / "run"), **terms}
        run = start_foreign(federation, bundle, values)
        federation.until(lambda: state_of(federation, run).startswith("finished"), 120)
    finally:
        toml.write_text(honest)
    assert not mark.exists() and ledgers(federation) == before
    for number in range(2):
        noted = refused(federation.home(number))
        assert noted["count"] > counted[number] and "runs only the app with digest" in noted["last"][-1]["reason"]
    tally("a foreign bundle at the nodes", 2, 2)


# --- a server that replays messages


def test_replayed_messages_cost_again_and_bring_fresh_noise(federation: Loopback, tmp_path: Path) -> None:
    """A hostile server's app: it takes the task itself and sends one request three times to one node."""
    from fedveil.config import from_dict, resolve, to_toml
    from fedveil.deploy.bundle import bundle
    from fedveil.deploy.files import read_federation, roster

    executor = federation.process("server", "executor")
    os.kill(executor, signal.SIGSTOP)
    try:
        run = start_foreign(federation, bundle(), {"folder": str(tmp_path / "run")})
        grid = hostile_grid(federation)
        config = resolve(from_dict(tomllib.loads(CONFIG)))
        members = roster(read_federation(federation.folder))
        node, member = next((n, m) for n, m in members.items() if m.client == 0)
        before = ledgers(federation)
        sent = [replay(grid, node, member.key, to_toml(config)) for _ in range(3)]
        assert all(reply["refused"] == "" for reply, _ in sent), [reply for reply, _ in sent]
        assert len({tuple(parts.values()) for _, parts in sent}) == 3
        assert ledgers(federation) == [before[0] + 3, before[1]]
        reply, parts = replay(grid, node, member.key, to_toml(config), client=1)  # for another client's data
        assert "this node is client 0, not 1" in reply["refused"] and not parts
        reply, parts = replay(grid, node, "0" * 32, to_toml(config))
        assert "by another key" in reply["refused"] and not parts
        assert ledgers(federation) == [before[0] + 3, before[1]]
    finally:
        os.kill(executor, signal.SIGCONT)
    from fedveil.deploy.control import Control

    with Control(federation.control, federation.folder / "server" / "ca.crt") as control:
        control.stop(run)
    tally("replayed and misdirected messages over the wire", 5, 5)


def hostile_grid(made: Loopback) -> Any:
    """The grid of a run whose task is taken with the server's own secret."""
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    from fedveil.deploy.executor import ACQUIRE

    server = made.folder / "server"
    authority, address = (server / "ca.crt").read_bytes(), f"127.0.0.1:{made.control}"
    secret = SuperExecAuthHttpInterceptor(
        master_secret=(server / "superexec.secret").read_bytes(), protected_methods={ACQUIRE}
    )
    client = RuntimeHttpClient.from_server_address(
        address, False, authority, [RuntimeVersionHttpInterceptor("SuperExec"), secret]
    )
    token, until = "", time.monotonic() + 30
    while not token and time.monotonic() < until:
        token = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])).token
        time.sleep(0.5)
    grid = HttpGrid(address, root_certificates=authority, token=token)
    given = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
    TaskIdentity.node_id = given.context.node_id
    grid.set_run(run_from_proto(given.run))
    return grid


def replay(grid: Any, node: int, key: str, config: str, client: int = 0) -> tuple[dict[str, Any], dict[str, bytes]]:
    """One and the same request, and the node's reply to it."""
    import jax
    from flwr.app import Message

    from fedveil.config import from_dict
    from fedveil.deploy.messages import Request, pack
    from fedveil.deploy.node import build_model
    from fedveil.deploy.records import content, fields_of, payload_of

    model = build_model(from_dict(tomllib.loads(config)), (8, 8, 1), 10).init(jax.random.key(0))
    request = Request("replayed", 0, client, key, config, 60, 1.0, 1.0, -1)
    record = content("request", request.as_dict(), pack(jax.device_get(model)))
    (number,) = grid.push_messages([Message(record, dst_node_id=node, message_type="train", ttl=120)])
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for reply in grid.pull_messages([number]):
            assert not reply.has_error(), reply.error.reason
            return fields_of(reply.content, "reply"), payload_of(reply.content)
        time.sleep(0.5)
    raise AssertionError("no reply")


# --- a hostile server's answers to the link


def test_answers_that_are_too_large_packed_or_elsewhere_are_not_read(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedveil[flower]'")
    import gzip

    import httpx

    from fedveil.deploy.credentials import make_authority, make_node_key
    from fedveil.deploy.link import OVERHEAD, Fleet

    make_node_key(tmp_path)
    make_authority(tmp_path / "authority")
    (tmp_path / "ca.crt").write_bytes((tmp_path / "authority" / "ca.crt").read_bytes())
    fleet = Fleet("127.0.0.1:1", tmp_path, largest=1000)
    asked = list[str]()
    bomb = gzip.compress(bytes(10**8))

    def chunks() -> Iterator[bytes]:
        yield from (bytes(1 << 20) for _ in range(10**6))

    answers: dict[str, Callable[[httpx.Request], httpx.Response]] = {
        "without a size": lambda request: httpx.Response(200, content=chunks()),
        "too large": lambda request: httpx.Response(
            200, headers={"content-length": str(OVERHEAD + 1001)}, content=chunks()
        ),
        "a size of 100 digits": lambda request: httpx.Response(
            200, headers={"content-length": "9" * 100}, content=chunks()
        ),
        "packed": lambda request: httpx.Response(
            200, headers={"content-encoding": "gzip", "content-length": str(len(bomb))}, content=iter([bomb])
        ),
        "elsewhere": lambda request: httpx.Response(
            307, headers={"location": "http://192.0.2.1/", "content-length": "0"}
        ),
        "not protobuf": lambda request: httpx.Response(200, content=b"\xff" * 100),
        "an error page": lambda request: httpx.Response(500, content=b"<html>" * 10),
    }
    for name, answer in answers.items():

        def handle(request: httpx.Request, answer: Any = answer) -> httpx.Response:
            asked.append(request.url.host)
            return answer(request)

        fleet.client._client._transport = httpx.MockTransport(handle)
        with pytest.raises((httpx.HTTPError, ValueError)):
            fleet.receive()
            pytest.fail(name)
    assert set(asked) == {"127.0.0.1"}  # no redirect is followed
    tally("answers of a hostile server to the link", len(answers), len(answers))


class Faked:
    """A grid whose nodes 1 to 4 reply with nonsense, with gigabytes, with the name of another node, and honestly."""

    def __init__(self) -> None:
        from types import SimpleNamespace

        class Client:
            def PullObject(self, request: Any) -> Any:
                return SimpleNamespace(object_content=bytes(1 << 19))

        self._runtime_client, self.sent = Client(), dict[str, Any]()

    def push_messages(self, messages: list[Any]) -> list[str]:
        self.sent |= {str(one.metadata.dst_node_id): one for one in messages}
        return [str(one.metadata.dst_node_id) for one in messages]

    def pull_messages(self, numbers: list[str]) -> list[Any]:
        from types import SimpleNamespace

        from flwr.app import Message

        from fedveil.deploy.records import content

        (number,) = numbers
        if number == "1":
            raise KeyError("no such type of object")
        if number == "2":
            for _ in range(10**6):
                self._runtime_client.PullObject(SimpleNamespace(object_id="x"))
        told = {"client": int(number), "size": 60, "shape": "8,8,1", "classes": 10, "dtype": "float32"}
        reply = Message(content("introduction", told), reply_to=self.sent[number])
        if number == "3":
            reply.metadata.__dict__["_src_node_id"] = 4
        return [reply]


def test_replies_that_cannot_be_read_do_not_keep_others_from_being_read(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedveil[flower]'")
    from flwr.supercore.task_identity import TaskIdentity

    from fedveil.deploy.files import Federation
    from fedveil.deploy.flower import FlowerTransport

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    grid: Any = Faked()
    found = FlowerTransport(grid, Federation(tmp_path, "h", 1, 4)).introduce([1, 2, 3, 4], timeout=30)
    assert {node: told.client for node, told in found.items()} == {3: 3, 4: 4}
    tally("replies of hostile nodes over the wire", 3, 3)


# --- the roster


def test_a_node_that_was_dropped_registers_again_and_a_stranger_is_removed(
    federation: Loopback, tmp_path: Path
) -> None:
    from fedveil.deploy.control import Control
    from fedveil.deploy.credentials import make_node_key, public_bytes

    make_node_key(tmp_path)
    known = federation.folder / "server" / "nodes" / "0.id"
    before = known.read_text()
    with Control(federation.control, federation.folder / "server" / "ca.crt") as control:
        control.register(tmp_path / "key.pub")  # somebody on the server's own machine
        control.unregister(int(before.split()[0]))
    federation.until(lambda: known.read_text() not in ("", before), 60)
    federation.until(lambda: federation.online() == 2, 120)
    with Control(federation.control, federation.folder / "server" / "ca.crt") as control:
        assert public_bytes(tmp_path / "key.pub") not in {key for _, key in control.nodes().values()}
    code, result, said = federation.run("--out", str(tmp_path / "run"))
    assert code == 0 and result["clients_lost"] == 0, said


def test_nothing_in_a_federation_can_be_read_by_others(federation: Loopback) -> None:
    open_to_others = [
        str(path.relative_to(federation.folder))
        for part in ("server", "node-0", "authority")
        for path in [federation.folder / part, *(federation.folder / part).rglob("*")]
        if path.lstat().st_mode & 0o077
    ]
    assert not open_to_others
    assert (federation.folder / "server" / "state.db").exists()
    told = json.loads(federation.call("deploy", "status", str(federation.home(0)), "--json").stdout)
    assert told["digest"] and told["refused"]["count"] >= 0
