"""Draws docstrings of the package at random, to be read by a person: `python tests/docstrings.py [SEED] [COUNT]`.

A docstring that needs a second reading is rewritten. The seed is fixed by default, so that two readers see the same ones.
"""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "fedveil"
SEED, COUNT = 22, 120


def docstrings() -> Iterator[tuple[str, str]]:
    """Where each docstring of the package is, and its text."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    name = getattr(node, "name", "(module)")
                    yield f"{path.relative_to(PACKAGE.parent)}:{getattr(node, 'lineno', 1)} {name}", text


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else SEED
    count = int(sys.argv[2]) if len(sys.argv) > 2 else COUNT
    for where, text in random.Random(seed).sample(list(docstrings()), count):
        print(f"{where}\n    {text.replace(chr(10), chr(10) + '    ')}\n")


if __name__ == "__main__":
    main()
