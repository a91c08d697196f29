"""`fedveil lab`: serves the local web page."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedveil.cli import show
from fedveil.cli.options import LabOptions
from fedveil.config import from_dict, read
from fedveil.core.errors import ConfigError

NEEDS = ("fastapi", "uvicorn")


def run_lab(file: str | None, settings: list[str], lab: LabOptions, json: bool) -> None:
    """Checks all options, then serves until Ctrl-C."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError("lab", f"no {missing[0]}", "it needs an extra: pip install 'fedveil[lab]'")
    for key, value in (("--folder", lab.folder), ("--runs", lab.runs), ("--host", lab.host)):
        if not value:
            raise ConfigError(key, value, "takes a host" if key == "--host" else "takes a folder")
    from fedveil.lab.server import Address, Options, check_token, serve

    given = _given(file, settings)
    token = check_token(lab.host, lab.token or os.environ.get("FEDVEIL_LAB_TOKEN"))
    options = Options(
        folder=Path(lab.folder),
        runs=Path(lab.runs),
        workers=lab.workers,
        seconds=60 * lab.minutes,
        memory=1e9 * lab.memory,
        start=tuple(given.items()),
    )

    def ready(address: Address) -> None:
        if json:
            where = {"url": address.url, "host": lab.host, "port": address.port}
            show.print_json({**where, "token": token, "pid": os.getpid()})
        else:
            print(f"Fedveil lab: {address.url}", flush=True)
            show.note(f"runs in {options.runs}, its own files in {options.folder}; Ctrl-C ends it")
        if lab.browser:
            import webbrowser

            webbrowser.open(address.url)

    serve(options, lab.host, lab.port, token, ready)


def _given(file: str | None, settings: list[str]) -> dict[str, Any]:
    """What was set in the file and by -s, checked: what the pages open with."""
    document = read(file, settings)
    from_dict(document)
    if isinstance(document.get("defense"), list):
        document["defense"] = document["defense"][0]
    return document
