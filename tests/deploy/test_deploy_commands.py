"""Flower's commands, the files of a federation, and the command line; no process is started."""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import stat
import threading
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fedveil.cli.main import main
from fedveil.config import from_dict
from fedveil.deploy import commands
from fedveil.deploy.account import ADJACENT, Entry, NodeLedger, Use, total
from fedveil.deploy.bundle import bundle, digest
from fedveil.deploy.files import Federation, Member, Plan, fingerprint, init, read_federation, roster
from fedveil.deploy.limits import Limits, Refused, read_node
from fedveil.deploy.node import smallest_multiplier
from fedveil.deploy.processes import _becomes_free

FEDERATION = Federation(Path("/f"), "server.example", 9092, 3, control=9093)


def value(arguments: list[str], option: str) -> str:
    return arguments[arguments.index(option) + 1]


def test_flower_listens_on_loopback_only_and_security_is_always_on() -> None:
    link = commands.superlink(FEDERATION)
    assert "--enable-supernode-auth" in link and "--insecure" not in link
    assert value(link, "--ssl-keyfile") == "/f/server/server.key"
    assert value(link, "--host") == "127.0.0.1" and value(link, "--port") == "9093"  # not the port of the gate
    assert value(link, "--isolation") == "process" and value(link, "--database") == "/f/server/state.db"
    assert "--disable-runtime-dependency-installation" in link
    assert value(commands.gate(FEDERATION), "-m") == "fedveil.deploy.gate"


def test_neither_nodes_nor_the_server_start_a_process_of_flower_that_executes_bundles(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(f'client = 2\ndata = "d.npz"\nclasses = 10\napp = "{digest()}"\n')
    node = read_node(tmp_path)
    started = [commands.worker(tmp_path), commands.link(node, "h:1"), commands.executor(FEDERATION)]
    assert [value(one, "-m") for one in started] == [f"fedveil.deploy.{n}" for n in ("worker", "link", "executor")]
    assert value(started[1], "--server") == "h:1" and value(started[1], "--app") == digest()
    assert not {"flower-supernode", "flower-superexec", "flwr-clientapp", "flwr-serverapp"} & {
        word for one in started for word in one
    }


def test_nothing_calls_out_and_no_setting_opens_another_port() -> None:
    given = {"PATH": "/bin", "FLWR_TELEMETRY_ENABLED": "1", "FLWR_INTERNAL_GRPC_CONTROL_API": "1"}
    made = commands.environment(Path("/n"), given)
    assert made["FLWR_TELEMETRY_ENABLED"] == "0" and made["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert made["FLWR_HOME"] == "/n/flwr" and made["PATH"].endswith(":/bin")
    assert "FLWR_INTERNAL_GRPC_CONTROL_API" not in made


def test_the_bundle_holds_no_code_and_its_bytes_are_fixed() -> None:
    with zipfile.ZipFile(io.BytesIO(bundle())) as archive:
        assert archive.namelist() == ["pyproject.toml"]
        told = tomllib.loads(archive.read("pyproject.toml").decode())["tool"]["flwr"]["app"]
    assert set(told["config"]) == {"config", "folder", "quorum", "timeout", "wait", "test"}
    # Nodes and servers pin this digest: it changes only together with the version in the bundle.
    assert digest() == "b2aed90d2fa2710b35242a9e08d63ca3864a51940807cd1deae16043a9b86aa6"


def test_a_federation_on_disk(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="comes with Flower: pip install 'fedveil[flower]'")
    made = Federation(tmp_path / "f", "localhost", 9500, 2)
    before = os.umask(0o022)
    try:
        init(made, Plan(limits={"epsilon": 3.0}))
    finally:
        os.umask(before)
    assert read_federation(made.folder) == replace(made, control=9501, app=digest())
    for path in made.folder.rglob("*"):  # nobody else can read or enter anything
        assert path.stat().st_mode & 0o077 == 0, path
    assert stat.S_IMODE((made.server / "server.key").stat().st_mode) == 0o600
    for number in range(2):
        node = read_node(made.node(number))
        assert (node.client, node.test, node.app) == (number, False, digest())
        assert node.limits == Limits(epsilon=3.0, multiplier=1.0, clip=10.0, clip_min=0.001, steps=100, rounds=1000)
        assert node.limits.missing == []
        assert stat.S_IMODE((made.node(number) / "key").stat().st_mode) == 0o600
        assert NodeLedger(made.node(number)).entries() == []
        assert (made.node(number) / "key.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    unit = (made.folder / "fedveil-node@.service").read_text()
    assert f"ExecStart=fedveil deploy node {made.folder}/node-%i" in unit and "Restart=always" in unit
    assert "internal: true" in (made.folder / "compose.yaml").read_text()


def test_without_flower_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["deploy", "init", str(tmp_path / "f")]) == 2
    assert "pip install 'fedveil[flower]'" in capsys.readouterr().err and not (tmp_path / "f").exists()
    assert main(["deploy", "rum"]) == 2
    assert "did you mean 'run'" in capsys.readouterr().err


def test_a_node_shows_its_account_and_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node.toml").write_text(
        'client = 2\ndata = "d.npz"\nclasses = 10\nserver = "h:1"\n[limits]\nepsilon = 4.0\n'
    )
    ledger = NodeLedger(tmp_path)
    ledger.create()
    use = Use(z=4.0, steps=2, rate=0.1, hidden=True)
    uses = {"example": {"zero-out": use, "replace": replace(use, replace=True)}, "client": dict.fromkeys(ADJACENT)}
    ledger.spend(Entry("r", 0, "c", uses), Limits(epsilon=50.0))
    assert main(["deploy", "status", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["client"] == 2 and told["rounds"] == 1 and told["budget"]["epsilon"] == 4.0
    example, replaced, client, _ = told["accounts"]
    assert example["epsilon"] == total(ledger.entries(), "example", 1e-5) and example["tap"] == "server"
    assert (example["adjacency"], replaced["adjacency"]) == ("zero-out", "replace")
    assert replaced["epsilon"] > 1.5 * example["epsilon"] and "floating point" in example["reason"]
    assert client["epsilon"] is None and "without a certificate" in client["reason"]
    assert main(["deploy", "node", str(tmp_path), "--dry-run"]) == 0
    assert "fedveil.deploy.link --server h:1 " in capsys.readouterr().out
    assert told["digest"] == ledger.digests()[-1]
    first = ledger.digests()[0]
    assert main(["deploy", "status", str(tmp_path), "--expect", first]) == 0
    assert main(["deploy", "status", str(tmp_path), "--expect", "0" * 32]) == 1
    assert "does not contain 000" in capsys.readouterr().err
    # It has neither a floor for the clip nor one for the noise.
    assert main(["deploy", "node", str(tmp_path)]) == 1
    assert "no limits for steps, rounds, multiplier, clip, clip_min" in capsys.readouterr().err


@pytest.mark.parametrize(("noise", "arithmetic"), [(3.0, "integer"), (1e-6, "float"), (1e-6, "integer")])
def test_limits_come_from_the_config_that_the_owner_names(tmp_path: Path, noise: float, arithmetic: str) -> None:
    pytest.importorskip("cryptography", reason="comes with Flower: pip install 'fedveil[flower]'")
    config = from_dict(
        {
            "data": {"name": "digits", "clients": 2, "per_client": 60},
            "model": {"name": "logistic"},
            "train": {"rounds": 7, "per_round": 2, "local_steps": 3, "batch": 4},
            "defense": [{"name": "fed-cdp", "clip": 2.0, "clip_end": 0.5, "noise": noise, "arithmetic": arithmetic}],
        }
    )
    made = Federation(tmp_path / "f", "localhost", 9500, 2)
    init(made, Plan(config, shards=True))
    limits = read_node(made.node(1)).limits
    assert (limits.clip, limits.clip_min, limits.steps, limits.rounds) == (2.0, 0.5, 3, 7)
    assert limits.defenses == ["fed-cdp"] and limits.epsilon == 8.0
    z = smallest_multiplier(made.node(1), config)
    if noise < 1 and arithmetic == "integer":  # no integer noise is so small: the cautious limit stays
        assert z is None and limits.multiplier == 1.0
    else:
        assert z is not None and limits.multiplier == pytest.approx(z, rel=1e-3) and limits.multiplier <= z
    assert read_federation(made.folder).records == 60


def test_nodes_for_test_mode_have_no_budget_that_refuses_it(tmp_path: Path) -> None:
    """A round in test mode has no certificate, so every budget would refuse it; other limits stay."""
    without = {unit: dict.fromkeys(ADJACENT) for unit in ("example", "client")}
    for test in (True, False):
        made = Federation(tmp_path / str(test), "server.example", 9092, 1)
        init(made, Plan(test=test))
        node = read_node(made.node(0))
        assert node.test is test and node.limits.unaccounted is test and not node.limits.missing
        assert node.limits.multiplier == 1.0 and (node.limits.epsilon is None) is test
        ledger = NodeLedger(made.node(0))
        if test:
            ledger.spend(Entry("1", 0, "d", without, "now"), node.limits)
        else:
            with pytest.raises(Refused, match="over budget"):
                ledger.spend(Entry("1", 0, "d", without, "now"), node.limits)


def test_certificates_and_keys_are_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = pytest.importorskip(
        "fedveil.deploy.credentials", reason="needs cryptography, which comes with Flower"
    )
    monkeypatch.setenv(credentials.PASSWORD, "correct horse")
    monkeypatch.setattr("fedveil.cli.deploy._need_flower", lambda: None)
    made = Federation(tmp_path / "f", "localhost", 9500, 1)
    init(made, Plan())
    assert b"ENCRYPTED" in (made.authority / "ca.key").read_bytes()
    before = {name: (made.server / name).read_bytes() for name in ("server.crt", "server.key", "ca.crt")}
    assert main(["deploy", "renew", str(made.folder)]) == 0
    after = {name: (made.server / name).read_bytes() for name in before}
    assert after["ca.crt"] == before["ca.crt"]  # nodes need nothing new
    assert after["server.crt"] != before["server.crt"] and after["server.key"] != before["server.key"]
    monkeypatch.setenv(credentials.PASSWORD, "wrong")
    assert main(["deploy", "renew", str(made.folder)]) == 2
    key = (made.node(0) / "key.pub").read_text()
    assert main(["deploy", "renew", str(made.node(0))]) == 0
    assert (made.node(0) / "key.pub").read_text() != key
    assert stat.S_IMODE((made.node(0) / "key").stat().st_mode) == 0o600


def test_the_roster_says_which_client_a_node_is(tmp_path: Path) -> None:
    made = Federation(tmp_path, "localhost", 9500, 2)
    nodes = made.server / "nodes"
    nodes.mkdir(parents=True)
    for number in range(4):
        (nodes / f"{number}.pub").write_text(f"ecdsa-sha2-nistp384 {base64.b64encode(bytes([number]) * 40).decode()}\n")
    key = [fingerprint(nodes / f"{number}.pub") for number in range(4)]
    (nodes / "0.id").write_text(f"700 {key[0]}\n")
    (nodes / "1.id").write_text(f"701 {key[3]}\n")  # registered with another key than the one in the roster
    (nodes / "2.id").write_text(f"702 {key[2]}\n")  # there is no client 2 among two
    (nodes / "3.id").write_text("nonsense\n")
    assert roster(made) == {700: Member(0, key[0])}


def test_a_folder_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "status", str(tmp_path)]) == 2
    assert "holds no federation.toml" in capsys.readouterr().err
    assert main(["deploy", "node", str(tmp_path)]) == 2
    assert "holds no node.toml" in capsys.readouterr().err
    assert main(["deploy", "server", str(tmp_path), "--dry-run"]) == 2


def test_a_port_of_a_server_that_was_just_killed_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        assert not _becomes_free(port, patience=0.2)
        threading.Timer(0.3, held.close).start()
        assert _becomes_free(port, patience=10)
