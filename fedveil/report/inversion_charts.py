"""The inversion figures drawn: Fig 3 as a grid of pictures, Figs 4 and 6(a) as lines with their intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from fedveil.attacks.games.inversion_figures import ADVERSARIES, MODES, Pictures, Rows
from fedveil.attacks.pictures import write_grid
from fedveil.report.charts import Reference, Series, line_chart

HEAD, SIDE = 44, 52  # pixels for the captions above and beside the pictures


def draw3(path: Path, made: Pictures) -> None:
    """Fig 3: captions above the columns, class and way beside the rows."""
    lines = [
        (f"{label}\n{way}", row)
        for way, rows in made.pictures.items()
        for label, row in zip(made.classes, rows, strict=True)
    ]
    write_grid(path, [row for _, row in lines])
    with Image.open(path) as opened:
        grid = opened.convert("L")
    page = Image.new("L", (grid.width + SIDE, grid.height + HEAD), 255)
    page.paste(grid, (SIDE, HEAD))
    pen = ImageDraw.Draw(page)
    across, down = grid.width // len(made.captions), grid.height // len(lines)
    for place, caption in enumerate(made.captions):
        pen.multiline_text(
            (SIDE + place * across, 4), caption.replace(": ", "\n").replace("passive-", "passive\n"), fill=0, spacing=1
        )
    for place, (name, _) in enumerate(lines):
        pen.multiline_text((4, HEAD + place * down + down // 3), name, fill=0)
    page.save(path, optimize=True)


def chart4(rows: Rows, way: str = "ascent") -> str:
    """SSIM against differing classes, one line for each seat and K."""
    mine = [r for r in rows if r["figure"] == "4" and r["way"] == way]
    points = [r for r in mine if "differing" in r]
    lines = []
    for seat in ("passive-local", "passive-global"):
        for clients in sorted({r["setting"]["clients"] for r in points}):
            here = [r for r in points if r["seat"] == seat and r["setting"]["clients"] == clients]
            lines.append(_series(f"{seat}, K = {clients}", here, "differing", "bars"))
    return line_chart(
        lines,
        title="Model inversion without a defence (2dp-fl, Fig 4)",
        x_label="classes in which attacker and victim differ",
        y_label="SSIM to the victim's class means",
        references=[_floor(mine)],
    )


def chart6a(rows: Rows, way: str = "ascent") -> str:
    """SSIM against σ, one line for each seat and kind of server noise; dashed, what there is without a defence."""
    mine = [r for r in rows if r["figure"] == "6a" and r["way"] == way]
    points = [r for r in mine if r.get("sigma")]
    lines = [
        _series(f"{seat}, {mode}", here, "sigma", "band")
        for mode in MODES
        for seat in ADVERSARIES
        if (here := [r for r in points if (r["seat"], r["server_noise_mode"]) == (seat, mode)])
    ]
    bare = [r for r in mine if "seat" in r and r["sigma"] is None]
    return line_chart(
        lines,
        title="Model inversion under 2DP-FL, by server noise (2dp-fl, Fig 6(a))",
        x_label="noise scale σ, at clients and server",
        y_label="SSIM to the victim's class means",
        x_log=True,
        references=[*(Reference(f"{r['seat']}, no defence", r["ssim"]) for r in bare), _floor(mine)],
    )


def _series(name: str, rows: Rows, x: str, spread: Any) -> Series:
    rows = sorted(rows, key=lambda r: r[x])
    low, high = ([r["interval"][side] for r in rows] for side in (0, 1))
    return Series(name, [r[x] for r in rows], [r["ssim"] for r in rows], low, high, spread)


def _floor(rows: Rows) -> Reference:
    """The same attack on models that were not trained."""
    found = [r["controls"]["untrained"]["ssim"] for r in rows if "controls" in r]
    return Reference("untrained model", sum(found) / len(found))
