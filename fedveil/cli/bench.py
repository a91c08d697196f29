"""`fedveil bench`: ratios measured side by side in one run."""

from __future__ import annotations

from fedveil.cli import show
from fedveil.errors import unknown_name

SUITES = ("round", "attack", "shadows")


def run_bench(suite: str, repeats: int, json: bool) -> None:
    """Runs a suite and prints its rows."""
    if suite not in SUITES:
        raise unknown_name("bench", suite, SUITES)
    if suite == "round":
        from fedveil.bench import round as bench_round

        title = "seconds per client and local iteration; ratio = ours / theirs"
        rows = bench_round.run(repeats=repeats, progress=show.note)
    elif suite == "shadows":
        from fedveil.bench import shadows as bench_shadows

        title = "seconds per shadow federation; ratio = in a batch / alone"
        rows = bench_shadows.run(repeats=repeats, progress=show.note)
    else:
        from fedveil.bench import attack as bench_attack

        title = "seconds per attacked image; ratio = ours / theirs"
        rows = bench_attack.run(repeats=repeats, progress=show.note)
    if json:
        show.print_json(rows)
        return
    columns = ("name", "ratio", "low", "high", "ours", "theirs", "device")
    show.print_table(title, columns, [[r[c] for c in columns] for r in rows])
