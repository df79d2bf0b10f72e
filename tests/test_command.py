"""The grammar of the command line: key=value, old spellings read alike, one line for every mistake."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from typing import Annotated, Any, Literal

import pytest
from annotated_types import MinLen

from lit_ctg.cli import commands
from lit_ctg.command import Command, Names, listed, option, read_value
from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, Count, kinds_of


class Cook(Command):
    """cook a dish

    More about it.
    """

    words = "cook"
    dish: Annotated[str, Choice(Names(lambda: ("soup", "stew")))] = option("what")
    persons: Count = option("for how many", 2)
    heat: float | None = option("of the oven", None)
    size: Literal["small", "large"] | None = option("of the pot", None)
    spices: list[str] = option("added at the end", [])
    note: Annotated[str, MinLen(1)] = option("on the menu", "none")
    dry_run: bool = option("true: only talk about it", False)
    control: dict[str, Any] = option("of the stove", {})

    def execute(self) -> None:
        pass


class Compose(Command):
    """compose"""

    words = "compose now"
    overrides: list[str]
    out: str = option("file")
    order: Count = option("n", 3)

    def execute(self) -> None:
        pass


@pytest.mark.parametrize(
    "words",
    [
        ["dish=soup", "persons=4", "dry_run=true"],
        ["soup", "persons=4", "--dry-run"],
        ["soup", "--persons", "4", "--dry-run", "true"],
        ["--dish=soup", "--persons=4", "--dry_run=true", "debug=true"],
    ],
)
def test_spellings_mean_the_same(words: list[str]) -> None:
    assert Cook.parse(words) == Cook(dish="soup", persons=4, dry_run=True)


def test_values_are_read_by_their_type() -> None:
    cook = Cook.parse(
        ["stew", "heat=1e2", "spices=[a, 'b']", "spices=c,d", "note=a=b,c", "control.ring.left=[0,1]", "control.x=low"]
    )
    assert (cook.heat, cook.spices, cook.note) == (100.0, ["a", "b", "c", "d"], "a=b,c")
    assert cook.control == {"ring.left": [0, 1], "x": "low"}
    assert Cook.parse(["stew", "note=007", "size=null"]) == Cook(dish="stew", note="007")
    assert Cook.parse(["stew"]).spices is not Cook.parse(["stew"]).spices
    assert listed("[a,b,]") == listed("a, b") == ["a", "b"] and listed("") == []
    assert read_value("x", "1e-3") == 0.001 and read_value("x", "{a: [1, true]}") == {"a": [1, True]}


def test_words_that_are_no_options_are_overrides_where_a_command_takes_them() -> None:
    words = ["experiment=a/b", "out=x=y", "model.order=3", "data/tokenizer=word", "--order", "2", "a_folder", "+x=1"]
    made = Compose.parse(words)
    assert (made.out, made.order) == ("x=y", 2)
    assert made.overrides == ["experiment=a/b", "model.order=3", "data/tokenizer=word", "a_folder", "+x=1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dihs=soup"], "no option 'dihs'; did you mean 'dish'?"),
        (["soup", "stew"], "cannot read 'stew'"),
        (["-x"], "no option '-x'"),
        (["soup", "--note"], "--note needs a value"),
        (["soap"], "dish=soap: pass one of soup, stew; did you mean 'soup'?"),
        ([], "give dish=..., what"),
        (["soup", "persons=0"], "persons=0: pass a whole number from 1"),
        (["soup", "persons=2.5"], "persons=2.5: pass a whole number"),
        (["soup", "persons=two"], "persons=two"),
        (["soup", "persons="], "persons="),
        (["soup", "heat=nan"], "heat=nan: pass a finite number"),
        (["soup", "heat=true"], "heat=true"),
        (["soup", "size=larg"], "did you mean 'large'"),
        (["soup", "dry_run=7"], "dry_run=7: pass true or false"),
        (["soup", "note="], "note="),
        (["soup", "note=a", "note=b"], "note= is given twice"),
        (["soup", "heat={"], "heat={: cannot be read"),
    ],
)
def test_mistakes_are_named(words: list[str], said: str) -> None:
    with pytest.raises(UserError) as error:
        Cook.parse(words)
    assert said in str(error.value)


def test_mistakes_beside_overrides_are_named() -> None:
    for words, said in ((["order=1"], "compose now: give out="), (["out=x", "--oder", "1"], "did you mean 'order'")):
        with pytest.raises(UserError, match=said):
            Compose.parse(words)


def test_help_tells_all_options() -> None:
    text = Cook.help()
    assert Cook.summary() == "cook a dish" and text.startswith("lit-ctg cook: cook a dish\n")
    assert "what (required)" in text and "for how many (default: 2)" in text and "override" not in text
    assert all(f"  {name}=" in text for name in Cook.options())
    assert "override of the configuration" in Compose.help()


def test_every_command_says_what_it_does_and_takes() -> None:
    for name, command in commands().items():
        assert command.words == name and 10 < len(command.summary()) < 120, name
        if command.function:
            module, _, called = command.function.partition(":")
            work = getattr(importlib.import_module(f"lit_ctg.{module}"), called)
            inspect.signature(work).bind(**dict.fromkeys(field.name for field in dataclasses.fields(command)))
        assert all(field.metadata["meaning"] for field in command.options().values())
        hints = typing.get_type_hints(command, include_extras=True)
        assert all(object not in kinds_of(hints[option]) for option in command.options()), "its type is not checked"
        assert not set(command.hydra) & set(command.options()), name
        for example in command.examples:
            assert example.split()[: len(name.split())] == name.split() or len(command.examples) > 1, example
