"""Charts as files: SVG that follows light and dark pages, PNG, PDF, and PGF for LaTeX documents.

In SVG a colour is a presentation attribute, which every program understands. A style sheet for this chart alone overrides
it: inside an HTML page with the page's own colours (`--chart-1` … `--chart-6`) or by its `color-scheme`; in a file that
stands alone (`:root`) by the reader's preference. Text and axes are in `currentColor`.
"""

from __future__ import annotations

import hashlib
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedveil.core.errors import ConfigError
from fedveil.core.files import SHARED, write_atomic, write_text
from fedveil.report.charts import Chart, quiet
from fedveil.report.drawing import DARK, DARK_INK, DPI, INK, LIGHT, PAPER, clean, style
from fedveil.report.tables import latex

with quiet():
    from matplotlib.backend_bases import RendererBase
    from matplotlib.backends.backend_pgf import RendererPgf

FONT = "system-ui, 'Segoe UI', 'Liberation Sans', 'DejaVu Sans', sans-serif"
PNG_DPI = 192
ENDINGS = (".svg", ".png", ".pdf", ".pgf")

_SVG = "http://www.w3.org/2000/svg"
ET.register_namespace("", _SVG)  # before the first chart: without it the prefix, and so the digest, would differ
_HREF = "{http://www.w3.org/1999/xlink}href"
_PGF = r"""%% Include with \input{FILE.pgf}; the preamble needs \usepackage{pgf}.
\begingroup%%
\makeatletter%%
\begin{pgfpicture}%%
\pgfpathrectangle{\pgfpointorigin}{\pgfqpoint{%fin}{%fin}}%%
\pgfusepath{use as bounding box, clip}%%
%s\end{pgfpicture}%%
\makeatother%%
\endgroup%%
"""


def write(path: Path, chart: Chart) -> None:
    """Writes a chart in the form that the ending of the file name asks for."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ConfigError("chart", str(path), f"takes a file name that ends in one of {', '.join(ENDINGS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if ending in (".svg", ".pgf"):
        write_text(path, svg_text(chart) if ending == ".svg" else pgf_text(chart), SHARED)
        return
    figure = chart.drawing.figure
    with style():
        unset = ("CreationDate", "Producer", "Creator") if ending == ".pdf" else ("Software",)
        metadata = {"Title": chart.frame.title, **dict.fromkeys(unset)}
        drawn = io.BytesIO()
        figure.savefig(drawn, format=ending[1:], dpi=PNG_DPI, facecolor=PAPER[0], metadata=metadata)
    write_atomic(path, lambda file: file.write(drawn.getvalue()), SHARED)


# --- SVG


def svg_text(chart: Chart) -> str:
    """The chart as SVG text; the same chart gives the same text."""
    drawing, raw = chart.drawing, io.StringIO()
    with style():
        empty = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        drawing.figure.savefig(raw, format="svg", facecolor="none", metadata=empty)
    root = ET.fromstring(raw.getvalue())
    _plain(root)
    _tips(root, drawing.tips)
    body = "".join(ET.tostring(child, encoding="unicode") for child in root)
    own = "chart-" + hashlib.sha256((chart.frame.title + chart.description + body).encode()).hexdigest()[:12]
    _identify(root, own)
    wide, high = drawing.figure.get_size_inches() * DPI
    labels = {"id": own, "role": "img", "aria-labelledby": f"{own}-title {own}-desc"}
    view = {"width": f"{wide:.0f}", "height": f"{high:.0f}", "viewBox": root.get("viewBox", "")}
    root.attrib = {**labels, **view, "font-family": FONT, "stroke-linejoin": "round", "stroke-linecap": "butt"}
    texts = {"title": chart.frame.title, "desc": chart.description}
    for place, (name, text) in enumerate(texts.items()):
        _insert(root, place, name, clean(text)).set("id", f"{own}-{name}")
    _insert(root, 2, "style", _sheet(f"#{own}", body))
    return ET.tostring(root, encoding="unicode") + "\n"


def _insert(parent: ET.Element, place: int, name: str, text: str) -> ET.Element:
    made = ET.Element(f"{{{_SVG}}}{name}")
    made.text = text
    parent.insert(place, made)
    return made


def _plain(root: ET.Element) -> None:
    """Presentation attributes instead of inline styles, `currentColor` instead of ink, no style sheet for all elements."""
    for sheet in root.findall(f"{{{_SVG}}}defs"):
        if sheet.find(f"{{{_SVG}}}style") is not None:
            root.remove(sheet)
    for node in root.iter():
        for pair in filter(None, node.attrib.pop("style", "").split(";")):
            key, _, value = pair.partition(":")
            node.set(key.strip(), value.strip())
        node.attrib.pop("font-family", None)
        if _HREF in node.attrib:
            node.set("href", node.attrib.pop(_HREF))
        for key, value in node.attrib.items():
            if value == INK:
                node.set(key, "currentColor")
            elif key in ("d", "x", "y", "width", "height", "transform"):
                node.set(key, re.sub(r"-?\d+\.\d+", _rounded, " ".join(value.split())))
        node.text = node.text if node.text and node.text.strip() else None
        node.tail = "\n"
    for marker in root.iterfind(f".//{{{_SVG}}}defs/{{{_SVG}}}path"):
        for key in ("fill", "stroke"):  # as its uses say, which the style sheet reaches
            marker.attrib.pop(key, None)


def _rounded(found: re.Match[str]) -> str:
    text = f"{float(found[0]):.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _tips(root: ET.Element, tips: Mapping[str, Sequence[str]]) -> None:
    """Adds tooltips: one for each marker of a line, or one for a whole bar."""
    groups = {node.get("id"): node for node in root.iter(f"{{{_SVG}}}g")}
    for gid, texts in tips.items():
        marks = [groups[gid]] if gid.startswith("bar-") else list(groups[gid].iter(f"{{{_SVG}}}use")) if texts else []
        for mark, text in zip(marks, texts, strict=True):
            _insert(mark, 0, "title", clean(text))


def _identify(root: ET.Element, own: str) -> None:
    """Keeps only ids that something refers to, and prefixes them so that no other chart of a page has them."""
    links = [(n, key) for n in root.iter() for key, value in n.items() if key == "href" or value.startswith("url(#")]
    used = {node.attrib[key].partition("#")[2].rstrip(")") for node, key in links}
    for node, key in links:
        node.set(key, node.attrib[key].replace("#", f"#{own}-"))
    for node in root.iter():
        name = node.attrib.pop("id", None)
        if name in used:
            node.set("id", f"{own}-{name}")


def _sheet(chart: str, body: str) -> str:
    """The style sheet of one chart: rules for the series colours that it has."""
    page, alone = [], []
    for place, (light, dark) in enumerate(zip(LIGHT, DARK, strict=True), 1):
        for key in ("fill", "stroke"):
            if f'{key}="{light}"' in body:
                page.append(f'{chart} [{key}="{light}"]{{{key}:var(--chart-{place},light-dark({light},{dark}))}}')
                alone.append(f'{chart}:root [{key}="{light}"]{{{key}:{dark}}}')
    return "\n".join(
        [
            f"{chart}{{max-width:100%;height:auto}}",
            f"{chart}:root{{color:{INK};background:{PAPER[0]}}}",
            *([f"@supports (color:light-dark(red,red)){{{''.join(page)}}}"] if page else []),
            f"@media (prefers-color-scheme:dark){{{chart}:root{{color:{DARK_INK};background:{PAPER[1]}}}{''.join(alone)}}}",
        ]
    )


# --- PGF


class _PgfRenderer(RendererPgf):
    """Measures texts with matplotlib's own font, so that no LaTeX is needed, and escapes them: a name is no command."""

    def get_text_width_height_descent(self, s, prop, ismath):  # type: ignore[no-untyped-def]
        return RendererBase.get_text_width_height_descent(self, s, prop, ismath)

    def draw_text(self, gc, x, y, s, *more, **named):  # type: ignore[no-untyped-def]
        super().draw_text(gc, x, y, latex(s), *more, **named)  # type: ignore[no-untyped-call]


def pgf_text(chart: Chart) -> str:
    """PGF commands for a LaTeX document, in the font of that document."""
    figure, out = chart.drawing.figure, io.StringIO()
    with style():
        figure.draw(_PgfRenderer(figure, out))  # type: ignore[no-untyped-call]
    wide, high = figure.get_size_inches()
    return _PGF % (wide, high, out.getvalue())
