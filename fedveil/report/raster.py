"""Charts as PNG, by a program of the machine that draws SVG: this package draws none itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from fedveil.core.errors import ConfigError, RunError

SCALE = 2  # pixels of the PNG for each of the SVG
Arguments = Callable[[Path, Path, int, int], list[str]]

PROGRAMS: dict[str, Arguments] = {
    "rsvg-convert": lambda svg, png, w, h: ["-z", str(SCALE), "-b", "white", "-o", str(png), str(svg)],
    "inkscape": lambda svg, png, w, h: [f"--export-dpi={96 * SCALE}", f"--export-filename={png}", str(svg)],
    **{
        name: lambda svg, png, w, h: [
            "--headless",
            *(["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []),  # which the superuser cannot have
            "--disable-gpu",
            "--hide-scrollbars",
            f"--force-device-scale-factor={SCALE}",
            f"--window-size={w},{h}",
            f"--screenshot={png}",
            svg.as_uri(),
        ]
        for name in ("chromium", "chromium-browser", "google-chrome")
    },
}


def find() -> str:
    """The first of the programs that is there."""
    found = next((name for name in PROGRAMS if shutil.which(name)), None)
    if found is None:
        takes = f"needs one of {', '.join(PROGRAMS)}, and none is here: install one, or take --svg"
        raise ConfigError("--png", None, takes)
    return found


def write_png(program: str, path: Path, svg: str) -> None:
    """Draws one chart."""
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    wide, high = (int(float(part)) + 1 for part in size.groups()) if size else (640, 480)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "chart.svg"
        source.write_text(svg, encoding="utf-8")
        command = [program, *PROGRAMS[program](source, path.resolve(), wide, high)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0 or not path.exists():
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"{program} could not draw {path} ({said}): take --svg")
