"""Numbers and places become one token each; nothing else changes."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lit_ctg.data import wikitext
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.papers.nslm.corpus import HOST, WikiTextDataModule, chunk_places, join_numbers
from lit_ctg.papers.nslm.gazetteer import gazetteer, split_as_wikitext


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


@pytest.mark.parametrize(
    ("text", "chunked"),
    [
        ("He left New York City for Los Angeles .", "He left New_York_City for Los_Angeles ."),
        ("in New Hampshire and North Carolina", "in New_Hampshire and North_Carolina"),
        ("from United States to Paris", "from United_States to Paris"),
        ("the new york times", "the new york times"),
        ("West Virginia Virginia", "West_Virginia Virginia"),
        ("Los Angelesque", "Los Angelesque"),
        ("San\nFrancisco", "San\nFrancisco"),
    ],
)
def test_multi_word_names_become_one_token(text: str, chunked: str) -> None:
    assert chunk_places(text, 500_000) == chunked


def test_names_are_split_as_the_text_is() -> None:
    assert split_as_wikitext("Guinea-Bissau") == "Guinea @-@ Bissau"
    assert split_as_wikitext("Xi'an") == "Xi 'an"
    assert chunk_places("in Guinea @-@ Bissau .", 500_000) == "in Guinea_@-@_Bissau ."


def test_the_table_knows_kinds_and_positions() -> None:
    places = gazetteer(500_000)
    kinds = {"Paris": "city", "Texas": "state", "France": "country", "New York City": "city", "Singapore": "city"}
    assert {name: places[name].kind for name in kinds} == kinds
    assert places["New York City"].token == "New_York_City"
    assert all(place.population > 500_000 for place in places.values() if place.kind == "city")
    assert sum(place.kind == "state" for place in places.values()) >= 49
    assert math.dist((places["Paris"].latitude, places["Paris"].longitude), (48.86, 2.35)) < 0.1
    assert math.dist((places["Texas"].latitude, places["Texas"].longitude), (31, -98)) < 3
    # countries across the date line keep their place
    assert 0 < places["Russia"].longitude < 120 and places["Fiji"].longitude > 170
    assert len(gazetteer(5_000_000)) < len(places)


ARTICLE = """
 = New York =

 New York City had 8 @,@ 175 @,@ 133 people , 3 @.@ 5 % of them in 2010 .
"""


def test_numbers_and_places_make_corpora_of_their_own(tmp_path: Path) -> None:
    for name, text in (("train", ARTICLE), ("valid", " = Lobster = \n"), ("test", " = Crab = \n")):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    options: dict[str, Any] = {
        "source": "local", "root": tmp_path, "cache_root": tmp_path / "cache", "version": 2, "raw": False,
        "batching": "streams", "length": 5, "batch_size": 2, "seed": 0,
    }  # fmt: skip
    nothing: dict[str, Any] = {"join_numbers": False, "chunk_places": False, "minimum_population": 500_000}
    plain = wikitext.WikiTextDataModule(**options, tokenizer=WordTokenizer())
    bare, numbers, places = (
        WikiTextDataModule(**options | nothing | changes, tokenizer=WordTokenizer())
        for changes in ({}, {"join_numbers": True}, {"chunk_places": True})
    )
    tokens = [data.prepare().meta["splits"]["train"]["tokens"] for data in (plain, bare, numbers, places)]
    # three joins of two tokens; "New York" once in the title, "New York City" once
    assert tokens[0] == tokens[1] and tokens[0] - tokens[2] == 6 and tokens[0] - tokens[3] == 2 + 1
    assert {"8,175,133", "3.5"} <= set(numbers.vocabulary.tokens)
    assert "New_York_City" in places.vocabulary.tokens
    assert len({data.packed.folder for data in (bare, numbers, places)}) == 3
    assert numbers.transform("1 @,@ 234 in New York") == "1,234 in New York"


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_an_accelerators_batches_keep_their_parts(kind) -> None:
    batch = {"input_ids_BT": torch.tensor([[1, 2]])}
    device = SimpleNamespace(type=kind)
    data = SimpleNamespace(trainer=SimpleNamespace(strategy=SimpleNamespace(root_device=device)))
    found = WikiTextDataModule.on_before_batch_transfer(data, batch, 0)
    assert set(found) == {"input_ids_BT"} | ({HOST + "input_ids_BT"} if kind == "cuda" else set())
    if kind == "cuda":
        assert isinstance(found[HOST + "input_ids_BT"], np.ndarray)
