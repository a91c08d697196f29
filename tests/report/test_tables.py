"""Tables say what they were given, in forms that other programs read."""

import csv
import io
import math

import numpy as np
import pytest

from fedveil.report.tables import number, table_csv, table_latex, table_markdown


@pytest.mark.parametrize(
    "value, text",
    [
        (0.93456, "0.9346"),
        (0.5, "0.5"),
        (0.0, "0"),
        (-0.0, "0"),
        (0.99999, "1"),
        (-1.25, "-1.25"),
        (12345.678, "12346"),
        (999999.7, "1e6"),
        (1234567.0, "1.235e6"),
        (1e-5, "1e-5"),
        (0.00012345, "0.0001234"),
        (-0.0000123456, "-1.235e-5"),
        (12345678, "12345678"),
        (np.int64(12345678), "12345678"),
        (np.float32(0.25), "0.25"),
        (None, "–"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
    ],
)
def test_numbers_are_short_and_keep_their_size(value, text):
    assert number(value) == text


def test_fewer_digits():
    assert [number(v, 2) for v in (0.93456, 123.4, 0.0995)] == ["0.93", "123", "0.1"]


@pytest.mark.parametrize("value", [3.14159e-9, 0.000999996, 0.1, 7.77777, 999.951, 99999.5, 4.2e11])
def test_a_number_is_right_to_its_digits(value):
    assert float(number(value)) == pytest.approx(value, rel=5.1e-4)


def test_csv_can_be_read_back():
    nasty = 'a "quoted", cell\nof two lines'
    text = table_csv(["name", "rate, %"], [[nasty, 0.123456], ["x", None], [True, 3]])
    assert list(csv.reader(io.StringIO(text))) == [["name", "rate, %"], [nasty, "0.1235"], ["x", "–"], ["yes", "3"]]


def test_markdown():
    text = table_markdown(["defence", "ε", "note"], [["fed_cdp", 1.5, "a|b"], ["_x_", None, "<b> & *c*"]])
    assert text.splitlines() == [
        "| defence | ε | note |",
        "| --- | ---: | --- |",
        r"| fed_cdp | 1.5 | a\|b |",
        r"| \_x\_ | – | &lt;b> &amp; \*c\* |",
    ]


def test_a_line_break_does_not_break_a_row():
    assert table_markdown(["a\nb"], [["c\nd"]]).splitlines() == ["| a b |", "| --- |", "| c d |"]
    assert "c d" in table_latex(["a"], [["c\n\nd"]])


def test_latex():
    text = table_latex(["defence", "ε ≤"], [[r"50% & $x_1$ \ {~^} #", 0.25], ["none", None]])
    assert text.splitlines() == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"defence & $\varepsilon$ $\le$ \\",
        r"\midrule",
        r"50\% \& \$x\_1\$ \textbackslash{} \{\textasciitilde{}\textasciicircum{}\} \# & 0.25 \\",
        r"none & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_a_row_may_begin_with_a_bracket():
    rows = table_latex(["a"], [["x"], ["[1]"], ["*"]]).splitlines()
    assert rows[5:7] == [r"{[}1] \\", r"{*} \\"]


@pytest.mark.parametrize("table", [table_csv, table_latex, table_markdown])
def test_rows_of_another_length_are_refused(table):
    with pytest.raises(ValueError, match="row 2 of the table has 1 cells, the header has 2"):
        table(["a", "b"], [[1, 2], [3]])


@pytest.mark.parametrize("table", [table_csv, table_latex, table_markdown])
def test_a_table_without_rows_has_its_header(table):
    assert "a" in table(["a", "b"], [])
