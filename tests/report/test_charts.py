"""Charts show the numbers that they were given: read back from the artists of the figure and from the files."""

import io
import itertools
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import matplotlib
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.text import Text
from PIL import Image

from fedveil.core.errors import ConfigError
from fedveil.report import drawing
from fedveil.report.charts import (
    Allowed,
    Bars,
    Curve,
    Frame,
    Reference,
    Series,
    bar_chart,
    heat_map,
    line_chart,
    roc_chart,
    write,
)
from fedveil.report.drawing import DARK, INK, LIGHT, PAPER, RAMP, luminance, readable_on

NASTY = "a <b> & \"c\" 'd' $x_1^2$ \\input{e} % # \x00\x1b ]]>"
SHOWN = NASTY.replace("\x00", "\ufffd").replace("\x1b", "\ufffd")
FRAME = Frame("T", "x", "y")
WORDY = "a defence with a name of many words, which says its clipping bound, its noise and its number of local steps"
SVG = "{http://www.w3.org/2000/svg}"


def lines(*series, references=(), **frame):
    return line_chart(series, Frame("T", **{"x_label": "x", "y_label": "y", **frame}), references)


def samples():
    """One chart of each kind, every text nasty."""
    frame = Frame(NASTY, NASTY, NASTY, width=900)
    return {
        "line": line_chart([Series(NASTY, [1, 2], [3, 4], [2, 3], [4, 5])], frame, [Reference(NASTY, 3.5)]),
        "bar": bar_chart([NASTY, "g"], [Bars(NASTY, [1, 2], [0, 1], [2, 3]), Bars("b", [2, None])], frame),
        "heat": heat_map([[1, None]], [NASTY], [NASTY, "c"], frame, scale_label=NASTY, missing=NASTY),
        "roc": roc_chart([Curve(NASTY, [0, 0.1, 1], [0, 0.5, 1])], NASTY, allowed=[Allowed(1, 1e-5)], size=900),
    }


KINDS = ("line", "bar", "heat", "roc")


@pytest.fixture(scope="module")
def drawn():
    return {kind: chart.svg() for kind, chart in samples().items()}


def axes(chart):
    return chart.drawing.axes


def artist(chart, gid):
    return next(one for one in axes(chart).get_children() if one.get_gid() == gid)


def points(chart, gid):
    """The data of a line or of markers, [points, 2]."""
    return np.column_stack(artist(chart, gid).get_data())


def error_bars(chart):
    """(x, low, high) of each error bar."""
    found = [one for one in axes(chart).get_children() if isinstance(one, LineCollection)]
    return [[(s[0][0], s[0][1], s[1][1]) for s in one.get_segments()] for one in found]


def ticks(axis, minor=False):
    return [text.get_text() for text in axis.get_ticklabels(which="both" if minor else "major") if text.get_text()]


def shown_ticks(axis):
    """The texts of the ticks inside the limits."""
    low, high = sorted(axis.get_view_interval())
    slack = 1e-9 * (high - low)
    pairs = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return [text.get_text() for at, text in pairs if low - slack <= at <= high + slack]


def legend(chart):
    return [text.get_text() for text in chart.drawing.figure.legends[0].get_texts()]


def untidy(chart):
    """Drawn texts that cover one another or leave the figure, as matplotlib measures them; slanted ones are left out."""
    figure, texts, draw = chart.drawing.figure, [], Text.draw
    with drawing.style(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", lambda text, renderer: (texts.append(text), draw(text, renderer)))
        figure.draw_without_rendering()
        seen = [one for one in texts if one.get_visible() and one.get_text().strip()]
        level = [one for one in seen if one.get_rotation() % 90 == 0]
        boxes = [(one.get_text(), one.get_window_extent()) for one in level]
    assert len(boxes) > 4
    whole = figure.bbox.padded(1)
    outside = [text for text, box in boxes if not all(whole.contains(*corner) for corner in box.corners())]
    pairs = itertools.combinations([(text, box.padded(-0.5)) for text, box in boxes], 2)
    return outside + [f"{a} / {b}" for (a, one), (b, other) in pairs if one.overlaps(other)]


# --- what holds for every kind


@pytest.mark.parametrize("kind", KINDS)
def test_readers_who_cannot_see_it_get_a_description(kind, drawn):
    root = ET.fromstring(drawn[kind])
    title, desc = root[0], root[1]
    assert root.get("role") == "img"
    assert root.get("aria-labelledby").split() == [title.get("id"), desc.get("id")]
    assert (title.tag, desc.tag, title.text) == (f"{SVG}title", f"{SVG}desc", SHOWN)
    assert len(desc.text) > 40


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_escaped_and_no_mathematics(kind, drawn):
    root = ET.fromstring(drawn[kind])
    words = "".join("".join(node.itertext()) for node in root.iter(f"{SVG}text"))
    assert words.replace(" ", "").count(SHOWN.replace(" ", "")) >= 2
    allowed = {"svg", "title", "desc", "style", "g", "path", "defs", "use", "text", "clipPath", "rect", "pattern"}
    assert {node.tag.removeprefix(SVG) for node in root.iter()} <= allowed


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_unique_on_a_page_and_every_reference_is_to_one(kind, drawn):
    text = "".join(drawn.values())
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"chart-[0-9a-f]{12}(-\w+)?", name) for name in ids)
    assert set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', drawn[kind]))
    targets = [a or b for a, b in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', drawn[kind])]
    assert set(targets) <= set(re.findall(r'\bid="([^"]+)"', drawn[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_fetched(kind, drawn):
    text = drawn[kind]
    assert text.count("http") == 1 and 'xmlns="http://www.w3.org/2000/svg"' in text
    assert "@import" not in text and "<script" not in text and "<image" not in text
    assert all(
        target.startswith("#chart-") for target in re.findall(r"url\(([^)]*)\)|href=\"([^\"]*)\"", text)[0] if target
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_that_holds_it_is_left_alone_and_followed(kind, drawn):
    """Rules are for this chart only; texts have the colour of the page, except numbers on coloured cells."""
    root = ET.fromstring(drawn[kind])
    sheet = next(root.iter(f"{SVG}style")).text
    selectors = re.findall(r"([^{}]+)\{(?=[^{}]*\})", sheet)
    assert selectors and all(one.strip().startswith(f"#{root.get('id')}") for one in selectors)
    assert "prefers-color-scheme:dark" in sheet
    fills = {node.get("fill") for node in root.iter(f"{SVG}text")}
    assert fills == ({"currentColor", None} if kind == "heat" else {"currentColor"})  # None: black, on a light cell
    assert not any(node.get("style") for node in root.iter())
    assert INK not in drawn[kind].replace(f"color:{INK}", "")


def test_series_colours_are_attributes_that_the_style_sheet_overrides():
    text = lines(Series("a", [1, 2], [1, 2]), Series("b", [1, 2], [2, 3])).svg()
    for place, (light, dark) in enumerate(zip(LIGHT[:2], DARK[:2], strict=True), 1):
        assert f'stroke="{light}"' in text and f'fill="{light}"' in text
        assert f'[stroke="{light}"]{{stroke:var(--chart-{place},light-dark({light},{dark}))}}' in text.replace(
            "&quot;", '"'
        )
        assert f'[stroke="{light}"]{{stroke:{dark}}}' in text
    assert LIGHT[2] not in text


def test_markers_take_their_colour_from_where_they_are_used():
    """A style sheet reaches the `use` elements, not the copies of the marker inside them."""
    root = ET.fromstring(lines(Series("a", [1, 2], [1, 2])).svg())
    for marker in root.iterfind(f".//{SVG}defs/{SVG}path"):
        assert not {"fill", "stroke"} & set(marker.attrib)
    assert sum(use.get("fill") == LIGHT[0] for use in root.iter(f"{SVG}use")) == 3  # and one in the legend


def forms():
    """Every kind of chart in every form; those that take longest to write, of all but one kind, are slow."""
    for kind, ending in itertools.product(KINDS, ("svg", "png", "pdf", "pgf")):
        long = ending in ("pdf", "png") and kind != "line"
        yield pytest.param(kind, ending, marks=[pytest.mark.slow] * long)


@pytest.mark.parametrize(("kind", "ending"), list(forms()))
def test_the_same_chart_gives_the_same_bytes(kind, ending, tmp_path):
    with matplotlib.rc_context(
        {"font.size": 30, "axes.facecolor": "red", "lines.linewidth": 9}
    ):  # the user's own style
        write(tmp_path / f"a.{ending}", samples()[kind])
    write(tmp_path / f"b.{ending}", samples()[kind])
    assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_drawing_leaves_the_users_settings_as_they_were():
    before = dict(matplotlib.rcParams)
    samples()["line"].svg()
    assert dict(matplotlib.rcParams) == before


def test_files_by_ending(tmp_path):
    chart = lines(Series("50 % of $x_1$ & \\input{evil}", [1, 2], [1e-6, 2e-5]), y_log=True, width=460, height=300)
    for ending in ("svg", "png", "pdf", "pgf"):
        write(tmp_path / "new" / f"chart.{ending}", chart)
    read = {one.suffix: one.read_bytes() for one in (tmp_path / "new").iterdir()}
    assert read[".svg"].decode() == chart.svg()
    wide, high = Image.open(io.BytesIO(read[".png"])).size
    assert wide == 920 and 600 < high < 760  # twice the pixels, the legend on top
    assert read[".pdf"].startswith(b"%PDF-1.") and read[".pdf"].rstrip().endswith(b"%%EOF")
    assert not re.search(rb"/CreationDate|/Producer", read[".pdf"])
    text = read[".pgf"].decode()
    assert text.count(r"\begin{pgfpicture}") == text.count(r"\end{pgfpicture}") == 1
    assert r"50 \% of \$x\_1\$ \& \textbackslash{}input\{evil\}" in text and r"\input{evil}" not in text
    assert r"10\textsuperscript{-}\textsuperscript{6}" in text
    with pytest.raises(ConfigError, match=r"\.svg, \.png, \.pdf, \.pgf"):
        write(tmp_path / "chart.jpeg", chart)


def test_matplotlib_is_imported_when_a_chart_is_drawn_and_says_nothing(tmp_path):
    """Where its folder cannot be written, matplotlib would say so, and it builds its font cache anew."""
    (tmp_path / "file").write_text("")
    code = (
        "import sys, fedveil, fedveil.cli.main, fedveil.recipes.catalog, fedveil.recipes.page, fedveil.report.glossary\n"
        "from fedveil.report.charts import Frame, Series, line_chart\n"
        "chart = line_chart([Series('\\u4e2d', [1, 2], [1, 2])], Frame('T'))\n"
        "assert not {'matplotlib', 'jinja2', 'jax'} & set(sys.modules)\n"
        "assert chart.svg().startswith('<svg') and 'matplotlib' in sys.modules\n"
        "assert not {'matplotlib.pyplot', 'jax'} & set(sys.modules)\n"
    )
    environment = {**os.environ, "MPLCONFIGDIR": str(tmp_path / "file" / "folder")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_ledger_does_not_import_matplotlib(tmp_path):
    code = (
        "import sys; from fedveil.cli.main import main\n"
        "code = main(['ledger', '-s', 'defense.name=fed-cdp', '-s', 'train.rounds=2', '--json'])\n"
        "sys.exit(code or 'matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


# --- lines


@pytest.mark.parametrize("x_log, y_log", [(False, False), (False, True), (True, False), (True, True)])
def test_markers_and_lines_are_where_the_data_is(x_log, y_log):
    x, y = np.array([0.5, 1, 2, 7, 40]), np.array([3e-4, 0.02, 0.5, 0.07, 12])
    chart = lines(Series("a", x, y), Series("b", x, y[::-1]), x_log=x_log, y_log=y_log)
    for place, values in enumerate([y, y[::-1]]):
        for gid in (f"line-{place}", f"points-{place}"):
            np.testing.assert_array_equal(points(chart, gid), np.column_stack([x, values]))
    made = axes(chart)
    assert (made.get_xscale(), made.get_yscale()) == tuple("log" if log else "linear" for log in (x_log, y_log))
    assert made.get_xlim()[0] < x.min() and made.get_xlim()[1] > x.max()
    assert made.get_ylim()[0] <= y.min() and made.get_ylim()[1] >= y.max()
    assert (made.get_xlabel(), made.get_ylabel()) == ("x", "y") and legend(chart) == ["a", "b"]
    assert chart.drawing.figure.get_suptitle() == "T"


def test_a_band_is_between_low_and_high():
    x, low, high = [0, 1, 2], [0.1, 0.2, 0.25], [0.5, 0.7, 0.9]
    chart = lines(Series("a", x, [0.2, 0.4, 0.6], low, high))
    (band,) = (one for one in axes(chart).get_children() if isinstance(one, PolyCollection))
    edge = {tuple(point) for point in band.get_paths()[0].vertices.tolist()}
    assert edge == {*zip(x, low, strict=True), *zip(x, high, strict=True)}
    assert to_rgba(LIGHT[0], 0.16) == pytest.approx(band.get_facecolor()[0])


def test_error_bars_go_from_low_to_high_even_if_the_value_is_not_between():
    chart = lines(Series("a", [0, 1], [0.2, 0.9], [0.1, 0.3], [0.5, 0.45], spread="bars"))
    np.testing.assert_allclose(error_bars(chart), [[(0, 0.1, 0.5), (1, 0.3, 0.45)]])


@pytest.mark.parametrize("gap", [None, math.nan, math.inf])
def test_gaps_break_the_line_and_its_spread(gap):
    chart = lines(Series("a", range(6), [1, 2, gap, 3, gap, 5], [0.5] * 6, [5.5] * 6))
    np.testing.assert_array_equal(points(chart, "line-0")[:, 1], [1, 2, math.nan, 3, math.nan, 5])
    assert points(chart, "points-0")[:, 0].tolist() == [0, 1, 3, 5]
    assert sum(isinstance(one, PolyCollection) for one in axes(chart).get_children()) == 1
    np.testing.assert_allclose(error_bars(chart), [[(3, 0.5, 5.5)], [(5, 0.5, 5.5)]])  # alone: a bar instead of a band
    path = next(n for n in ET.fromstring(chart.svg()).iter(f"{SVG}path") if n.get("stroke-width") == "1.6")
    assert path.get("d").count("M") >= 1 and path.get("d").count("L") <= 2


def test_the_mouse_shows_the_numbers_of_each_marker_and_bar():
    root = ET.fromstring(lines(Series("a", [1, 2, 3], [0.25, None, 0.5])).svg())
    assert [use.find(f"{SVG}title").text for use in root.iter(f"{SVG}use") if len(use)] == ["a: 1, 0.25", "a: 3, 0.5"]
    root = ET.fromstring(bar_chart(["g", "h"], [Bars("k", [1.5, None])], FRAME).svg())
    assert [g.find(f"{SVG}title").text for g in root.iter(f"{SVG}g") if g.find(f"{SVG}title") is not None] == [
        "k, g: 1.5"
    ]


def test_of_many_points_some_have_markers_and_those_that_stand_alone():
    y = np.sin(np.arange(2000) / 300)
    y[[700, 702]] = np.nan
    chart = lines(Series("a", np.arange(2000), y), Series("b", np.arange(2000), y + 1), Series("c", [1], [1]))
    first, second = points(chart, "points-0")[:, 0], points(chart, "points-1")[:, 0]
    assert 5 <= len(first) <= 15 and 701 in first
    assert not set(first) & set(second) - {701.0}


def test_a_long_line_keeps_its_peaks_in_a_small_file():
    y = np.zeros(20_000)
    y[12_345] = 1
    root = ET.fromstring(lines(Series("a", np.arange(20_000), y)).svg())
    path = next(n.get("d") for n in root.iter(f"{SVG}path") if n.get("stroke-width") == "1.6" and "L" in n.get("d"))
    heights = [float(pair.split()[1]) for pair in re.findall(r"[ML] (\S+ \S+)", path)]
    assert len(heights) < 3_000 and max(heights) - min(heights) > 150


@pytest.mark.parametrize(
    "y, log", [([0.5], False), ([0.5], True), ([0.9] * 4, False), ([0] * 4, False), ([3e-9] * 3, True)]
)
def test_one_point_or_the_same_value_throughout(y, log):
    chart = lines(Series("a", range(1, len(y) + 1), y), y_log=log, x_log=log)
    low, high = axes(chart).get_ylim()
    assert low <= y[0] < high and not untidy(chart)
    if not any(y):
        assert low == 0  # nothing below zero for rates that are all zero


def test_whole_numbers_have_whole_ticks():
    assert shown_ticks(axes(lines(Series("a", [1, 2, 3], [1, 2, 3]))).xaxis) == ["1", "2", "3"]


def test_a_reference_is_a_dashed_line_at_its_height_and_in_the_legend():
    chart = lines(Series("a", [0, 1], [0.1, 0.2]), references=[Reference("paper", 0.93), Reference("chance", 0.5)])
    for place, y in enumerate([0.93, 0.5]):
        line = artist(chart, f"reference-{place}")
        assert set(line.get_ydata()) == {y} and line.is_dashed() and line.get_color() == INK
    assert legend(chart) == ["a", "paper", "chance"] and axes(chart).get_ylim()[1] >= 0.93


def test_what_is_beyond_the_range_is_cut_off():
    chart = lines(Series("a", [0, 1, 2], [0.5, 7, 0.25]), y_range=(0, 1))
    assert axes(chart).get_ylim() == (0, 1) and artist(chart, "line-0").get_clip_on()
    assert points(chart, "points-0")[:, 1].tolist() == [0.5, 0.25]


@pytest.mark.parametrize(
    "series, options, message",
    [
        ([], {}, "chart 'T' has no series"),
        ([Series("a", [], [])], {}, "series 'a' has no point to draw"),
        ([Series("a", [1, 2], [None, math.nan])], {}, "series 'a' has no point to draw"),
        ([Series("a", [1, 2], [1])], {}, "series 'a': every point has an x and a y, got 2 and 1"),
        ([Series("a", [1], [1], low=[0])], {}, "series 'a': low and high come together"),
        ([Series("a", [1], [1], [2], [0])], {}, "series 'a': low = 2 is above high = 0"),
        ([Series("a", [1], [1], [0, 0], [2, 2])], {}, "series 'a': 1 values need as many low and high, got 2 and 2"),
        ([Series("a", [1, 0], [1, 2])], {"x_log": True}, "x = 0 cannot be shown on a log axis; take x_log=False"),
        ([Series("a", [1, 2], [1, -3])], {"y_log": True}, "y = -3 cannot be shown on a log axis; take y_log=False"),
        ([Series("a", [1], [1], [0], [2])], {"y_log": True}, "low = 0 cannot be shown on a log axis; take y_log=False"),
        (
            [Series("a", [1], [1])],
            {"y_log": True, "references": [Reference("r", 0)]},
            "reference 'r': y = 0 cannot be shown on a log axis",
        ),
        ([Series("a", [1], [1])], {"references": [Reference("r", math.nan)]}, "reference 'r': y = nan cannot be shown"),
        ([Series("a", [1], [1])], {"y_range": (1, 0)}, r"axis 'y': .* got \(1, 0\)"),
        ([Series("a", [1], [1])], {"y_range": (0, 1), "y_log": True}, "axis 'y': a log axis starts above 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(series, options, message):
    with pytest.raises(ValueError, match=message):
        lines(*series, **options)


# --- room for texts


@pytest.mark.parametrize("names", [[WORDY + str(n) for n in range(8)], ["w" * 300, "b"], [f"s{n}" for n in range(40)]])
def test_a_long_legend_covers_nothing(names):
    series = (Series(name, [0, 1], [n, 1]) for n, name in enumerate(names))
    chart = line_chart(list(series), Frame(WORDY, WORDY, WORDY))
    assert not untidy(chart)
    figure = chart.drawing.figure
    below = figure.legends[0].get_window_extent(figure.canvas.get_renderer()).y1
    assert below < axes(chart).get_window_extent().y0 and axes(chart).get_window_extent().height > 200
    assert ["".join(text.split()) for text in legend(chart)] == ["".join(name.split()) for name in names]


@pytest.mark.parametrize("width", [240, 640])
@pytest.mark.parametrize("ends", [(0, 1), (0, 123456), (-2e-7, 3e-7), (1, 1e12), (0.3, 0.4), (1e-9, 1)])
def test_ticks_keep_apart(width, ends):
    for log in (False, True) if ends[0] > 0 else (False,):
        assert not untidy(lines(Series("a", ends, ends), x_log=log, y_log=log, width=width))


@pytest.mark.parametrize(
    "groups",
    [["a", "b"], [WORDY, "b", WORDY], ["word_without_a_break_" * 2, "b"], [f"dataset_number_{n}" for n in range(12)]],
)
def test_names_of_groups_keep_apart(groups):
    bars = [Bars(f"k{k}", np.linspace(-1.2345, 2.3456, len(groups)) * (k + 1)) for k in range(4)]
    chart = bar_chart(groups, bars, FRAME)
    assert not untidy(chart) and axes(chart).get_window_extent().height > 150
    figure = chart.drawing.figure
    boxes = [text.get_window_extent(figure.canvas.get_renderer()) for text in axes(chart).get_xticklabels()]
    assert all(box.x0 >= 0 and box.y0 >= 0 for box in boxes)


def test_heat_maps_have_room():
    for rows, columns in ((["r"], [f"attack number {n}" for n in range(30)]), ([WORDY, "b"], [WORDY, "c"])):
        values = np.full((len(rows), len(columns)), 0.000123456)
        values[0, 0] = np.nan
        chart = heat_map(values, rows, columns, Frame("T", "x", WORDY), scale_label=WORDY, missing="not run: no GPU")
        assert not untidy(chart)


# --- axes


@settings(max_examples=150, deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9))
def test_limits_hold_their_values_and_are_round(low, span):
    assume(span > 1e-6 * abs(low))  # below that, differences of ticks are rounding
    bottom, top = drawing._holding(np.array([low, low + span]))
    assert bottom <= low + 1e-6 * span and top >= low + span * (1 - 1e-6) and top - bottom < 2.5 * span


@settings(max_examples=150, deadline=None)
@given(st.floats(1e-30, 1e30), st.floats(1.5, 1e40))
def test_log_limits_hold_their_values(low, times):
    bottom, top = drawing._holding(np.array([low, low * times]), log=True)
    assert 0 < bottom < low < low * times < top and top / bottom == pytest.approx(times**1.1)


@pytest.mark.parametrize(
    "low, high, log, texts",
    [
        (0, 1, False, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0, 30000, False, ["0", "5000", "10000", "15000", "20000", "25000", "30000"]),
        (0, 4e6, False, ["0", "1", "2", "3", "4"]),  # with the power of ten at the end of the axis
        (1e-3, 1, True, ["0.001", "0.01", "0.1", "1"]),
        (1e-6, 1e-3, True, ["10⁻⁶", "10⁻⁵", "10⁻⁴", "0.001"]),
    ],
)
def test_ticks_as_one_would_write_them(low, high, log, texts):
    chart = lines(Series("a", [1, 2], [low, high]), y_log=log)
    assert shown_ticks(axes(chart).yaxis) == texts
    if high == 4e6:
        assert axes(chart).yaxis.get_offset_text().get_text() == "1e6"


# --- bars


def bar(chart, place, group):
    return artist(chart, f"bar-{place}-{group}")


def test_bars_go_from_zero_to_their_values_which_are_written():
    chart = bar_chart(["g", "h", "i"], [Bars("a", [3, -1.5, 0]), Bars("b", [None, 2, 4])], FRAME)
    heights = {(k, g): bar(chart, k, g).get_height() for k, g in [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)]}
    assert list(heights.values()) == [3, -1.5, 0, 2, 4]
    assert all(bar(chart, *key).get_y() == 0 for key in heights)
    assert not any(one.get_gid() == "bar-1-0" for one in axes(chart).get_children())
    assert sorted(text.get_text() for text in axes(chart).texts) == ["-1.5", "0", "2", "3", "4"]
    assert ticks(axes(chart).xaxis) == ["g", "h", "i"] and legend(chart) == ["a", "b"]


def test_bars_of_a_group_are_side_by_side_over_its_name():
    chart = bar_chart(["g", "h"], [Bars("a", [1, 2]), Bars("b", [3, 4]), Bars("c", [5, 6])], FRAME)
    for group in range(2):
        spans = [(one.get_x(), one.get_x() + one.get_width()) for one in (bar(chart, k, group) for k in range(3))]
        edges = [edge for span in spans for edge in span]
        assert edges == sorted(edges) and (edges[0] + edges[-1]) / 2 == pytest.approx(group)


def test_error_bars_of_bars_and_values_above_them():
    chart = bar_chart(["g", "h"], [Bars("a", [4, -2], [3, -5], [6, -1])], FRAME)
    np.testing.assert_allclose(error_bars(chart), [[(0, 3, 6), (1, -5, -1)]])
    assert [text.xy[1] for text in axes(chart).texts] == [6, -5]
    assert axes(chart).get_ylim()[0] < -5 and axes(chart).get_ylim()[1] > 6


def test_kinds_of_bars_differ_without_colour():
    chart = bar_chart(["g"], [Bars(f"k{k}", [1]) for k in range(7)], FRAME)
    assert len({bar(chart, k, 0).get_hatch() for k in range(7)}) == 7
    root = ET.fromstring(chart.svg())
    hatched = [node for node in root.iter() if node.get("fill", "").startswith("url(")]
    assert len(hatched) == 12 and not any(node.get("fill-opacity") for node in hatched)  # bars and legend
    assert all(tile.find(f"{SVG}rect").get("fill") == "none" for tile in root.iter(f"{SVG}pattern"))


def test_bars_that_are_all_zero_stand_on_zero():
    assert axes(bar_chart(["g"], [Bars("a", [0])], FRAME)).get_ylim() == (0, 1)


@pytest.mark.parametrize(
    "groups, bars, message",
    [
        ([], [Bars("a", [])], "nothing to draw"),
        (["g"], [], "nothing to draw"),
        (["g"], [Bars("a", [1, 2])], "bars 'a': one value for each of 1 groups, got 2"),
        (["g"], [Bars("a", [None])], "bars 'a' have no value to draw"),
        (["g"], [Bars("a", [1], [2], [0])], "bars 'a': low = 2 is above high = 0"),
    ],
)
def test_bars_that_cannot_be_drawn_are_refused(groups, bars, message):
    with pytest.raises(ValueError, match=message):
        bar_chart(groups, bars, FRAME)


# --- heat maps


def heat(values, **options):
    rows, columns = [f"r{n}" for n in range(len(values))], [f"c{n}" for n in range(len(values[0]))]
    return heat_map(values, rows, columns, FRAME, **{"scale_label": "s", **options})


def cell(chart, row, column):
    """The colour of a cell, its text and the colour of its text."""
    text = next(one for one in axes(chart).texts if one.get_position() == (column, row))
    return artist(chart, f"cell-{row}-{column}").get_facecolor(), text.get_text(), text.get_color()


def test_cells_say_their_values_in_a_colour_that_can_be_read():
    values = np.linspace(0, 1, 24).reshape(4, 6)
    chart = heat(values, value_range=(0, 1))
    found = [cell(chart, *place) for place in np.ndindex(4, 6)]
    for (fill, text, ink), value in zip(found, values.ravel(), strict=True):
        assert float(text) == pytest.approx(value, rel=1e-2)
        assert fill == pytest.approx(matplotlib.colormaps[RAMP](value))
        assert contrast(fill, to_rgb(ink)) >= 4.5
    light = [luminance(fill) for fill, _, _ in found]
    assert light == sorted(light, reverse=True)
    assert [text.get_text() for text in axes(chart).get_yticklabels()] == ["r0", "r1", "r2", "r3"]
    tops = [artist(chart, f"cell-{row}-0").get_window_extent().y1 for row in range(4)]
    assert tops == sorted(tops, reverse=True)  # the first row is on top


def test_a_cell_that_was_not_run_is_empty_and_says_so():
    chart = heat([[0.5, None, math.nan]], missing="not run")
    for column in (1, 2):
        fill, text, _ = cell(chart, 0, column)
        assert fill[3] == 0 and text == "not run" and artist(chart, f"cell-0-{column}").get_linestyle() != "solid"


def test_the_scale_of_colours_is_shown():
    chart = heat([[0, 80]], scale_label="seconds")
    scale = chart.drawing.figure.axes[1]
    assert scale.get_xlabel() == "seconds" and scale.get_xlim() == (0, 80)
    ramp = matplotlib.colormaps[RAMP]
    assert [cell(chart, 0, c)[0] for c in (0, 1)] == [ramp(0.0), ramp(1.0)]


def test_values_beyond_the_scale_have_its_last_colours():
    chart, ramp = heat([[-5, 0.5, 7]], value_range=(0, 1)), matplotlib.colormaps[RAMP]
    assert [cell(chart, 0, column)[0] for column in range(3)] == [ramp(0.0), ramp(0.5), ramp(1.0)]


@pytest.mark.parametrize(
    "values, rows, columns, message",
    [
        ([], [], ["a"], "nothing to draw"),
        ([[1, 2]], ["r"], ["a"], r"1 rows of 1 values are named, got rows of \[2\]"),
        ([[None]], ["r"], ["a"], r"give value_range=\(low, high\)"),
    ],
)
def test_heat_maps_that_cannot_be_drawn_are_refused(values, rows, columns, message):
    with pytest.raises(ValueError, match=message):
        heat_map(values, rows, columns, FRAME, scale_label="s")


# --- ROC curves


@pytest.mark.parametrize("log", [False, True])
def test_roc_curves_are_where_the_rates_are(log):
    fpr, tpr = np.array([1, 0.2, 0.01, 0]), np.array([1, 0.7, 0.2, 0])  # falling: the order does not matter
    chart = roc_chart([Curve("a", fpr, tpr)], "T", log=log)
    x, y = points(chart, "line-0").T
    if log:  # between two points matplotlib draws a straight line on log axes: it has to be right there as well
        x, y = (np.append(end, np.sqrt(end[1:] * end[:-1])) for end in (x, y))
    np.testing.assert_allclose(y, np.interp(x, fpr[::-1], tpr[::-1]), rtol=1e-2, atol=1e-9)
    assert points(chart, "points-0")[:, 0].tolist() == sorted(fpr)[1 if log else 0 :]
    assert axes(chart).get_xlim() == axes(chart).get_ylim() == (1e-3 if log else 0, 1)
    if log:
        assert x[0] == pytest.approx(1e-3) and y[0] == pytest.approx(0.02)


def test_a_step_of_a_roc_curve_stays_upright_on_log_axes():
    x, y = points(roc_chart([Curve("a", [0, 0.1, 0.1, 1], [0.02, 0.02, 0.9, 1])], "T", log=True), "line-0").T
    assert set(y[x < 0.1]) == {0.02} and y[x > 0.1].min() > 0.9


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("epsilon, delta", [(0, 0), (1, 1e-5), (3, 0.01), (8, 1e-5), (math.inf, 0)])
def test_chance_and_what_is_allowed(log, epsilon, delta):
    chart = roc_chart([Curve("a", [0, 1], [0, 1])], "T", log=log, allowed=[Allowed(epsilon, delta)])
    assert (points(chart, "reference-0")[:, 0] == points(chart, "reference-0")[:, 1]).all()
    x, y = points(chart, "reference-1").T
    factor = math.exp(min(epsilon, 700))
    other = 1 - (1 - delta - x) / factor  # of those who say "out", too few may be wrong
    np.testing.assert_allclose(y, np.minimum(np.minimum(1, factor * x + delta), other))
    corner = (1 - delta) / (1 + factor)
    assert corner in x or corner < x[0]
    shaded = [one for one in axes(chart).get_children() if isinstance(one, PolyCollection)]
    assert len(shaded) == (epsilon < 8)


@pytest.mark.parametrize(
    "curves, message",
    [
        ([], "chart 'T' has no curves"),
        ([Curve("a", [], [])], "curve 'a': .* got 0 and 0"),
        ([Curve("a", [0, 1], [0])], "curve 'a': .* got 2 and 1"),
        ([Curve("a", [0, 1.5], [0, 1])], "curve 'a': fpr holds 1.5"),
        ([Curve("a", [0, 1], [0, None])], "curve 'a': tpr holds nan"),
    ],
)
def test_roc_curves_that_cannot_be_drawn_are_refused(curves, message):
    with pytest.raises(ValueError, match=message):
        roc_chart(curves, "T")


def test_an_impossible_budget_is_refused():
    with pytest.raises(ValueError, match=r"got \(-1, 0\)"):
        Allowed(-1, 0)


# --- telling series apart

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
BLIND = {
    "none": np.eye(3),
    "red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def contrast(one, other):
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def oklab(colour, seen):
    """Ottosson's Oklab of a colour as a reader with that colour blindness sees it."""
    part = np.array(to_rgb(colour))
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(BLIND[seen]) @ linear, 0, 1)
    cones = [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
    lab = [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]
    return np.array(lab) @ np.cbrt(np.array(cones) @ linear)


@pytest.mark.parametrize("palette, paper", [(LIGHT, PAPER[0]), (DARK, PAPER[1])])
def test_colours_stand_out_from_the_page(palette, paper):
    assert min(contrast(to_rgb(colour), to_rgb(paper)) for colour in palette) >= 3


@pytest.mark.parametrize("seen", BLIND)
@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_colours_keep_apart_for_every_reader(palette, seen):
    least = min(np.linalg.norm(oklab(a, seen) - oklab(b, seen)) for a, b in itertools.combinations(palette, 2))
    assert least > 0.07  # Okabe and Ito's own palette has 0.076 at its closest


def test_many_series_all_look_different_even_in_grey():
    chart = lines(*(Series(f"s{k}", [0, 1], [k, k]) for k in range(35)))
    looks = {
        (str(artist(chart, f"line-{k}")._dash_pattern), artist(chart, f"points-{k}").get_marker()) for k in range(35)
    }
    assert len(looks) == 35


def test_text_on_a_colour_is_black_or_white():
    assert (readable_on((1, 1, 0.8)), readable_on((0, 0.1, 0.4))) == ("#000000", "#ffffff")
