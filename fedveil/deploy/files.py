"""The folder of a federation. `fedveil deploy init` writes it; every file in it can be read and edited by hand.

| file | what | who needs it |
|---|---|---|
| `federation.toml` | addresses of the server, number and largest size of nodes, digest of the app | server |
| `authority/` | `ca.key` and `ca.crt`: sign the server's certificate. Keep it on another machine | `deploy renew` |
| `server/` | `ca.crt`, `server.crt`, `server.key`, a secret shared by the server's processes, Flower's state | server |
| `server/nodes/N.pub` | the roster: the public key of client N; `N.id` holds the id of its node | server |
| `server/roster.txt` | the public keys by which nodes sign in secure aggregation; every node has its own copy | server |
| `node-N/` | `node.toml`, `key`, `key.pub`, `ca.crt`, `ledger.jsonl`, `ledger.last`, perhaps `data.npz` | that node |
| `node-N/` | `secagg.key` and `roster.txt`: the node's key for secure aggregation, and the keys of all nodes | that node |
| `fedveil-server.service`, `fedveil-node@.service`, `compose.yaml` | start scripts for systemd or Docker | optional |

Folders have mode 0700 and files mode 0600.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.config import Config, resolve
from fedveil.core.errors import ConfigError
from fedveil.data.dataset import Part
from fedveil.deploy.account import NodeLedger
from fedveil.deploy.bundle import digest

FILE = "federation.toml"
RECORDS = 1_000_000  # the largest size that a node may state, unless federation.toml says otherwise
CAUTIOUS = {"multiplier": 1.0, "clip": 10.0, "clip_min": 0.001, "steps": 100, "rounds": 1000, "epsilon": 8.0}


@dataclass(frozen=True)
class Federation:
    """`federation.toml` and its folder."""

    folder: Path
    host: str  # name or address by which nodes reach the server
    port: int  # of the gate, which listens to the outside
    nodes: int
    bind: str = "127.0.0.1"  # the address that the gate listens on
    control: int = 0  # port of the SuperLink, on loopback only
    records: int = RECORDS
    app: str = ""  # digest of the app whose runs are executed

    @property
    def server(self) -> Path:
        return self.folder / "server"

    @property
    def authority(self) -> Path:
        return self.folder / "authority"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def node(self, number: int) -> Path:
        return self.folder / f"node-{number}"


def read_federation(folder: Path) -> Federation:
    """Reads the federation in a folder."""
    try:
        found = tomllib.loads((folder / FILE).read_text(encoding="utf-8"))
        port = int(found["port"])
        return Federation(
            folder.resolve(), str(found["host"]), port, int(found["nodes"]), str(found.get("bind", "127.0.0.1")),
            int(found.get("control", port + 1)), int(found.get("records", RECORDS)), str(found.get("app", digest())),
        )  # fmt: skip
    except FileNotFoundError:
        raise ConfigError("FOLDER", str(folder), f"holds no {FILE}: create it with 'fedveil deploy init'") from None
    except (KeyError, ValueError, TypeError, OSError) as error:
        takes = f"cannot be read ({error}): takes host, port, nodes, bind, control, records, app"
        raise ConfigError("FOLDER", str(folder / FILE), takes) from None


# --- the roster


@dataclass(frozen=True)
class Member:
    """A node's entry in the roster."""

    client: int
    key: str  # fingerprint of its public key


def fingerprint(public: Path) -> str:
    """A digest of a public key in OpenSSH format; empty if there is none."""
    try:
        return hashlib.sha256(base64.b64decode(public.read_text(encoding="ascii").split()[1])).hexdigest()[:32]
    except (OSError, ValueError, IndexError):
        return ""


def roster(federation: Federation) -> dict[int, Member]:
    """The registered nodes by id. A node is client N if its public key is in `N.pub`; `N.id` holds its id and that key."""
    found = {}
    for known in (federation.server / "nodes").glob("*.id"):
        with suppress(OSError, ValueError):
            member = Member(int(known.stem), fingerprint(known.with_suffix(".pub")))
            number, key = known.read_text(encoding="utf-8").split()
            if member.key and member.key == key and 0 <= member.client < federation.nodes:
                found[int(number)] = member
    return found


@contextmanager
def private() -> Iterator[None]:
    """Within this context, new files can be read by their owner only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def tighten(folder: Path) -> None:
    """Removes all rights of other users on a folder and the files in it."""
    try:
        folder.chmod(0o700)
        for path in folder.iterdir():
            if not path.is_symlink() and path.stat().st_mode & 0o077 and not path.is_socket():
                path.chmod(0o700 if path.is_dir() else 0o600)
    except OSError as error:
        takes = f"must belong to the user who runs this command, and to nobody else ({error.strerror})"
        raise ConfigError("NODE", str(folder), takes) from None


@dataclass(frozen=True)
class Plan:
    """What `deploy init` was asked for besides the federation itself."""

    config: Config | None = None  # limits follow from it
    shards: bool = False  # whether each node gets its part of the config's dataset
    test: bool = False
    limits: Mapping[str, float] | None = None  # the owner's own


def init(made: Federation, plan: Plan) -> None:
    """Writes all files; an existing federation is never overwritten."""
    if (made.folder / FILE).exists():
        raise ConfigError("FOLDER", str(made.folder), "already holds a federation: choose another folder")
    config = resolve(plan.config) if plan.config is not None else None
    if config is not None and plan.shards and config.data.clients != made.nodes:
        takes = f"must equal data.clients of the config, which is {config.data.clients}"
        raise ConfigError("--nodes", made.nodes, takes)
    # Usage errors are raised here, before anything is written.
    classes, parts = _shards(config) if config is not None and plan.shards else (10, [])
    limits = {**_limits_from(config, test=plan.test), **(plan.limits or {})}
    with private():
        _write_server(made, max((len(part.x) for part in parts), default=RECORDS))
        for number in range(made.nodes):
            home = made.node(number)
            _write_node(made, number, parts[number] if parts else None)
            text = _node_toml(number, made, classes, plan.test, limits)
            (home / "node.toml").write_text(text, encoding="utf-8")
        _write_roster(made)
    if config is not None and parts and "multiplier" not in (plan.limits or {}):
        _set_multiplier(made, config, limits)


def _write_server(made: Federation, records: int) -> None:
    from fedveil.deploy.credentials import make_authority, make_server_certificate, write_private

    (made.server / "nodes").mkdir(parents=True)
    make_authority(made.authority)
    make_server_certificate(made.authority, made.server, hosts(made))
    shutil.copy(made.authority / "ca.crt", made.server / "ca.crt")
    write_private(made.server / "superexec.secret", secrets.token_hex(32).encode())
    for name, text in {**_units(made), "compose.yaml": _compose(made)}.items():
        (made.folder / name).write_text(text, encoding="utf-8")
    text = (
        f'host = "{made.host}"\nport = {made.port}            # the only port that others reach\n'
        f'bind = "{made.bind}"\ncontrol = {made.control or made.port + 1}         # of Flower, on loopback only\n'
        f"nodes = {made.nodes}\nrecords = {records}         # the largest size that a node may state\n"
        f'app = "{digest()}"\n'
    )
    (made.folder / FILE).write_text(text, encoding="utf-8")


def _write_roster(made: Federation) -> None:
    """A key for secure aggregation in each node's folder, and the roster of all of them there and at the server."""
    from fedveil.deploy.secagg import identity

    roster = identity.make_keys({number: made.node(number) for number in range(made.nodes)})
    identity.write_roster(made.server, roster)


def hosts(made: Federation) -> list[str]:
    """The names in the server's certificate."""
    return list(dict.fromkeys([made.host, "localhost", "127.0.0.1"]))


def _write_node(made: Federation, number: int, part: Part | None) -> None:
    from fedveil.deploy.credentials import make_node_key

    home = made.node(number)
    home.mkdir()
    make_node_key(home)
    shutil.copy(home / "key.pub", made.server / "nodes" / f"{number}.pub")
    shutil.copy(made.server / "ca.crt", home / "ca.crt")
    NodeLedger(home).create()
    if part is not None:
        np.savez(home / "data.npz", x=part.x, y=part.y)


def _limits_from(config: Config | None, *, test: bool) -> dict[str, Any]:
    """The limits of a node: those of the config that its owner names, else strict defaults.

    Rounds in test mode have no certificate, so no budget could admit them.
    """
    found: dict[str, Any] = dict(CAUTIOUS)
    if test:
        found.pop("epsilon")
    if config is None:
        return found
    clips = [bound for defense in config.defense for bound in defense.clip_bounds()]
    if clips:
        found |= {"clip": max(clips), "clip_min": min(clips)}
    steps = config.train.local_steps
    found |= {"rounds": config.train.rounds, "defenses": sorted({d.name for d in config.defense})}
    return found | ({"steps": steps} if steps else {})


def _set_multiplier(made: Federation, config: Config, limits: Mapping[str, Any]) -> None:
    """Raises or lowers the limit `multiplier` to the smallest z of this config at each node."""
    from fedveil.deploy.node import smallest_multiplier

    for number in range(made.nodes):
        z = smallest_multiplier(made.node(number), config)
        if z is not None:
            path = made.node(number) / "node.toml"
            text = path.read_text(encoding="utf-8")
            line = f"multiplier = {limits['multiplier']!r}\n"
            rounded = float(f"{z * (1 - 1e-4):.5g}")  # to digits that count: never above z, and never down to zero
            path.write_text(text.replace(line, f"multiplier = {rounded!r}\n"), encoding="utf-8")


def _node_toml(number: int, made: Federation, classes: int, test: bool, limits: Mapping[str, Any]) -> str:
    given = "".join(f"{key} = {value!r}\n" for key, value in limits.items())
    if "epsilon" not in limits:
        given += "unaccounted = true  # rounds in test mode have no certificate\n"
    return (
        f"client = {number}\n"
        f'data = "data.npz"      # arrays x and y; relative to this folder, or an absolute path\n'
        f"classes = {classes}           # in the whole federation\n"
        f'server = "{made.address}"\n'
        f'app = "{digest()}"  # the app whose runs are accepted\n'
        f"test = {str(test).lower()}           # true: accept runs whose noise the server knows; never for private data\n\n"
        f"# No server can relax these limits; see docs/deployment.md.\n[limits]\n{given}"
        + ("" if "delta" in limits else "delta = 1e-5\n")
        + "unit = 'example'      # or 'client'\n"
    )


def _shards(config: Config) -> tuple[int, list[Part]]:
    """The number of classes, and a public dataset partitioned as in simulation: for trials on one machine."""
    from fedveil.federation import prepare

    federation = prepare(config)
    owned = [federation.partition.client(number) for number in range(federation.partition.clients)]
    return federation.dataset.classes, [federation.dataset.train.take(rows) for rows in owned]


def _units(made: Federation) -> dict[str, str]:
    """The systemd units. They restart a command that ends: after a crash the server refuses a node for about a minute."""

    def unit(what: str, command: str) -> str:
        return (
            f"[Unit]\nDescription=Fedveil {what}\nAfter=network-online.target\nWants=network-online.target\n\n"
            f"[Service]\nExecStart=fedveil deploy {command}\nRestart=always\nRestartSec=10\n"
            "Environment=FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1\n"
            "NoNewPrivileges=true\nProtectSystem=strict\nPrivateTmp=true\nUMask=0077\n"
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
