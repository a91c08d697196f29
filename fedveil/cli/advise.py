"""`fedveil advise`: prints a private setting for a federation of a given size, with its cost and what attacks got."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.cli import show
from fedveil.core.errors import ConfigError
from fedveil.core.files import SHARED, write_text

if TYPE_CHECKING:
    from fedveil.accounting.ledger import Row
    from fedveil.advice.advise import Advice, Option
    from fedveil.cli.options import AdviseOptions

COLUMNS = ("setting", "accuracy", "ε", "rebuilt", "guessed")


def run_advise(options: AdviseOptions, json: bool) -> None:
    """Advises; writes the config to `out`."""
    asked = asdict(options)
    out = asked.pop("out")
    if out == "":
        raise ConfigError("--out", out, "takes a file for the config: leave it out to print it only")
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {line}", file=sys.stderr, flush=True)

    from fedveil.advice.advise import advise

    with show.as_options(*asked):
        found = advise(say, **{**asked, "shape": _shape(options.shape)})
    if out is not None and found.config is not None:
        try:
            write_text(Path(out), found.config, SHARED)
        except OSError as error:
            raise ConfigError("--out", out, f"cannot be written ({error.strerror}): name another file") from None
    if json:
        show.print_json(found.as_dict())
        return
    _print(found, out)


def _shape(text: str | None) -> tuple[int, ...] | None:
    """`28,28,1` as numbers."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(
            "--shape", text, "takes rows,columns,colours of an image (28,28,1), or the columns of a table (30)"
        )
    return tuple(int(part) for part in parts)


def _print(found: Advice, out: str | None) -> None:
    asked = found.asked
    if found.impossible is not None:
        _print_impossible(found)
        return
    print(f"Advice for ε ≤ {asked.epsilon:g} at the tap {asked.tap}, δ = {asked.delta:g}, unit {asked.unit}:")
    print(f"{found.options[0].candidate.kind.says}.\n")
    rows = [_row(option, asked.tap, asked.unit) for option in found.options]
    show.print_table("Advice and alternatives", COLUMNS, rows)
    print(
        f"Accuracy, with the 95 % interval of {len(found.options[0].trial.accuracies)} trainings, is on the stand-in:"
    )
    print(f"{found.stand_in.says}.")
    print(f"Chance is {found.chance:.3f}; the same model without noise learns to {found.non_private:.3f}.")
    print("Rebuilt: the most that an attack on gradients got. Guessed: AUC of guessing membership (0.5 is a coin).")
    print(f"Tuning: {found.as_dict()['tuning']}.\n")
    _print_leak(found.options[0])
    _print_ledger(found.options[0])
    print(f"\n{found.config}")
    if out is None:
        print("Keep these lines as advice.toml (or use --out advice.toml). Then:")
    print(found.next.replace("advice.toml", out or "advice.toml"))


def _print_impossible(found: Advice) -> None:
    asked, why = found.asked, dict(found.impossible or {})
    print(f"Nothing useful at ε = {asked.epsilon:g} with {asked.clients} clients: {why['reason']}.")
    least, clients = why["from_epsilon"], why["from_clients"]
    print(f"From about ε = {least:.3g} on there is." if least else "No ε that was tried would do.")
    print(f"Or from about {clients} clients on." if clients else "No number of clients that was tried would do.")
    print(f"Found by {why['how']}.")


def _row(option: Option, tap: str, unit: str) -> tuple[object, ...]:
    trial, candidate = option.trial, option.candidate
    span = "" if trial.interval is None else f" [{trial.interval[0]:.3f}, {trial.interval[1]:.3f}]"
    rebuilt = [
        entry["success"] for name, entry in trial.leak.items() if name != "release" and entry["success"] is not None
    ]
    guessed = trial.leak.get("release", {}).get("success")
    setting = f"{candidate.kind.name}, {candidate.rounds} rounds"
    share = f"{100 * max(rebuilt):.0f} %" if rebuilt else ""
    return setting, f"{trial.accuracy:.3f}{span}", _epsilon(option, tap, unit), share, guessed


def _epsilon(option: Option, tap: str, unit: str) -> float | None:
    best = _best(option, tap, unit)
    return None if best is None else best.epsilon


def _best(option: Option, tap: str, unit: str) -> Row | None:
    """The smallest certified ε: for presence or absence, else for replacement."""
    here = [row for row in option.ledger if (row.tap, row.unit) == (tap, unit) and row.certified]
    known = [row for row in here if row.epsilon is not None]
    return min(known, key=lambda row: (row.adjacency == "replace", row.epsilon), default=None)


def _print_leak(option: Option) -> None:
    rows = []
    for tap, entry in option.trial.leak.items():
        span = entry["interval"]
        between = "" if span is None else f" [{span[0]:.2f}, {span[1]:.2f}]"
        value = "" if entry["success"] is None else f"{entry['success']:.2f}{between}"
        rows.append((tap, value, entry["what"]))
    show.print_table("What attacks on the advice got, on the stand-in", ("tap", "got", "what"), rows)


def _print_ledger(option: Option) -> None:
    """The smallest certified ε of every tap and unit."""
    lines = []
    for tap in ("example", "client", "server", "release"):
        for unit in ("example", "image"):
            best = _best(option, tap, unit)
            lines.append(
                (tap, unit, None if best is None else best.epsilon, "none" if best is None else best.adjacency)
            )
    title = "Privacy of the advice; an image is all its records at one client"
    show.print_table(title, ("tap", "unit", "ε", "adjacency"), lines)
