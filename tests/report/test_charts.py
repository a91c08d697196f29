"""Charts show the numbers that they were given: read back from the SVG, as a reader would."""

import itertools
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reading import Picture, read, stretches, untidy

from fedveil.report.axes import between, reaching
from fedveil.report.charts import (
    Allowed,
    Bars,
    Curve,
    Reference,
    Series,
    bar_chart,
    heat_map,
    line_chart,
    roc_chart,
    write_svg,
)
from fedveil.report.palette import DARK, LIGHT, PAPER, RAMP, dash, luminance, marker
from fedveil.report.svg import element

NASTY = "a <b> & \"c\" 'd' \x00\x1b ]]>"
SHOWN = NASTY.replace("\x00", "\ufffd").replace("\x1b", "\ufffd")
LABELS = {"title": "T", "x_label": "x", "y_label": "y"}
WORDY = "a defence with a name of many words, which says its clipping bound, its noise and its number of local steps"


def lines(*series, **options):
    return Picture(line_chart(series, **{**LABELS, **options}))


def samples():
    """One chart of each kind, every text nasty."""
    nasty = {"title": NASTY, "x_label": NASTY, "y_label": NASTY}
    return {
        "line": line_chart(
            [Series(NASTY, [1, 2], [3, 4], [2, 3], [4, 5])], references=[Reference(NASTY, 3.5)], **nasty
        ),
        "bar": bar_chart([NASTY, "g"], [Bars(NASTY, [1, 2], [0, 1], [2, 3]), Bars("b", [2, None])], **nasty),
        "heat": heat_map([[1, None]], [NASTY], [NASTY, "c"], scale_label=NASTY, missing=NASTY, **nasty),
        "roc": roc_chart([Curve(NASTY, [0, 0.1, 1], [0, 0.5, 1])], title=NASTY, allowed=[Allowed(1, 1e-5)]),
    }


KINDS = list(samples())


# What holds for every kind


@pytest.mark.parametrize("kind", KINDS)
def test_those_who_cannot_see_it_are_told(kind):
    root = Picture(samples()[kind]).root
    title, desc = root[0], root[1]
    assert root.get("role") == "img"
    assert root.get("aria-labelledby").split() == [title.get("id"), desc.get("id")]
    assert (title.tag, desc.tag, title.text) == ("title", "desc", SHOWN)
    assert len(desc.text) > 40


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_escaped(kind):
    """Whatever a label holds, it is text: it is read back whole, and adds no element."""
    picture = Picture(samples()[kind])
    words = " ".join("".join(node.itertext()) for node in picture.root.iter("text"))
    assert words.count('<b> & "c"') >= 2
    assert not list(picture.root.iter("b"))


def test_attributes_are_escaped():
    text = "a <b> & \"c\" 'd' \x1b"
    assert ET.fromstring(element("a", b_c=text, class_="e")).attrib == {
        "b-c": text.replace("\x1b", "\ufffd"),
        "class": "e",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_input_gives_the_same_bytes(kind):
    assert samples()[kind] == samples()[kind]


def test_ids_are_unique_and_every_reference_is_to_one():
    text = "".join(samples().values())
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)
    assert all(re.fullmatch(r"chart-[0-9a-f]{12}(-\w+)?", name) for name in ids)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_fetched(kind):
    text = samples()[kind]
    assert text.count("http") == 1 and 'xmlns="http://www.w3.org/2000/svg"' in text
    assert "href" not in text and "@import" not in text and "<script" not in text
    assert all(target.startswith("#chart-") for target in re.findall(r"url\(([^)]*)\)", text))


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_that_holds_it_is_left_alone_and_followed(kind):
    """Rules are for this chart only; text has the page's colour, but for numbers on coloured cells."""
    root = Picture(samples()[kind]).root
    sheet = next(root.iter("style")).text
    selectors = re.findall(r"([^{}]+)\{(?=[^{}]*\})", sheet)
    assert selectors and all(one.strip().startswith(f"#{root.get('id')}") for one in selectors)
    assert "prefers-color-scheme:dark" in sheet
    fills = {node.get("fill") for node in root.iter("text")}
    assert fills == ({"currentColor", "#000000"} if kind == "heat" else {"currentColor"})


def test_a_colour_is_there_without_a_style_sheet_and_with_the_pages_own():
    text = line_chart([Series("a", [1], [1]), Series("b", [1], [2])], **LABELS)
    for place in (1, 2):
        assert f'<g class="c{place}" color="{LIGHT[place - 1]}">' in text
        assert f".c{place}{{color:var(--chart-{place},light-dark({LIGHT[place - 1]},{DARK[place - 1]}))}}" in text
    assert ".c3" not in text


def test_writing(tmp_path):
    text = samples()["line"]
    write_svg(tmp_path / "new" / "chart.svg", text)
    assert (tmp_path / "new" / "chart.svg").read_bytes() == text.encode()


def test_jax_is_not_imported():
    code = "import sys, fedveil.report.charts, fedveil.report.tables; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Lines


@pytest.mark.parametrize("x_log, y_log", [(False, False), (False, True), (True, False), (True, True)])
def test_markers_and_lines_are_where_the_data_is(x_log, y_log):
    x, y = np.array([0.5, 1, 2, 7, 40]), np.array([3e-4, 0.02, 0.5, 0.07, 12])
    picture = lines(Series("a", x, y), Series("b", x, y[::-1]), x_log=x_log, y_log=y_log)
    for place, values in enumerate([y, y[::-1]]):
        for points in (picture.markers(place), picture.lines(place)[0]):
            np.testing.assert_allclose(picture.value("x", points[:, 0], x_log), x, rtol=2e-3, atol=0 if x_log else 2e-3)
            np.testing.assert_allclose(
                picture.value("y", points[:, 1], y_log), values, rtol=2e-3, atol=0 if y_log else 2e-3
            )


def test_large_negative_and_tiny_numbers():
    for y in ([-3e8, 2e8], [-25000, 90000], [2e-7, 9e-7], [-1e-3, 5e-3]):
        picture = lines(Series("a", [1, 2], y))
        np.testing.assert_allclose(picture.value("y", picture.markers(0)[:, 1]), y, rtol=3e-3)
        assert not untidy(picture)


def test_a_band_is_between_low_and_high():
    x, low, high = [0, 1, 2], [0.1, 0.2, 0.25], [0.5, 0.7, 0.9]
    picture = lines(Series("a", x, [0.2, 0.4, 0.6], low, high))
    band = next(mark for mark in picture.coloured(0) if mark.get("fill-opacity"))
    edge = stretches(band.get("d"))[0]
    np.testing.assert_allclose(picture.value("x", edge[:, 0]), x + x[::-1], atol=1e-3)
    np.testing.assert_allclose(picture.value("y", edge[:, 1]), low + high[::-1], atol=1e-3)


def test_error_bars_go_from_low_to_high():
    picture = lines(Series("a", [0, 1], [0.2, 0.4], [0.1, 0.3], [0.5, 0.45], spread="bars"))
    bars = [mark.get("d") for mark in picture.coloured(0) if mark.get("stroke-width") == "1.4"]
    ends = np.array([re.match(r"M(\S+) (\S+)V([\d.]+)", path).groups() for path in bars], float)
    np.testing.assert_allclose(picture.value("x", ends[:, 0]), [0, 1], atol=1e-3)
    np.testing.assert_allclose(picture.value("y", ends[:, 1:]), [[0.1, 0.5], [0.3, 0.45]], atol=1e-3)


@pytest.mark.parametrize("gap", [None, math.nan, math.inf])
def test_gaps_break_the_line_and_its_spread(gap):
    y = [1, 2, gap, 3, 4]
    picture = lines(Series("a", range(5), y, [0.5] * 5, [4.5] * 5))
    assert [len(part) for part in picture.lines(0)] == [2, 2]
    assert len(picture.markers(0)) == 4
    assert sum(mark.get("fill-opacity") is not None for mark in picture.coloured(0)) == 2


def test_of_many_points_some_have_markers_and_those_that_stand_alone():
    y = np.sin(np.arange(2000) / 300)
    y[[700, 702]] = np.nan
    picture = lines(Series("a", np.arange(2000), y))
    x = picture.value("x", picture.markers(0)[:, 0])
    assert 5 <= len(x) <= 15
    assert np.isclose(x, 701, atol=1).any()


def test_a_long_line_keeps_its_peaks():
    y = np.zeros(20_000)
    y[12_345] = 1
    picture = lines(Series("a", np.arange(20_000), y))
    points = np.concatenate(picture.lines(0))
    assert len(points) < 3_000
    assert picture.value("y", points[:, 1]).max() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    "y, log", [([0.5], False), ([0.5], True), ([0.9] * 4, False), ([0] * 4, False), ([3e-9] * 3, True)]
)
def test_one_point_or_the_same_value_throughout(y, log):
    picture = lines(Series("a", range(1, len(y) + 1), y), y_log=log, x_log=log)
    np.testing.assert_allclose(picture.value("y", picture.markers(0)[:, 1], log), y, rtol=1e-2, atol=1e-12)
    assert not untidy(picture)


def test_nothing_is_shown_below_zero_of_rates_that_are_all_zero():
    picture = lines(Series("a", [1, 2], [0, 0]))
    assert min(read(text.text) for text in picture.group("y-axis").iter("text")) == 0


def test_whole_numbers_have_whole_ticks():
    picture = lines(Series("a", [1, 2, 3], [1, 2, 3]))
    assert [text.text for text in picture.group("x-axis").iter("text")] == ["1", "2", "3"]


def test_a_reference_is_a_dashed_line_at_its_height_and_in_the_legend():
    picture = lines(Series("a", [0, 1], [0.1, 0.2]), references=[Reference("paper", 0.93), Reference("chance", 0.5)])
    for line, y in zip(picture.dashed(), [0.93, 0.5], strict=True):
        np.testing.assert_allclose(picture.value("y", line[:, 1]), y, atol=1e-3)
        assert line[0, 0] < picture.markers(0)[0, 0] and line[-1, 0] > picture.markers(0)[-1, 0]
    assert [text.text for text in picture.group("legend").iter("text")] == ["a", "paper", "chance"]


def test_what_is_beyond_the_range_is_cut():
    picture = lines(Series("a", [0, 1, 2], [0.5, 7, 0.25]), y_range=(0, 1))
    np.testing.assert_allclose(picture.value("y", picture.markers(0)[:, 1]), [0.5, 0.25], atol=1e-3)
    line = next(mark for mark in picture.coloured(0) if mark.get("stroke-width") == "2")
    hole = next(picture.root.iter("clipPath"))
    assert picture.parents[picture.parents[line]].get("clip-path") == f"url(#{hole.get('id')})"
    edges = float(hole[0].get("y")), float(hole[0].get("y")) + float(hole[0].get("height"))
    np.testing.assert_allclose(picture.value("y", np.array(edges)), [1, 0], atol=0.02)


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
        (
            [Series("a", [1, 0], [1, 2])],
            {"x_log": True},
            "series 'a': x = 0 has no place on a log axis; take x_log=False",
        ),
        (
            [Series("a", [1, 2], [1, -3])],
            {"y_log": True},
            "series 'a': y = -3 has no place on a log axis; take y_log=False",
        ),
        ([Series("a", [1], [1], [0], [2])], {"y_log": True}, "low = 0 has no place on a log axis; take y_log=False"),
        (
            [Series("a", [1], [1])],
            {"y_log": True, "references": [Reference("r", 0)]},
            "reference 'r': y = 0 has no place",
        ),
        ([Series("a", [1], [1])], {"references": [Reference("r", math.nan)]}, "reference 'r': y = nan has no place"),
        ([Series("a", [1], [1])], {"y_range": (1, 0)}, r"axis 'y': .* got \(1, 0\)"),
        ([Series("a", [1], [1])], {"y_range": (0, 1), "y_log": True}, "axis 'y': a log axis starts above 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(series, options, message):
    with pytest.raises(ValueError, match=message):
        line_chart(series, **LABELS, **options)


# Room for texts


@pytest.mark.parametrize("names", [[WORDY + str(n) for n in range(8)], ["w" * 300, "b"], [f"s{n}" for n in range(40)]])
def test_a_long_legend_covers_nothing(names):
    picture = lines(
        *(Series(name, [0, 1], [n, 1]) for n, name in enumerate(names)), title=WORDY, x_label=WORDY, y_label=WORDY
    )
    assert not untidy(picture)
    legend = [float(text.get("y")) for text in picture.group("legend").iter("text")]
    lowest = max(picture.markers(place)[:, 1].max() for place in range(min(6, len(names))))
    assert min(legend) - 12 > lowest
    assert "".join(text.text for text in picture.group("legend").iter("text")).replace(" ", "") == "".join(
        names
    ).replace(" ", "")


@pytest.mark.parametrize("width", [240, 320, 640, 1200])
@pytest.mark.parametrize("ends", [(0, 1), (0, 123456), (-2e-7, 3e-7), (1, 1e12), (0.3, 0.4), (1e-9, 1)])
def test_ticks_keep_apart(width, ends):
    for log in (False, True) if ends[0] > 0 else (False,):
        assert not untidy(lines(Series("a", ends, ends), x_log=log, y_log=log, width=width))


def test_names_of_groups_keep_apart():
    for groups in (
        ["a", "b"],
        [WORDY, "b", WORDY],
        ["word_without_a_break_" * 2, "b"],
        [f"dataset_number_{n}" for n in range(12)],
    ):
        bars = [Bars(f"k{k}", np.linspace(-1.2345, 2.3456, len(groups)) * (k + 1)) for k in range(4)]
        picture = Picture(bar_chart(groups, bars, **LABELS))
        assert not untidy(picture)
        slanted = [node for node in picture.root.iter("g") if "rotate(-40" in node.get("transform", "")]
        starts = [
            float(node[0].get("x")) - 0.6 * 11.5 * len(node[0].text) * math.cos(math.radians(40)) for node in slanted
        ]
        assert all(start >= 0 for start in starts)


def test_heat_maps_have_room():
    for rows, columns in ((["r"], [f"attack number {n}" for n in range(30)]), ([WORDY, "b"], [WORDY, "c"])):
        values = np.full((len(rows), len(columns)), 0.000123456)
        values[0, 0] = np.nan
        text = heat_map(
            values, rows, columns, **{**LABELS, "y_label": WORDY}, scale_label=WORDY, missing="not run: no GPU"
        )
        assert not untidy(Picture(text))


# Axes


@settings(max_examples=150, deadline=None)
@given(
    st.floats(-1e9, 1e9),
    st.floats(1e-3, 1e9),
    st.integers(2, 9),
)
def test_a_plain_axis_has_round_ticks_and_holds_its_values(low, span, count):
    assume(span > 1e-6 * abs(low))  # below that, differences of ticks are rounding
    values = np.array([low, low + span])
    axis = reaching("", values, count=count)
    assert axis.holds(values).all()
    steps = np.diff(axis.ticks)
    assert 1 <= len(steps) <= count + 1
    np.testing.assert_allclose(steps, steps[0], rtol=1e-6)
    assert f"{steps[0]:.5e}"[0] in "125"
    assert len(set(axis.texts)) == len(axis.texts)
    np.testing.assert_allclose([read(text) for text in axis.texts], axis.ticks, rtol=1e-6, atol=steps[0] * 1e-6)


@settings(max_examples=150, deadline=None)
@given(st.floats(1e-30, 1e30), st.floats(1.5, 1e40), st.integers(2, 9))
def test_a_log_axis_has_round_ticks_and_holds_its_values(low, times, count):
    values = np.array([low, low * times])
    axis = reaching("", values, log=True, count=count)
    assert axis.holds(values).all()
    assert 2 <= len(axis.ticks) <= count + 4
    assert all(f"{tick:.5e}"[0] in "125" for tick in axis.ticks)
    np.testing.assert_allclose([read(text) for text in axis.texts], axis.ticks, rtol=1e-6)


@pytest.mark.parametrize(
    "low, high, log, texts",
    [
        (0, 1, False, ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (-10, 30000, False, ["0", "10 000", "20 000", "30 000"]),
        (0, 4e-5, False, ["0", "1×10⁻⁵", "2×10⁻⁵", "3×10⁻⁵", "4×10⁻⁵"]),
        (1e-3, 1, True, ["0.001", "0.01", "0.1", "1"]),
        (1e-5, 1e-3, True, ["10⁻⁵", "10⁻⁴", "0.001"]),
        (0.5, 8, True, ["0.5", "1", "2", "5"]),
        (0.3, 0.4, True, ["0.30", "0.32", "0.34", "0.36", "0.38", "0.40"]),
    ],
)
def test_ticks_as_one_would_write_them(low, high, log, texts):
    assert [text.replace("\u202f", " ") for text in between("", low, high, log=log).texts] == texts


def test_a_tick_that_is_alone_is_written_out():
    assert between("", 1.2, 1.9, count=2).texts == ("1.5",)


# Bars


def bar_ends(picture, place):
    """Values at the upper and lower edges of the bars of a kind."""
    rects = [mark for mark in picture.coloured(place) if mark.tag == "rect"]
    top = np.array([float(rect.get("y")) for rect in rects])
    height = np.array([float(rect.get("height")) for rect in rects])
    return picture.value("y", top), picture.value("y", top + height)


def test_bars_go_from_zero_to_their_values():
    picture = Picture(bar_chart(["g", "h", "i"], [Bars("a", [3, -1.5, 0]), Bars("b", [None, 2, 4])], **LABELS))
    tops, bottoms = bar_ends(picture, 0)
    np.testing.assert_allclose(tops, [3, 0, 0], atol=1e-2)
    np.testing.assert_allclose(bottoms, [0, -1.5, 0], atol=1e-2)
    tops, bottoms = bar_ends(picture, 1)
    np.testing.assert_allclose(tops, [2, 4], atol=1e-2)
    words = [text.words for text in picture.texts()]
    assert all(words.count(value) >= 1 for value in ["3", "-1.5", "2", "4"])


def test_bars_of_a_group_stand_side_by_side_over_its_name():
    picture = Picture(bar_chart(["g", "h"], [Bars("a", [1, 2]), Bars("b", [3, 4]), Bars("c", [5, 6])], **LABELS))
    spans = [
        [(float(rect.get("x")), float(rect.get("x")) + float(rect.get("width"))) for rect in picture.coloured(k)]
        for k in range(3)
    ]
    name = {text.words: (text.left + text.right) / 2 for text in picture.texts()}
    for group, word in enumerate("gh"):
        edges = [edge for kind in spans for edge in kind[group]]
        assert edges == sorted(edges)
        assert (edges[0] + edges[-1]) / 2 == pytest.approx(name[word], abs=0.1)


def test_error_bars_of_bars_and_values_above_them():
    picture = Picture(bar_chart(["g"], [Bars("a", [4], [3], [6])], **LABELS))
    bar = next(node.get("d") for node in picture.root.iter("path") if node.get("stroke-width") == "1.4")
    _, low, high = map(float, re.match(r"M(\S+) (\S+)V([\d.]+)", bar).groups())
    np.testing.assert_allclose(picture.value("y", np.array([low, high])), [3, 6], atol=1e-2)
    value = next(text for text in picture.texts() if text.words == "4" and text.left > 100)
    assert value.bottom < high


def test_bars_that_are_all_zero_stand_on_zero():
    picture = Picture(bar_chart(["g"], [Bars("a", [0])], **LABELS))
    assert min(read(text.text) for text in picture.group("y-axis").iter("text")) == 0


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
        bar_chart(groups, bars, **LABELS)


# Heat maps


def cells(picture):
    """(fill, texts) of each cell: what is written between one rectangle and the next."""
    found = []
    for node in picture.root:
        if node.tag == "rect":
            found.append((node.get("fill"), []))
        elif node.tag == "text" and found:
            found[-1][1].append((node.text, node.get("fill")))
    return found


def test_cells_say_their_values_in_a_colour_that_can_be_read():
    values = np.linspace(0, 1, 24).reshape(4, 6)
    picture = Picture(heat_map(values, list("abcd"), list("efghij"), scale_label="s", value_range=(0, 1), **LABELS))
    found = cells(picture)
    assert len(found) == 24
    for (fill, texts), value in zip(found, values.ravel(), strict=True):
        assert float(texts[0][0]) == pytest.approx(value, rel=1e-2)
        assert contrast(fill, texts[0][1]) >= 4.5
    light = [luminance(fill) for fill, _ in found]
    assert light == sorted(light, reverse=True)


def test_a_cell_that_was_not_run_is_empty_and_says_so():
    picture = Picture(
        heat_map([[0.5, None, math.nan]], ["r"], list("abc"), scale_label="s", missing="not run", **LABELS)
    )
    assert [(fill, texts[0][0]) for fill, texts in cells(picture)][1:] == [("none", "not run"), ("none", "not run")]


def test_the_scale_of_colours_is_shown():
    picture = Picture(heat_map([[0, 80]], ["r"], ["a", "b"], scale_label="seconds", **LABELS))
    texts = [text.text for text in picture.group("legend").iter("text")]
    assert texts[0] == "seconds" and [float(text) for text in texts[1:]] == [0, 20, 40, 60, 80]
    stops = [stop.get("stop-color") for stop in picture.root.iter("stop")]
    assert stops == list(RAMP)
    assert [fill for fill, _ in cells(picture)] == [RAMP[0], RAMP[-1]]


def test_values_beyond_the_scale_have_its_last_colours():
    picture = Picture(heat_map([[-5, 0.5, 7]], ["r"], list("abc"), scale_label="s", value_range=(0, 1), **LABELS))
    assert [fill for fill, _ in cells(picture)] == [RAMP[0], RAMP[4], RAMP[8]]


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
        heat_map(values, rows, columns, scale_label="s", **LABELS)


# ROC curves


@pytest.mark.parametrize("log", [False, True])
def test_roc_curves_are_where_the_rates_are(log):
    fpr, tpr = np.array([1, 0.2, 0.01, 0]), np.array([1, 0.7, 0.2, 0])  # falling: the order does not matter
    picture = Picture(roc_chart([Curve("a", fpr, tpr)], title="T", log=log))
    x, y = picture.value("x", picture.lines(0)[0][:, 0], log), picture.value("y", picture.lines(0)[0][:, 1], log)
    if log:  # what is drawn between two points is straight on log axes, and has to be right there as well
        x, y = (np.append(end, np.sqrt(end[1:] * end[:-1])) for end in (x, y))
    np.testing.assert_allclose(y, np.interp(x, fpr[::-1], tpr[::-1]), rtol=1e-2, atol=2e-3)
    marks = picture.markers(0)
    np.testing.assert_allclose(
        picture.value("x", marks[:, 0], log), sorted(fpr)[1 if log else 0 :], rtol=1e-2, atol=2e-3
    )
    if log:
        assert x[0] == pytest.approx(1e-3, rel=1e-2) and y[0] == pytest.approx(0.02, rel=1e-2)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("epsilon, delta", [(0, 0), (1, 1e-5), (3, 0.01), (8, 1e-5), (math.inf, 0)])
def test_chance_and_what_is_allowed(log, epsilon, delta):
    picture = Picture(roc_chart([Curve("a", [0, 1], [0, 1])], title="T", log=log, allowed=[Allowed(epsilon, delta)]))
    chance, bound = picture.dashed()
    np.testing.assert_allclose(
        *(picture.value(axis, chance[:, place], log) for place, axis in enumerate("xy")), rtol=1e-2, atol=1e-3
    )
    x, y = picture.value("x", bound[:, 0], log), picture.value("y", bound[:, 1], log)
    steep = min(math.exp(min(epsilon, 700)), 1e4)
    slack = steep * x * 0.01 + 1e-3 * steep if not log else 0.01 * (steep * x + delta)
    other = 1 - (1 - delta - x) / math.exp(min(epsilon, 700))  # of those who say "out", too few may be wrong
    assert (np.abs(y - np.minimum(np.minimum(1, steep * x + delta), other)) <= slack + 2e-3).all()
    assert x[-1] == pytest.approx(1, rel=1e-2) and y[-1] == pytest.approx(1, rel=1e-2)


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
        roc_chart(curves, title="T")


def test_a_budget_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"got \(-1, 0\)"):
        Allowed(-1, 0)


# Telling series apart

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
    part = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(BLIND[seen]) @ linear, 0, 1)
    cones = [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
    lab = [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]
    return np.array(lab) @ np.cbrt(np.array(cones) @ linear)


@pytest.mark.parametrize("palette, paper", [(LIGHT, PAPER[0]), (DARK, PAPER[1])])
def test_colours_stand_out_from_the_page(palette, paper):
    assert min(contrast(colour, paper) for colour in palette) >= 3


@pytest.mark.parametrize("seen", BLIND)
@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_colours_keep_apart_for_every_reader(palette, seen):
    least = min(np.linalg.norm(oklab(a, seen) - oklab(b, seen)) for a, b in itertools.combinations(palette, 2))
    assert least > 0.07  # Okabe and Ito's own palette has 0.076 at its closest


def test_many_series_all_look_different_even_in_grey():
    assert len({(dash(k), marker(k)) for k in range(35)}) == 35
