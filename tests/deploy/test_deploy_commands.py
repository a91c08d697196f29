"""Flower's commands, the files of a federation, and the command line; no process is started."""

from __future__ import annotations

import json
import stat
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fedveil.cli.main import main
from fedveil.deploy import commands
from fedveil.deploy.account import ADJACENT, Entry, NodeLedger, Use, total
from fedveil.deploy.coordinator import Terms
from fedveil.deploy.files import Federation, init, read_federation
from fedveil.deploy.limits import Limits, read_node

FEDERATION = Federation(Path("/f"), "server.example", 9092, 3)


def value(arguments: list[str], option: str) -> str:
    return arguments[arguments.index(option) + 1]


def test_security_is_always_on() -> None:
    link = commands.superlink(FEDERATION)
    assert "--enable-supernode-auth" in link and "--insecure" not in link
    assert value(link, "--ssl-keyfile") == "/f/server/server.key" and value(link, "--host") == "127.0.0.1"
    assert value(link, "--isolation") == "process" and value(link, "--database") == "/f/server/state.db"
    assert "--disable-runtime-dependency-installation" in link
    node = commands.supernode(Path("/n"), FEDERATION.address, 9301)
    assert value(node, "--superlink") == "server.example:9092" and "--insecure" not in node
    assert value(node, "--auth-supernode-private-key") == "/n/key" and value(node, "--node-config") == 'home="/n"'
    assert "--allow-runtime-dependency-installation" not in node


def test_nothing_calls_out() -> None:
    made = commands.environment(Path("/n"), {"PATH": "/bin", "FLWR_TELEMETRY_ENABLED": "1"})
    assert made["FLWR_TELEMETRY_ENABLED"] == "0" and made["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert made["FLWR_HOME"] == "/n/flwr" and made["PATH"].endswith(":/bin")


def test_the_app_is_a_shell_with_the_config_in_it(tmp_path: Path) -> None:
    text = '[data]\nname = "digits"\n# "quotes" and ε\n'
    commands.write_app(tmp_path, text, Path("/runs/a"), Terms(quorum=0.75, test=True))
    told = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert told["config"] == {
        "config": text, "folder": "/runs/a", "quorum": 0.75, "timeout": 300.0, "wait": 120.0, "test": True,
    }  # fmt: skip
    assert told["components"] == {"serverapp": "fedveil_app.server:app", "clientapp": "fedveil_app.client:app"}
    assert "app = flower.client_app" in (tmp_path / "fedveil_app" / "client.py").read_text()


def test_a_federation_on_disk(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="comes with Flower: pip install 'fedveil[flower]'")
    made = Federation(tmp_path / "f", "localhost", 9500, 2)
    init(made, None, test=False, limits={"epsilon": 3.0})
    assert read_federation(made.folder) == made
    assert stat.S_IMODE((made.server / "server.key").stat().st_mode) == 0o600
    for number in range(2):
        node = read_node(made.node(number))
        assert (node.client, node.test, node.limits) == (number, False, Limits(epsilon=3.0))
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
    assert capsys.readouterr().out.startswith("flower-supernode --superlink h:1 ")


def test_a_folder_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "status", str(tmp_path)]) == 2
    assert "holds no federation.toml" in capsys.readouterr().err
    assert main(["deploy", "node", str(tmp_path)]) == 2
    assert "holds no node.toml" in capsys.readouterr().err
    assert main(["deploy", "server", str(tmp_path), "--dry-run"]) == 2
