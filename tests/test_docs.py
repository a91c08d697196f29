"""The pages say what the code does: generated pages are fresh, commands and examples in them work, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import tomllib
import types
from pathlib import Path

import pytest
import typer

from fedveil import config
from fedveil.attacks import registry
from fedveil.cli.main import _optional_resume, app
from fedveil.data.registry import DATASETS
from fedveil.defenses import catalog
from fedveil.sweeps.grid import cells_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(page, language):
    """Code blocks of a language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def generator(name="generate"):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def examples(language):
    return [
        pytest.param(text, id=f"{page.stem}-{place}")
        for page in PAGES
        for place, text in enumerate(blocks(page, language))
    ]


PAPERS = ("fed-cdp", "cpl", "2dp-fl", "dpfl", "beyond")
GENERATED = [
    "config.md",
    "names.md",
    "api.md",
    "reproduction.md",
    "security.md",
    "commands.md",
    *(f"reproduction/{p}.md" for p in PAPERS),
]


@pytest.mark.parametrize("page", GENERATED)
def test_generated_pages_are_fresh(page):
    made = generator().PAGES[page]()
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == made, "run 'python docs/generate.py'"


def test_generated_pictures_are_fresh():
    for name, svg in generator().reproduction_pictures().items():
        assert (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8") == svg, "run 'python docs/generate.py'"


def check_document(document):
    """A document is a config that could be run, or a sweep of such configs."""
    if "sweep" in document:
        assert cells_of(document)
    else:
        config.resolve(config.from_dict(document))


def commands():
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("fedveil ")]


@pytest.mark.parametrize("line", commands())
def test_commands_can_be_parsed(line):
    """Each command and option exists, and its settings make a config that could be run."""
    arguments = _optional_resume(shlex.split(line, comments=True)[1:])
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name = arguments.pop(0)
        assert name in command.commands, f"there is no command {name!r}"
        command = command.commands[name]
    with command.make_context(command.name, arguments) as context:
        settings = context.params.get("settings") or []
        file = context.params.get("file")
    ours = ROOT / file if file and file.startswith("examples/") else None  # other files are the reader's own
    check_document(config.read(ours, settings))


def test_there_are_commands_to_check():
    assert len(commands()) >= 8


def test_commands_that_take_long_or_end_at_chance_say_so():
    """docs/run_commands.py measured them; a comment behind the command in its page says so."""
    runner = generator("run_commands")
    rows = runner.stored()
    known = [one for page in runner.pages() for one in runner.commands_of(page) if (one.page, one.name) in rows]
    assert len(known) > 100  # of those that were measured, nearly all are still there
    for one in known:
        row = rows[one.page, one.name]
        assert not row.status, (one.page, one.name, row.note)
        assert row.status is not None or row.note in (one.skipped, runner.NO_TORCH), (one.page, one.name)
        if min(row.seconds or 0, row.cpu or 0) > 90:  # by the clock alone, other work may have had the cores
            assert "minute" in one.comment, (one.page, one.name, row.seconds)
        if row.chance is not None and row.accuracy < row.chance + 0.05:
            assert "chance" in one.comment, (one.page, one.name, row.accuracy)


@pytest.mark.parametrize("text", examples("toml"))
def test_toml_examples_are_configs(text):
    check_document(tomllib.loads(text))


@pytest.fixture
def no_new_datasets():
    """Forgets the datasets that an example registers."""
    known = dict(DATASETS)
    yield
    DATASETS.clear()
    DATASETS.update(known)


LONG_EXAMPLES = ("CONTRIBUTING-2", "attacks-0", "attacks-1", "models-0", "python-5")  # seconds each


def marked(examples):
    """The examples, of which the longest run in `make slow`."""
    return [pytest.param(*e.values, id=e.id, marks=pytest.mark.slow if e.id in LONG_EXAMPLES else ()) for e in examples]


@pytest.mark.parametrize("text", marked(examples("python")))
def test_python_examples_run(text, tmp_path, monkeypatch, capsys, no_new_datasets):
    if "import torch" in text or ", torch" in text:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "DEFENSES", dict(catalog.DEFENSES))  # an example may register a defence
    monkeypatch.setattr(registry, "ATTACKS", dict(registry.ATTACKS))  # or an attack
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)  # where dataclasses of an example look for their module
    exec(compile(text, "example", "exec", dont_inherit=True), vars(module))
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_every_dependency_is_justified():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    named = [re.split(r"[\[<>=~! ]", text)[0] for text in project["dependencies"]]
    assert re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE) == named


def test_every_defence_has_a_page_with_its_keys():
    from fedveil.core.plugins import keys
    from fedveil.defenses.catalog import DEFENSES

    for name, kind in DEFENSES.items():
        page = (ROOT / "docs" / "defenses" / f"{name}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {name}"), name
        assert "Use when" in page and "not protect" in page, name
        missing = [key for key in keys(kind) if f"`{key}`" not in page]
        assert not missing, (name, missing)


def test_every_inference_attack_has_a_page_with_adversaries_needs_cost_and_scores():
    from fedveil.attacks.inference.base import InferenceAttack
    from fedveil.attacks.registry import ATTACKS

    pages = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "attacks").glob("*.md")}
    for name, kind in ATTACKS.items():
        if not issubclass(kind, InferenceAttack):
            continue
        about = [text for text in pages.values() if f"attack.name={name}" in text or f"`{name}`" in text]
        assert about, f"no page of docs/attacks speaks of {name}"
        named = any(all(f"`{adversary}`" in text for adversary in kind.adversaries) for text in about)
        assert named, f"{name}: an adversary is not named"
        assert any("## Cost" in text or "cost" in text.lower() for text in about), f"{name}: nothing of its cost"
