"""Metric functions against one-by-one restatements."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lit_ctg.papers.nslm.class_table import ClassMembers
from lit_ctg.papers.nslm.metric_function import METRICS, Convert, Euclidean, GreatCircle, last_digit
from lit_ctg.papers.nslm.occurrence import Evidence
from lit_ctg.papers.nslm.unit import UnitTable


def members(tokens: list[str], attributes: list[tuple[float, ...]]) -> ClassMembers:
    return ClassMembers("x", np.arange(len(tokens)), tuple(tokens), np.array(attributes, float), (), ())


NUMBERS = members(["1990", "1991", "1,990", "2.5"], [(1990,), (1991,), (1990,), (2.5,)])
PLACES = members(["Paris", "Rome", "Suva", "Apia"], [(48.9, 2.3), (41.9, 12.5), (-18.1, 178.4), (-13.8, -171.8)])


@pytest.mark.parametrize("name", ["difference", "value", "frequency", "euclidean", "great_circle"])
def test_values_and_single_values_agree(name: str) -> None:
    class_members = PLACES if METRICS[name].attributes == 2 else NUMBERS
    metric = METRICS[name]().fit(class_members, np.array([0, 0, 1]))
    keys_NJ = metric.keys(Evidence.of_previous([0, 1, 2, 3, 2]))
    index_N = np.array([1, 1, 0, 2, 3])
    assert np.allclose(metric.values(keys_NJ)[np.arange(5), index_N], metric.value_of(keys_NJ, index_N))


def test_difference_value_frequency() -> None:
    evidence = Evidence.of_previous([0, -1])
    found = {name: METRICS[name]().fit(NUMBERS, np.array([0, 0, 1])) for name in ("difference", "value", "frequency")}
    keys_NJ = found["difference"].keys(evidence)
    assert np.isnan(keys_NJ[1]).all()
    assert found["difference"].values(keys_NJ[:1]).tolist() == [[0, 1, 0, -1987.5]]
    assert found["value"].values(np.zeros((1, 1))).tolist() == [[1990, 1991, 1990, 2.5]]
    assert found["frequency"].values(np.zeros((1, 1))).tolist() == [[2, 1, 0, 0]]


def test_euclidean_is_negative_squared_degrees_and_wraps() -> None:
    metric = Euclidean().fit(PLACES, np.array([0]))
    row = metric.values(np.array([[0.0]]))[0]
    assert row[1] == pytest.approx(-((48.9 - 41.9) ** 2 + (2.3 - 12.5) ** 2))
    # Suva and Apia lie 9.8 degrees of longitude apart, across the date line
    assert metric.values(np.array([[2.0]]))[0, 3] == pytest.approx(-((18.1 - 13.8) ** 2 + 9.8**2))


def test_great_circle_against_the_cosine_rule() -> None:
    metric = GreatCircle().fit(PLACES, np.array([0]))
    for start, end in ((0, 1), (2, 3), (0, 3)):
        (a, b), (c, d) = np.radians(PLACES.attributes_KD[[start, end]])
        angle = math.degrees(math.acos(math.sin(a) * math.sin(c) + math.cos(a) * math.cos(c) * math.cos(b - d)))
        assert metric.values(np.array([[float(start)]]))[0, end] == pytest.approx(-(angle**2), rel=1e-9)


@pytest.mark.parametrize(("token", "step"), [("24", 1), ("1,200", 100), ("1.25", 0.01), ("2.0", 0.1), ("0", 1)])
def test_last_digit(token: str, step: float) -> None:
    assert last_digit(token) == pytest.approx(step)


def test_convert_accepts_rounded_amounts_in_other_units_only() -> None:
    tokens = ["24", "23.6", "23", "60", "600", "0.60", "2.0", "100"]
    metric = Convert().fit(members(tokens, [(float(token),) for token in tokens]), np.array([0]))
    cm = [unit.name for unit in UnitTable().units].index("cm")
    evidence = Evidence(np.array([-1, -1]), np.array([60.0, np.nan]), np.array([cm, -1]))
    keys_NJ = metric.keys(evidence)
    assert np.isnan(keys_NJ[1]).any()
    correct = dict(zip(tokens, metric.values(keys_NJ[:1])[0].tolist(), strict=True))
    # 60 cm: 23.6 in, 600 mm, 0.6 m, 1.97 ft; not 60 itself; "100" would need an error above 5%
    assert correct == {"24": 1, "23.6": 1, "23": 0, "60": 0, "600": 1, "0.60": 1, "2.0": 1, "100": 0}
