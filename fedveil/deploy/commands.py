"""What Fedveil hands to Flower: the arguments of its commands, its config file, and the app of a run.

The commands are argument lists, which `--dry-run` prints. Always on: TLS, node keys, state on disk, and a separate process
for the server's app, so that a killed SuperLink does not lose a run. Always off: telemetry, update checks, installation of
dependencies at run time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil import __version__
from fedveil.deploy.files import Federation

if TYPE_CHECKING:
    from fedveil.deploy.coordinator import Terms

CONNECTION = "federation"


def environment(home: Path, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of all processes: Flower contacts no third party and keeps its files in `home`."""
    base = dict(os.environ if given is None else given)
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
    """Starts the server's app in a process separate from the SuperLink."""
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
    """Flower's config file, which tells `flwr` commands where the server is."""
    return (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "127.0.0.1:{federation.port}"\nroot-certificates = "{federation.server / "ca.crt"}"\n'
    )


# --- the app of a run

# Flower sends the app to every node. Every machine has Fedveil installed, so the app only imports it. The app contains the
# config and the terms of the run, no keys and no data.
APP_MODULE = """from fedveil.deploy import flower

app = flower.{side}_app
"""


def write_app(folder: Path, config: str, run: Path, terms: Terms) -> Path:
    """Writes the Flower app for a run with this config (TOML text) and this run folder on the server."""
    package = folder / "fedveil_app"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    for side in ("client", "server"):
        (package / f"{side}.py").write_text(APP_MODULE.format(side=side), encoding="utf-8")
    (folder / "pyproject.toml").write_text(_pyproject(config, run, terms), encoding="utf-8")
    return folder


def _pyproject(config: str, run: Path, terms: Terms) -> str:
    return f"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedveil-app"
version = "{__version__}"
description = "A run of Fedveil"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedveil"

[tool.flwr.app.components]
serverapp = "fedveil_app.server:app"
clientapp = "fedveil_app.client:app"

[tool.flwr.app.config]
config = {_toml_text(config)}
folder = {_toml_text(str(run))}
quorum = {terms.quorum!r}
timeout = {terms.timeout!r}
wait = {terms.wait!r}
test = {str(terms.test).lower()}
"""


def _toml_text(text: str) -> str:
    """A TOML string: every JSON string is one."""
    return json.dumps(text)
