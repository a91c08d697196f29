"""Plug-ins: registered from Python, and from an installed package that is found by its entry points."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedveil
from fedveil.accounting import ledger
from fedveil.accounting.accountants import ACCOUNTANTS, accountant_named
from fedveil.config import from_dict
from fedveil.core.errors import ConfigError
from fedveil.defenses import catalog
from fedveil.federation import plan

PACKAGE = Path(__file__).parent / "plugins"

SETTINGS: dict[str, Any] = {
    "data": {"name": "digits", "clients": 4, "per_client": 40},
    "model": {"name": "logistic"},
    "train": {"rounds": 2, "per_round": 4, "local_steps": 1, "batch": 5},
    "defense": [{"name": "loud", "noise": 3.0}],
}


# --- registered from Python ----------------------------------------------------------------------------------------


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(PACKAGE))
    from loud_plugins.accountant import Doubled
    from loud_plugins.defense import Loud

    fedveil.register_defense(Loud)
    fedveil.register_accountant(Doubled())
    yield
    del catalog.DEFENSES["loud"], ACCOUNTANTS["doubled"]


def test_both_are_used_like_those_of_the_package(plugins: None) -> None:
    result = fedveil.train(SETTINGS)
    row = next(r for r in result.ledger if (r.tap, r.unit, r.accountant) == ("client", "client", "pld"))
    assert row.certified and row.epsilon is not None
    twice = ledger.rows(plan(from_dict(SETTINGS)).transcript(), accountants=("doubled",))
    other = next(r for r in twice if (r.tap, r.unit, r.adjacency) == ("client", "client", row.adjacency))
    assert other.epsilon == 2 * row.epsilon and not other.certified


def test_keys_of_a_registered_defence_are_checked(plugins: None) -> None:
    with pytest.raises(ConfigError, match=r"defense\.loudness"):
        from_dict({**SETTINGS, "defense": [{"name": "loud", "loudness": 3}]})


def test_a_mechanism_at_a_stage_that_the_defence_leaves_out_has_no_certificate(
    plugins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clip and noise would never run. A key `stage` chooses the stage, so another value leaves the declared one out."""
    kind = catalog.DEFENSES["loud"]
    monkeypatch.delattr(kind, "fills")
    monkeypatch.setattr(kind, "stage", "upload", raising=False)
    rows = ledger.rows(plan(from_dict(SETTINGS)).transcript(), accountants=("pld",))
    assert all(row.epsilon is None and not row.certified for row in rows)
    assert any("loud does nothing at stage 'update'" in row.reason for row in rows)
    monkeypatch.setattr(kind, "stage", "update")
    rows = ledger.rows(plan(from_dict(SETTINGS)).transcript(), accountants=("pld",))
    assert any(row.certified for row in rows)


def test_what_is_no_plugin_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes a dataclass"):
        fedveil.register_defense(int)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="no accountant"):
        fedveil.register_accountant(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not registered"):
        accountant_named("nobody")


# --- an installed package ------------------------------------------------------------------------------------------

COMMANDS = {
    "train": ["train", "plugged.toml", "--out", "run", "--json"],
    "ledger": ["ledger", "run", "--accountant", "doubled", "--json", "--all"],
    "report": ["report", "run", "--json"],
    "list": ["list", "defenses", "--json"],
    "calibrate": ["calibrate", "plugged.toml", "--epsilon", "3", "--unit", "client", "--json"],
}
CONFIG = """
[data]
clients = 4
per_client = 40
[model]
name = "logistic"
[train]
rounds = 2
per_round = 4
local_steps = 1
batch = 5
[[defense]]
name = "loud"
noise = 3.0
"""
# Runs commands in one process, each with its status and its output.
DRIVER = """
import contextlib, io, json, sys
from fedveil.cli.main import main
told = {}
for name, arguments in json.loads(sys.argv[1]).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    told[name] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package is installed into: its modules, and the metadata that an installer writes."""
    site = tmp_path_factory.mktemp("site")
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    shutil.copytree(PACKAGE / "loud_plugins", site / "loud_plugins", ignore=shutil.ignore_patterns("__pycache__"))
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {where}" for name, where in points.items())]
    write_metadata(site, project["name"], "\n".join(lines))
    return site


def write_metadata(site: Path, name: str, entry_points: str) -> None:
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def run(script: str, *arguments: str, site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A Python script in a process of its own, with a folder of installed packages."""
    (cwd / "plugged.toml").write_text(CONFIG)
    root = Path(fedveil.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(root)])}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr
    return done


def driven(commands: dict[str, list[str]], site: Path, cwd: Path) -> dict[str, Any]:
    """The JSON documents of commands."""
    told = json.loads(run(DRIVER, json.dumps(commands), site=site, cwd=cwd).stdout)
    assert all(code == 0 for code, _, _ in told.values()), told
    return {name: json.loads(out) for name, (_, out, _) in told.items()}


def test_an_installed_package_is_found_by_every_command(installed: Path, tmp_path: Path) -> None:
    told = driven(COMMANDS, installed, tmp_path)
    certified = [row for row in told["train"]["ledger"] if (row["tap"], row["unit"]) == ("client", "client")]
    assert any(row["certified"] and row["epsilon"] for row in certified)
    doubled = {row["accountant"] for row in told["ledger"]}
    assert doubled == {"doubled"} and any(row["epsilon"] for row in told["ledger"])
    assert told["report"]["runs"][0]["defense"] == ["loud"] and (tmp_path / "run" / "report.html").is_file()
    (loud,) = [entry for entry in told["list"] if entry["name"] == "loud"]
    assert loud["keys"] == ["clip", "noise"]


def test_the_lab_offers_an_installed_defence(installed: Path, tmp_path: Path) -> None:
    script = "from fedveil.lab import requests; print([d['name'] for d in requests.choices()['defenses']])"
    assert "'loud'" in run(script, site=installed, cwd=tmp_path).stdout


@pytest.mark.slow
def test_an_installed_attack_is_found_by_its_name(installed: Path, tmp_path: Path) -> None:
    given = ["-s", "attack.name=grey", "-s", "attack.shade=0.25", "-s", "attack.images=2", "-s", "data.clients=4"]
    told = driven({"attack": ["attack", *given, "--json"], "list": ["list", "attacks", "--json"]}, installed, tmp_path)
    assert told["attack"]["images"] == 2 and told["attack"]["success_rate"] == 0.0
    assert "grey" in [entry["name"] for entry in told["list"]]


def test_a_broken_package_costs_one_line(tmp_path: Path) -> None:
    """A plug-in that cannot be imported is left out; all else works."""
    broken = "broken = no_such_module:Thing\n"
    groups = f"[fedveil.defenses]\n{broken}other = os:getcwd\n[fedveil.accountants]\n{broken}"
    write_metadata(tmp_path / "site", "broken", groups)
    commands = {"list": ["list", "defenses", "--json"], "wrong": ["ledger", "--accountant", "plt"]}
    told = json.loads(run(DRIVER, json.dumps(commands), site=tmp_path / "site", cwd=tmp_path).stdout)
    code, out, err = told["list"]
    assert code == 0 and "fed-cdp" in [entry["name"] for entry in json.loads(out)]
    assert len(err.splitlines()) == 2 and "plug-in 'broken' of fedveil.defenses is left out" in err
    assert "'other'" in err and "takes a dataclass" in err
    code, _, err = told["wrong"]
    assert code == 2 and "did you mean 'pld'" in err and "plug-in 'broken' of fedveil.accountants" in err
