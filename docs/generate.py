"""Writes the pages that are made: `python docs/generate.py`.

docs/config.md and docs/names.md come from the tables that check a config, docs/api.md from the docstrings of the public
names, docs/reproduction.md and docs/performance.md from the data that was measured. A test fails where a page in the
repository differs from what they give.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

import fedveil
from fedveil.attacks.catalog import ATTACKS, INITS
from fedveil.config import NAMES, SECTIONS, Budget
from fedveil.core.taps import TAPS
from fedveil.core.validation import Section
from fedveil.data.catalog import DATASETS, DatasetInfo
from fedveil.data.partition import PARTITIONS
from fedveil.data.split import SPLITS
from fedveil.defenses.catalog import DEFENSES
from fedveil.defenses.catalog import keys as defense_keys
from fedveil.models.catalog import MODELS

HERE = Path(__file__).parent
MADE = "<!-- Made by docs/generate.py: change the tables in fedveil/, not this page. -->"

CONFIG_HEAD = """\
A config is a TOML file, any number of `-s section.key=value` settings, or both; settings win. In Python the same words are
nested dicts. Unknown sections, keys and names are refused, and so is an option that belongs to another dataset, partition
or model than the chosen one. A key without a default here gets one from the dataset or from another key, as its description
says, or stays unset; `config.toml` in the run folder says what was taken."""

PERFORMANCE_HEAD = """\
Ratios measured side by side in one run: both sides take turns in one process, and each turn gives a ratio. Tables show the
median of the turns with the quartiles in brackets, and the median of each side, in seconds or per second. What was not run
says so. Rows are in `data/bench-*.jsonl`, made by `fedveil bench SUITE --out FILE`."""

API_HEAD = """\
The names of the package `fedveil`. The command line, the lab and the recipes call the same functions. [Python](python.md)
shows them in use. `Settings` are nested dicts as in a config file, a `Config`, the path of a TOML file, or a list of
`section.key=value`. Every result has `as_dict()`: the document that the command prints with `--json`."""

NAMES_HEAD = "What configs take where they take a name. `fedveil list KIND` prints the same tables."


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines] + [""]


def code(values: Iterable[object]) -> str:
    return ", ".join(f"`{value}`" for value in values)


# --- config.md


def config_page() -> str:
    lines = [MADE, "", "# Config", "", CONFIG_HEAD, ""]
    for name, section in SECTIONS.items():
        lines += [f"## `[{name}]`", "", _sentence(section), "", *_keys(name, section)]
        if name == "train":
            lines += ["### `train.budget`", "", _sentence(Budget), "", *_keys("train.budget", Budget)]
    lines += [
        "## `[defense]`",
        "",
        "One defence, or several in order as `[[defense]]`. On the command line `-s defense.key=value` sets the first, "
        "`-s defense.1.key=value` the second. `name` says which; the other keys are the defence's own.",
        "",
        *table(
            ("name", "keys"), ((f"`{kind.name}`", code(defense_keys(kind)) or "none") for kind in DEFENSES.values())
        ),
    ]
    return "\n".join(lines)


def _sentence(section: type[Section]) -> str:
    """A section's docstring without the name that the heading already has."""
    text = (section.__doc__ or "").partition(": ")[2].strip()
    return text[:1].upper() + text[1:]


def _keys(name: str, section: type[Section]) -> list[str]:
    rows = [
        (f"`{key}`", _default(field), _takes(f"{name}.{key}", field), field.description or "")
        for key, field in section.model_fields.items()
    ]
    return table(("key", "default", "takes", "what"), rows)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if value is None else f"`{json.dumps(value)}`"


def _takes(key: str, field: FieldInfo) -> str:
    if key in NAMES:
        return code(NAMES[key])
    kinds = " or ".join(_kind(kind) for kind in _members(field.annotation))
    limits = [text for constraint in field.metadata if (text := _limit(constraint))]
    return ", ".join([kinds, *limits])


def _members(annotation: Any) -> list[Any]:
    """The types of a union, but None."""
    if get_origin(annotation) in (Union, UnionType):
        return [kind for kind in get_args(annotation) if kind is not type(None)]
    return [annotation]


def _kind(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return code(get_args(kind))
    if get_origin(kind) is list:
        return "list of " + {int: "whole numbers"}.get(get_args(kind)[0], "values")
    words = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`"}
    return words.get(kind, "table")


def _limit(constraint: Any) -> str:
    words = {"ge": "from {}", "gt": "above {}", "le": "to {}", "lt": "below {}"}
    words |= {"min_length": "at least {} of them", "max_length": "at most {} of them"}
    found = [(name, getattr(constraint, name, None)) for name in words]
    return ", ".join(words[name].format(value) for name, value in found if value is not None)


# --- names.md


def names_page() -> str:
    lines = [MADE, "", "# Names", "", NAMES_HEAD, ""]
    lines += ["## Datasets", "", *_described(DATASETS.values())]
    lines += ["What each is trained with where the config does not say:", "", *_training(DATASETS.values())]
    notes = [f"- `{info.name}`: {info.note}." for info in DATASETS.values() if info.note]
    lines += ["What a reader of results on them must know:", "", *notes, ""]
    lines += ["## Splits", "", *table(("name", "what"), ((f"`{n}`", text) for n, text in SPLITS.items()))]
    lines += ["## Partitions", "", *_described(PARTITIONS.values())]
    lines += ["## Models", "", *_described(MODELS.values())]
    defenses = ((f"`{kind.name}`", kind.summary, code(defense_keys(kind))) for kind in DEFENSES.values())
    lines += ["## Defences", "", *table(("name", "what", "keys"), defenses)]
    lines += ["## Attacks", "", *_described(ATTACKS.values())]
    lines += ["## Starts of attacks", "", *table(("name", "what"), ((f"`{n}`", text) for n, text in INITS.items()))]
    lines += ["## Taps", "", *table(("name", "what"), ((f"`{n}`", text) for n, text in TAPS.items()))]
    return "\n".join(lines)


def _described(infos: Iterable[Any]) -> list[str]:
    return table(("name", "what", "keys"), ((f"`{i.name}`", i.summary, code(i.keys)) for i in infos))


def _training(infos: Iterable[DatasetInfo]) -> list[str]:
    head = ("dataset", "model", "partition", "examples per client", "rounds", "local steps", "batch", "learning rate")
    rows = (
        (
            f"`{i.name}`",
            f"`{i.model}`",
            f"`{i.partition}`",
            "by partition" if i.per_client is None else str(i.per_client),
            str(i.rounds),
            str(i.local_steps),
            str(i.batch),
            str(i.lr),
        )
        for i in infos
        if i.trainable
    )
    return table(head, rows)


# --- api.md


def api_page() -> str:
    """Every public name with its signature and its docstring."""
    lines = [MADE, "", "# API", "", API_HEAD, ""]
    for name, (module, _) in fedveil.FUNCTIONS.items():
        if find_spec(module) is not None:
            lines += _function(name)
    return "\n".join(lines)


def _function(name: str) -> list[str]:
    module, attribute = fedveil.FUNCTIONS[name]
    found = getattr(import_module(module), attribute)
    signature = ["```text", _signature(f"fedveil.{name}", inspect.signature(found)), "```"]
    return [f"## `{name}`", "", *signature, "", inspect.getdoc(found) or "", ""]


def _signature(name: str, signature: inspect.Signature) -> str:
    """A call with its parameters: on one line where it fits, else one parameter to a line."""
    returns = "" if signature.return_annotation is signature.empty else f" -> {signature.return_annotation}"
    parameters = [_parameter(parameter) for parameter in signature.parameters.values()]
    keyword_only = [p.kind is p.KEYWORD_ONLY for p in signature.parameters.values()]
    if True in keyword_only:
        parameters.insert(keyword_only.index(True), "*")
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){returns}"])


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    typed = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}{typed}{default}"


# --- reproduction.md


def reproduction_page() -> str:
    """All tables and figures of the papers, from the cells in data/cells.jsonl."""
    from fedveil.recipes.cache import Cache
    from fedveil.recipes.catalog import recipes
    from fedveil.recipes.page import page

    summaries = {file.stem: file.read_text(encoding="utf-8") for file in (HERE / "data" / "summaries").glob("*.txt")}
    head = (HERE / "data" / "summaries" / "head.txt").read_text(encoding="utf-8").strip()
    body = page(recipes().values(), Cache(HERE / "data"), summaries)
    return "\n".join([MADE, "", "# Reproduction", "", head, "", body])


def reproduction_pictures() -> dict[str, str]:
    """The figures of that page, by name in pictures/."""
    from fedveil.recipes.cache import Cache
    from fedveil.recipes.catalog import recipes
    from fedveil.recipes.page import pictures

    return pictures(recipes().values(), Cache(HERE / "data"))


# --- performance.md


def performance_page() -> str:
    """All benches, from the rows in data/bench-*.jsonl."""
    from fedveil.bench.page import page, read

    folder = HERE / "data" / "summaries"
    found = {file.stem.removeprefix("performance-"): file for file in folder.glob("performance-*.txt")}
    remarks = {name: file.read_text(encoding="utf-8") for name, file in found.items()}
    return "\n".join([MADE, "", "# Performance", "", PERFORMANCE_HEAD, "", page(read(HERE / "data"), remarks)])


def performance_pictures() -> dict[str, str]:
    """The charts of that page, by name in pictures/."""
    from fedveil.bench.page import pictures, read

    return pictures(read(HERE / "data"))


PAGES = {
    "config.md": config_page,
    "names.md": names_page,
    "api.md": api_page,
    "reproduction.md": reproduction_page,
    "performance.md": performance_page,
}

if __name__ == "__main__":
    for name, svg in {**reproduction_pictures(), **performance_pictures()}.items():
        (HERE / "pictures" / name).write_text(svg, encoding="utf-8")
    for page, make in PAGES.items():
        (HERE / page).write_text(make(), encoding="utf-8")
        print(HERE / page)
