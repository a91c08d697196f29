"""The app bundle of our runs: a file of fixed bytes without any code.

Flower starts a run from an app bundle. Ours only names keys; config and terms travel as values of these keys. Nodes never
fetch a bundle, and neither nodes nor the server execute one: both run the installed package. Every other bundle is refused
by its digest, which `node.toml` and `federation.toml` pin.
"""

from __future__ import annotations

import hashlib
import io
import zipfile

# Change the version when messages change, so that nodes and servers that do not fit refuse each other.
PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedveil-app"
version = "2.0.0"
description = "A run of Fedveil: no code, only the names of its values"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedveil"

[tool.flwr.app.components]
serverapp = "fedveil.deploy:none"
clientapp = "fedveil.deploy:none"

[tool.flwr.app.config]
config = ""
folder = ""
quorum = 0.5
timeout = 300.0
wait = 120.0
test = false
"""


def bundle() -> bytes:
    """The bundle. Nothing in it is compressed, so its bytes do not depend on the machine."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml", (1980, 1, 1, 0, 0, 0)), PYPROJECT)
    return file.getvalue()


def digest() -> str:
    return hashlib.sha256(bundle()).hexdigest()
