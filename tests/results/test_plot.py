from __future__ import annotations

import dataclasses

import pytest

from lit_ctg.errors import UserError
from lit_ctg.results.plot import legend_for, plots_for
from lit_ctg.results.table import results_for


@pytest.fixture
def tables(write_records) -> dict:
    results = results_for("semantic_fusion", record_dirs=[write_records()])
    return {table.spec.name: table for table in results.tables}


def test_figure_1_has_a_panel_a_model_with_printed_and_both_regimes(tables) -> None:
    panels = plots_for(tables["figure_1"])
    assert len(panels) == 2
    for panel in panels:
        for kind in ("printed", "as_published", "corrected"):
            assert f'class="curve {kind}"' in panel
        assert "floor of a causal model" in panel
        assert panel.count("<circle") == 18


def test_confusion_has_printed_hard_control_and_our_paths(tables) -> None:
    titles = "".join(plots_for(tables["table_3"]))
    assert titles.count("<svg") == 8
    assert "Hard control, printed" in titles
    assert "Feature-channel control, corrected" in titles
    assert "Feature-channel control, as published" not in titles


def test_ood_bars_show_printed_and_what_the_sampler_alone_gives(tables) -> None:
    (chart,) = plots_for(tables["table_4"])
    assert chart.count('class="mark printed"') == 2
    assert chart.count('class="expected"') == 4
    assert ("expected", "expected: sampler alone") in legend_for(tables["table_4"])


def test_sections_become_charts(tables) -> None:
    assert len(plots_for(tables["table_control"])) == 3
    assert "percent" not in "".join(plots_for(tables["table_6"]))


def test_tables_without_plot_have_none(tables) -> None:
    assert plots_for(tables["table_1"]) == []
    spec = dataclasses.replace(tables["table_1"].spec, plot={"kind": "pie"})
    with pytest.raises(UserError, match=r"plot\.kind is 'pie'"):
        plots_for(dataclasses.replace(tables["table_1"], spec=spec))
