"""Cold starts: how long a command takes in a fresh process, and which heavy packages it imports.

Each turn starts the command once and the bare interpreter after it. The ratio is the wall time of the command over that
of `python -c pass`; for the demo it is the wall time of a second start over the first. `cpu` is the command's processor
time, which a busy machine changes less. `imported` lists the heavy packages that it imported. `limit` is the wall time,
in seconds, that it should stay under on an idle machine, where one is set.

| row | command |
|---|---|
| `start/help` | `fedveil --help` |
| `start/list` | `fedveil list models` |
| `start/ledger` | `fedveil ledger -s defense.name=fed-cdp` |
| `start/ledger-none` | `fedveil ledger -s defense.name=none`: nothing to compose |
| `start/demo` | `fedveil demo` with compiled programs of an earlier start, over one without; at most 3 turns |
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ledger import processor
from benchmarks.rows import row
from fedveil.compilation import SETTING
from fedveil.core.errors import RunError

HEAVY = ("numpy", "pydantic", "rich", "scipy", "dp_accounting", "optax", "jax", "sklearn", "torch")


@dataclass(frozen=True)
class Command:
    """Arguments of `fedveil`, and the wall time in seconds that the command should stay under."""

    arguments: tuple[str, ...]
    limit: float | None = None


COMMANDS = {
    "help": Command(("--help",), 0.3),
    "list": Command(("list", "models")),
    "ledger": Command(("ledger", "-s", "defense.name=fed-cdp"), 2.0),
    "ledger-none": Command(("ledger", "-s", "defense.name=none")),
}
DEMO = ("demo",)
DEMO_TURNS = 3
COMPILED = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
)  # set by the start of this process


@dataclass(frozen=True)
class Spent:
    """The time that one process took, in seconds."""

    wall: float
    cpu: float


def run(
    repeats: int = 7,
    progress: Callable[[str], None] = lambda line: None,
    commands: dict[str, Command] | None = None,
) -> Iterator[dict[str, object]]:
    """The rows of the module's table."""
    for name, command in (COMMANDS if commands is None else commands).items():
        line = f"fedveil {' '.join(command.arguments)}"
        progress(f"bench start: {line}")
        found = imported(command.arguments)  # this first start also fills the file caches
        turns = [(spent(_fedveil(command.arguments)), spent(_bare())) for _ in range(repeats)]
        made = row(f"start/{name}", [a.wall for a, _ in turns], [b.wall for _, b in turns], device=processor())
        cpu = statistics.median(a.cpu for a, _ in turns)
        yield made | {"command": line, "cpu": cpu, "imported": found, "limit": command.limit}
    if commands is None:
        progress("bench start: fedveil demo")
        yield demo(min(max(repeats, 2), DEMO_TURNS))


def demo(turns: int, arguments: Sequence[str] = DEMO) -> dict[str, object]:
    """The second start of the demo over the first, which finds no compiled programs. The ratio should be at most 0.5."""
    first: list[Spent] = []
    second: list[Spent] = []
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            kept = {SETTING: str(Path(folder) / "compiled")}
            for number, seconds in enumerate((first, second)):
                out = str(Path(folder) / f"run-{number}")
                seconds.append(spent(_fedveil([*arguments, "--out", out]), kept))
    made = row("start/demo", [s.wall for s in second], [s.wall for s in first], device=processor())
    cpu = statistics.median(s.cpu for s in second)
    return made | {"command": f"fedveil {' '.join(arguments)}", "cpu": cpu}


def _fedveil(arguments: Sequence[str], *options: str) -> list[str]:
    return [sys.executable, *options, "-m", "fedveil", *arguments]


def _bare() -> list[str]:
    return [sys.executable, "-c", "pass"]


def spent(command: Sequence[str], settings: Mapping[str, str] | None = None) -> Spent:
    """Starts a process with `settings` added to its environment, waits for it, and returns the time it took."""
    null, mine = subprocess.DEVNULL, {k: v for k, v in os.environ.items() if k not in COMPILED}
    started = time.perf_counter()
    child = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, env={**mine, **(settings or {})})
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RunError(f"'{' '.join(command)}' ended with status {child.returncode}: failed starts are not timed")
    return Spent(wall, usage.ru_utime + usage.ru_stime)


def imported(arguments: Sequence[str]) -> list[str]:
    """The heavy packages that a command imports, from the report of `-X importtime`."""
    told = subprocess.run(
        _fedveil(arguments, "-X", "importtime"), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    loaded = set(re.findall(r"^import time:.*\|\s*([A-Za-z_]\w*)", told.stderr, re.MULTILINE))
    return [name for name in HEAVY if name in loaded]
