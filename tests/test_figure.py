from __future__ import annotations

import math
import re
import threading
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from lit_ctg.errors import UserError
from lit_ctg.figure import (
    COLOURS,
    FEW,
    FORMATS,
    Bar,
    BarGroup,
    Chart,
    Line,
    Sheet,
    bar_chart,
    bar_range,
    heat_map,
    line_chart,
    read_words,
    value_range,
    word_shift,
)

EVIL = "<script>$\"&'\x1b\n"


def axes_of(chart: Chart) -> Axes:
    figure, ax = chart.on(Figure().add_subplot())
    assert ax.figure is figure
    return ax


def curves(ax: Axes) -> list[list[tuple[float, float]]]:
    """Return the points of the drawn curves."""
    return [[tuple(point) for point in line.get_xydata().tolist()] for line in ax.lines if line.get_marker() == "o"]


def words(ax: Axes) -> list[str]:
    return [text.get_text().strip() for text in ax.texts]


def bars(ax: Axes) -> list[tuple[float, float]]:
    """Return the ends of the bars."""
    return [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches]


def test_lines_go_through_the_values_with_a_band_and_their_words() -> None:
    chart = line_chart(
        "t", [Line("corrected", [(1, 4.0), (2, 2.0)], {1: (3.5, 4.5), 2: (1.5, 2.5)})], x="epoch", y="ppl"
    )
    ax = axes_of(chart)
    assert curves(ax) == [[(1.0, 4.0), (2.0, 2.0)]]
    band = ax.collections[0].get_paths()[0].vertices
    assert {tuple(point) for point in band.tolist()} == {(1, 3.5), (1, 4.5), (2, 1.5), (2, 2.5)}
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()) == ("t", "epoch", "ppl")
    assert chart.svg.count('class="corrected"') == 2 and 'aria-label="t: ppl by epoch"' in chart.svg
    assert re.findall("<title>([^<]*)</title>", chart.svg) == ["corrected, epoch 1: 4", "corrected, epoch 2: 2"]


@pytest.mark.parametrize("count", [26, 27, 50, 53])
def test_a_long_line_has_every_point_and_few_dots(count: int) -> None:
    chart = line_chart("t", [Line("corrected", [(x, 100.0 - x) for x in range(count)])])
    assert len(curves(axes_of(chart))[0]) == count
    hover = re.findall("<title>corrected, +([0-9]+):", chart.svg)
    assert 13 < len(hover) <= 26 and int(hover[-1]) == count - 1


def test_an_interval_is_drawn_where_there_is_one() -> None:
    """Values of one seed have none: a band across them would invent it."""
    known = {1: (3.5, 4.5), 2: (1.5, 2.5), 4: (2.0, 3.0)}
    ax = axes_of(line_chart("t", [Line("corrected", [(1, 4.0), (2, 2.0), (3, 2.2), (4, 2.5)], known)]))
    band, alone = ax.collections
    assert {x for path in band.get_paths() for x, _ in path.vertices.tolist()} - {4.0} == {1.0, 2.0}
    assert [segment.tolist() for segment in alone.get_segments()] == [[[4.0, 2.0], [4.0, 3.0]]]


def test_values_that_are_not_finite_leave_a_gap_not_a_crash() -> None:
    chart = line_chart("t", [Line("corrected", [(1, math.nan), (2, 2.0), (3, math.inf)])], log=True)
    assert curves(axes_of(chart)) == [[(2.0, 2.0)]] and "nan" not in chart.svg
    assert curves(axes_of(line_chart("t", [Line("corrected", [(1.0, math.nan)])]))) == []
    ElementTree.fromstring(line_chart("t", []).svg)


def test_a_wide_interval_does_not_flatten_the_curve() -> None:
    low, high = value_range([Line("corrected", [(1, 4.0), (2, 2.0)], {1: (-100.0, 100.0)})])
    assert (low, high) == pytest.approx((0.88, 5.12))


def test_bars_have_the_length_of_their_value() -> None:
    made = [Bar("as_published", 0.5, (0.4, 0.6)), Bar("corrected", 1.0, expectation=0.75), Bar("corrected", None)]
    ax = axes_of(bar_chart("t", [BarGroup("row", made, printed=0.25)], high=1.0))
    assert bars(ax) == [(0.0, 0.5), (0.0, 1.0)]
    whisker, expected, printed = (
        next(line for line in ax.lines if test(line))
        for test in (
            lambda line: line.get_marker() == "|",
            lambda line: line.get_gid() == "expected",
            lambda line: line.get_marker() == "D",
        )
    )
    assert list(whisker.get_xdata()) == [0.4, 0.6] and list(expected.get_xdata()) == [0.75, 0.75]
    assert list(printed.get_xdata()) == [0.25] and words(ax) == ["row", "0.500", "1.000", "not run"]


def test_log_bars_keep_factors_apart() -> None:
    """The intervals may stretch the axis tenfold, not more."""
    made = [Bar("as_published", 100.0), Bar("corrected", 10_000.0, (9.0, 1e9))]
    ax = axes_of(bar_chart("t", [BarGroup("row", made, digits=1)], log=True))
    assert ax.get_xscale() == "log" and bars(ax) == [(1.0, 100.0), (1.0, 10_000.0)]
    assert ax.get_xlim() == pytest.approx((1.0, 1.05e5)) and "10,000.0" in words(ax)
    low, high = bar_range([BarGroup("row", [Bar("corrected", 0.02)])], None, None, True)
    assert (low, high) == pytest.approx((0.01, 0.021))


def test_negative_bars_go_to_the_left_of_zero_and_factors_begin_at_one() -> None:
    made = [Bar("corrected", -2.0), Bar("as_published", 1.0)]
    assert bars(axes_of(bar_chart("t", [BarGroup("r", made)]))) == [(0.0, -2.0), (0.0, 1.0)]
    made = [Bar("corrected", 0.25), Bar("as_published", 4.0)]
    found = bars(axes_of(bar_chart("t", [BarGroup("r", made)], log=True, base=1.0)))
    assert found == [(1.0, 0.25), (1.0, 4.0)]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("low", "high"), [(0.02, 8.0), (1.9, 21.0), (4.1, 4.9), (1.0, 1e5), (1.0, 1e12)])
def test_every_axis_has_a_few_round_ticks(low: float, high: float, log: bool) -> None:
    ax = axes_of(line_chart("t", [Line("corrected", [(0, low), (1, high)])], log=log, limits=(low, high)))
    ticks = [tick for tick in ax.get_yticks() if low <= tick <= high]
    assert 2 <= len(ticks) <= 12
    assert all(len(f"{tick:.10g}".strip("0").replace(".", "").rstrip("0")) <= 13 for tick in ticks)


def test_equal_steps_have_every_word_and_turn_many_upright() -> None:
    line = Line("corrected", [(0, 1.0), (1, 2.0), (2, 3.0), (3, 2.0)])
    for steps, angle in ((["0", "0.1", "1", "10"], 0), (["a long word to read"] * 4, 90)):
        labels = axes_of(line_chart("t", [line], x="lambda", steps=steps)).get_xticklabels()
        assert [label.get_text() for label in labels] == steps and {label.get_rotation() for label in labels} == {angle}


def test_best_words_before_and_after() -> None:
    before = read_words("give 0.310, be 0.200, , 0.050, the 0.020")
    assert before == [("give", 0.31), ("be", 0.2), (",", 0.05), ("the", 0.02)]
    after = read_words("be 0.155, buy 0.100")
    ax = axes_of(word_shift("t", before, after, names=("softmax", "graphmax"), kind="corrected"))
    assert [list(line.get_ydata()) for line in ax.lines] == [[1, 0]], "only 'be' is in both lists"
    widths = [abs(right - left) for left, right in bars(ax)]
    assert len(widths) == 6 and widths[4] == pytest.approx(widths[0] / 2)
    assert {"be 0.155", "softmax", "graphmax"} <= set(words(ax))
    assert read_words("no numbers here") == []
    # two tokens that look the same are two tokens
    twins = [("\ufffd", 0.2), ("\ufffd", 0.1)]
    ax = axes_of(word_shift("t " * 60, twins, twins, names=("a", "b"), kind="corrected"))
    assert [list(line.get_ydata()) for line in ax.lines] == [[0, 0], [1, 1]]


def test_matrix_shows_counts_shares_and_holes() -> None:
    values = {("positive", "positive"): 150.0, ("positive", "negative"): 50.0, ("negative", "negative"): 10.0}
    chart = heat_map("t", ["positive", "negative"], ["positive", "negative"], values, x="a", y="b", kind="corrected")
    ax = axes_of(chart)
    assert words(ax) == ["150 (75%)", "50 (25%)", "not run", "10 (100%)"]
    shares = [bar.get_width() / 0.9 for bar in ax.patches if bar.get_gid() == "corrected"]
    assert shares == pytest.approx([0.75, 0.25, 0.0, 1.0])


def test_words_beside_points_touch_nothing_and_stay_inside() -> None:
    points = [(1.0, 1.0), (1.001, 1.0), (1.002, 1.0), (1.003, 1.0), (1000.0, 2.0)]
    line = Line("corrected", points, labels=["first", "second", "third", "fourth", "the outermost"])
    chart = line_chart("t", [line], x="perplexity", log_x=True)
    shown = {text.get_text(): text.get_ha() for text in axes_of(chart).texts}
    # at one place there is room for few; at the right end words stand on the left
    assert 2 <= len(shown) < 5 and shown["first"] == "left" and shown["the outermost"] == "right"
    assert "corrected, third, perplexity 1.002: 1" in chart.svg


def test_a_rule_that_has_no_place_on_a_scale_of_logs_is_left_out() -> None:
    lines = [Line("corrected", [(1.0, 2.0), (2.0, 3.0)])]
    assert value_range(lines, [("floor", 0.0)], log=True) == value_range(lines, log=True)
    drawn = [words(axes_of(line_chart("t", lines, log=log, rules=[("floor", 0.0)]))) for log in (True, False)]
    assert drawn == [[], ["floor"]]


# --- files ------------------------------------------------------------------------------------------------------------


def charts() -> list[Chart]:
    return [
        line_chart(EVIL, [Line("corrected", [(1, 1.0)], name=EVIL)], x=EVIL, y=EVIL, rules=[(EVIL, 1.0)]),
        line_chart(EVIL, [Line("corrected", [(0, 1.0)])], steps=[EVIL]),
        bar_chart(EVIL, [BarGroup(EVIL, [Bar("corrected", 1.0)], 1.0, EVIL)], measure=EVIL),
        word_shift(EVIL, [(EVIL, 0.5)], [(EVIL, 0.5)], names=(EVIL, EVIL), kind="corrected"),
        heat_map(EVIL, [EVIL], [EVIL], {(EVIL, EVIL): 1.0}, x=EVIL, y=EVIL, kind="corrected"),
    ]


def test_words_stay_text_and_cannot_be_markup_or_formulas() -> None:
    for chart in charts():
        tree = ElementTree.fromstring(chart.svg)
        assert not {node.tag.rpartition("}")[2] for node in tree.iter()} & {"script", "image", "foreignObject"}
        assert any("<script>$\"&'" in (node.text or "") for node in tree.iter() if node.tag.endswith("text"))
        # it loads nothing: what it refers to is in it
        assert all(link.startswith("#") for link in re.findall(r'(?:href="|url\()([^")]*)', chart.svg))


@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_charts_give_the_same_bytes_in_every_format(kind: str, tmp_path: Path) -> None:
    sheet = Sheet(charts(), [("printed", "printed"), ("corrected", "corrected"), ("expected", "expected")], "about")
    sheet.save(tmp_path / f"figure.{kind}")
    made = (tmp_path / f"figure.{kind}").read_bytes()
    assert made == sheet.render(kind) and made.startswith({"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF"}[kind])
    with pytest.raises(UserError, match="svg, png, pdf"):
        sheet.save(tmp_path / "figure.gif")


def test_users_settings_and_threads_change_nothing() -> None:
    import matplotlib

    chart = charts()[0]
    before, made = chart.svg, []
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
        threads = [threading.Thread(target=lambda: made.append(chart.svg)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == [before] * 3 and matplotlib.rcParams["font.size"] == 30


@pytest.mark.parametrize("ground", [(1.0, 1.0, 1.0), (13 / 255, 17 / 255, 23 / 255)])
def test_colours_are_seen_on_light_and_dark_pages(ground: tuple[float, float, float]) -> None:
    """By WCAG's contrast: 3 for graphics, and for words more."""

    def luminance(colour: tuple[float, float, float]) -> float:
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    for kind, colour in COLOURS.items():
        light, dark = sorted((luminance(to_rgb(colour)), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > (4.1 if kind == "printed" else 3.0), kind


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (FEW, 2), (FEW + 1, 4)])
def test_many_charts_stand_in_more_columns(count: int, columns: int) -> None:
    """A sheet of 99 charts in two columns would be fifteen times as high as wide."""
    plot = bar_chart("run", [BarGroup("row", [Bar("corrected", 1.0)])])
    places = {(ax.get_position().x0, ax.get_position().y0) for ax in Sheet([plot] * count)._figure().axes}
    assert len(places) == count and len({x for x, _ in places}) == columns
    assert all(0 <= x < 1 and 0 <= y < 1 for x, y in places)
