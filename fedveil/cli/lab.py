"""`fedveil lab`: serves the local web page."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedveil.cli import show
from fedveil.config import load
from fedveil.core.errors import ConfigError

NEEDS = ("fastapi", "uvicorn")


@dataclass(frozen=True)
class LabOptions:
    """The options of the command."""

    host: str
    port: int
    token: str | None
    folder: str
    runs: str
    workers: int
    minutes: float
    memory: float
    browser: bool


def run_lab(file: str | None, settings: list[str], given: LabOptions, json: bool) -> None:
    """Checks all options before anything is created, then serves until Ctrl-C."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError("lab", f"no {missing[0]}", "it needs an extra: pip install 'fedveil[lab]'")
    for key, value in (("--folder", given.folder), ("--runs", given.runs), ("--host", given.host)):
        if not value:
            raise ConfigError(key, value, "takes a host" if key == "--host" else "takes a folder")
    from fedveil.lab.server import Address, Options, check_token, serve

    config = load(file, settings)
    token = check_token(given.host, given.token or os.environ.get("FEDVEIL_LAB_TOKEN"))
    options = Options(
        folder=Path(given.folder),
        runs=Path(given.runs),
        workers=given.workers,
        seconds=60 * given.minutes,
        memory=1e9 * given.memory,
        start=tuple(_set_by_user(config).items()),
    )

    def ready(address: Address) -> None:
        if json:
            show.print_json(
                {"url": address.url, "host": given.host, "port": address.port, "token": token, "pid": os.getpid()}
            )
        else:
            print(f"Fedveil lab: {address.url}", flush=True)
            show.note(f"runs: {options.runs}; the lab's own files: {options.folder}; stop with Ctrl-C")
        if given.browser:
            import webbrowser

            webbrowser.open(address.url)

    serve(options, given.host, given.port, token, ready)


def _set_by_user(config: Any) -> dict[str, Any]:
    """The settings of FILE and -s, with which the pages open."""
    given = config.model_dump(exclude_unset=True)
    if "defense" in given:
        given["defense"] = given["defense"][0]
    return given
