"""The sorting of a vocabulary into classes, and why probabilities sum to 1."""

from __future__ import annotations

import numpy as np
import pytest

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.class_table import ClassTable
from lit_ctg.papers.nslm.context import AfterMonth
from lit_ctg.papers.nslm.recogniser import PatternRecogniser

WORDS = "the 1987 2015 30 1,200 7 3.5 .5 1990s May – ( in 2,001"


def classes_of(text, state: str) -> dict[str, str]:
    made = text(WORDS)
    row_V = made.table.class_of_SV[made.table.states.index(state)]
    return {token: made.table.names[row_V[number]] for number, token in enumerate(made.tokens) if row_V[number] >= 0}


def test_seven_number_classes(text) -> None:
    plain = {"1987": "year", "2015": "year", "30": "round", "1,200": "round", "7": "other", "5": "other",
             "3.5": "decimal", ".5": "decimal", "2,001": "other"}  # fmt: skip
    assert classes_of(text, "plain") == plain
    assert set(classes_of(text, "range").values()) == {"range"}
    assert set(classes_of(text, "convert").values()) == {"convert"}
    after = classes_of(text, "after_month")
    assert after == {token: "year" if name == "year" else "day" for token, name in plain.items()}


def test_a_class_is_available_with_all_members_or_none(text) -> None:
    table = text(WORDS).table
    for number, members in enumerate(table.classes):
        for state in range(len(table.states)):
            count = (table.class_of_SV[state] == number).sum()
            assert count == (len(members) if table.available_SC[state, number] else 0)
        assert (table.index_CV[number, members.ids_K] == np.arange(len(members))).all()
    numbers = {"1987", "2015", "30", "1,200", "7", "3.5", ".5", "2,001", "5"}
    made = text(WORDS)
    assert {token for token, inside in zip(made.tokens, made.table.any_class_V, strict=True) if inside} == numbers


def test_a_class_that_is_cut_in_two_is_an_error() -> None:
    options = {"metrics": ["value"], "densities": ["gaussian"]}
    day = PatternRecogniser(name="day", pattern=r"[1-9]|[12]\d|3[01]", context="after_month", **options)
    rest = PatternRecogniser(name="rest", pattern=r"\d+", **options)
    with pytest.raises(UserError, match="'rest' has 2 members but 1 of them in the context 'after_month'"):
        ClassTable.build(["May", "4", "77"], [day, rest], [AfterMonth()])
    with pytest.raises(UserError, match="same name"):
        ClassTable.build(["4"], [rest, rest])
    with pytest.raises(UserError, match="context 'after_month'"):
        ClassTable.build(["4"], [day])
