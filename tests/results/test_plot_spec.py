from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lit_ctg.errors import UserError
from lit_ctg.results.spec import TableSpec, load_spec

SERIES = "{label: A, metric: m, series: s, x: 1, unit: rate}"
OTHER = "{label: B, metric: m, series: s, x: 2, unit: perplexity}"
PLAIN = "{label: C, metric: m, section: S, unit: percent}"
CHANGE = "{label: D, metric: m, section: S, unit: percent, combine: percent_change, terms: [{}, {}]}"
TEXTS = "{label: E, samples: {where: {}}}"


def load(tmp_path: Path, plot: str, *rows: str) -> TableSpec:
    path = tmp_path / "table_1.yaml"
    path.write_text(f"title: T\nplot: {plot}\nrows: [{', '.join(rows)}]\n")
    return load_spec(path, "p")


@pytest.mark.parametrize(
    ("plot", "rows"),
    [
        ("{kind: line, x: epoch, y: loss, log: true, xscale: steps}", (SERIES, PLAIN)),
        ("{kind: line, x: epoch}", (SERIES, OTHER.replace("series: s", "series: t"))),
        ("{kind: bars, x: change, sections: [S], low: 0, high: 1}", (PLAIN, SERIES)),
        ("{kind: matrix, x: a, y: b}", (SERIES.replace("x: 1", "x: 1, y: 2"),)),
        ("{kind: words}", (TEXTS,)),
    ],
)
def test_good_plots(plot: str, rows: tuple[str, ...], tmp_path: Path) -> None:
    spec = load(tmp_path, plot, *rows)
    assert spec.plot == yaml.safe_load(plot) and len(spec.rows) == len(rows)


@pytest.mark.parametrize(
    ("plot", "rows", "message"),
    [
        ("{kind: pie}", (PLAIN,), r"plot\.kind is 'pie'"),
        ("{kind: lines}", (PLAIN,), "did you mean 'line'"),
        ("[bars]", (PLAIN,), r"plot\.kind is 'None'"),
        ("{kind: bars, x: a, sektions: [S]}", (PLAIN,), "unknown key 'plot.sektions'; did you mean 'sections'"),
        ("{kind: matrix, x: a, log: true}", (SERIES,), r"plot\.log is not used by kind 'matrix'"),
        ("{kind: words, x: a}", (TEXTS,), r"plot\.x is not used by kind 'words'; it uses none"),
        ("{kind: bars, log: true}", (PLAIN,), r"needs plot\.x or plot\.y"),
        ("{kind: bars, x: a, y: b}", (PLAIN,), r"needs plot\.x or plot\.y"),
        ("{kind: bars, x: a, sections: [T]}", (PLAIN,), "no section 'T'"),
        ("{kind: bars, x: a, sections: [S]}", (PLAIN, CHANGE), "one unit, not change, percent, percent: choose"),
        ("{kind: bars, x: a, log: true, low: 0}", (PLAIN,), "log scale begins above 0"),
        ("{kind: line, x: a}", (PLAIN,), "there is none"),
        ("{kind: line, y: a}", (SERIES,), r"needs plot\.x"),
        ("{kind: line, x: a}", (SERIES, OTHER), "series 's' has several units: perplexity, rate"),
        ("{kind: line, x: a, y: b}", (SERIES, OTHER.replace("series: s", "series: t")), "leave it out"),
        ("{kind: line, x: a, xscale: log}", (SERIES,), "expected one of linear, steps"),
        ("{kind: matrix, x: a}", (SERIES,), "a matrix needs"),
        ("{kind: words}", (PLAIN,), "needs rows of samples"),
    ],
)
def test_bad_plots_are_one_line(plot: str, rows: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load(tmp_path, plot, *rows)
