"""`fedveil tune`: searches settings on private data, and counts the search in ε."""

from __future__ import annotations

from fedveil.cli import show
from fedveil.config import read


def run_tune(
    file: str | None, settings: list[str], out: str | None, trials: float, delta: float | None, json: bool
) -> None:
    """Tunes and prints the best training with its account."""
    from fedveil.run_account import check_delta
    from fedveil.sweeps.grid import label
    from fedveil.sweeps.tune import tune

    with show.as_options("trials", "delta", "out"):
        check_delta(delta)
        done = tune(read(file, settings), out, trials=trials, delta=delta, progress=show.note)
    if json:
        show.print_json(done.as_dict())
        return
    lines = [
        ("best settings", label(done.values)),
        (f"accuracy ({done.split})", done.accuracy),
        ("chance", done.chance),
        ("trainings, on average", done.mean_trials),
        ("settings to choose from", done.candidates),
        *done.files.items(),
    ]
    show.print_table("Tuning", ("what", "result"), lines)
    columns = ("unit", "adjacency", "ε of the best", "ε of one training", "δ")
    rows = [(r["unit"], r["adjacency"], r["epsilon"], r["epsilon_of_one_training"], r["delta"]) for r in done.epsilon]
    show.print_table("Privacy of the released model, the search counted", columns, rows)
