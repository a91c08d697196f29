"""SVG as text: elements, escaping, how wide a text will be, and the document around a chart.

Nothing is measured, since nothing is rendered here: `text_width` errs on the wide side, so that labels keep apart in any of
the usual sans-serif fonts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

from fedveil.report.palette import style

ID = "\0"  # stands for the chart's own id until its content is known; XML allows no text to hold it
FONT = "system-ui, 'Segoe UI', 'Liberation Sans', 'DejaVu Sans', sans-serif"
LINE = 1.3  # from one line of text to the next, in sizes of the font

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # by XML 1.0


def clean(text: object) -> str:
    """Text as it may stand between tags or in an attribute."""
    return escape(_FORBIDDEN.sub("\ufffd", str(text)), {'"': "&quot;"})


def element(tag: str, *children: str, **attributes: object) -> str:
    """`<tag a-b="…">children</tag>` for a_b=…; a trailing underscore keeps Python's own words apart (class_)."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    opening = "".join([f"<{tag}", *(f' {key}="{_attribute(value)}"' for key, value in given.items())])
    return f"{opening}>{''.join(children)}</{tag}>" if children else f"{opening}/>"


def _attribute(value: object) -> str:
    if isinstance(value, int | float):
        return pixels(value)
    return ID.join(clean(part) for part in str(value).split(ID))


def pixels(value: float) -> str:
    """A length or a place, to a hundredth of a pixel."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def text_lines(
    lines: Sequence[str],
    x: float,
    y: float,
    *,
    size: float = 12,
    anchor: Literal["start", "middle", "end"] = "middle",
    turn: float = 0,
    fill: str = "currentColor",
    weight: str | None = None,
) -> str:
    """Lines of text, the first with its baseline at (x, y); turned as a whole about that point, in degrees."""
    texts = [
        element(
            "text",
            clean(line),
            x=x,
            y=y + place * size * LINE,
            font_size=size,
            text_anchor=anchor,
            fill=fill,
            font_weight=weight,
        )
        for place, line in enumerate(lines)
    ]
    return element("g", *texts, transform=f"rotate({pixels(turn)} {pixels(x)} {pixels(y)})") if turn else "".join(texts)


def text_width(text: str, size: float = 12) -> float:
    """About how wide a text is drawn, in pixels; in a wide font it is right, in most it is too much."""
    return size * sum(_width(character) for character in text)


def _width(character: str) -> float:
    if character in "ijl.,:;'|!\u202f":
        return 0.32
    if character in " frt()[]/\\-":
        return 0.41
    if character in "mwMW@%+<>=×−–…":
        return 0.98
    if character in "⁰¹²³⁴⁵⁶⁷⁸⁹⁻":
        return 0.45
    if ord(character) >= 0x2E80:  # Chinese, Japanese, Korean, pictures
        return 1.05
    return 0.72 if character.isupper() else 0.64


def wrapped(text: str, width: float, size: float = 12) -> list[str]:
    """Text in lines no wider than that; a word that is too wide by itself is cut."""
    lines = [""]
    for word in text.split():
        for piece in _pieces(word, width, size):
            longer = f"{lines[-1]} {piece}".strip()
            if text_width(longer, size) <= width:
                lines[-1] = longer
            else:
                lines.append(piece)
    return [line for line in lines if line]


def _pieces(word: str, width: float, size: float) -> list[str]:
    pieces = [""]
    for character in word:
        if pieces[-1] and text_width(pieces[-1] + character, size) > width:
            pieces.append("")
        pieces[-1] += character
    return pieces


def document(title: str, says: str, width: float, height: float, body: Sequence[str]) -> str:
    """The whole SVG. `says` is for those who cannot see it. The same content gives the same text, down to the id."""
    inside = "\n".join(
        [
            element("title", clean(title), id=f"{ID}-title"),
            element("desc", clean(says), id=f"{ID}-desc"),
            element("style", style(f"#{ID}", "".join(body))),
            *body,
        ]
    )
    whole = element(
        "svg",
        "\n",
        inside,
        "\n",
        xmlns="http://www.w3.org/2000/svg",
        id=ID,
        role="img",
        aria_labelledby=f"{ID}-title {ID}-desc",
        width=width,
        height=height,
        viewBox=f"0 0 {pixels(width)} {pixels(height)}",
        font_family=FONT,
    )
    return whole.replace(ID, "chart-" + hashlib.sha256(whole.encode()).hexdigest()[:12]) + "\n"


def write_svg(path: Path, text: str) -> None:
    """Writes a chart to a file of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
