"""`fedveil lab`: the local web page."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedveil.cli import show
from fedveil.config import load
from fedveil.core.errors import ConfigError

NEEDS = ("fastapi", "uvicorn")


def run_lab(
    file: str | None,
    settings: list[str],
    *,
    host: str,
    port: int,
    token: str | None,
    folder: str,
    runs: str,
    workers: int,
    minutes: float,
    memory: float,
    browser: bool,
    json: bool,
) -> None:
    """Checks all options, then serves until Ctrl-C."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError("lab", f"no {missing[0]}", "it needs an extra: pip install 'fedveil[lab]'")
    for key, value in (("--folder", folder), ("--runs", runs), ("--host", host)):
        if not value:
            raise ConfigError(key, value, "takes a host" if key == "--host" else "takes a folder")
    from fedveil.lab.serve import Address, check_token, serve
    from fedveil.lab.state import Options

    config = load(file, settings)
    token = check_token(host, token or os.environ.get("FEDVEIL_LAB_TOKEN"))
    options = Options(
        folder=Path(folder),
        runs=Path(runs),
        workers=workers,
        seconds=60 * minutes,
        memory=1e9 * memory,
        start=tuple(_given(config).items()),
    )

    def ready(address: Address) -> None:
        if json:
            show.print_json(
                {"url": address.url, "host": host, "port": address.port, "token": token, "pid": os.getpid()}
            )
        else:
            print(f"Fedveil lab: {address.url}", flush=True)
            show.note(f"runs in {options.runs}, its own files in {options.folder}; Ctrl-C ends it")
        if browser:
            import webbrowser

            webbrowser.open(address.url)

    serve(options, host, port, token, ready)


def _given(config: Any) -> dict[str, Any]:
    """What was set in FILE and by -s: what the pages open with."""
    said = config.model_dump(exclude_unset=True)
    if "defense" in said:
        said["defense"] = said["defense"][0]
    return said
