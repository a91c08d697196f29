"""How series are told apart: by colour, and without colour by marker, dash and hatching.

The six colours keep apart for readers with any of the three kinds of colour blindness, and stand out from the page by a
contrast of at least 3, on white (`LIGHT`) and on a dark page (`DARK`). With more series than colours, dashes and markers
recur at other lengths, so that no two series look the same.

A colour is set once, on the group that holds a series, and what is inside is drawn in `currentColor`. The attribute is the
colour on white, for programs that know no style sheets. The style sheet follows the page that holds the chart: variables
`--chart-1` … `--chart-6`, else its `color-scheme`. A file that stands alone (`:root`) follows the reader's preference.
"""

from __future__ import annotations

LIGHT = ("#0955c6", "#e0480f", "#0a9268", "#922281", "#6b4a1b", "#1e9fd3")
DARK = ("#3b8cff", "#f0652f", "#20cd95", "#b07ab8", "#e5de32", "#a9e0fe")
INK = ("#1f2328", "#e6e8eb")  # text and axes of a file that stands alone, light and dark
PAPER = ("#ffffff", "#16191d")

DASHES = (None, "7 3", "2.5 2.5", "9 3 2.5 3", "12 3")
REFERENCE_DASHES = ("2 4", "6 4", "11 4 2 4", "1.5 2.5", "14 5", "6 3 1.5 3 1.5 3")

MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",  # disc
    "M-3.6-3.6h7.2v7.2h-7.2z",  # square
    "M0-4.9L4.7 3.5H-4.7z",  # triangle
    "M0-5.2L5.2 0L0 5.2L-5.2 0z",  # diamond
    "M0 4.9L4.7-3.5H-4.7z",  # triangle on its tip
    "M-4.4-2.6L-2.6-4.4L0-1.8L2.6-4.4L4.4-2.6L1.8 0L4.4 2.6L2.6 4.4L0 1.8L-2.6 4.4L-4.4 2.6L-1.8 0z",  # cross
    "M-1.4-4.8h2.8v3.4h3.4v2.8h-3.4v3.4h-2.8v-3.4h-3.4v-2.8h3.4z",  # plus
)

HATCHES = (  # strokes in a tile of 6 by 6; the first is a plain bar
    None,
    "M-1 1L1-1M0 6L6 0M5 7L7 5",
    "M2 3H4M3 2V4",
    "M-1 5L1 7M0 0L6 6M5-1L7 1",
    "M0 3H6",
    "M0 3H6M3 0V6",
    "M3 0V6",
)

# From low to high: lightness falls all the way, so that grey print keeps the order (ColorBrewer's YlGnBu).
RAMP = ("#ffffd9", "#edf8b1", "#c7e9b4", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8", "#253494", "#081d58")


def coloured(place: int) -> dict[str, str]:
    """The attributes of a group that is drawn in the colour of the series with this place."""
    colour = place % len(LIGHT)
    return {"class_": f"c{colour + 1}", "color": LIGHT[colour]}


def dash(place: int) -> str | None:
    return DASHES[place % len(DASHES)]


def marker(place: int) -> str:
    return MARKERS[place % len(MARKERS)]


def hatch(place: int) -> str | None:
    return HATCHES[place % len(HATCHES)]


def reference_dash(place: int) -> str:
    return REFERENCE_DASHES[place % len(REFERENCE_DASHES)]


def style(chart: str, body: str) -> str:
    """The style sheet of the chart with this selector: rules for those colours that its body uses."""
    used = [place for place in range(1, len(LIGHT) + 1) if f'class="c{place}"' in body]
    pairs = [(place, LIGHT[place - 1], DARK[place - 1]) for place in used]
    page = [f"{chart} .c{n}{{color:var(--chart-{n},light-dark({light},{dark}))}}" for n, light, dark in pairs]
    alone = [f"{chart}:root .c{n}{{color:{dark}}}" for n, _, dark in pairs]
    return "\n".join(
        [
            f"{chart}{{max-width:100%;height:auto}}",
            f"{chart}:root{{color:{INK[0]};background:{PAPER[0]}}}",
            *([f"@supports (color:light-dark(red,red)){{{''.join(page)}}}"] if used else []),
            f"@media (prefers-color-scheme:dark){{{chart}:root{{color:{INK[1]};background:{PAPER[1]}}}{''.join(alone)}}}",
        ]
    )


def shade(share: float) -> str:
    """The ramp's colour at a share from 0 to 1 of its length."""
    place = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    below = min(int(place), len(RAMP) - 2)
    mixed = [
        round(low + (high - low) * (place - below))
        for low, high in zip(_bytes(RAMP[below]), _bytes(RAMP[below + 1]), strict=True)
    ]
    return "#" + "".join(f"{part:02x}" for part in mixed)


def readable_on(colour: str) -> str:
    """Black or white, whichever stands out more (contrast by WCAG 2)."""
    light = luminance(colour)
    return "#ffffff" if 1.05 / (light + 0.05) > (light + 0.05) / 0.05 else "#000000"


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`, from 0 (black) to 1 (white), as WCAG 2 defines it."""
    parts = [part / 255 for part in _bytes(colour)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _bytes(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
