from __future__ import annotations

import pytest

from lit_ctg.errors import UserError, check_unicode, did_you_mean


def test_the_closest_option_is_offered_and_a_far_one_is_not() -> None:
    assert did_you_mean("pos_hihg", ["pos_high", "neg_high"]) == "; did you mean 'pos_high'?"
    assert did_you_mean("zzz", ["pos_high"]) == ""


def test_a_path_that_is_not_utf8_is_told_with_its_bytes() -> None:
    assert check_unicode("Zürich", "the folder") == "Zürich"
    with pytest.raises(UserError, match=r"^the folder 'caf\\udce9' is not UTF-8: rename"):
        check_unicode(b"caf\xe9".decode(errors="surrogateescape"), "the folder")
