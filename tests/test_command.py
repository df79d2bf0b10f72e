"""The grammar of the command line: key=value, old spellings read alike, one line for every mistake."""

from __future__ import annotations

import pytest

from lit_ctg.command import Command, Setting, folders, settings
from lit_ctg.errors import UserError

KNOWN = ("paper", "size", "out", "dry_run")


@pytest.mark.parametrize(
    "words",
    [
        ["paper=nslm", "size=paper"],
        ["nslm", "size=paper"],
        ["nslm", "--size", "paper"],
        ["--paper=nslm", "--size=paper", "debug=true"],
    ],
)
def test_spellings_mean_the_same(words: list[str]) -> None:
    assert settings(words, "table", KNOWN) == {"paper": "nslm", "size": "paper"}


def test_settings_and_overrides_are_told_apart() -> None:
    command = Command("mix", "mixes", lambda words: 0, (Setting("out", "file", required=True), Setting("order", "n")))
    words = ["experiment=a/b", "out=x=y", "model.order=3", "data/tokenizer=word", "--order", "2"]
    assert command.split(words) == (
        {"out": "x=y", "order": "2"},
        ["experiment=a/b", "model.order=3", "data/tokenizer=word"],
    )
    found, _ = command.split(["--out=x"])
    assert command.whole(found, "order", 7) == 7 and command.whole({"order": "0"}, "order", 7) == 0
    for value in ("0", "-1", "2.0", "two", ""):
        with pytest.raises(UserError, match=f"lit-ctg mix: order={value}: give a whole number from 1"):
            command.whole({"order": value}, "order", 7, least=1)
    with pytest.raises(UserError, match="lit-ctg mix: give out="):
        command.split(["order=1"])
    with pytest.raises(UserError, match="no setting 'oder'; did you mean 'order'"):
        command.split(["out=x", "--oder", "1"])


def test_values_keep_their_equals_signs_and_repeats_are_joined() -> None:
    assert settings(["out=a=b.html"], "table", KNOWN) == {"out": "a=b.html"}
    assert settings(["--dry-run", "out=a", "out=b"], "table", KNOWN) == {"dry_run": "true", "out": "a,b"}
    assert folders("a,b,") == ["a", "b"] and folders(None) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["papre=nslm"], "no setting 'papre'; did you mean 'paper'?"),
        (["nslm", "graphmax"], "cannot read 'graphmax'"),
        (["-x"], "cannot read '-x'"),
        (["--out"], "--out needs a value"),
    ],
)
def test_mistakes_are_named(words: list[str], said: str) -> None:
    with pytest.raises(UserError) as error:
        settings(words, "table", KNOWN)
    assert said in str(error.value) and str(error.value).startswith("lit-ctg table: ")


def test_a_command_checks_choices_and_what_it_needs() -> None:
    command = Command("cook", "cooks", lambda words: 0, (Setting("dish", "what", lambda: ("soup", "stew"), True),))
    assert command.parse(["dish=soup"]) == {"dish": "soup"}
    for words, said in ((["dish=soap"], "did you mean 'soup'?; one of soup, stew"), ([], "give dish=... one of soup")):
        with pytest.raises(UserError, match="lit-ctg cook") as error:
            command.parse(words)
        assert said in str(error.value)
    assert "dish=" in command.help() and "(required)" in command.help()
