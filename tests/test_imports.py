"""Imports point down only: every module sits in one layer and imports from its own layer or from those below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "fedveil"

# From the bottom up. A module belongs to the longest name that fits; the modules of one entry may import each other.
LAYERS = (
    ("core",),
    ("compilation", "bounds"),
    ("random",),
    ("mechanisms",),
    ("models",),
    ("data",),
    ("defenses",),
    ("accounting",),
    ("kernels",),
    ("simulation",),
    (  # the attacks: a config is checked against their settings, and none of them may import the bench
        "attacks.base",
        "attacks.adversaries",
        "attacks.observation",
        "attacks.registry",
        "attacks.gradients",
        "attacks.optim",
        "attacks.reconstruction",
        "attacks.inference",
    ),
    ("config",),
    ("runs",),
    ("federation",),
    ("run_account",),
    ("training",),
    ("attacks",),
    ("report",),
    ("attacks.orchestrate",),
    ("audit", "deploy"),
    ("lab",),
    ("recipes",),
    ("sweeps", "advice"),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules() -> dict[str, Path]:
    """Every module of the package by its name below `fedveil`."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    del found["__init__"]  # the public API: it names what it hands out, and imports on first use
    return found


def level(module: str) -> int:
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in LEVEL:
            return LEVEL[".".join(parts[:length])]
    raise AssertionError(f"fedveil.{module} belongs to no layer: name it in LAYERS")


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of the package that a file imports, inside functions and lazily too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedveil":
            base = (node.module or "").removeprefix("fedveil").lstrip(".")
            for name in node.names:
                whole = f"{base}.{name.name}".lstrip(".")
                yield whole if whole in known else base
        elif isinstance(node, ast.Import):
            yield from (n.name.removeprefix("fedveil.") for n in node.names if n.name.startswith("fedveil."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("fedveil."):
            name = node.value.removeprefix("fedveil.")
            if name in known:
                yield name


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_point_down(module: str) -> None:
    known = modules()
    upward = [name for name in imported(known[module], known) if name and level(name) > level(module)]
    assert not upward, f"fedveil.{module} imports from layers above its own: {', '.join(sorted(set(upward)))}"


def test_an_upward_import_is_seen(tmp_path: Path) -> None:
    """The reader finds all three ways to import."""
    known = modules()
    source = "from fedveil.cli import show\nimport fedveil.deploy.node\nname = 'fedveil.lab.app'\n"
    (tmp_path / "one.py").write_text(source)
    assert set(imported(tmp_path / "one.py", known)) == {"cli.show", "deploy.node", "lab.app"}
    assert all(level(name) > level("core.taps") for name in imported(tmp_path / "one.py", known))


def names_benchmarks(source: str) -> bool:
    """Whether a source imports `benchmarks`, or names one of its modules in a string as `import_module` takes it."""
    for node in ast.walk(ast.parse(source)):
        found: list[str] = []
        if isinstance(node, ast.ImportFrom):
            found = [node.module or ""]
        elif isinstance(node, ast.Import):
            found = [name.name for name in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value.strip():
            found = [node.value]
        if any(name.split(".")[0] == "benchmarks" for name in found):
            return True
    return False


def test_only_the_bench_command_names_the_benchmarks() -> None:
    """The package works without the folder `benchmarks`, which is not in the wheel."""
    users = {name for name, path in modules().items() if names_benchmarks(path.read_text(encoding="utf-8"))}
    assert users == {"cli.bench"}


@pytest.mark.parametrize(
    "source",
    [
        "import benchmarks",
        "import benchmarks.rows as rows",
        "from benchmarks.peers import opacus",
        "import_module('benchmarks.round')",
        "import_module(f'benchmarks.{suite}')",
    ],
)
def test_every_way_to_name_the_benchmarks_is_seen(source: str) -> None:
    assert names_benchmarks(source)
    assert not names_benchmarks(source.replace("benchmarks", "measurements"))
