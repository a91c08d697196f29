"""The Flower app of one run: a thin shell of three small files, since every machine has Fedveil installed.

Flower sends an app to every node as it is, so nothing secret may stand in it: the config of the run and the terms, no keys,
no data.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedveil import __version__
from fedveil.deploy.coordinator import Terms

SHELL = '''"""A shell: what runs is installed with Fedveil."""

from fedveil.deploy import {module}

app = {module}.app
'''


def write_bundle(folder: Path, config: str, run: Path, terms: Terms) -> Path:
    """Writes the app for a run with this config (TOML text) and this run folder on the server."""
    package = folder / "fedveil_app"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "client.py").write_text(SHELL.format(module="client_app"), encoding="utf-8")
    (package / "server.py").write_text(SHELL.format(module="server_app"), encoding="utf-8")
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
config = {_toml(config)}
folder = {_toml(str(run))}
quorum = {terms.quorum!r}
timeout = {terms.timeout!r}
wait = {terms.wait!r}
test = {str(terms.test).lower()}
"""


def _toml(text: str) -> str:
    """A JSON text is a TOML text."""
    return json.dumps(text)
