"""The folder of a federation. `fedveil deploy init` writes it; every file in it can be read and edited by hand.

| file | what | who needs it |
|---|---|---|
| `federation.toml` | address of the server, number of nodes | server |
| `server/` | `ca.crt`, `server.crt`, `server.key`, a secret shared by the server's processes, Flower's state | server |
| `server/nodes/N.pub` | public keys of the nodes that may connect | server |
| `node-N/` | `node.toml`, `key`, `key.pub`, `ca.crt`, `ledger.jsonl`, optionally `data.npz` | that node only |
| `fedveil-server.service`, `fedveil-node@.service`, `compose.yaml` | start scripts for systemd or Docker | optional |
"""

from __future__ import annotations

import secrets
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedveil.config import Config, resolve
from fedveil.core.errors import ConfigError
from fedveil.data.dataset import Part
from fedveil.deploy.account import NodeLedger

FILE = "federation.toml"
FIRST_NODE_PORT = 9300


@dataclass(frozen=True)
class Federation:
    """`federation.toml` and its folder."""

    folder: Path
    host: str  # name or address by which nodes reach the server
    port: int
    nodes: int
    bind: str = "127.0.0.1"  # the address that the server listens on

    @property
    def server(self) -> Path:
        return self.folder / "server"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def node(self, number: int) -> Path:
        return self.folder / f"node-{number}"


def read_federation(folder: Path) -> Federation:
    """Reads the federation in a folder."""
    try:
        found = tomllib.loads((folder / FILE).read_text(encoding="utf-8"))
        bind = str(found.get("bind", "127.0.0.1"))
        return Federation(folder.resolve(), str(found["host"]), int(found["port"]), int(found["nodes"]), bind)
    except FileNotFoundError:
        raise ConfigError("FOLDER", str(folder), f"holds no {FILE}: create it with 'fedveil deploy init'") from None
    except (KeyError, ValueError, OSError) as error:
        raise ConfigError(
            "FOLDER", str(folder / FILE), f"cannot be read ({error}): takes host, port, nodes, bind"
        ) from None


def init(made: Federation, shards: Config | None, test: bool, limits: dict[str, float]) -> None:
    """Writes all files; an existing federation is never overwritten."""
    from fedveil.deploy.credentials import make_certificates, make_node_key, write_private

    folder, nodes = made.folder, made.nodes
    if (folder / FILE).exists():
        raise ConfigError("FOLDER", str(folder), "already holds a federation: choose another folder")
    config = resolve(shards) if shards is not None else None
    if config is not None and config.data.clients != nodes:
        raise ConfigError("--nodes", nodes, f"must equal data.clients of the config, which is {config.data.clients}")
    # Usage errors are raised here, before anything is written.
    classes, parts = _shards(config) if config is not None else (10, [])
    (made.server / "nodes").mkdir(parents=True)
    make_certificates(made.server, list(dict.fromkeys([made.host, "localhost", "127.0.0.1"])))
    write_private(made.server / "superexec.secret", secrets.token_hex(32).encode())
    for number in range(nodes):
        home = made.node(number)
        home.mkdir()
        make_node_key(home)
        shutil.copy(home / "key.pub", made.server / "nodes" / f"{number}.pub")
        shutil.copy(made.server / "ca.crt", home / "ca.crt")
        (home / "node.toml").write_text(_node_toml(number, made, classes, test, limits), encoding="utf-8")
        NodeLedger(home).create()
        if parts:
            np.savez(home / "data.npz", x=parts[number].x, y=parts[number].y)
    for name, text in {**_units(made), "compose.yaml": _compose(made)}.items():
        (folder / name).write_text(text, encoding="utf-8")
    text = f'host = "{made.host}"\nport = {made.port}\nnodes = {nodes}\nbind = "{made.bind}"\n'
    (folder / FILE).write_text(text, encoding="utf-8")


def _node_toml(number: int, made: Federation, classes: int, test: bool, limits: dict[str, float]) -> str:
    given = "".join(f"{key} = {value!r}\n" for key, value in limits.items())
    return (
        f"client = {number}\n"
        f'data = "data.npz"      # arrays x and y; relative to this folder, or an absolute path\n'
        f"classes = {classes}           # in the whole federation\n"
        f'server = "{made.address}"\n'
        f"port = {FIRST_NODE_PORT + number}            # used by the node's own processes, on loopback only\n"
        f"test = {str(test).lower()}           # true: accept runs whose noise the server knows; never for private data\n\n"
        f"# No server can relax these limits; see docs/deployment.md.\n[limits]\n{given}"
        "# defenses = ['fed-cdp']\n# clip = 4.0         # at most\n# noise = 6.0        # at least\n"
        "# epsilon = 8.0      # budget for all rounds of all runs\n# delta = 1e-5\n# unit = 'example'\n"
    )


def _shards(config: Config) -> tuple[int, list[Part]]:
    """The number of classes, and a public dataset partitioned as in simulation: for trials on one machine."""
    from fedveil.federation import prepare

    federation = prepare(config)
    owned = [federation.partition.client(number) for number in range(federation.partition.clients)]
    return federation.dataset.classes, [federation.dataset.train.take(rows) for rows in owned]


def _units(made: Federation) -> dict[str, str]:
    """systemd units. They restart: after a crash a node is refused for about a minute."""

    def unit(what: str, command: str) -> str:
        return (
            f"[Unit]\nDescription=Fedveil {what}\nAfter=network-online.target\nWants=network-online.target\n\n"
            f"[Service]\nExecStart=fedveil deploy {command}\nRestart=always\nRestartSec=10\n"
            "Environment=FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1\n"
            "NoNewPrivileges=true\nProtectSystem=strict\nPrivateTmp=true\n"
            f"ReadWritePaths={made.folder}\n\n[Install]\nWantedBy=multi-user.target\n"
        )

    return {
        "fedveil-server.service": unit("server", f"server {made.folder}"),
        "fedveil-node@.service": unit("node %i", f"node {made.folder}/node-%i"),
    }


def _compose(made: Federation) -> str:
    """A compose file for an image with `fedveil[flower]`, on a network without internet access."""
    quiet = "      FLWR_TELEMETRY_ENABLED: '0'\n      FLWR_DISABLE_UPDATE_CHECK: '1'\n"

    def service(name: str, command: str, mount: str) -> str:
        return (
            f"  {name}:\n    image: fedveil\n    command: fedveil deploy {command}\n    restart: always\n"
            f"    networks: [federation]\n    environment:\n{quiet}    volumes: ['{mount}']\n"
        )

    text = "# Image 'fedveil': Python with pip install 'fedveil[flower]'.\n"
    text += "# The server is called 'server' here: fedveil deploy init --host server --bind 0.0.0.0\nservices:\n"
    mounts = "./server:/federation/server', './federation.toml:/federation/federation.toml:ro"
    text += service("server", "server /federation", mounts)
    for number in range(made.nodes):
        text += service(f"node-{number}", "node /node", f"./node-{number}:/node")
    return text + "networks:\n  federation:\n    internal: true\n"
