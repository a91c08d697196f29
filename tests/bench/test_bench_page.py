"""docs/performance.md and its charts are made from the committed rows."""

import importlib.util
import json
from pathlib import Path

from benchmarks import page
from fedveil.cli.bench import SUITES

DOCS = Path(__file__).parents[2] / "docs"


def generator():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows():
    common = {"low": 0.4, "high": 0.6, "ours": 1e-3, "theirs": 2e-3, "device": "gpu"}
    grown = {"exponent": 0.9, "exponent_low": 0.8, "exponent_high": 1.0, "points": [[10, 0.1], [20, 0.19], [40, 0.35]]}
    return [
        {"name": "round/cnn", "ratio": 0.5, **common},
        {"name": "round/cnn", "ratio": 0.7, **common, "device": "cpu"},
        {"name": "growth/mlp/K", "ratio": 0.875, **common, **grown},
        {"name": "start/help", "ratio": 4.0, **common, "cpu": 0.12, "limit": 0.3, "imported": []},
    ]


def test_page_and_charts_are_fresh():
    made = generator()
    assert (DOCS / "performance.md").read_text(encoding="utf-8") == made.PAGES["performance.md"]()
    charts = made.performance_pictures()
    kept = {file.name: file.read_text(encoding="utf-8") for file in (DOCS / "pictures").glob("bench-*.svg")}
    assert kept == charts, "run 'python docs/generate.py'"


def test_rows_come_back_in_order_of_files(tmp_path):
    for name, row in zip(("bench-b", "bench-a", "other"), rows(), strict=False):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert page.read(tmp_path) == [rows()[1], rows()[0]]


def test_every_row_is_on_the_page_under_its_device():
    text = page.page(rows(), {"round": "A remark.", "log": "A prediction."})
    assert "On gpu:" in text and "On cpu:" in text and "A remark." in text and "A prediction." in text
    assert "0.5 (0.4 to 0.6)" in text and "0.7 (0.4 to 0.6)" in text
    assert "| growth/mlp/K | 0.875 (0.4 to 0.6) | 0.001 | 0.002 | 0.9 | 0.8 | 1 |" in text
    assert text.count("Not run.") == len(page.SUITES) - 3


def test_charts_are_linked_and_drawn():
    charts = page.pictures(rows())
    assert set(charts) == {"bench-round-1.svg", "bench-round-2.svg", "bench-growth-1.svg"}
    text = page.page(rows(), {})
    assert all(f"(pictures/{name})" in text for name in charts) and all("<svg" in svg for svg in charts.values())
    assert "mlp/K: exponent 0.90" in charts["bench-growth-1.svg"]


def test_page_and_command_have_the_same_suites():
    assert tuple(page.SUITES) == SUITES


def test_rows_are_written_one_per_line(monkeypatch, tmp_path, fedveil_cli):
    monkeypatch.setattr("benchmarks.growth.run", lambda **_: rows()[2:3])
    answer = fedveil_cli("bench", "growth", "--out", tmp_path / "bench-x.jsonl", "--json", cwd=tmp_path)
    assert json.loads(answer.out) == rows()[2:3] == page.read(tmp_path)
    lost = fedveil_cli("bench", "growth", "--out", tmp_path / "nowhere" / "x", cwd=tmp_path)
    assert lost.code == 2 and "--out" in lost.err
