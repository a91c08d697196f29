"""The folder of a federation: `fedveil deploy init` writes it, every file of it can be read and changed by hand.

| file | what | who needs it |
|---|---|---|
| `federation.toml` | address of the server, number of nodes | server |
| `server/` | `ca.crt`, `server.crt`, `server.key`, a secret for the server's own parts, Flower's state | server |
| `server/nodes/N.pub` | public keys of the nodes that are let in | server |
| `node-N/` | `node.toml`, `key`, `key.pub`, `ca.crt`, `ledger.jsonl`, perhaps `data.npz` | that node alone |
| `fedveil-server.service`, `fedveil-node@.service`, `compose.yaml` | to start them with systemd or Docker | as you like |
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
    """`federation.toml` and where it lies."""

    folder: Path
    host: str  # as nodes reach the server
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
    """The federation in a folder."""
    try:
        found = tomllib.loads((folder / FILE).read_text(encoding="utf-8"))
        bind = str(found.get("bind", "127.0.0.1"))
        return Federation(folder.resolve(), str(found["host"]), int(found["port"]), int(found["nodes"]), bind)
    except FileNotFoundError:
        raise ConfigError("FOLDER", str(folder), f"holds no {FILE}: make it with 'fedveil deploy init'") from None
    except (KeyError, ValueError, OSError) as error:
        raise ConfigError(
            "FOLDER", str(folder / FILE), f"cannot be read ({error}): takes host, port, nodes, bind"
        ) from None


def init(made: Federation, shards: Config | None, test: bool, limits: dict[str, float]) -> None:
    """Writes everything; an existing federation is never overwritten."""
    from fedveil.deploy.credentials import make_certificates, make_node_key, write_private

    folder, nodes = made.folder, made.nodes
    if (folder / FILE).exists():
        raise ConfigError("FOLDER", str(folder), "holds a federation already: give another folder")
    config = resolve(shards) if shards is not None else None
    if config is not None and config.data.clients != nodes:
        raise ConfigError("--nodes", nodes, f"data.clients of the config is {config.data.clients}: make them equal")
    # Errors of usage come from here, before anything is written.
    classes, shares = _shards(config) if config is not None else (10, [])
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
        if shares:
            np.savez(home / "data.npz", x=shares[number].x, y=shares[number].y)
    for name, text in {**_units(made), "compose.yaml": _compose(made)}.items():
        (folder / name).write_text(text, encoding="utf-8")
    text = f'host = "{made.host}"\nport = {made.port}\nnodes = {nodes}\nbind = "{made.bind}"\n'
    (folder / FILE).write_text(text, encoding="utf-8")


def _node_toml(number: int, made: Federation, classes: int, test: bool, limits: dict[str, float]) -> str:
    asked = "".join(f"{key} = {value!r}\n" for key, value in limits.items())
    return (
        f"client = {number}\n"
        f'data = "data.npz"      # arrays x and y; from this folder, or an absolute path\n'
        f"classes = {classes}           # of the whole federation\n"
        f'server = "{made.address}"\n'
        f"port = {FIRST_NODE_PORT + number}            # of the node's own parts, on loopback alone\n"
        f"test = {str(test).lower()}           # true: takes runs whose noise the server knows; never for private data\n\n"
        f"# What no server can lower; see docs/deployment.md.\n[limits]\n{asked}"
        "# defenses = ['fed-cdp']\n# clip = 4.0         # at most\n# noise = 6.0        # at least\n"
        "# epsilon = 8.0      # over all rounds of all runs\n# delta = 1e-5\n# unit = 'example'\n"
    )


def _shards(config: Config) -> tuple[int, list[Part]]:
    """The number of classes, and a public dataset handed out as the simulator does: for trials on one machine."""
    from fedveil.federation import prepare

    federation = prepare(config)
    owned = [federation.partition.client(number) for number in range(federation.partition.clients)]
    return federation.dataset.classes, [federation.dataset.train.take(rows) for rows in owned]


def _units(made: Federation) -> dict[str, str]:
    """systemd units; a node that is refused for a minute after a crash tries again."""

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
    """A compose file: an image with `fedveil[flower]` installed, a network without a way out."""
    quiet = "      FLWR_TELEMETRY_ENABLED: '0'\n      FLWR_DISABLE_UPDATE_CHECK: '1'\n"

    def service(name: str, command: str, mount: str) -> str:
        return (
            f"  {name}:\n    image: fedveil\n    command: fedveil deploy {command}\n    restart: always\n"
            f"    networks: [federation]\n    environment:\n{quiet}    volumes: ['{mount}']\n"
        )

    text = "# Image 'fedveil': Python with pip install 'fedveil[flower]'.\n"
    text += "# The server's name is 'server' here: fedveil deploy init --host server --bind 0.0.0.0\nservices:\n"
    mounts = "./server:/federation/server', './federation.toml:/federation/federation.toml:ro"
    text += service("server", "server /federation", mounts)
    for number in range(made.nodes):
        text += service(f"node-{number}", "node /node", f"./node-{number}:/node")
    return text + "networks:\n  federation:\n    internal: true\n"
