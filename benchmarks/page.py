"""The page of all benchmarks, made from measured rows. Only its remarks are written by hand.

Rows are in `docs/data/bench-*.jsonl`, as `fedveil bench SUITE --out FILE` writes them. A file may hold rows of any suite;
by convention it holds those of one device. `data/summaries/performance-SUITE.txt` holds the remark on a suite, and
`performance-log.txt` the log of predictions and outcomes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedveil.cli.bench import MORE
from fedveil.report.charts import Bars, Series, bar_chart, line_chart
from fedveil.report.tables import table_markdown

Row = Mapping[str, Any]

SUITES = {
    "round": ("Rounds", "Seconds per client and local iteration, ours over theirs: under 1 ours is faster."),
    "attack": ("Attacks", "Seconds per attacked image: ours in a batch, over theirs one image at a time."),
    "shadows": ("Shadows", "Seconds per shadow federation: trained in a batch, over trained alone."),
    "ledger": ("Accounts", "Seconds per account, ours over dp_accounting's, where both find the same ε."),
    "roofline": (
        "Roofline",
        "The share of the machine's rate: operations per second over those of plain matrix products, and bytes per second "
        "over those of a copy. Both sides take turns in one process.",
    ),
    "growth": (
        "Growth",
        "Seconds per unit of size, at the largest size over at the smallest, and the exponent of seconds against size. "
        "Up to 1 the growth is at most linear.",
    ),
    "start": (
        "Cold start",
        "Wall seconds of a fresh process over those of the bare interpreter. `cpu` is processor time in seconds.",
    ),
}
DRAWN = ("round", "attack", "roofline")  # suites whose ratios are drawn as bars


def read(folder: Path) -> list[Row]:
    """Every measured row, in the order of the file names."""
    files = sorted(folder.glob("bench-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines() if line]


def page(rows: Sequence[Row], remarks: Mapping[str, str]) -> str:
    """All suites in order: what is measured, the remark, one table per device, the charts."""
    lines: list[str] = []
    for suite, (title, what) in SUITES.items():
        here = [row for row in rows if _suite(row) == suite]
        lines += [f"## {title}", "", f"`fedveil bench {suite}`. {what}", ""]
        if remarks.get(suite):
            lines += [remarks[suite].strip(), ""]
        lines += _tables(suite, here) if here else ["Not run.", ""]
        lines += [f"![{name}](pictures/{name})\n" for name, _ in _charts(suite, here)]
    if remarks.get("log"):
        lines += ["## Predictions and outcomes", "", remarks["log"].strip(), ""]
    return "\n".join(lines).rstrip() + "\n"


def pictures(rows: Sequence[Row]) -> dict[str, str]:
    """The charts of the page as SVG, by file name."""
    return {name: svg for suite in SUITES for name, svg in _charts(suite, [r for r in rows if _suite(r) == suite])}


def _suite(row: Row) -> str:
    return str(row["name"]).partition("/")[0]


def _devices(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(row["device"]) for row in rows))


def _tables(suite: str, rows: Sequence[Row]) -> list[str]:
    more = MORE.get(suite, ())
    lines: list[str] = []
    for device in _devices(rows):
        body = [_cells(row, more) for row in rows if row["device"] == device]
        head = ("name", "ratio", "ours", "theirs", *(name.replace("_", " ") for name in more))
        lines += [f"On {device}:", "", table_markdown(head, body).rstrip(), ""]
    return lines


def _cells(row: Row, more: Sequence[str]) -> list[str]:
    ratio = f"{_text(row['ratio'])} ({_text(row['low'])} to {_text(row['high'])})"
    return [str(row["name"]), ratio, _text(row["ours"]), _text(row["theirs"]), *(_text(row.get(m)) for m in more)]


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(v) for v in value) or "none"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.3g}"
    return "" if value is None else str(value)


# --- charts


def _charts(suite: str, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """(file name, SVG) of a suite's charts, one per device."""
    for number, device in enumerate(_devices(rows), start=1):
        here = [row for row in rows if row["device"] == device]
        if suite == "growth":
            yield f"bench-growth-{number}.svg", _lines(here, device)
        elif suite in DRAWN:
            yield f"bench-{suite}-{number}.svg", _bars(suite, here, device)


def _lines(rows: Sequence[Row], device: str) -> str:
    """Cost against size, both relative to their smallest value, with a line for linear growth."""
    series = []
    for row in rows:
        least, first = row["points"][0]
        name = f"{row['name'].removeprefix('growth/')}: exponent {row['exponent']:.2f}"
        series.append(Series(name, [n / least for n, _ in row["points"]], [s / first for _, s in row["points"]]))
    most = max(max(one.x) for one in series)
    series.append(Series("linear", [1.0, most], [1.0, most]))
    return line_chart(
        series, title=f"Cost against size, {device}", x_label="size over the smallest",
        y_label="seconds over those of the smallest", x_log=True, y_log=True,
    )  # fmt: skip


def _bars(suite: str, rows: Sequence[Row], device: str) -> str:
    names = [str(row["name"]).removeprefix(f"{suite}/") for row in rows]
    bars = Bars("ratio", *([row[key] for row in rows] for key in ("ratio", "low", "high")))
    return bar_chart(names, [bars], title=f"{SUITES[suite][0]}, {device}", x_label="", y_label="ratio")
