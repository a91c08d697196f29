"""HTML as text: elements with everything escaped, tables, and pictures inside the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedveil.data.pixels import png_uri
from fedveil.report.svg import clean
from fedveil.report.tables import Number, number

VOID = ("br", "img", "meta")


class Markup(str):
    """Text that is HTML already."""


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """`<name a="…">children</name>`; text among the children is escaped, `class_` stands for class."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    opening = f"<{name}" + "".join(f' {key}="{clean(value)}"' for key, value in given.items()) + ">"
    if name in VOID:
        return Markup(opening)
    return Markup(f"{opening}{''.join(str(safe(child)) for child in children)}</{name}>")


def safe(child: object) -> Markup:
    """Markup as it is, anything else escaped."""
    return child if isinstance(child, Markup) else Markup(clean(child))


def join(*children: object) -> Markup:
    return Markup("".join(str(safe(child)) for child in children))


def table(
    header: Sequence[object], rows: Sequence[Sequence[object]], caption: str = "", *, stacks: bool = False
) -> Markup:
    """A table; numbers are flush right, the first column is a header.

    On a narrow screen it scrolls sideways, or if it `stacks`, its cells stand below each other with their columns' names.
    """
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    body = [tag("tr", *(_cell(cell, place == 0, header[place]) for place, cell in enumerate(row))) for row in rows]
    inside = [tag("caption", caption)] if caption else []
    whole = tag("table", *inside, tag("thead", head), tag("tbody", *body), class_="stacks" if stacks else None)
    return tag("div", whole, class_="wide", tabindex="0", role="region", aria_label=caption or "table")


def _cell(value: object, first: bool, column: object) -> Markup:
    if isinstance(value, bool):
        value = "yes" if value else "no"
    if isinstance(value, Number):
        return tag("td", number(value), class_="n", data_column=column)
    if first:
        return tag("th", value, scope="row")
    return tag("td", "–" if value is None else value, data_column=column)


def picture(values: np.ndarray, says: str) -> Markup:
    """[height, width, channels] with values in [0, 1], as a PNG inside the page."""
    return tag("img", src=png_uri(values, small=True), alt=says)
