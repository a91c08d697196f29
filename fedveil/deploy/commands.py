"""The commands of all processes of a server and of a node, and their environment.

The commands are argument lists, which `--dry-run` prints. Flower's own process is the SuperLink. It listens on loopback
only. Always on: TLS, node keys, state on disk, and a separate process for each run, so that a killed SuperLink does not
lose a run. Always off: telemetry, update checks, installation of dependencies at run time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from fedveil.deploy.files import Federation
from fedveil.deploy.limits import Node


def environment(home: Path, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of all processes: Flower contacts no third party and keeps its files in `home`."""
    base = dict(os.environ if given is None else given)
    base = {name: value for name, value in base.items() if not name.startswith("FLWR_")}  # they can open more ports
    scripts = str(Path(sys.executable).parent)  # where the commands flower-* and flwr-* are installed
    return {
        **base,
        "PATH": os.pathsep.join([scripts, base.get("PATH", os.defpath)]),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(home / "flwr"),
        "PYTHONUNBUFFERED": "1",
    }


def superlink(federation: Federation) -> list[str]:
    own = federation.server
    return [
        "flower-superlink",
        "--host", "127.0.0.1",
        "--port", str(federation.control),
        "--ssl-ca-certfile", str(own / "ca.crt"),
        "--ssl-certfile", str(own / "server.crt"),
        "--ssl-keyfile", str(own / "server.key"),
        "--enable-supernode-auth",
        "--isolation", "process",
        "--database", str(own / "state.db"),
        "--superexec-auth-secret-file", str(own / "superexec.secret"),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def executor(federation: Federation) -> list[str]:
    """The executor, which starts the server's side of each run in a separate process."""
    return [sys.executable, "-m", "fedveil.deploy.executor", str(federation.folder)]


def gate(federation: Federation) -> list[str]:
    """The gate, which listens to the outside."""
    return [sys.executable, "-m", "fedveil.deploy.gate", str(federation.folder)]


def worker(home: Path) -> list[str]:
    """The resident process of a node that holds its data."""
    return [sys.executable, "-m", "fedveil.deploy.worker", str(home)]


def link(node: Node, server: str) -> list[str]:
    """The process of a node that talks to the server. It must be started in the node's folder."""
    largest = str(node.limits.largest_message)
    return [sys.executable, "-m", "fedveil.deploy.link", "--server", server, "--app", node.app, "--largest", largest]
