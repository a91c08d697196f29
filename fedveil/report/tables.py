"""Tables as text: CSV, LaTeX (booktabs) and Markdown. A cell is a text, a number, a boolean or None."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Sequence

import numpy as np

Number = int | float | np.integer | np.floating

ABSENT = "–"
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0

_MATHS = {"ε": r"\varepsilon", "δ": r"\delta", "σ": r"\sigma", "α": r"\alpha", "λ": r"\lambda", "μ": r"\mu"}
_MATHS |= {"×": r"\times", "±": r"\pm", "≤": r"\le", "≥": r"\ge", "∞": r"\infty", "−": "-"}
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    '"': r"\textquotedbl{}",
    "|": r"\textbar{}",
    "[": "{[}",  # at the start of a row, LaTeX reads a bracket or a star as an option of the row break before it
    "*": "{*}",
    "–": "--",
    "…": r"\dots{}",
    **{character: "\\" + character for character in "&%$#_{}"},
    **{raised: rf"\textsuperscript{{{plain}}}" for raised, plain in zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True)},
    **{character: f"${command}$" for character, command in _MATHS.items()},
}


def number(value: Number | None, digits: int = 4) -> str:
    """A number with this many significant digits. Integers, and digits before the point below a million, are never cut."""
    if value is None:
        return ABSENT
    if isinstance(value, int | np.integer):
        return str(int(value))
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    size = abs(float(f"{value:.{digits - 1}e}"))  # as it will be shown: 0.99996 is 1
    if size != 0 and not 1e-4 <= size < 1e6:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{_short(mantissa)}e{int(exponent)}"
    before = math.floor(math.log10(size)) + 1 if size else 0
    return _short(f"{value:.{max(0, digits - before)}f}")


def finite(value: object) -> float | None:
    """A finite number; None for everything else."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None  # type: ignore[arg-type]


def _short(text: str) -> str:
    """The number without trailing zeros of its fraction."""
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def table_csv(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Comma-separated values, quoted where needed."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *_cells(header, rows, str)])
    return text.getvalue()


def table_latex(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A `tabular` with the rules of the package booktabs; columns of numbers are aligned right."""
    lines = [" & ".join(line) + r" \\" for line in [[latex(name) for name in header], *_cells(header, rows, latex)]]
    columns = "".join("r" if numeric else "l" for numeric in _numeric(header, rows))
    begin, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    return "\n".join([begin, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", end]) + "\n"


def table_markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table as GitHub reads it; columns of numbers are aligned right."""
    cells = _cells(header, rows, _markdown)
    rule = ["---:" if numeric else "---" for numeric in _numeric(header, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [[_markdown(name) for name in header], rule, *cells])


def _cells(header: Sequence[str], rows: Sequence[Sequence[object]], escaped: Callable[[str], str]) -> list[list[str]]:
    for index, row in enumerate(rows, 1):
        if len(row) != len(header):
            cells = f"has {len(row)} cells, the header has {len(header)}"
            raise ValueError(f"row {index} of the table {cells}: {list(row)}")
    return [[escaped(_text(cell)) for cell in row] for row in rows]


def _text(cell: object) -> str:
    if isinstance(cell, bool | np.bool_):
        return "yes" if cell else "no"
    return number(cell) if cell is None or isinstance(cell, Number) else str(cell)


def _numeric(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[bool]:
    """Which columns hold only numbers and gaps."""
    columns = [[row[index] for row in rows if row[index] is not None] for index in range(len(header))]
    known = [[isinstance(cell, Number) and not isinstance(cell, bool) for cell in column] for column in columns]
    return [bool(column) and all(column) for column in known]


def latex(text: str) -> str:
    """Text with the characters escaped that LaTeX would read as commands."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _markdown(text: str) -> str:
    """Text with Markdown's marks escaped; an underscore inside a word is no mark."""
    marked = re.sub(r"([\\`*|\[\]]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", " ".join(text.split()))
    return marked.replace("&", "&amp;").replace("<", "&lt;")
