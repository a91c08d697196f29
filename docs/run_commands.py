"""Runs the commands and Python examples of the pages: `python docs/run_commands.py [--match TEXT] [PAGE ...]`.

Every page gets an empty folder in `build/commands`, in which its commands run in reading order, one at a time. A row per
command goes to `docs/data/commands.jsonl`, from which `docs/generate.py` makes `docs/commands.md`. Programs that earlier
starts of Fedveil compiled are not used. With `--match`, only commands that contain the text run, in the page's folder as
the last call left it. The exit status is 1 if a command failed.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRATCH = ROOT / "build" / "commands"
ROWS = ROOT / "docs" / "data" / "commands.jsonl"
LIMIT = 1800.0  # seconds, after which a command is ended
NO_TORCH = "PyTorch is not installed here; tests/models runs it where it is"
GENERATED = ("docs/commands.md",)  # shows commands that stand elsewhere

# Files that a page tells the reader to save: page → name → the TOML blocks of the page that it consists of.
SAVED = {
    "docs/tutorial.md": {"open.toml": (0,), "private.toml": (0, 1)},
    "docs/runs.md": {"first.toml": (0,)},
    "docs/tune.md": {"tune.toml": (0,)},
}
# What a page takes for granted: commands that run first, and are not counted.
BEFORE = {"docs/report.md": ("fedveil train --out runs/open",)}
# Part of a command → why it does not run here, and what tests it instead.
SKIPPED = {
    "make test": "the tests themselves",
    "pip install": "installs from a package index",
    "reproduce all --quick": "takes half an hour: docs/reproduction.md has its time",
    "fedveil lab": "serves until Ctrl-C; tests/lab starts it",
    "data get lfw --from": "the reader's own download; tests/data converts small archives of the same format",
    "attack --gradients": "the reader's own file; tests/attacks attacks such a file",
    "deploy server": "stays in the foreground; examples/deploy/loopback.sh runs it",
    "deploy node": "stays in the foreground; examples/deploy/loopback.sh runs it",
    "deploy run": "needs server and nodes; examples/deploy/loopback.sh runs it",
    "deploy status": "needs server and nodes; examples/deploy/loopback.sh runs it",
}


@dataclass(frozen=True)
class Command:
    """One command or Python example of a page."""

    page: str
    text: str  # the command, or the code
    comment: str = ""  # what stands behind `#` in its line
    number: int | None = None  # of a Python example in its page

    @property
    def name(self) -> str:
        """How the table calls it."""
        return self.text if self.number is None else f"Python example {self.number}"

    @property
    def skipped(self) -> str:
        """Why it does not run here; empty if it does."""
        if self.number is not None:
            return ""
        return next((why for part, why in SKIPPED.items() if part in self.text), "")


@dataclass(frozen=True)
class Row:
    """How one command ended."""

    page: str
    command: str
    status: int | None  # exit status; None: it did not run
    seconds: float | None
    cpu: float | None  # seconds of processor time, its own and the system's
    load: float | None  # processes that wanted a core when it began
    accuracy: float | None = None
    chance: float | None = None
    note: str = ""


def pages() -> list[Path]:
    """README first, then the pages of `docs` by name."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    return [page for page in found if str(page.relative_to(ROOT)) not in GENERATED]


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and content of the code blocks of a page."""
    yield from re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands_of(page: Path) -> list[Command]:
    """The commands and Python examples of a page in reading order."""
    name, found, examples = str(page.relative_to(ROOT)), [], 0
    for language, content in blocks(page):
        if language in ("sh", "bash"):
            for line in content.splitlines():
                words, comment = split(line)
                if words:
                    found.append(Command(name, words, comment))
        elif language == "python":
            examples += 1
            found.append(Command(name, content, number=examples))
    return found


def split(line: str) -> tuple[str, str]:
    """A line of a shell block as its command and the comment behind it."""
    found = re.match(r"^(.*?)(?:(?:^|\s+)#\s*(.*))?$", line)
    return (found[1].strip(), found[2] or "") if found else (line, "")


def prepare(page: Path) -> Path:
    """An empty folder for a page, with the examples and the files that the page tells the reader to save."""
    name = str(page.relative_to(ROOT))
    folder = folder_of(name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(ROOT / "examples", folder / "examples")
    toml = [content for language, content in blocks(page) if language == "toml"]
    for file, parts in SAVED.get(name, {}).items():
        (folder / file).write_text("\n".join(toml[part] for part in parts), encoding="utf-8")
    for text in BEFORE.get(name, ()):
        subprocess.run(shlex.split(text), cwd=folder, env=environment(), check=True, capture_output=True)
    return folder


def folder_of(page: str) -> Path:
    return SCRATCH / page.replace("/", "-").removesuffix(".md")


def environment() -> dict[str, str]:
    """This environment with this Python's commands first, wide tables, and a folder of its own for compiled programs."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "COLUMNS": "200", "FEDVEIL_COMPILED": str(SCRATCH / "compiled")}


def run(command: Command, folder: Path) -> Row:
    """Runs one command in the folder of its page."""
    load, used = os.getloadavg()[0], processor_time()
    start = time.perf_counter()
    argv = ["sh", "-c", command.text] if command.number is None else [sys.executable, "-c", command.text]
    clone = folder
    if command.text.startswith("make "):  # from the clone that a reader would be in
        clone = folder / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        start = time.perf_counter()
    with subprocess.Popen(
        argv,
        cwd=clone,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
    seconds = round(time.perf_counter() - start, 1)
    cpu = round(processor_time() - used, 1)
    accuracy, chance = scores(out)
    status = process.returncode
    note = verdict(out) if status == 0 else (err.strip() or out.strip()).splitlines()[-1:]
    missing = "".join(note) == "ModuleNotFoundError: No module named 'torch'"
    if missing:
        return Row(command.page, command.name, None, None, None, None, note=NO_TORCH)
    return Row(command.page, command.name, status, seconds, cpu, round(load, 1), accuracy, chance, " ".join(note)[:200])


def processor_time() -> float:
    """Seconds of processor time that all commands so far have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def scores(out: str) -> tuple[float | None, float | None]:
    """The accuracy and the chance that a command printed, as a table or as JSON."""
    try:
        document = json.loads(out)
    except ValueError:
        document = None
    if isinstance(document, dict) and "accuracy" in document:
        return document["accuracy"], document.get("chance")
    found = [re.search(rf"^│ {what}[^│]*│ ([\d.]+)", out, re.MULTILINE) for what in ("accuracy", "chance")]
    accuracy, chance = (float(one[1]) if one else None for one in found)
    beside = re.search(r"; chance: ([\d.]+)", out)  # of an attack
    return accuracy, float(beside[1]) if beside else chance


def verdict(out: str) -> list[str]:
    """The sentence of an attack, or of a training that did not learn."""
    said = re.search(
        r"^(Nothing was rebuilt|\d+ of \d+ |AUC |The accuracy is no better).*?\.(?=\s)", out, re.MULTILINE | re.DOTALL
    )
    return said[0].split() if said else []


def stored() -> dict[tuple[str, str], Row]:
    """The rows of earlier calls, by page and command."""
    lines = ROWS.read_text(encoding="utf-8").splitlines() if ROWS.exists() else []
    found = [Row(**json.loads(line)) for line in lines]
    return {(row.page, row.command): row for row in found}


def store(rows: dict[tuple[str, str], Row]) -> None:
    """Writes the rows in reading order; rows of commands that no page has any more are left out."""
    order = [(one.page, one.name) for page in pages() for one in commands_of(page)]
    lines = [json.dumps(asdict(rows[key]), ensure_ascii=False) for key in dict.fromkeys(order) if key in rows]
    ROWS.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main() -> int:
    arguments = sys.argv[1:]
    match = ""
    if "--match" in arguments:
        place = arguments.index("--match")
        match = arguments[place + 1]
        del arguments[place : place + 2]
    rows, failed = stored(), 0
    for page in pages():
        name = str(page.relative_to(ROOT))
        commands = [one for one in commands_of(page) if match in one.text]
        if (arguments and name not in arguments) or not commands:
            continue
        folder = folder_of(name) if match and folder_of(name).exists() else prepare(page)
        for command in commands:
            row = (
                Row(name, command.name, None, None, None, None, note=command.skipped)
                if command.skipped
                else run(command, folder)
            )
            failed += bool(row.status)
            rows[name, command.name] = row
            store(rows)
            print(json.dumps(asdict(row), ensure_ascii=False), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
