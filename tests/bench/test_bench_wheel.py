"""What a wheel installs: the package, without the benchmarks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_wheel_installs_no_benchmarks(tmp_path):
    """Runs the step of the build that collects the files of a wheel."""
    pytest.importorskip(
        "setuptools", minversion="61", reason="setuptools 61, which reads pyproject.toml, is not installed"
    )
    source, installed = tmp_path / "source", tmp_path / "installed"
    for folder in ("fedveil", "benchmarks"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    build = [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "build", "--build-lib", installed]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    assert [folder.name for folder in installed.iterdir()] == ["fedveil"]
    charts = [file for file in installed.rglob("*") if file.suffix in (".svg", ".png", ".jsonl")]
    assert [file for file in charts if "lab" not in file.parts] == []
    published = {file.name for file in (ROOT / "fedveil" / "recipes" / "published").glob("*.json")}
    assert {file.name for file in installed.rglob("published/*.json")} == published  # recipes show them

    command = [sys.executable, "-m", "fedveil", "bench"]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    answer = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 2 and answer.stderr.count("\n") == 1
    assert "source checkout, not in the installed package" in answer.stderr
