"""The chart and the page of a sweep: accuracy, ε and leak of every setting, side by side.

The page needs no network and no other file, like the report on runs, whose style it shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedveil.core.errors import ConfigError
from fedveil.core.files import SHARED, write_text
from fedveil.report.charts import Chart, Frame, Reference, Series, line_chart, write
from fedveil.report.tables import number
from fedveil.sweeps.grid import label
from fedveil.sweeps.results import Line, Sweep

FILES = ("cells.csv", "chart.svg", "report.html")
LEAST = 1e-3  # an ε below this is drawn here, so that a logarithmic axis can hold it
STRENGTHS = ("noise", "epsilon", "scale", "share", "server_noise", "sigma")


@dataclass(frozen=True)
class Figure:
    """A chart and how to read it."""

    chart: Chart
    note: str


def write_files(sweep: Sweep, folder: Path) -> dict[str, str]:
    """Writes CSV, chart and page; returns their paths by name. Without a finished cell, only the CSV."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "cells.csv", sweep.csv(), SHARED)
        written = {"csv": str(folder / "cells.csv")}
        drawn = figures(sweep)
        if drawn:
            write(folder / "chart.svg", drawn[0].chart)
            written["chart"] = str(folder / "chart.svg")
        write_text(folder / "report.html", page(sweep, drawn), SHARED)
    except OSError as error:
        takes = f"cannot be written ({error.strerror}): give a folder that you can write to"
        raise ConfigError("out", str(error.filename or folder), takes) from None
    return {**written, "report": str(folder / "report.html")}


# --- chart


def tap_of(sweep: Sweep) -> str:
    """The tap whose ε is on the axis: the server if any line has an ε there, else the released model."""
    return "server" if any(line.epsilon.get("server") for line in sweep.lines) else "release"


def figures(sweep: Sweep) -> list[Figure]:
    """Accuracy against ε, and what attacks got against ε. A setting without an ε is a horizontal line."""
    tap = tap_of(sweep)
    done = [line for line in sweep.lines if line.accuracy is not None]
    where = "at the server" if tap == "server" else "of the published model"
    x_label = f"certified ε {where}, one record"
    drawn = []
    accuracy = _chart(done, tap, Frame("Accuracy and leak against ε", x_label, "accuracy", x_log=True), leak=False)
    if accuracy is not None:
        note = "Means over seeds with 95 % intervals. A setting without a certified ε is a horizontal line."
        drawn.append(Figure(accuracy, note))
    leaky = [line for line in done if line.leak is not None]
    frame = Frame("Leak against ε", x_label, "share rebuilt, or 2·AUC − 1", x_log=True, y_range=(0.0, 1.0))
    leak = _chart(leaky, tap, frame, leak=True)
    if leak is not None:
        told = "What the best of the attacks got: the share of examples that it rebuilt, or how far its guesses are "
        drawn.append(Figure(leak, told + "above chance. An attack that failed proves nothing."))
    return drawn


def _chart(lines: Sequence[Line], tap: str, frame: Frame, leak: bool) -> Chart | None:
    series: dict[str, list[Line]] = {}
    flat: list[Reference] = []
    for line in lines:
        value = line.leak if leak else line.accuracy
        assert value is not None
        if line.epsilon.get(tap) is None:
            flat.append(Reference(f"{line.name} (no ε{_got([line])})", value))
        else:
            series.setdefault(_family(line), []).append(line)
    chances = sorted({line.chance for line in lines if line.chance is not None})
    if not leak and chances:
        flat.append(Reference("chance: always the most frequent class", chances[-1]))
    if not series:
        return None
    return line_chart([_series(name, group, tap, leak) for name, group in series.items()], frame, flat)


def _series(name: str, group: Sequence[Line], tap: str, leak: bool) -> Series:
    group = sorted(group, key=lambda line: line.epsilon[tap] or 0.0)
    x = [max(LEAST, line.epsilon[tap] or 0.0) for line in group]
    name += f" ({_got(group)[2:]})" if _got(group) else ""
    if leak:
        return Series(name, x, [line.leak for line in group])
    low, high = ([None if line.span is None else line.span[end] for line in group] for end in (0, 1))
    return Series(name, x, [line.accuracy for line in group], low, high, "bars")


def _got(group: Sequence[Line]) -> str:
    """The highest success of attacks in these settings, as text for a legend."""
    known = [line.leak for line in group if line.leak is not None]
    return f"; attacks got {'at most ' if len(known) > 1 else ''}{_percent(max(known))}" if known else ""


def _family(line: Line) -> str:
    """The values of a line except the strength of its defence. Lines of the same family are points of one curve."""
    kept = {
        key: value
        for key, value in line.values.items()
        if not (key == "calibrate.epsilon" or (key.startswith("defense.") and key.rpartition(".")[2] in STRENGTHS))
    }
    return label(kept)


# --- page


def page(sweep: Sweep, drawn: Sequence[Figure] | None = None) -> str:
    """The comparison as one HTML page."""
    import fedveil
    from fedveil.report.page import templates

    drawn = figures(sweep) if drawn is None else drawn
    header, rows = table(sweep)
    return templates().get_template("sweep.html").render(
        heading=f"{len(sweep.lines)} settings compared",
        about=f"{len(sweep.cells)} trainings, {len(sweep.failed)} failed, {sweep.left} left. Made by Fedveil "
        f"{fedveil.__version__}.",
        verdict=verdict(sweep),
        drawn=drawn,
        header=header,
        rows=rows,
        failed=sweep.failed,
        settings=[(line.name, next(c for c in sweep.cells if c["name"] == line.name)["settings"]) for line in sweep.lines],
    )  # fmt: skip


def table(sweep: Sweep) -> tuple[list[str], list[list[object]]]:
    """Header and rows: setting, accuracy, chance, ε at the server and of the model, leak by tap."""
    taps = list(dict.fromkeys(tap for line in sweep.lines for tap in line.leaks))
    header = ["setting", "accuracy", "chance", "ε, server", "ε, release", *(f"leak, {tap}" for tap in taps), "seeds"]
    rows: list[list[object]] = []
    for line in sweep.lines:
        leaks = [_percent(line.leaks.get(tap)) for tap in taps]
        epsilons = [_epsilon(line, tap) for tap in ("server", "release")]
        seeds = f"{line.seeds} of {line.planned}"
        rows.append([line.name, accuracy_of(line), line.chance, *epsilons, *leaks, seeds])
    return header, rows


def accuracy_of(line: Line, spans: bool = True) -> str:
    """Accuracy with its interval, and that a setting is no better than chance; or why there is none."""
    if line.accuracy is None:
        return "failed" if line.errors else "not finite" if line.seeds else "not run"
    known = spans and line.span is not None
    span = f" [{number(line.span[0], 3)}, {number(line.span[1], 3)}]" if known and line.span else ""
    return number(line.accuracy, 3) + span + ("" if line.learned else ", at chance")


def _epsilon(line: Line, tap: str) -> str:
    value = line.epsilon.get(tap)
    return "none" if value is None else number(value, 3)


def _percent(value: float | None) -> str:
    return "not made" if value is None else f"{100 * value:.0f} %"


def verdict(sweep: Sweep) -> list[str]:
    """What the sweep found, in sentences."""
    tap = tap_of(sweep)
    done = [line for line in sweep.lines if line.accuracy is not None]
    private = [line for line in done if line.epsilon.get(tap) is not None]
    where = "at the server" if tap == "server" else "in the published model"
    told = []
    if private:
        best = max(private, key=lambda line: line.accuracy or 0.0)
        told.append(
            f"Of the settings with a certified ε {where}, {best.name} is the most accurate: {accuracy_of(best)} at ε = "
            f"{_epsilon(best, tap)} for one record."
        )
    elif done:
        told.append("No setting has a certified ε.")
    leaky = [line for line in done if line.leak]
    if leaky:
        names = "; ".join(f"{line.name}: {_percent(line.leak)}" for line in leaky)
        told.append(f"Attacks got something in {len(leaky)} of {len(done)} settings ({names}).")
    elif any(line.leaks for line in done):
        told.append("The attacks got nothing in any setting, which proves nothing: another attack may.")
    low = [line for line in done if not line.learned]
    if low:
        told.append(f"Not clearly above chance in every seed: {'; '.join(line.name for line in low)}.")
    return told
