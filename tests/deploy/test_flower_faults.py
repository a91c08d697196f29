"""Real processes that fail: the run completes or stops with a clear message, in bounded time, and no ledger is too low."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import Loopback, free_port

pytestmark = pytest.mark.slow

CONFIG = """
[data]
name = "digits"
clients = 4
per_client = 60

[model]
name = "mlp"
hidden = [8]

[train]
rounds = 8
per_round = 4
sampling = "fixed"
local_steps = 2
batch = 5
eval_every = 100

[[defense]]
name = "fed-cdp"
clip = 1.0
noise = 4.0
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedveil[flower]'")
    folder = tmp_path_factory.mktemp("faults")
    (folder / "config.toml").write_text(CONFIG)
    with Loopback(folder / "federation", folder / "config.toml", "--epsilon", "100") as made:
        yield made


@pytest.fixture(autouse=True)
def everybody_is_back(request: pytest.FixtureRequest) -> None:
    """Each test starts with four nodes: after SIGKILL a node is refused for a minute."""
    made: Loopback = request.getfixturevalue("federation")
    made.until(lambda: made.online() == made.nodes, 150)


def kill_hard(made: Loopback, number: int) -> None:
    """A machine that fails: kills the supervisor and all processes of a node at once."""
    groups = [made.process(f"node-{number}", part) for part in ("worker", "link")]
    made.processes[f"node-{number}"].kill()
    for group in groups:
        os.killpg(group, signal.SIGKILL)
    made.processes[f"node-{number}"].wait(10)


def counted(made: Loopback, run: str, number: int) -> int:
    return sum(entry["run"] == run for entry in made.entries(number))


def run_name(folder: Path) -> str:
    return str(json.loads((folder / "deploy.json").read_text())["run"])


def answered(folder: Path, number: int) -> int:
    """The number of rounds in which the server accepted a reply of this client."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return sum(str(number) not in row["refused"] for row in rows)


def test_an_undisturbed_run_has_accounts_on_both_sides(federation: Loopback, tmp_path: Path) -> None:
    code, result, said = federation.run("--out", str(tmp_path / "run"))
    assert code == 0, said
    assert result["rounds"] == result["rounds_asked"] == 8 and result["clients_lost"] == 0
    assert any(row["certified"] and row["tap"] == "server" for row in result["ledger"])
    for number in range(4):
        assert counted(federation, run_name(tmp_path / "run"), number) == 8
        told = json.loads(federation.call("deploy", "status", str(federation.home(number)), "--json").stdout)
        assert told["accounts"][0]["epsilon"] > 0


def test_a_node_over_its_budget_is_left_out_and_sends_nothing(federation: Loopback, tmp_path: Path) -> None:
    toml = federation.home(3) / "node.toml"
    before, spent = toml.read_text(), len(federation.entries(3))
    toml.write_text(before.replace("epsilon = 100.0", "epsilon = 0.001"))
    try:
        code, result, said = federation.run("--out", str(tmp_path / "run"), "-s", "train.rounds=2")
    finally:
        toml.write_text(before)
    assert code == 0, said
    assert result["clients_lost"] == 2 and len(federation.entries(3)) == spent
    assert "over budget" in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_node_killed_in_a_round_and_back_again(federation: Loopback, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = federation.begin("--out", str(folder), "--timeout", "45", "-s", "train.rounds=8")
    federation.until(lambda: federation.rounds_done(folder) >= 1, 120)
    kill_hard(federation, 0)
    federation.until(lambda: federation.rounds_done(folder) >= 3, 150)
    federation.start_node(0)
    assert run.wait(400) == 0, (federation.folder / "run.out").read_text()
    info = json.loads((folder / "run.json").read_text())
    assert info["result"]["rounds"] == 8 and info["result"]["clients_lost"] >= 1
    name = run_name(folder)
    assert 1 <= answered(folder, 0) <= counted(federation, name, 0)
    for number in (1, 2, 3):
        assert counted(federation, name, number) >= answered(folder, number) == 8


def test_the_server_killed_in_a_round(federation: Loopback, tmp_path: Path) -> None:
    """Only the SuperLink is killed: it restarts with its state, and the run continues."""
    folder = tmp_path / "run"
    run = federation.begin("--out", str(folder), "--timeout", "60", "-s", "train.rounds=5")
    federation.until(lambda: federation.rounds_done(folder) >= 1, 120)
    os.kill(federation.process("server", "superlink"), signal.SIGKILL)
    code = run.wait(400)
    if code != 0:  # or it stops with a hint how to resume, which works
        assert f"--resume {folder}" in (federation.folder / "run.out").read_text()
        federation.until(lambda: federation.online() == 4, 150)
        code, _, said = federation.run("--resume", str(folder), "--timeout", "60", patience=400)
        assert code == 0, said
    info = json.loads((folder / "run.json").read_text())
    assert info["result"]["rounds"] == 5 and info["result"]["rounds_asked"] >= 5
    for number in range(4):
        assert counted(federation, run_name(folder), number) >= answered(folder, number)


def test_all_of_the_server_killed_and_the_run_resumed(federation: Loopback, tmp_path: Path) -> None:
    """The server's machine fails: after a new start and `--resume` the ledger counts the lost round."""
    folder = tmp_path / "run"
    run = federation.begin("--out", str(folder), "--timeout", "60")
    federation.until(lambda: federation.rounds_done(folder) >= 1, 120)
    server_app = app_processes(federation)
    groups = [federation.process("server", part) for part in ("superlink", "executor", "gate")]
    federation.processes["server"].kill()
    run.kill()
    for group in groups:
        os.killpg(group, signal.SIGKILL)
    for process in server_app:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    done = federation.rounds_done(folder)
    federation.processes["server"].wait(10)
    federation.start("server", "deploy", "server", str(federation.folder))
    federation.until(lambda: federation.online() == 4, 150)
    code, result, said = federation.run("--resume", str(folder), "--timeout", "60", patience=400)
    assert code == 0, said
    assert result["rounds"] == 8 and result["rounds_asked"] >= 8 and done < 8
    for number in range(4):
        assert counted(federation, run_name(folder), number) >= answered(folder, number)


def app_processes(made: Loopback) -> list[int]:
    """Flower's processes that run the server's side of runs."""
    home, found = f"FLWR_HOME={made.folder.resolve()}/server".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                b"fedveil.deploy.serverapp" in (process / "cmdline").read_bytes()
                and home in (process / "environ").read_bytes()
            ):
                found.append(int(process.name))
    return found


def test_a_node_without_a_key_and_one_with_a_strange_key_are_not_let_in(federation: Loopback, tmp_path: Path) -> None:
    from fedveil.deploy.credentials import make_node_key

    make_node_key(tmp_path)
    base = [str(Path(sys.executable).parent / "flower-supernode"), "--superlink", f"127.0.0.1:{federation.port}",
            "--root-certificates", str(federation.home(0) / "ca.crt"), "--max-retries", "1",
            "--node-config", 'home="/nowhere"']  # fmt: skip
    environment = {**federation.environment(), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    before = len(federation.status()["nodes"])
    for extra in ([], ["--auth-supernode-private-key", str(tmp_path / "key")]):
        strange = subprocess.Popen([*base, "--port", str(free_port()), *extra], env=environment, start_new_session=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            strange.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(strange.pid, signal.SIGKILL)
        assert federation.online() == 4 and len(federation.status()["nodes"]) == before


def test_a_plain_text_client_gets_nothing(federation: Loopback) -> None:
    with socket.create_connection(("127.0.0.1", federation.port), 5) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        plain.settimeout(5)
        try:
            got = plain.recv(100)
        except (ConnectionResetError, TimeoutError):
            got = b""
    assert not got.startswith(b"HTTP"), got
    time.sleep(1)
    assert federation.status()["up"]
