"""Cold starts: how long a command takes in a fresh process, and which heavy packages it waits for.

Each turn starts the command once and the bare interpreter after it. A row is the wall time of the command over that of
`python -c pass`, for the demo that of a second start over the first; `cpu` is its processor time, which a busy machine
stretches less, `imported` the heavy packages that it loaded, `limit` what it should stay under on an idle machine, in
seconds, where there is one.

| row | command |
|---|---|
| `start/help` | `fedveil --help` |
| `start/list` | `fedveil list models` |
| `start/ledger` | `fedveil ledger -s defense.name=fed-cdp` |
| `start/ledger-none` | `fedveil ledger -s defense.name=none`: nothing to compose |
| `start/demo` | `fedveil demo` over the same with no compiled program kept from an earlier start, at most 3 turns |
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

from fedveil.bench.ledger import processor
from fedveil.bench.rows import row
from fedveil.compilation import SETTING
from fedveil.core.errors import RunError

HEAVY = ("numpy", "pydantic", "rich", "scipy", "dp_accounting", "optax", "jax", "sklearn", "torch")


@dataclass(frozen=True)
class Command:
    """Arguments of `fedveil`, and the wall seconds it should stay under."""

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
COMPILED = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")  # what this start has set


@dataclass(frozen=True)
class Spent:
    """Seconds of one process."""

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
        found = imported(command.arguments)  # the first start also fills the caches of files
        turns = [(spent(_fedveil(command.arguments)), spent(_bare())) for _ in range(repeats)]
        made = row(f"start/{name}", [a.wall for a, _ in turns], [b.wall for _, b in turns], device=processor())
        cpu = statistics.median(a.cpu for a, _ in turns)
        yield made | {"command": line, "cpu": cpu, "imported": found, "limit": command.limit}
    if commands is None:
        progress("bench start: fedveil demo")
        yield demo(min(max(repeats, 2), DEMO_TURNS))


def demo(turns: int, arguments: Sequence[str] = DEMO) -> dict[str, object]:
    """The second start of the demo over the first, which finds no compiled programs. It should take half as long."""
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
    """Starts a process with more settings in its environment, waits for it, and says what it took."""
    null, mine = subprocess.DEVNULL, {k: v for k, v in os.environ.items() if k not in COMPILED}
    started = time.perf_counter()
    child = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, env={**mine, **(settings or {})})
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RunError(f"'{' '.join(command)}' ended with status {child.returncode}: a failed start is not timed")
    return Spent(wall, usage.ru_utime + usage.ru_stime)


def imported(arguments: Sequence[str]) -> list[str]:
    """The heavy packages that a command loads, as the interpreter reports them."""
    told = subprocess.run(
        _fedveil(arguments, "-X", "importtime"), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    loaded = set(re.findall(r"^import time:.*\|\s*([A-Za-z_]\w*)", told.stderr, re.MULTILINE))
    return [name for name in HEAVY if name in loaded]
