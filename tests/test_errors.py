from __future__ import annotations

import contextlib
import logging
import math
import re
from typing import Any

import numpy as np
import pytest

from lit_ctg.errors import (
    UserError,
    blame,
    check_number,
    check_unicode,
    check_whole,
    did_you_mean,
    one_line,
    only_errors_of,
)


def test_a_library_is_muted_and_heard_again(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("lit_ctg_tests.library")
    logger.setLevel(logging.INFO)
    with pytest.raises(KeyError), only_errors_of(logger.name):
        logger.warning("muted")
        logger.error("heard")
        raise KeyError
    logger.info("heard again")
    assert [record.getMessage() for record in caplog.records] == ["heard", "heard again"]


def test_the_closest_option_is_offered_and_a_far_one_is_not() -> None:
    assert did_you_mean("pos_hihg", ["pos_high", "neg_high"]) == "; did you mean 'pos_high'?"
    assert did_you_mean("zzz", ["pos_high"]) == ""


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (ValueError("Invalid learning rate: -1"), "model.learning_rate=-1"),
        (ValueError("could not convert string to float: 'abc'"), "+trainer.limit=abc"),
        (KeyError("config"), "model.learning_rate=-1, +trainer.limit=abc, logger=none"),
        # of a word only a part
        (
            AttributeError("'NoneType' object has no attribute 'unlimited'"),
            "model.learning_rate=-1, +trainer.limit=abc, logger=none",
        ),
    ],
)  # fmt: skip
def test_the_setting_that_a_librarys_error_comes_from_is_named(error: Exception, named: str) -> None:
    words = ["train", "model.learning_rate=-1", "+trainer.limit=abc", "logger=none", "-m"]
    assert blame(error, words) == f"; check {named}"
    assert blame(error, ["train"]) == ""


def test_an_error_is_one_line() -> None:
    assert one_line(UserError("a file\n  is damaged")) == "a file is damaged"
    assert one_line(ValueError("a\nb")) == "ValueError: a b"


def test_a_path_that_is_not_utf8_is_told_with_its_bytes() -> None:
    assert check_unicode("Zürich", "the folder") == "Zürich"
    with pytest.raises(UserError, match=r"^the folder 'caf\\udce9' is not UTF-8: rename"):
        check_unicode(b"caf\xe9".decode(errors="surrogateescape"), "the folder")


@pytest.mark.parametrize("value", [2, 10**30, np.int64(2)])
def test_whole_numbers_of_python_and_numpy_pass(value: Any) -> None:
    check_whole("n", value, 2)
    with pytest.raises(UserError, match=f"^n={re.escape(repr(value))}: give a whole number from {int(value) + 1}$"):
        check_whole("n", value, int(value) + 1)


@pytest.mark.parametrize("value", [1, np.int64(1), True, 2.0, np.float64(2), "2", None])
def test_anything_but_a_whole_number_that_is_large_enough_is_refused_by_name(value: Any) -> None:
    with pytest.raises(UserError) as raised:
        check_whole("callback.n", value, 2)
    assert str(raised.value) == f"callback.n={value!r}: give a whole number from 2"
    with pytest.raises(UserError, match=r"give a whole number from 2 \(texts\)$"):
        check_whole("callback.n", value, 2, "texts")


@pytest.mark.parametrize(
    "value, bounds, said",
    [
        (True, {}, "x=True: give a number"),
        ("1", {}, "x='1': give a number"),
        (math.inf, {}, "x=inf: give a number"),
        (-1, {"least": 0}, "x=-1: give a number from 0"),
        (0, {"above": 0, "most": 1}, "x=0: give a number above 0, at most 1"),
        (1.5, {"least": 0, "most": 1}, "x=1.5: give a number from 0, at most 1"),
    ],
)
def test_a_number_out_of_its_bounds_is_named(value, bounds, said):
    with pytest.raises(UserError) as raised:
        check_number("x", value, **bounds)
    assert str(raised.value) == said


def test_a_number_within_its_bounds_is_taken():
    taken = []
    for value in (-0.01, 0, 0.5, 1, np.float32(0.25), np.int64(1), 1.01):
        with contextlib.suppress(UserError):
            check_number("x", value, least=0, most=1)
            taken.append(value)
    assert taken == [0, 0.5, 1, 0.25, 1]
