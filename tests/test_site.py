"""The documentation site: every page is in the navigation, links are turned into links of the site, notebooks run."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]


def hooks():
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_navigation():
    return re.findall(r": ([\w./-]+\.md)$", NAVIGATION, re.MULTILINE)


def test_every_page_is_in_the_navigation_once():
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md")}
    pages |= set(hooks().ROOT_PAGES.values()) | {f"notebooks/{path.stem}.md" for path in NOTEBOOKS}
    assert len(in_navigation()) == len(set(in_navigation()))
    assert set(in_navigation()) == pages, "every page needs a line in the nav of mkdocs.yml"


KNOWN = {"index.md", "readme.md", "ledger.md", "attacks/melis.md", "notebooks/choose.md", "pictures/face.png"}


@pytest.mark.parametrize(
    ("source", "place", "text", "made"),
    [
        ("README.md", "readme.md", "[a](docs/ledger.md#b)", "[a](ledger.md#b)"),
        ("README.md", "readme.md", "![a](docs/pictures/face.png)", "![a](pictures/face.png)"),
        ("README.md", "readme.md", "[a](LICENSE)", "a"),
        ("docs/index.md", "index.md", "[a](../README.md)", "[a](readme.md)"),
        ("docs/attacks/melis.md", "attacks/melis.md", "[a](../ledger.md)", "[a](../ledger.md)"),
        ("docs/attacks/melis.md", "attacks/melis.md", "[a](../../README.md)", "[a](../readme.md)"),
        ("docs/index.md", "index.md", "[a](notebooks/choose.ipynb)", "[a](notebooks/choose.md)"),
        ("docs/index.md", "index.md", "[a](../fedveil/config.py)", "a"),
        ("docs/index.md", "index.md", "[a](https://example.org/x.md) [b](#c)", "[a](https://example.org/x.md) [b](#c)"),
    ],
)
def test_links_are_those_of_the_site(source, place, text, made):
    assert hooks().relinked(text, source, place, KNOWN) == made


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebooks_have_outputs_and_no_traces_of_a_machine(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in code)
    assert not [out for cell in code for out in cell["outputs"] if out["output_type"] == "error"]
    assert all(word not in path.read_text(encoding="utf-8") for word in ("/tmp/", "/home/", "/root/"))


# `make docs` executes them all. The quickest is also here, so that a changed interface is noticed by `make test`.
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=() if p.stem.startswith("account") else pytest.mark.slow, id=p.stem) for p in NOTEBOOKS],
)
def test_notebooks_run(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(path), "exec"), names)
    assert capsys.readouterr().out


def test_bibliography_identifies_every_paper():
    """Each row ends with an arXiv id or a DOI whose link is the identifier. A technical report may have none."""
    text = (DOCS / "bibliography.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    rows = [row for row in rows if "identifier" not in row[-1]]
    assert len(rows) >= 40
    for row in rows:
        if "Technical Report" in row[1]:
            continue
        kind, name, link = re.fullmatch(r"\[(arXiv|doi):([^\]]+)\]\((\S+)\) \|", row[-1]).groups()
        assert link == {"arXiv": "https://arxiv.org/abs/", "doi": "https://doi.org/"}[kind] + name


def test_the_site_asks_no_other_host_for_fonts():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in text
    assert "extra_javascript" not in text and "extra_css" not in text
