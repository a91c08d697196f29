"""The documentation pages of the reproductions, generated from measured cells; only the summaries are written by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from fedveil.recipes.cache import Cache
from fedveil.recipes.cell import FULL, QUICK, Measure, Recipe, Size
from fedveil.recipes.chance import AT_CHANCE, DIVERGED
from fedveil.recipes.published import claims_of
from fedveil.recipes.readings import shortfall_table
from fedveil.recipes.run import jobs_of
from fedveil.recipes.table import Entry, chart, entries, number, rows_of
from fedveil.report.charts import Chart
from fedveil.report.tables import table_markdown

VERDICTS = ("holds", "holds under another reading", "does not hold", "not resolved")
LINK = re.compile(r"\]\((?![a-z]+:|#|/)([^)]+)\)")  # a link to a file


def page(paper: str, recipes: Iterable[Recipe], cache: Cache, summary: str) -> str:
    """One paper: its summary, then each table with the published values in brackets.

    Summaries and tables link to files beside `reproduction.md`. The page is one folder below.
    """
    lines = [f"# Reproduction: {paper}", "", summary.strip(), ""]
    for recipe in recipes:
        if recipe.paper == paper:
            lines += section(recipe, cache)
    return LINK.sub(r"](../\1)", "\n".join(lines).rstrip() + "\n")


def overview(summaries: Mapping[str, str]) -> str:
    """How many claims of each paper hold, and every claim that does not hold as printed."""
    counts, failed = [], []
    for paper, summary in summaries.items():
        found = claims(summary)
        if found:
            counts.append(
                [f"[{paper}](reproduction/{paper}.md)", *(str(_count(found, verdict)) for verdict in VERDICTS)]
            )
        failed += [[paper, claim, verdict] for claim, verdict in found if "does not hold" in verdict.lower()]
    tables = (["paper", *VERDICTS], counts), (["paper", "claim", "verdict"], failed)
    first, second = ("\n".join(_plain_table(head, body)) for head, body in tables)
    between = "A claim with two verdicts counts under the first. Claims that do not hold, at least in part:"
    return f"{first}\n\n{between}\n\n{second}\n"


def claims(summary: str) -> list[tuple[str, str]]:
    """Claim and verdict of each row of a summary's first table."""
    rows = [line.strip("|").split(" | ") for line in summary.splitlines() if line.startswith("| ")]
    return [(row[0].strip(), row[1].strip()) for row in rows[1:] if len(row) >= 4]


def _count(found: list[tuple[str, str]], verdict: str) -> int:
    """The number of claims whose text begins with this verdict and with no longer one."""
    first = [max((v for v in VERDICTS if text.lower().startswith(v)), key=len, default="") for _, text in found]
    return first.count(verdict)


def _plain_table(head: list[str], body: list[list[str]]) -> list[str]:
    """A Markdown table whose cells are Markdown already."""
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)]


def section(recipe: Recipe, cache: Cache) -> list[str]:
    """One recipe at the paper's size; also at the quick size where this has cells that were not run in any larger one."""
    lines = [f"## {recipe.name}: {recipe.title}", ""]
    lines += [f"The paper says: {claim}" for claim in claims_of(recipe.name)]
    lines += [""] if claims_of(recipe.name) else []
    shown = {size: {(e.row, e.column) for e in entries(recipe, size, cache) if e.seeds} for size in (FULL, QUICK)}
    sizes = [size for size, cells in shown.items() if cells]
    if not sizes:
        return [*lines, "Not run.", ""]
    for size in sizes[:1] if shown[QUICK] <= shown[FULL] else sizes:
        lines += _size(recipe, size, cache)
    if _drawn(recipe, cache) is not None:
        lines += [f"![{recipe.title}](pictures/{picture_of(recipe)})", ""]
    if recipe.why:
        lines += [f"Why the values differ: {recipe.why}.", ""]
    return lines


def picture_of(recipe: Recipe) -> str:
    """The file name of a recipe's figure."""
    return f"{recipe.name.replace('/', '-')}.svg"


def pictures(recipes: Iterable[Recipe], cache: Cache) -> dict[str, str]:
    """The figures as SVG, by file name."""
    drawn = {picture_of(recipe): _drawn(recipe, cache) for recipe in recipes}
    return {name: one.svg() for name, one in drawn.items() if one is not None}


def _drawn(recipe: Recipe, cache: Cache) -> Chart | None:
    """The chart at the paper's size, or at the quick size if more cells were measured there."""
    measured = {size: sum(entry.full for entry in entries(recipe, size, cache)) for size in (FULL, QUICK)}
    return chart(recipe, max(measured, key=lambda size: measured[size]), cache)


def _size(recipe: Recipe, size: Size, cache: Cache) -> list[str]:
    found = entries(recipe, size, cache)
    devices = sorted({entry.device for entry in found if entry.device})
    reached = "The paper's size" if any(entry.full for entry in found) else "No cell at the paper's size yet"
    named = reached if size.full else f"Quick size ({recipe.quick})"
    marks = _marks(found)
    smaller = " *In italics* the largest run of a cell that is not measured at this size." if marks else ""
    what = "Measured, with its interval; in brackets published, and the gap."
    lines = [f"{named}, on {', '.join(devices)}. {what}{smaller}"]
    open_readings = _open_readings(recipe, size, found)
    lines += [f"{_time(recipe, size, cache)}{_notes(recipe, size, open_readings)}", ""]
    found = [entry for entry in found if entry.row not in open_readings]
    known = {(entry.row, entry.measure.key) for entry in found if _is_known(entry)}
    known_rows = {row for row, _ in known}
    for measure in recipe.measures:
        of_measure = [entry for entry in found if entry.measure == measure]
        # A row without this measure is left out. A row without any value is shown once, under the first measure.
        first = measure == recipe.measures[0]
        kept = [e for e in of_measure if (e.row, measure.key) in known or (first and e.row not in known_rows)]
        if any(_is_known(entry) for entry in kept):
            lines += [*_matrix(measure, kept, marks), *_chance(kept), ""]
    notes = [f"{mark} {', '.join(reduced)}" for reduced, mark in marks.items()]
    lines += [f"Smaller runs: {'; '.join(notes)}.", ""] if notes else []
    if open_readings:
        lines += [f"Readings of ours that are not measured yet: {'; '.join(open_readings)}.", ""]
    below = shortfall_table(recipe, size, cache, _measured) if size.full else []
    return [*lines, *below, *_searches(recipe, size, cache)]


def _open_readings(recipe: Recipe, size: Size, found: list[Entry]) -> list[str]:
    """Readings that were added to the paper's rows and have no run of any size. They are named, not shown as a row."""
    ours = dict.fromkeys(cell.row for cell in recipe.cells(size) if cell.like)
    measured = {entry.row for entry in found if entry.seeds}
    return [row for row in ours if row not in measured]


STATES = {AT_CHANCE: "†", DIVERGED: "‡"}  # the marks of accuracies that are no success


def _chance(found: list[Entry]) -> list[str]:
    """Chance below a table of accuracies, and what its marks mean."""
    values: dict[str, list[str]] = {}
    for entry in found:
        if entry.chance is not None:
            values.setdefault(entry.chance.data, []).append(number(entry.chance.value, 3))
    if not values:
        return []
    told = "; ".join(f"{name} {' or '.join(dict.fromkeys(several))}" for name, several in values.items())
    used = {state for entry in found for state in entry.states}
    marks = "".join(f" {mark} {state}." for state, mark in STATES.items() if state in used)
    return ["", f"Chance, which is naming the most common class: {told}.{marks}"]


LETTERS = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ"
ITALIC = "\ue000"  # stands for the mark of italics until the other marks of a table are escaped


def _marks(found: list[Entry]) -> dict[tuple[str, ...], str]:
    """A superscript for each way in which cells of a table are smaller than the paper's."""
    ways = dict.fromkeys(entry.reduced for entry in found if entry.reduced)
    return {reduced: LETTERS[n % len(LETTERS)] * (1 + n // len(LETTERS)) for n, reduced in enumerate(ways)}


def _searches(recipe: Recipe, size: Size, cache: Cache) -> list[str]:
    """What each search of a table tried, and what it chose."""
    body = []
    for cell in recipe.cells(size):
        rows, reduced = rows_of(cell, size, cache) if cell.kind == "search" else ([], ())
        for row in rows:
            tried = "; ".join(f"{_settings(one)}: {accuracy:.3f}" for one, accuracy in row["result"]["tried"])
            smaller = f" ({', '.join(reduced)})" if reduced else ""
            body.append([cell.row + smaller, cell.column, _settings(row["result"]["chosen"]), tried])
    head = ["search", "column", "chosen", "accuracy of what was tried, one seed each"]
    return [*table_markdown(head, body).rstrip().splitlines(), ""] if body else []


def _settings(chosen: list[str]) -> str:
    return ", ".join(setting.partition(".")[2].replace("=", " ") for setting in chosen)


def _time(recipe: Recipe, size: Size, cache: Cache) -> str:
    """The number of runs behind the table, and their total time."""
    jobs = jobs_of([recipe], size)
    rows = [row for row in (cache.get(job) for _, job in jobs.values()) if row is not None]
    known = [row["seconds"] for row in rows if row["seconds"] is not None]
    if rows and not known:
        return f"{len(rows)} runs; their time was not recorded."
    seconds = sum(known)
    took = f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} seconds"
    missing = f" of {len(jobs)}" if len(rows) < len(jobs) else ""
    lacking = f", without the time of {len(rows) - len(known)} of them" if len(known) < len(rows) else ""
    return f"{len(rows)}{missing} run{'s' if len(jobs) > 1 else ''}, {took} in all{lacking}."


def _notes(recipe: Recipe, size: Size, left_out: list[str]) -> str:
    """The notes of cells that differ from the paper's setting, with the rows and columns of these cells."""
    cells: dict[str, list[str]] = {}
    for cell in recipe.cells(size):
        if cell.note and cell.row not in left_out:
            cells.setdefault(cell.note, []).append(f"{cell.row}, {cell.column}")
    return "".join(f" {note}: {'; '.join(dict.fromkeys(names))}." for note, names in cells.items())


def _is_known(entry: Entry) -> bool:
    return entry.measured is not None or entry.published is not None


def _matrix(measure: Measure, found: list[Entry], marks: Mapping[tuple[str, ...], str]) -> list[str]:
    """One measure as a table of rows and columns."""
    columns = list(dict.fromkeys(entry.column for entry in found))
    rows = list(dict.fromkeys(entry.row for entry in found))
    by_cell = {(entry.row, entry.column): entry for entry in found}
    body = [[row, *(_text(by_cell.get((row, column)), marks) for column in columns)] for row in rows]
    return table_markdown([measure.label, *columns], body).replace(ITALIC, "*").rstrip().splitlines()


def _measured(entry: Entry) -> str:
    """The measured value with its marks."""
    if not entry.seeds:
        return "not run"
    if entry.measured is None:
        return "–"
    return number(entry.measured, entry.measure.digits) + "".join(STATES[state] for state in entry.states)


def _text(entry: Entry | None, marks: Mapping[tuple[str, ...], str]) -> str:
    if entry is None:
        return ""
    digits = entry.measure.digits
    text = _measured(entry)
    if entry.low is not None and entry.measured is not None:
        text += f" [{number(entry.low, digits)}, {number(entry.high, digits)}]"
    if entry.reduced:
        text = f"{ITALIC}{text}{ITALIC}{marks[entry.reduced]}"
    if entry.published is None:
        return text
    gap = "" if entry.gap is None else f"; {'−' if entry.gap < 0 else '+'}{number(abs(entry.gap), digits)}"
    return f"{text} ({number(entry.published, digits)}{gap})"
