"""Flower's commands as a federation uses them: pure functions from folders to argument lists, printed by `--dry-run`.

Always on: TLS, node keys, state on disk, the server's app in a process of its own (a killed SuperLink then does not lose a
run). Always off: telemetry, update checks, installation of dependencies at run time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from fedveil.deploy.files import Federation

CONNECTION = "federation"


def environment(home: Path, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of everything that is started: nothing calls out, Flower's own files stay in `home`."""
    base = dict(os.environ if given is None else given)
    beside = str(Path(sys.executable).parent)  # where flower-* and flwr-* lie
    return {
        **base,
        "PATH": os.pathsep.join([beside, base.get("PATH", os.defpath)]),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(home / "flwr"),
        "PYTHONUNBUFFERED": "1",
    }


def superlink(federation: Federation) -> list[str]:
    own = federation.server
    return [
        "flower-superlink",
        "--host", federation.bind,
        "--port", str(federation.port),
        "--ssl-ca-certfile", str(own / "ca.crt"),
        "--ssl-certfile", str(own / "server.crt"),
        "--ssl-keyfile", str(own / "server.key"),
        "--enable-supernode-auth",
        "--isolation", "process",
        "--database", str(own / "state.db"),
        "--superexec-auth-secret-file", str(own / "superexec.secret"),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def superexec(federation: Federation) -> list[str]:
    """What starts the server's app, as a process apart from the SuperLink."""
    own = federation.server
    return [
        "flower-superexec",
        "--runtime-api-address", f"127.0.0.1:{federation.port}",
        "--root-certificates", str(own / "ca.crt"),
        "--superexec-auth-secret-file", str(own / "superexec.secret"),
    ]  # fmt: skip


def supernode(home: Path, server: str, port: int) -> list[str]:
    return [
        "flower-supernode",
        "--superlink", server,
        "--root-certificates", str(home / "ca.crt"),
        "--auth-supernode-private-key", str(home / "key"),
        "--port", str(port),
        "--node-config", f'home="{home}"',
    ]  # fmt: skip


def register(public_key: Path) -> list[str]:
    return ["flwr", "supernode", "register", str(public_key), CONNECTION, "--format", "json"]


def list_nodes() -> list[str]:
    return ["flwr", "supernode", "list", CONNECTION, "--format", "json"]


def list_runs() -> list[str]:
    return ["flwr", "list", CONNECTION, "--format", "json"]


def submit(app: Path) -> list[str]:
    return ["flwr", "run", str(app), CONNECTION, "--format", "json"]


def stop(run: int) -> list[str]:
    return ["flwr", "stop", str(run), CONNECTION, "--format", "json"]


def connection_toml(federation: Federation) -> str:
    """Flower's own config file, which names the server for `flwr` commands."""
    return (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "127.0.0.1:{federation.port}"\nroot-certificates = "{federation.server / "ca.crt"}"\n'
    )
