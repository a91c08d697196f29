"""`fedveil bench`: finds the benchmarks in a checkout, prints and writes rows, and refuses what it cannot do."""

import json
import sys
from pathlib import Path

import pytest

import fedveil
from fedveil.cli.bench import NoBenchmarks, checkout

ROOT = Path(__file__).resolve().parents[2]
ROW = {"name": "round/x", "ratio": 1.1, "low": 1.0, "high": 1.2, "ours": 1e-3, "theirs": 1e-3, "device": "cpu"}


def a_checkout(folder, name):
    """A folder that holds `benchmarks/` and names a project."""
    (folder / "benchmarks").mkdir(parents=True)
    (folder / "benchmarks" / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    return folder


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Fedveil as installed from a wheel: no benchmarks beside it. Gives the folder of installed packages."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr(fedveil, "__file__", str(packages / "fedveil" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    return packages


def test_rows_are_printed_as_json_and_as_a_table(monkeypatch, tmp_path, fedveil_cli):
    asked = []
    monkeypatch.setattr("benchmarks.round.run", lambda **options: asked.append(options["repeats"]) or [ROW])
    assert json.loads(fedveil_cli("bench", "round", "--json", "--repeats", 4, cwd=tmp_path).out) == [ROW]
    assert "round/x" in fedveil_cli("bench", cwd=tmp_path).out
    assert asked == [4, 7]


def test_unknown_suites_are_refused(tmp_path, fedveil_cli):
    answer = fedveil_cli("bench", "ruond", cwd=tmp_path)
    assert answer.code == 2 and "did you mean 'round'?" in answer.err


def test_an_interrupted_bench_keeps_the_rows_it_has(monkeypatch, tmp_path, fedveil_cli):
    def rows(**_):
        yield ROW
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.round.run", rows)
    assert fedveil_cli("bench", "--out", "rows.jsonl", cwd=tmp_path).code == 130
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == [ROW]


@pytest.mark.parametrize("repeats", [0, 2])
def test_too_few_turns_are_refused(repeats, tmp_path, fedveil_cli):
    assert fedveil_cli("bench", "--repeats", repeats, cwd=tmp_path).code == 2


def test_the_checkout_is_found_from_any_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert checkout() == ROOT


def test_an_installed_package_says_where_the_benchmarks_are(installed, tmp_path, fedveil_cli):
    answer = fedveil_cli("bench", cwd=tmp_path)
    assert answer.code == 2 and answer.out == "" and answer.err.count("\n") == 1
    assert "source checkout, not in the installed package" in answer.err and "clone the repository" in answer.err
    assert list(tmp_path.iterdir()) == [installed]


def test_an_installed_package_finds_the_checkout_in_the_current_folder(installed, monkeypatch, tmp_path):
    root = a_checkout(tmp_path / "checkout", "fedveil")
    monkeypatch.chdir(root)
    assert checkout() == root


def test_benchmarks_of_another_project_are_not_run(installed, monkeypatch, tmp_path):
    a_checkout(installed, "another")
    (installed / "pyproject.toml").unlink()  # some wheels install their folder `benchmarks`
    monkeypatch.chdir(a_checkout(tmp_path / "checkout", "another"))
    with pytest.raises(NoBenchmarks):
        checkout()


def test_the_checkout_is_put_on_the_path(monkeypatch, tmp_path, fedveil_cli):
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(ROOT))])
    monkeypatch.setattr("benchmarks.round.run", lambda **_: [])
    assert fedveil_cli("bench", "--json", cwd=tmp_path).code == 0
    assert sys.path[0] == str(ROOT)
