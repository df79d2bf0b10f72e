"""Counts of the classes in a sample corpus, and the curves of Fig. 2."""

from __future__ import annotations

import numpy as np
import pytest

from lit_ctg.papers.nslm.density import Gaussian, Multinomial
from lit_ctg.papers.nslm.metric_function import Difference
from lit_ctg.papers.nslm.micro_model import MicroModel
from lit_ctg.papers.nslm.occurrence import Evidence, Occurrences
from lit_ctg.papers.nslm.report import class_counts, counts_table, density_curve


def test_counts(text) -> None:
    made = text("in 1987 and 1990 on May 4", "the 1987 – 1990 of 30")
    found = Occurrences.from_documents(made.ids_T, made.begin_N, made.table)
    counts = {count.class_name: count for count in class_counts(made.table, {"train": found}, {"train": 13})}
    assert {name: count.tokens for name, count in counts.items() if count.tokens} == {
        "year": 3, "day": 1, "range": 1, "round": 1, "all": 6
    }  # fmt: skip
    assert counts["year"].first == 2 and counts["all"].share == pytest.approx(6 / 13)
    assert counts["all"].members == 5
    assert "23.077%" in counts_table(list(counts.values()))


def years() -> tuple[Occurrences, MicroModel]:
    from lit_ctg.papers.nslm.class_table import ClassMembers

    tokens = tuple(map(str, range(1900, 2000)))
    members = ClassMembers("year", np.arange(100), tokens, np.arange(1900.0, 2000)[:, None], (), ())
    rng = np.random.default_rng(0)
    previous_N = rng.integers(-1, 90, 3000)
    index_N = np.clip(previous_N + rng.choice([0, 1, 2], 3000, p=[0.2, 0.5, 0.3]), 0, 99)
    found = Occurrences(np.arange(3000), np.zeros(3000, int), index_N, Evidence.of_previous(previous_N))
    return found, MicroModel(Difference(), Multinomial(0.01)).fit(found, members)


def test_curve_of_a_table_is_what_was_observed() -> None:
    found, model = years()
    edges = np.arange(-3.5, 6)
    curve = density_curve(model, found, edges)
    assert sum(curve.observed) == pytest.approx(1)
    assert sum(curve.fitted) == pytest.approx(1, abs=1e-2)
    assert np.allclose(curve.observed, curve.fitted, atol=0.01)
    gaussian = density_curve(MicroModel(Difference(), Gaussian()).fit(found, model.members), found, edges)
    assert not np.allclose(curve.fitted, gaussian.fitted, atol=0.02)
