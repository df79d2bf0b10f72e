"""Words into settings; bad ones end in one line."""

from __future__ import annotations

import pytest

from lit_ctg.errors import UserError
from lit_ctg.results.command import folders, settings

KNOWN = ("paper", "size", "format", "records", "out", "dry_run")


def test_words_are_key_and_value() -> None:
    assert settings(["paper=nslm", "size=paper"], "table", KNOWN) == {"paper": "nslm", "size": "paper"}
    assert settings(["nslm", "--format", "md", "--out=x=y"], "table", KNOWN) == {
        "paper": "nslm", "format": "md", "out": "x=y",
    }  # fmt: skip
    assert settings(["records=a", "--records", "b,c", "--dry-run"], "table", KNOWN) == {
        "records": "a,b,c", "dry_run": "true",
    }  # fmt: skip


def test_debug_is_the_command_lines_own() -> None:
    """`debug=true` is what an error message recommends; no command may refuse it."""
    assert settings(["paper=nslm", "debug=true"], "table", KNOWN) == {"paper": "nslm"}


@pytest.mark.parametrize(
    ("words", "message"),
    [(["sise=paper"], "no setting 'sise'; did you mean 'size'"), (["--out"], "--out needs a value")],
)
def test_bad_words_are_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings(words, "table", KNOWN)


def test_folders() -> None:
    assert folders("a,b") == ["a", "b"] and folders(None) is None and folders("") is None
