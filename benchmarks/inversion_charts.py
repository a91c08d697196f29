"""The inversion figures of 2DP-FL: Fig 3 as a grid of pictures, Figs 4 and 6(a) as lines with their intervals."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

from benchmarks.inversion_figures import ADVERSARIES, MODES, Pictures, Rows
from fedveil.core.files import SHARED, write_atomic
from fedveil.data.pixels import to_bytes
from fedveil.report.charts import Chart, Frame, Reference, Series, line_chart, quiet

SIDE = 0.75  # inches of one picture


def draw3(path: Path, made: Pictures) -> None:
    """Writes Fig 3 as PNG: one column for each caption, one row for each class and way of the attack."""
    from fedveil.report.drawing import DPI, PAPER, style

    with quiet():
        from matplotlib.figure import Figure

    rows = [
        (f"{label}\n{way}", row)
        for way, own in made.pictures.items()
        for label, row in zip(made.classes, own, strict=True)
    ]
    with style():
        figure = Figure(figsize=(SIDE * (len(made.captions) + 1), SIDE * (len(rows) + 1)), layout="constrained")
        axes = figure.subplots(len(rows), len(made.captions), squeeze=False)
        for (name, images), line in zip(rows, axes, strict=True):
            line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
            for image, cell in zip(images, line, strict=True):
                cell.imshow(to_bytes(image), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
                cell.set(xticks=[], yticks=[])
                cell.spines[:].set_visible(False)
        for caption, cell in zip(made.captions, axes[0], strict=True):
            cell.set_title(caption.replace(": ", "\n").replace("passive-", "passive\n"), fontsize=7)
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=DPI, facecolor=PAPER[0], metadata={"Software": None})
    write_atomic(path, lambda file: file.write(drawn.getvalue()), SHARED)


def chart4(rows: Rows, way: str = "ascent") -> Chart:
    """SSIM against the number of differing classes, one line for each adversary and number of clients."""
    mine = [r for r in rows if r["figure"] == "4" and r["way"] == way]
    points = [r for r in mine if "differing" in r]
    lines = []
    for seat in ("passive-local", "passive-global"):
        for clients in sorted({r["setting"]["clients"] for r in points}):
            here = [r for r in points if r["seat"] == seat and r["setting"]["clients"] == clients]
            lines.append(_series(f"{seat}, K = {clients}", here, "differing", "bars"))
    title = "Model inversion without a defence (2dp-fl, Fig 4)"
    frame = Frame(title, "classes in which attacker and victim differ", "SSIM to the victim's class means")
    return line_chart(lines, frame, [_floor(mine)])


def chart6a(rows: Rows, way: str = "ascent") -> Chart:
    """SSIM against σ, one line for each adversary and kind of server noise; dashed: without a defence."""
    mine = [r for r in rows if r["figure"] == "6a" and r["way"] == way]
    points = [r for r in mine if r.get("sigma")]
    lines = [
        _series(f"{seat}, {mode}", here, "sigma", "band")
        for mode in MODES
        for seat in ADVERSARIES
        if (here := [r for r in points if (r["seat"], r["server_noise_mode"]) == (seat, mode)])
    ]
    bare = [r for r in mine if "seat" in r and r["sigma"] is None]
    title = "Model inversion under 2DP-FL, by server noise (2dp-fl, Fig 6(a))"
    frame = Frame(title, "noise scale σ, at clients and server", "SSIM to the victim's class means", x_log=True)
    return line_chart(lines, frame, [*(Reference(f"{r['seat']}, no defence", r["ssim"]) for r in bare), _floor(mine)])


def _series(name: str, rows: Rows, x: str, spread: Literal["band", "bars"]) -> Series:
    rows = sorted(rows, key=lambda r: r[x])
    low, high = ([r["interval"][side] for r in rows] for side in (0, 1))
    return Series(name, [r[x] for r in rows], [r["ssim"] for r in rows], low, high, spread)


def _floor(rows: Rows) -> Reference:
    """The same attack on models that were not trained."""
    found = [r["controls"]["untrained"]["ssim"] for r in rows if "controls" in r]
    return Reference("untrained model", sum(found) / len(found))
