from __future__ import annotations

from collections import Counter

import pytest
import torch

from lit_ctg.papers.semantic_fusion.polarity_confusion import CLASSES, PolarityConfusion, class_of_polarity


def test_against_a_counter():
    gen = torch.Generator().manual_seed(0)
    intended, realized = torch.randint(0, 3, (2, 300), generator=gen)
    metric = PolarityConfusion()
    metric.update(intended[:120], realized[:120])
    metric.update(intended[120:].tolist(), realized[120:].tolist())
    expected = Counter(zip(intended.tolist(), realized.tolist(), strict=True))
    result = metric.result()
    for i, row in enumerate(CLASSES):
        for j, column in enumerate(CLASSES):
            entry = result[f"{row}/{column}"]
            assert entry.value == expected[i, j] == float(metric.compute()[i, j])
            assert entry.n == int((intended == i).sum())


def test_rows_are_intended_and_columns_realized():
    metric = PolarityConfusion()
    metric.update([0, 0, 1], [1, 1, 2])
    assert metric.compute().tolist() == [[0, 2, 0], [0, 0, 1], [0, 0, 0]]
    assert metric.result()["positive/negative"].value == 2


def test_class_of_polarity():
    assert class_of_polarity([1, -1, 0, 1]).tolist() == [0, 1, 2, 0]
    assert class_of_polarity(torch.tensor([-1.0, 0.0])).tolist() == [1, 2]


def test_nothing_counted_is_all_zero_with_n_zero():
    metric = PolarityConfusion()
    metric.update([], [])
    assert all(one.value == 0 and one.n == 0 for one in metric.result().values())


def test_bad_classes_are_refused():
    with pytest.raises(ValueError, match="polarity classes are 0, 1, 2"):
        PolarityConfusion().update([0, -1], [0, 0])
    with pytest.raises(ValueError, match="polarity classes are 0, 1, 2"):
        PolarityConfusion().update([0, 1], [0, 3])
    with pytest.raises(ValueError, match="2 intended but 1 realized"):
        PolarityConfusion().update([0, 1], [0])


def test_plot_takes_the_last_of_the_values():
    figure = PolarityConfusion().plot([torch.zeros(3, 3), torch.eye(3)])
    assert [list(row) for row in figure.data[0].z] == torch.eye(3).tolist()
