from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import pytest

from lit_ctg.figure import (
    Bar,
    BarGroup,
    Line,
    bar_chart,
    bar_range,
    heat_map,
    line_chart,
    read_words,
    tick_text,
    ticks,
    value_range,
    without_collisions,
    word_shift,
)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (0.0, 1.0, False, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 4.4, False, [0.0, 1.0, 2.0, 3.0, 4.0]),
        (-0.3, 0.3, False, [-0.2, 0.0, 0.2]),
        (1.9, 21.0, True, [2.0, 3.0, 5.0, 10.0, 20.0]),
        (4.1, 4.9, True, [4.2, 4.4, 4.6, 4.8]),
        (1.0, 2e6, True, [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]),
        (1.0, 1e12, True, [1.0, 1e2, 1e4, 1e6, 1e8, 1e10, 1e12]),
    ],
)
def test_ticks_are_round_and_inside(low, high, log, expected) -> None:
    assert ticks(low, high, log) == pytest.approx(expected)


def test_lines_go_where_the_values_are() -> None:
    svg = line_chart("t", [Line("corrected", [(1, 4.0), (2, 2.0)], {1: (3.5, 4.5), 2: (1.5, 2.5)})], x="epoch", y="ppl")
    tree = ElementTree.fromstring(svg)
    points = numbers(tree.find(".//polyline").get("points"))
    assert points[0] < points[2], "epochs go to the right"
    assert points[1] < points[3], "smaller is lower on the page"
    assert tree.find(".//polygon[@class='band corrected']") is not None
    assert len(tree.findall(".//circle")) == 2


@pytest.mark.parametrize("count", [26, 27, 50, 53])
def test_a_long_line_has_every_point_and_few_dots(count: int) -> None:
    tree = ElementTree.fromstring(line_chart("t", [Line("corrected", [(x, 100.0 - x) for x in range(count)])]))
    points = numbers(tree.find(".//polyline").get("points"))
    dots = [float(dot.get("cx")) for dot in tree.findall(".//circle")]
    assert len(points) == 2 * count and set(dots) <= set(points[::2])
    assert 13 < len(dots) <= 26 and dots[-1] == points[-2] and dots == sorted(dots)


def test_an_interval_is_drawn_where_there_is_one() -> None:
    """Values of one seed have none: a band across them would invent it."""
    known = {1: (3.5, 4.5), 2: (1.5, 2.5), 4: (2.0, 3.0)}
    svg = line_chart("t", [Line("corrected", [(1, 4.0), (2, 2.0), (3, 2.2), (4, 2.5)], known)])
    tree = ElementTree.fromstring(svg)
    dots = [float(dot.get("cx")) for dot in tree.findall(".//circle")]
    band = numbers(tree.find(".//polygon").get("points"))
    assert sorted(set(band[::2])) == dots[:2]
    (alone,) = tree.findall(".//line[@class='whisker']")
    assert float(alone.get("x1")) == float(alone.get("x2")) == dots[3]


def test_values_that_are_not_finite_leave_a_gap_not_a_crash() -> None:
    svg = line_chart("t", [Line("corrected", [(1, math.nan), (2, 2.0), (3, math.inf)])], log=True)
    assert "nan" not in svg and "inf" not in svg
    assert len(ElementTree.fromstring(svg).findall(".//circle")) == 1
    ElementTree.fromstring(line_chart("t", []))


def test_a_wide_interval_does_not_flatten_the_curve() -> None:
    low, high = value_range([Line("corrected", [(1, 4.0), (2, 2.0)], {1: (-100.0, 100.0)})])
    assert (low, high) == pytest.approx((0.88, 5.12))


def test_bars_have_the_length_of_their_value() -> None:
    bars = [Bar("as_published", 0.5, (0.4, 0.6)), Bar("corrected", 1.0, expectation=0.5), Bar("corrected", None)]
    tree = ElementTree.fromstring(bar_chart("t", [BarGroup("row", bars, printed=0.25)], high=1.0))
    first, second = tree.findall(".//rect")
    assert float(second.get("width")) == pytest.approx(2 * float(first.get("width")), abs=0.2)
    start = float(first.get("x"))
    line = tree.find(".//line[@class='expected']")
    assert float(line.get("x1")) == pytest.approx(start + float(first.get("width")), abs=0.2)
    diamond = numbers(tree.find(".//polygon[@class='mark printed']").get("points"))
    assert diamond[0] == pytest.approx(start + 0.25 * float(second.get("width")), abs=0.2)
    assert "not run" in [text.text for text in tree.findall(".//text")]


def test_log_bars_keep_factors_apart() -> None:
    """A bar of 100 is half as long as one of 10,000; the intervals may stretch the axis tenfold, not more."""
    bars = [Bar("as_published", 100.0), Bar("corrected", 10_000.0, (9.0, 1e9))]
    svg = bar_chart("t", [BarGroup("row", bars, digits=1)], log=True)
    tree = ElementTree.fromstring(svg)
    first, second = (float(one.get("width")) for one in tree.findall(".//rect"))
    assert second == pytest.approx(2 * first, abs=0.2)
    assert {"1", "10", "1,000", "10,000.0"} <= {one.text for one in tree.findall(".//text")}
    assert tree.get("aria-label") == "t" and "(log scale)" in svg
    assert bar_range([BarGroup("row", bars)], None, None, True) == pytest.approx((1.0, 1.05e5))
    # the end beyond the frame has no cap
    assert tree.find(".//path[@class='whisker']").get("d").count("V") == 1
    low, high = bar_range([BarGroup("row", [Bar("corrected", 0.02)])], None, None, True)
    assert (low, high) == pytest.approx((0.01, 0.021))


def test_negative_bars_go_to_the_left_of_zero() -> None:
    tree = ElementTree.fromstring(bar_chart("t", [BarGroup("r", [Bar("corrected", -2.0), Bar("as_published", 1.0)])]))
    left, right = tree.findall(".//rect")
    assert float(left.get("x")) + float(left.get("width")) == pytest.approx(float(right.get("x")), abs=0.2)
    assert float(left.get("width")) == pytest.approx(2 * float(right.get("width")), abs=0.3)


def test_equal_steps_and_labels_apart() -> None:
    line = Line("corrected", [(0, 1.0), (1, 2.0), (2, 3.0), (3, 2.0)])
    tree = ElementTree.fromstring(line_chart("t", [line], x="lambda", steps=["0", "0.1", "1", "10"]))
    spots = [float(circle.get("cx")) for circle in tree.findall(".//circle")]
    gaps = [b - a for a, b in itertools.pairwise(spots)]
    assert gaps == pytest.approx([gaps[0]] * 3, abs=0.2) and gaps[0] > 80
    assert {"0", "0.1", "1", "10"} <= {text.text for text in tree.findall(".//text[@text-anchor='middle']")}
    kept = without_collisions([(0.0, "1"), (5.0, "2"), (60.0, "10"), (64.0, "25")])
    assert kept == [(0.0, "1"), (64.0, "25")], "the last label stays, what it would touch goes"


@pytest.mark.parametrize(
    ("value", "words"), [(20.0, "20"), (0.5, "0.5"), (1e4, "10,000"), (1e6, "1e6"), (1e-7, "1e-7"), (1e12, "1e12")]
)
def test_tick_text(value: float, words: str) -> None:
    assert tick_text(value) == words


def test_best_words_before_and_after() -> None:
    before = read_words("give 0.310, be 0.200, , 0.050, the 0.020")
    assert before == [("give", 0.31), ("be", 0.2), (",", 0.05), ("the", 0.02)]
    after = read_words("be 0.155, buy 0.100")
    svg = word_shift("t", before, after, names=("softmax", "graphmax"), kind="corrected")
    tree = ElementTree.fromstring(svg)
    assert len(tree.findall(".//line[@class='shift corrected']")) == 1, "only 'be' is in both lists"
    widths = [float(one.get("width")) for one in tree.findall(".//rect")]
    assert len(widths) == 6 and widths[4] == pytest.approx(widths[0] / 2, abs=0.1)
    assert {"be 0.155", "softmax", "graphmax"} <= {text.text for text in tree.findall(".//text")}
    assert read_words("no numbers here") == []
    # two tokens that look the same are two tokens
    twins = [("\ufffd", 0.2), ("\ufffd", 0.1)]
    tree = ElementTree.fromstring(word_shift("t " * 60, twins, twins, names=("a", "b"), kind="corrected"))
    assert all(float(one.get("y1")) == float(one.get("y2")) for one in tree.findall(".//line"))
    assert len(tree.findall(".//text[@class='title']")) == 3


def test_matrix_shows_counts_shares_and_holes() -> None:
    values = {("positive", "positive"): 150.0, ("positive", "negative"): 50.0, ("negative", "negative"): 10.0}
    svg = heat_map("t", ["positive", "negative"], ["positive", "negative"], values, x="a", y="b", kind="corrected")
    texts = [text.text for text in ElementTree.fromstring(svg).findall(".//text")]
    assert {"150 (75%)", "50 (25%)", "not run", "10 (100%)"} <= set(texts)


def test_every_text_is_escaped() -> None:
    evil = "<script>\"&'"
    charts = [
        line_chart(evil, [Line("corrected", [(1, 1.0)])], x=evil, y=evil, rules=[(evil, 1.0)]),
        bar_chart(evil, [BarGroup(evil, [Bar("corrected", 1.0)], 1.0, evil)]),
        word_shift(evil, [(evil, 0.5)], [(evil, 0.5)], names=(evil, evil), kind="corrected"),
        heat_map(evil, [evil], [evil], {(evil, evil): 1.0}, x=evil, y=evil, kind="corrected"),
    ]
    for svg in charts:
        assert "<script" not in svg
        ElementTree.fromstring(svg)


def test_words_beside_points_touch_nothing_and_stay_inside() -> None:
    points = [(1.0, 1.0), (1.001, 1.0), (1.002, 1.0), (1.003, 1.0), (1000.0, 2.0)]
    line = Line("corrected", points, labels=["first", "second", "third", "fourth", "the outermost"])
    svg = line_chart("t", [line], x="perplexity", log_x=True)
    words = {node.text: node for node in ElementTree.fromstring(svg).iter() if node.text in line.labels}
    # at one place there is room for two, on the right above and below; on the left the frame is near
    assert set(words) == {"first", "second", "the outermost"}
    assert words["the outermost"].get("text-anchor") == "end"
    assert "perplexity (log scale)" in svg and svg.count("<circle") == 5 and "corrected, third, perplexity" in svg


def test_a_curve_without_a_number_is_not_drawn() -> None:
    points = [(1.0, math.nan), (2.0, math.nan)]
    both = line_chart("t", [Line("corrected", points), Line("as_published", [(1.0, 2.0), (2.0, 3.0)])])
    assert both.count("<circle") == 2
    assert "<circle" not in line_chart("t", [Line("corrected", points)])


def test_a_rule_that_has_no_place_on_a_scale_of_logs_is_left_out() -> None:
    lines = [Line("corrected", [(1.0, 2.0), (2.0, 3.0)])]
    assert value_range(lines, [("floor", 0.0)], log=True) == value_range(lines, log=True)
    drawn = [line_chart("t", lines, log=log, rules=[("floor", 0.0)]) for log in (True, False)]
    assert ["floor" in one for one in drawn] == [False, True]
