from __future__ import annotations

from lit_ctg.errors import did_you_mean


def test_the_closest_option_is_offered_and_a_far_one_is_not() -> None:
    assert did_you_mean("pos_hihg", ["pos_high", "neg_high"]) == "; did you mean 'pos_high'?"
    assert did_you_mean("zzz", ["pos_high"]) == ""
