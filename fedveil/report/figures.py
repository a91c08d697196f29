"""The charts of a report: each has a name for its file, and a line that says how to read it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.attacks.results import Stored
from fedveil.report.charts import Allowed, Curve, Series, heat_map, line_chart, roc_chart
from fedveil.report.gather import Run, best
from fedveil.report.verdict import rate
from fedveil.report.words import SEATS, UNIT, WHO, delta_text

Row = Mapping[str, Any]  # of the metrics
WIDE, HIGH = 460.0, 300.0
TYPES = {"server": "server (type 0)", "client": "client (type 1)", "example": "example (type 2)"}


@dataclass(frozen=True)
class Figure:
    """One chart."""

    name: str
    section: str  # training, privacy or attacks
    svg: str
    note: str


def figures(runs: Sequence[Run]) -> list[Figure]:
    """All charts that the runs have numbers for."""
    made = [_accuracy(runs), _loss(runs), *(_epsilon(run, len(runs) > 1) for run in runs), _norms(runs), _heat(runs)]
    made += _rocs(runs)
    return [figure for figure in made if figure is not None]


def _series(runs: Sequence[Run], key: str, scale: Callable[[Run, Row], float] = lambda run, row: 1.0) -> list[Series]:
    """A line for each run that has numbers under this key, divided by a scale: what is not a number is a gap."""
    found = []
    for run in runs:
        rows = [row for row in run.metrics if key in row]
        y = [_over(row[key], scale(run, row)) for row in rows]
        if any(value is not None for value in y):
            found.append(Series(run.label, [int(row["round"]) + 1 for row in rows], y))
    return found


def _accuracy(runs: Sequence[Run]) -> Figure | None:
    lines = _series(runs, "accuracy")
    if not lines:
        return None
    svg = line_chart(
        lines,
        title="Accuracy",
        x_label="round",
        y_label="share right, held-out part",
        y_range=(0, 1),
        width=WIDE,
        height=HIGH,
    )
    return Figure("accuracy", "training", svg, "Of records that nobody trained on. Higher is better.")


def _loss(runs: Sequence[Run]) -> Figure | None:
    lines = _series(runs, "loss")
    if len(runs) == 1:
        lines = [Series("held-out part", line.x, line.y) for line in lines]
        lines += [Series("clients' own data", s.x, s.y) for s in _series(runs, "train_loss")]
    if not lines:
        return None
    log = _wide(lines)
    svg = line_chart(lines, title="Loss", x_label="round", y_label="cross-entropy", y_log=log, width=WIDE, height=HIGH)
    note = "Lower is better." + (" The axis is logarithmic." if log else "")
    if any(row.certified for run in runs for row in run.ledger):
        note += " The loss on clients' own data carries no noise: it stays with the server and is not shown here."
    return Figure("loss", "training", svg, note)


def _epsilon(run: Run, several: bool) -> Figure | None:
    """ε after several rounds: seats with the same account share a line."""
    lines: dict[tuple[float | None, ...], tuple[str, list[str]]] = {}
    at = [rounds for rounds, _ in run.over_rounds]
    for unit in ("example", "client"):
        for tap in SEATS:
            rows = [best(rows, tap, unit) for _, rows in run.over_rounds]
            values = tuple(None if row is None else row.epsilon for row in rows)
            if any(value is not None for value in values):
                lines.setdefault((*values, float(unit == "client")), (unit, []))[1].append(tap)
    if not lines:
        return None
    made = [Series(f"{', '.join(taps)}: {UNIT[unit]}", at, list(key[:-1])) for key, (unit, taps) in lines.items()]
    log = _wide(made)
    title = f"ε over rounds: {run.label}" if several else "ε over rounds"
    svg = line_chart(made, title=title, x_label="rounds", y_label="certified ε", y_log=log, width=WIDE, height=HIGH)
    delta = next((row.delta for row in run.ledger if row.certified), None)
    note = f"At δ = {delta_text(delta)}. Smaller is better. Seats that are not named here have no certificate."
    return Figure(f"epsilon-{_file(run)}", "privacy", svg, note + (" The axis is logarithmic." if log else ""))


def _norms(runs: Sequence[Run]) -> Figure | None:
    """What a client sends, over the learning rate and the steps behind it: the length of a gradient (fed-cdp, Fig. 3)."""
    lines = _series(runs, "update_norm", lambda run, row: row.get("lr", 0.0) * (run.config.train.local_steps or 0))
    if not lines:
        return None
    log = _wide(lines)
    svg = line_chart(
        lines,
        title="Length of a client's gradient",
        x_label="round",
        y_label="L2 norm",
        y_log=log,
        width=WIDE,
        height=HIGH,
    )
    note = (
        "Mean over the round's clients of what each sends, divided by learning rate and local steps: with the clip and the "
        "noise that were applied before it left. Much longer than without a defence: it is mostly noise."
    )
    return Figure("gradient-norms", "training", svg, note + (" The axis is logarithmic." if log else ""))


def _heat(runs: Sequence[Run]) -> Figure | None:
    """The share of attacked examples that the best reconstruction at each seat rebuilt."""
    tried = {str(a.document.get("tap")) for run in runs for a in run.attacks if rate(a.document) is not None}
    if not tried:
        return None
    taps = [tap for tap in ("server", "client", "batch", "example") if tap in tried or tap in TYPES]
    grid = [[_most(run, tap) for tap in taps] for run in runs]
    svg = heat_map(
        grid,
        [run.label for run in runs],
        [TYPES.get(tap, tap) for tap in taps],
        title="Share of attacked examples that were rebuilt",
        x_label="where the attacker stands",
        y_label="defence",
        scale_label="share rebuilt",
        missing="not attacked",
        value_range=(0.0, 1.0),
        width=WIDE,
    )
    note = "The best of the attacks that were tried at each seat. 0 is no proof: another attack may do better."
    return Figure("attack-success", "attacks", svg, note)


def _most(run: Run, tap: str) -> float | None:
    rates = [rate(a.document) for a in run.attacks if a.document.get("tap") == tap]
    return max((value for value in rates if value is not None), default=None)


def _rocs(runs: Sequence[Run]) -> list[Figure]:
    """A chart for each attack and seat, all runs in it, with what each run's certificate allows."""
    groups: dict[tuple[str, str], list[tuple[Run, Stored]]] = {}
    for run in runs:
        for attack in run.attacks:
            if attack.curves:
                key = str(attack.document["attack"]), str(attack.document.get("tap"))
                groups.setdefault(key, []).append((run, attack))
    return [_roc(name, tap, several) for (name, tap), several in groups.items()]


def _roc(name: str, tap: str, several: Sequence[tuple[Run, Stored]]) -> Figure:
    curves, allowed = [], []
    for run, attack in several:
        for curve, (fpr, tpr) in attack.curves.items():
            curves.append(Curve(run.label if curve == name else f"{run.label}: {curve}", fpr, tpr))
        epsilon, delta = (_number(attack.document.get(key)) for key in ("epsilon", "delta"))
        if epsilon is not None and delta is not None:
            allowed.append(Allowed(epsilon, delta, run.label))
    seen = sorted(set(allowed), key=lambda one: one.epsilon)
    svg = roc_chart(
        curves, title=f"{name}: {WHO[tap].name if tap in WHO else tap}", allowed=seen, width=WIDE, height=WIDE
    )
    bound = "No attack may rise above the dashed line of its run." if seen else "Nothing is certified here."
    return Figure(f"roc-{name}-{tap}", "attacks", svg, f"Along the line of chance an attack learns nothing. {bound}")


def _file(run: Run) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in run.label.replace(" ", "-")).strip("-") or "run"


def _over(value: object, by: float) -> float | None:
    known = _number(value)
    return known / by if known is not None and by > 0 else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _wide(lines: Sequence[Series]) -> bool:
    """Whether values spread so far that a plain axis would hide the small ones."""
    values = np.array([y for line in lines for y in line.y if y is not None], float)
    return bool(len(values) and values.min() > 0 and values.max() > 20 * values.min())
