"""The shape of the code: functions that fit on a screen, few parameters, and a short path from command to result."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fedveil"
LONGEST, LONG_ALLOWED = 60, 2
MANY, MANY_ALLOWED = 9, 7

# Runs a private training in a process and prints the files of the package in which a function was called, imports apart.
TRACED = """
import json, os, sys, threading
package, seen = sys.argv[1], set()

def importing(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(package):
            return True
        frame = frame.f_back
    return False

def note(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and code.co_filename.startswith(package):  # 1: a function, no class body
        name = os.path.relpath(code.co_filename, package)
        if name not in seen and not importing(frame.f_back):
            seen.add(name)

threading.setprofile(note)
sys.setprofile(note)
from fedveil.cli.main import entry
sys.argv = ["fedveil", "train", "-s", "defense.name=fed-cdp", "-s", "train.rounds=1", "--json"]
try:
    entry()
except SystemExit as ended:
    code = ended.code
sys.setprofile(None)
print(json.dumps([code or 0, sorted(seen)]), file=sys.stderr)
"""


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Parameters that a caller sees: all but `self` and `cls`."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    own = bool(named) and named[0].arg in ("self", "cls")
    return len(named) - own + (given.vararg is not None) + (given.kwarg is not None)


def test_functions_fit_on_a_screen():
    found = [where for where, node in functions() if (node.end_lineno or 0) - node.lineno + 1 > LONGEST]
    assert len(found) <= LONG_ALLOWED, found


def test_functions_take_few_parameters():
    found = [where for where, node in functions() if parameters(node) >= MANY]
    assert len(found) <= MANY_ALLOWED, found


def test_a_private_training_passes_few_files():
    ran = subprocess.run(
        [sys.executable, "-c", TRACED, str(PACKAGE)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "FEDVEIL_COMPILED": "off"},
    )
    assert json.loads(ran.stdout)["rounds"] == 1
    code, files = json.loads(ran.stderr.splitlines()[-1])
    assert code == 0
    assert len(files) <= 40, files
