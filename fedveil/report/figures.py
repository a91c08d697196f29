"""The charts of a report: each has a name for its file, and a line that says how to read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.attacks.results import Stored
from fedveil.report.charts import Allowed, Chart, Curve, Frame, Reference, Series, heat_map, line_chart, roc_chart
from fedveil.report.gather import Run, best
from fedveil.report.glossary import ADVERSARIES, SHOWN, UNIT, delta_text
from fedveil.report.tables import finite
from fedveil.report.verdict import rate, verdict

Row = Mapping[str, Any]  # of the metrics
WIDE, HIGH = 460.0, 300.0
TYPES = {"server": "server (type 0)", "client": "client (type 1)", "example": "example (type 2)"}
LOG_NOTE = " The axis is logarithmic."


@dataclass(frozen=True)
class Figure:
    """One chart of the report."""

    name: str
    section: str  # set, training, privacy or attacks
    chart: Chart
    note: str


def figures(runs: Sequence[Run]) -> list[Figure]:
    """All charts that the runs have numbers for."""
    several = [_epsilon(run, len(runs) > 1) for run in runs]
    made = [_tradeoff(runs), _accuracy(runs), _loss(runs), *several, _norms(runs), _heat(runs)]
    return [figure for figure in (*made, *_rocs(runs)) if figure is not None]


def _series(runs: Sequence[Run], key: str, scale: Callable[[Run, Row], float] = lambda run, row: 1.0) -> list[Series]:
    """A line for each run that has numbers under this key, divided by a scale."""
    found = []
    for run in runs:
        rows = [row for row in run.metrics if key in row]
        pairs = [(finite(row[key]), scale(run, row)) for row in rows]
        y = [value / by if value is not None and by > 0 else None for value, by in pairs]
        if any(value is not None for value in y):
            found.append(Series(run.label, [int(row["round"]) + 1 for row in rows], y))
    return found


def _frame(title: str, x_label: str, y_label: str, lines: Sequence[Series]) -> Frame:
    """A small frame; its y axis is logarithmic where a linear one would hide the small values."""
    values = np.array([y for line in lines for y in line.y if y is not None], float)
    log = bool(len(values) and values.min() > 0 and values.max() > 20 * values.min())
    return Frame(title, x_label, y_label, y_log=log, width=WIDE, height=HIGH)


def _accuracy(runs: Sequence[Run]) -> Figure | None:
    lines = _series(runs, "accuracy")
    if not lines:
        return None
    frame = Frame("Accuracy", "round", "share right, held-out part", y_range=(0, 1), width=WIDE, height=HIGH)
    note = "Of records that nobody trained on. Higher is better."
    known = {run.chance for run in runs}
    chance = [Reference("chance", value) for value in known if value is not None and len(known) == 1]
    return Figure("accuracy", "training", line_chart(lines, frame, chance), note)


def _tradeoff(runs: Sequence[Run]) -> Figure | None:
    """Accuracy against the ε of one record in the final model, one point for each run that has both."""
    points = [(run, run.best("release", "example"), run.scores[0]) for run in runs]
    made = [Series(run.label, [row.epsilon or 0.0], [y]) for run, row, y in points if row is not None and y is not None]
    if len(runs) < 2 or not made:
        return None
    bare = [Reference(f"{run.label}, no ε", y) for run, row, y in points if row is None and y is not None]
    frame = Frame("Accuracy and ε", "ε of one record, final model", "accuracy", y_range=(0, 1), width=WIDE, height=HIGH)
    note = (
        "Up and to the left is better. Runs without a certificate have no place on the axis: a line is their accuracy."
    )
    return Figure("accuracy-epsilon", "set", line_chart(made, frame, bare), note)


def _loss(runs: Sequence[Run]) -> Figure | None:
    lines = _series(runs, "loss")
    if len(runs) == 1:
        lines = [Series("held-out part", line.x, line.y) for line in lines]
        lines += [Series("clients' own data", s.x, s.y) for s in _series(runs, "train_loss")]
    if not lines:
        return None
    frame = _frame("Loss", "round", "cross-entropy", lines)
    note = "Lower is better." + LOG_NOTE * frame.y_log
    if any(row.certified for run in runs for row in run.ledger):
        note += " The loss on clients' own data has no noise: it stays with the server and is not shown here."
    return Figure("loss", "training", line_chart(lines, frame), note)


def _epsilon(run: Run, several: bool) -> Figure | None:
    """ε after several numbers of rounds; adversaries with the same account share a line."""
    lines: dict[tuple[float | None, ...], tuple[str, list[str]]] = {}
    at = [rounds for rounds, _ in run.over_rounds]
    for unit in ("example", "client"):
        for tap in SHOWN:
            rows = [best(rows, tap, unit) for _, rows in run.over_rounds]
            values = tuple(None if row is None else row.epsilon for row in rows)
            if any(value is not None for value in values):
                lines.setdefault((*values, float(unit == "client")), (unit, []))[1].append(tap)
    if not lines:
        return None
    made = [Series(f"{', '.join(taps)}: {UNIT[unit]}", at, list(key[:-1])) for key, (unit, taps) in lines.items()]
    frame = _frame(f"ε over rounds: {run.label}" if several else "ε over rounds", "rounds", "certified ε", made)
    delta = next((row.delta for row in run.ledger if row.certified), None)
    note = f"At δ = {delta_text(delta)}. Smaller is better. Adversaries that are not named here have no certificate."
    return Figure(f"epsilon-{_file(run.label)}", "privacy", line_chart(made, frame), note + LOG_NOTE * frame.y_log)


def _norms(runs: Sequence[Run]) -> Figure | None:
    """The norm of a client's update over learning rate and local steps: the norm of a gradient (fed-cdp, Fig. 3)."""
    lines = _series(runs, "update_norm", lambda run, row: row.get("lr", 0.0) * (run.config.train.local_steps or 0))
    if not lines:
        return None
    frame = _frame("Norm of a client's gradient", "round", "L2 norm", lines)
    note = "Mean over the round's clients of the update that each sends, divided by learning rate and local steps."
    if any(run.defense != "none" for run in runs):
        note += (
            " It is taken after clip and noise of the client: where it is much larger than without, it is mostly noise."
        )
    return Figure("gradient-norms", "training", line_chart(lines, frame), note + LOG_NOTE * frame.y_log)


def _heat(runs: Sequence[Run]) -> Figure | None:
    """The share of attacked examples that the best reconstruction at each tap rebuilt."""
    tried = {str(a.document.get("tap")) for run in runs for a in run.attacks if rate(a.document) is not None}
    if not tried:
        return None
    taps = [tap for tap in ("server", "client", "batch", "example") if tap in tried or tap in TYPES]
    found = [[verdict(run, tap).rebuilt for tap in taps] for run in runs]
    chart = heat_map(
        [[None if one is None else rate(one.document) for one in row] for row in found],
        [run.label for run in runs],
        [TYPES.get(tap, tap) for tap in taps],
        Frame("Share of attacked examples that were rebuilt", "where the attacker observes", "defence", width=WIDE),
        scale_label="share rebuilt",
        missing="not attacked",
        value_range=(0.0, 1.0),
    )
    note = "The best of the attacks that were tried at each tap. 0 is no proof: another attack may do better."
    return Figure("attack-success", "attacks", chart, note)


def _rocs(runs: Sequence[Run]) -> list[Figure]:
    """A chart for each attack and tap: the ROC curves of all runs, and the rates that each run's certificate allows."""
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
        epsilon, delta = (finite(attack.document.get(key)) for key in ("epsilon", "delta"))
        if epsilon is not None and delta is not None:
            allowed.append(Allowed(epsilon, delta, run.label))
    seen = sorted(set(allowed), key=lambda one: one.epsilon)
    title = f"{name}: {ADVERSARIES[tap].name if tap in ADVERSARIES else tap}"
    bound = "No attack may rise above the dashed line of its run." if seen else "Nothing is certified here."
    note = f"Along the line of chance an attack learns nothing. {bound}"
    return Figure(f"roc-{_file(f'{name}-{tap}')}", "attacks", roc_chart(curves, title, allowed=seen, size=WIDE), note)


def _file(name: str) -> str:
    """A name as part of a file name."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name.replace(" ", "-")).strip("-") or "run"
