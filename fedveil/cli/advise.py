"""`fedveil advise`: prints a private setting for a federation of a given size, with its cost and what attacks got."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import show
from fedveil.core.errors import ConfigError
from fedveil.core.files import SHARED, write_text

if TYPE_CHECKING:
    from fedveil.advice.advise import Advice, Option

SHOWN = ("client", "server", "release")


def run_advise(asked: dict[str, Any], shape: str | None, out: str | None, json: bool) -> None:
    """Advises; writes the config to `out`."""
    if out == "":
        raise ConfigError("--out", out, "takes a file for the config: leave it out to print it only")
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {line}", file=sys.stderr, flush=True)

    from fedveil.advice.advise import advise

    keys = ("clients", "records", "classes", "epsilon", "delta", "unit", "tap", "withstand", "data", "seconds", "shape")
    with show.as_options(*keys):
        found = advise(say, **asked, shape=_shape(shape))
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
        least, clients = found.impossible["from_epsilon"], found.impossible["from_clients"]
        print(
            f"Nothing useful exists at ε = {asked.epsilon:g} with {asked.clients} clients: {found.impossible['reason']}."
        )
        print(f"From about ε = {least:.3g} on it does." if least else "No ε that was tried would do.")
        print(f"Or from about {clients} clients on." if clients else "No number of clients that was tried would do.")
        return
    print(f"For ε ≤ {asked.epsilon:g} at the tap {asked.tap}, δ = {asked.delta:g}, unit {asked.unit}:")
    print(found.options[0].candidate.kind.says + ".\n")
    rows = [_row(option) for option in found.options]
    show.print_table("Advice and alternatives", ("setting", "accuracy", "ε", "noise", "rebuilt", "membership"), rows)
    print(f"Accuracy on the stand-in: {found.stand_in.says}.")
    print(f"Chance is {found.chance:.3f}; the same model without noise learns to {found.non_private:.3f}.")
    print(f"Membership is the AUC of guessing by loss (0.5 is a coin). Tuning: {found.as_dict()['tuning']}.\n")
    _print_ledger(found.options[0])
    print(f"\n{found.config}")
    file = out or "advice.toml"
    if out is None:
        print("Keep these lines as advice.toml (or use --out advice.toml). Then:")
    print(found.next.replace("advice.toml", file))


def _row(option: Option) -> tuple[object, ...]:
    trial, candidate = option.trial, option.candidate
    span = "" if trial.interval is None else f" [{trial.interval[0]:.3f}, {trial.interval[1]:.3f}]"
    rebuilt = [f"{tap} {100 * entry['success']:.0f} %" for tap, entry in trial.leak.items() if _rate(tap, entry)]
    guessed = trial.leak.get("release", {}).get("success")
    server = [row.epsilon for row in option.ledger if (row.tap, row.unit) == ("server", "example") and row.certified]
    epsilon = min((value for value in server if value is not None), default=None)
    membership = "" if guessed is None else f"{guessed:.3f}"
    setting = f"{candidate.kind.says}, {candidate.rounds} rounds"
    return setting, f"{trial.accuracy:.3f}{span}", epsilon, candidate.noise, ", ".join(rebuilt), membership


def _rate(tap: str, entry: dict[str, Any]) -> bool:
    return tap != "release" and entry["success"] is not None


def _print_ledger(option: Option) -> None:
    """The smallest certified ε of every tap and unit."""
    lines = []
    for tap in SHOWN:
        for unit in ("example", "image", "client"):
            rows = [row for row in option.ledger if (row.tap, row.unit) == (tap, unit) and row.certified]
            known = [row for row in rows if row.epsilon is not None]
            if known:
                best = min(known, key=lambda row: (row.adjacency == "replace", row.epsilon))
                lines.append((tap, unit, best.epsilon, best.adjacency))
    show.print_table(
        "Privacy of the advice, if no record lies at two clients", ("tap", "unit", "ε", "adjacency"), lines
    )
