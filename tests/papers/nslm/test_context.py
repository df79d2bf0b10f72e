"""Left contexts at every position, on sentences as WikiText has them."""

from __future__ import annotations

import numpy as np
import pytest

from lit_ctg.papers.nslm.occurrence import ContextTracker


def states(text, sentence: str) -> dict[int, str]:
    made = text(sentence)
    contexts, _ = ContextTracker(made.table).read(made.ids_T[None])
    names = np.array(made.table.states)[contexts.state_BT[0]]
    return {place + 1: name for place, name in enumerate(names) if name != "plain"}


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("on November 4 , 1987", {2: "after_month"}),
        ("the 1914 – 1918 war", {3: "range"}),
        ("from 5 to 6 or go to 7", {3: "range"}),
        ("moved to 5", {}),
        ("a length of 60 cm ( 24 in )", {6: "convert"}),
        ("a 12 @-@ inch ( 305 mm ) gun", {3: "range", 5: "convert"}),
        ("up to 100 km / h ( 62 mph )", {7: "convert"}),
        ("of 30 square miles ( 78 km2 )", {5: "convert"}),
        ("weigh 5 – 6 kg ( 11 – 13 lb )", {3: "range", 6: "convert", 8: "convert"}),
        ("in May ( 24 )", {2: "after_month"}),
        ("three miles ( 5 km )", {}),
    ],
)
def test_states(text, sentence: str, found: dict[int, str]) -> None:
    assert states(text, sentence) == found


def test_sources_of_a_range_are_converted_one_by_one(text) -> None:
    made = text("weigh 5 – 6 kg ( 11 – 13 lb )")
    contexts, _ = ContextTracker(made.table).read(made.ids_T[None])
    assert contexts.source_value_BT[0, [5, 7]].tolist() == [5.0, 6.0]
    assert np.isnan(contexts.source_value_BT[0, [0, 1, 2, 3, 4, 6]]).all()


def test_states_do_not_see_what_follows(text) -> None:
    made = text("a length of 60 cm ( 24 in ) in May 4 – 5 kg ( 11 – 13 lb ) and 1914 – 1918")
    tracker = ContextTracker(made.table)
    whole, _ = tracker.read(made.ids_T[None])
    for end in range(1, len(made.ids_T)):
        part, _ = tracker.read(made.ids_T[None, :end])
        assert (part.state_BT[0] == whole.state_BT[0, :end]).all()
        assert (part.previous_BTC[0] == whole.previous_BTC[0, :end]).all()
        assert np.array_equal(part.source_value_BT[0], whole.source_value_BT[0, :end], equal_nan=True)
