"""`fedveil bench`: ratios measured side by side in one run."""

from __future__ import annotations

from fedveil.cli import show
from fedveil.errors import unknown_name

SUITES = ("round",)


def run_bench(suite: str, repeats: int, json: bool) -> None:
    """Runs a suite and prints its rows."""
    if suite not in SUITES:
        raise unknown_name("bench", suite, SUITES)
    from fedveil.bench.round import run

    rows = run(repeats=repeats, progress=show.note)
    if json:
        show.print_json(rows)
        return
    columns = ("name", "ratio", "low", "high", "ours", "theirs", "device")
    show.print_table(
        "seconds per client and local iteration; ratio = ours / theirs",
        columns,
        [[r[c] for c in columns] for r in rows],
    )
