"""The previous member of a class: against a slow walk through the text, in one piece and in batches."""

from __future__ import annotations

import numpy as np
import pytest

from lit_ctg.papers.nslm import occurrences
from lit_ctg.papers.nslm.classes import PatternRecogniser
from lit_ctg.papers.nslm.occurrences import ContextTracker, Evidence, Occurrences, occurring

DOCUMENTS = (
    "in 1987 he won 30 and 7 on May 4 , 1990 – 91 with 3.5 of 60 cm ( 24 in )",
    "born May 7 , 1920 in a house of 5 – 6 kg ( 11 – 13 lb )",
    "no numbers here",
    "30 of 40 in 1990 and 1987",
)


def walk(made) -> list[tuple[int, int, int, int]]:
    """Return (position, class, member, previous member) of every class token but the first token, one by one."""
    contexts, _ = ContextTracker(made.table).read(made.ids_T[None])
    last: dict[int, int] = {}
    found = []
    for place, token in enumerate(made.ids_T.tolist()):
        if place in made.begin_N:
            last = {}
        number = made.table.class_of_SV[contexts.state_BT[0, place - 1], token] if place else -1
        if number >= 0:
            found.append((place, number, made.table.index_CV[number, token], last.get(number, -1)))
        for other in range(len(made.table)):
            if made.table.index_CV[other, token] >= 0:
                last[other] = int(made.table.index_CV[other, token])
    return found


def rows(found: Occurrences) -> list[tuple[int, int, int, int]]:
    return list(zip(found.position_N, found.class_N, found.index_N, found.evidence.previous_N, strict=True))


def test_documents_against_a_slow_walk(text) -> None:
    made = text(*DOCUMENTS)
    expected = walk(made)
    assert len(expected) > 15 and any(row[3] >= 0 for row in expected) and any(row[3] < 0 for row in expected)
    assert rows(Occurrences.from_documents(made.ids_T, made.begin_N, made.table)) == expected


def test_deviation_8_the_previous_member_may_have_stood_in_another_class(text) -> None:
    made = text("on May 4 he won 30 of 12 on June 7")
    found = Occurrences.from_documents(made.ids_T, made.begin_N, made.table)
    day = made.table.names.index("day")
    days = found.of(day)
    members = made.table.classes[day].tokens
    assert [members[index] for index in days.index_N] == ["4", "7"]
    # the last number that could be a day, not the last day
    assert [members[index] if index >= 0 else None for index in days.evidence.previous_N] == [None, "12"]


def test_chunks_do_not_matter(text, monkeypatch: pytest.MonkeyPatch) -> None:
    made = text(*DOCUMENTS)
    whole = Occurrences.from_documents(made.ids_T, made.begin_N, made.table)
    for size in (1, 2, 7):
        monkeypatch.setattr(occurrences, "CHUNK", size)
        parts = Occurrences.from_documents(made.ids_T, made.begin_N, made.table)
        assert rows(parts) == rows(whole)
        assert np.array_equal(parts.evidence.source_value_N, whole.evidence.source_value_N, equal_nan=True)


def test_rows_of_a_batch_are_independent_and_reset(text) -> None:
    made = text("in 1987 and 1990 of 30 – 40 ; 1987")
    ids_BT = np.stack([made.ids_T[:-1], made.ids_T[:-1][::-1]])
    tracker = ContextTracker(made.table)
    both, carry = tracker.read(ids_BT)
    for row in range(2):
        one, _ = tracker.read(ids_BT[[row]])
        assert (one.previous_BTC[0] == both.previous_BTC[row]).all() and (one.state_BT[0] == both.state_BT[row]).all()
    anew, _ = tracker.read(ids_BT, None, carry, np.array([True, False]))
    assert (anew.previous_BTC[0] == both.previous_BTC[0]).all()
    assert (anew.previous_BTC[1] != both.previous_BTC[1]).any()


def test_masked_targets_are_left_out(text) -> None:
    made = text("in 1987 and 1990")
    contexts, _ = ContextTracker(made.table).read(made.ids_T[None, :-1])
    mask_BT = np.array([[True, True, False]])
    found = contexts.occurrences(made.ids_T[None, 1:], mask_BT)
    assert found.position_N.tolist() == [0]
    assert len(Evidence.of_previous([1, 2])) == 2


def test_a_class_that_the_text_has_not_is_left_out_and_gives_its_tokens_back() -> None:
    """The text has no conversion: behind a quantity and a bracket a number is a number again."""
    grid: dict = {"metrics": ["frequency"], "densities": ["unigram"]}
    number = PatternRecogniser(name="number", pattern=r"\d+", **grid)
    convert = PatternRecogniser(name="convert", pattern=r"\d+", context="convert", **grid)
    letter = PatternRecogniser(name="letter", pattern="[A-Z]", **grid)
    tokens = ["in", "5", "cm", "(", "7", "Q", ")"]

    def find(text: str):
        ids_T = np.array([tokens.index(token) for token in text.split()])
        return lambda table: Occurrences.from_documents(ids_T, np.zeros(1, dtype=np.int64), table)

    table, found, absent = occurring(tokens, [convert, number, letter], find("in 5 in 7 in 5"))
    assert absent == ["convert", "letter"] and table.names == ("number",) and table.states == ("plain",)
    assert found.position_N.tolist() == [1, 3, 5] and set(found.class_N.tolist()) == {0}
    table, found, absent = occurring(tokens, [convert, number, letter], find("in 5 cm ( 7 ) Q"))
    assert absent == [] and table.names == ("convert", "number", "letter")
    assert found.class_N.tolist() == [1, 0, 2]
    # the only class that is there takes its tokens from the one that is not
    table, _, absent = occurring(tokens, [convert, number], find("in ( in"))
    assert absent == ["convert", "number"] and not len(table)
