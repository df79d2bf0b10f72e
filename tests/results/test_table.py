from __future__ import annotations

import pytest

from lit_ctg.results.gather import results_for
from lit_ctg.results.table import Results


@pytest.fixture
def results(write_records) -> Results:
    return results_for("semantic_fusion", record_dirs=[write_records()])


def test_margins_are_lettered_when_there_are_several(results: Results) -> None:
    table = next(table for table in results.tables if table.spec.name == "table_1")
    assert [table.mark(row) for row in table.rows[:5]] == ["a", "a", "a", "a", ""], "a claim of a side has no margin"
    assert table.notes[0].startswith("Margin: (a) 5% of the number (the size of the gain that the paper reports);")
    single = next(table for table in results.tables if table.spec.name == "table_4")
    assert single.mark(single.rows[0]) == ""


def test_each_printed_number_counts_once(results: Results) -> None:
    """Tables 1, 2 and 3 all print the hard control of the same 200 trials; Figure 1 ends where Table 1 stands."""
    labels = [(row.spec.section, row.spec.label) for row in results.counted(claims=False)]
    assert not [pair for pair in labels if pair[0] == "Hard control" or "epoch 6" in pair[1]]
    assert len([pair for pair in labels if pair[0] == "Trained model"]) == 4
    assert len(labels) == len(set(labels)) == 37
    assert sum(results.verdicts("as_published", claims=False).values()) == 37
    assert all(row.spec.claim for row in results.counted(claims=True))
