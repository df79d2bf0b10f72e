"""Numbers become one token; nothing else changes."""

from __future__ import annotations

import pytest

from lit_ctg.data.number_join import join_numbers


@pytest.mark.parametrize(
    ("split", "joined"),
    [
        (" 1 @,@ 234 people ", " 1,234 people "),
        ("12 @,@ 345 @,@ 678 @.@ 9", "12,345,678.9"),
        ("3 @.@ 5 %", "3.5 %"),
        ("a 9 @.@ 9km run", "a 9.9km run"),
        ("@,@ 5 and 5 @,@", "@,@ 5 and 5 @,@"),
        ("mid @-@ 1990s , 4 @-@ 2 , − 7", "mid @-@ 1990s , 4 @-@ 2 , − 7"),
        ("1990 – 95 , first , three", "1990 – 95 , first , three"),
        ("x @.@ y", "x @.@ y"),
    ],
)
def test_join(split: str, joined: str) -> None:
    assert join_numbers(split) == joined


def test_two_tokens_fewer_for_each_join() -> None:
    text = "rose from 1 @,@ 234 to 5 @,@ 678 @,@ 901 , or 3 @.@ 5 %"
    assert len(text.split()) - len(join_numbers(text).split()) == 2 * 4
