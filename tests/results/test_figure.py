from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from lit_ctg.results.figure import Bar, BarGroup, Line, bar_chart, heat_map, line_chart, ticks, value_range


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (0.0, 1.0, False, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 4.4, False, [0.0, 1.0, 2.0, 3.0, 4.0]),
        (-0.3, 0.3, False, [-0.2, 0.0, 0.2]),
        (1.9, 21.0, True, [2.0, 3.0, 5.0, 10.0, 20.0]),
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
        heat_map(evil, [evil], [evil], {(evil, evil): 1.0}, x=evil, y=evil, kind="corrected"),
    ]
    for svg in charts:
        assert "<script" not in svg
        ElementTree.fromstring(svg)
