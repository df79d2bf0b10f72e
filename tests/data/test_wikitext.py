"""WikiText: articles, numbers, places, the same text from a folder and from the hub, damaged input, real counts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.data import wikitext
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.data.wikitext import WikiTextDataModule, articles
from lit_ctg.errors import UserError

REVISION = "0123456789abcdef0123456789abcdef01234567"
TRAIN = (
    " \n = New York = \n \n New York City had 8 @,@ 175 @,@ 133 people in 2010 , 3 @.@ 5 % more . \n"
    " \n = = Sport = = \n \n Legend \n = Played , W = Won \n = Drawn = \n L = Lost \n"
    " \n = The = sign = \n \n It means equal . \n"
)
VALID = " \n = Lobster = \n \n It lives in <unk> water . \n"
TEST = " \n = Crab = \n \n It lives in Los Angeles . \n"


def folder(root: Path, train: str = TRAIN) -> Path:
    root.mkdir(exist_ok=True)
    for name, text in (("train", train), ("valid", VALID), ("test", TEST)):
        (root / f"{name}.txt").write_text(text, encoding="utf-8")
    return root


def module(tmp_path: Path, **changes: Any) -> WikiTextDataModule:
    options: dict[str, Any] = {
        "source": "local", "root": tmp_path / "text", "cache_root": tmp_path / "cache", "tokenizer": WordTokenizer(),
        "version": 2, "raw": False,
        "batching": "streams", "length": 5, "batch_size": 2, "seed": 0, "repository": "some/wikitext",
        "revision": REVISION,
    }  # fmt: skip
    return WikiTextDataModule(**{**options, **changes})


def test_articles_begin_at_titles_only_and_keep_every_line() -> None:
    found = list(articles(TRAIN.splitlines()))
    assert [article.meta["title"] for article in found] == ["New York", "The = sign"]
    lines = [line if line.strip() else "" for line in TRAIN.splitlines()]
    assert "".join(article.text for article in found) == "\n".join(lines) + "\n"


def test_a_text_without_titles_is_read_piece_by_piece(monkeypatch) -> None:
    monkeypatch.setattr(wikitext, "LONGEST", 100)
    read = []

    def lines():
        for number in range(200):
            read.append(number)
            yield f"line {number} of one long text"

    found = articles(lines())
    first = next(found)
    assert len(first.text) < 150 and len(read) < 8, "the rest is not read before it is needed"
    assert "".join(document.text for document in [first, *found]).splitlines() == [
        f"line {number} of one long text" for number in range(200)
    ]
    # an article of this length stays in one piece, the next begins at its title
    monkeypatch.setattr(wikitext, "LONGEST", 2**20)
    assert [d.meta["title"] for d in articles(TRAIN.splitlines())] == ["New York", "The = sign"]


def test_counts_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    folder(tmp_path / "text")
    data = module(tmp_path)
    data.prepare_data()
    data.setup("fit")
    splits = data.packed.meta["splits"]
    for name, text in (("train", TRAIN), ("val", VALID), ("test", TEST)):
        words = [word for line in text.splitlines() for word in [*line.split(), "<eos>"]]
        assert splits[name]["tokens"] == len(words)
    assert data.vocabulary.decode(data.packed.ids("train")).split() == TRAIN.split()
    assert len(data.vocabulary) == len({*TRAIN.split(), "<unk>", "<eos>"}) and splits["train"]["documents"] == 2
    batch = next(iter(data.train_dataloader()))
    assert batch["input_ids_BT"].shape == (2, 5) and batch["reset_B"].all()


def parquet(text: str, path: Path) -> bytes:
    import pyarrow
    import pyarrow.parquet

    rows = [line + "\n" if line.strip() else "" for line in text.splitlines()]
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), path)
    return path.read_bytes()


@pytest.mark.parametrize("raw", [False, True])
def test_hub_and_folder_give_the_same_corpus(network, tmp_path: Path, monkeypatch, raw: bool) -> None:
    folder(tmp_path / "text")
    config = "wikitext-103-raw-v1" if raw else "wikitext-103-v1"
    files = {
        f"{config}/{name}-00000-of-00001.parquet": parquet(text, tmp_path / "x.parquet")
        for name, text in (("train", TRAIN), ("validation", VALID), ("test", TEST))
    }
    network.add_dataset("some/wikitext", files)
    monkeypatch.setenv("HF_ENDPOINT", network.address)
    hub = module(tmp_path, source="hub", version=103, raw=raw)
    local = module(tmp_path, raw=raw)
    for split in ("train", "val", "test"):
        assert list(hub.prepare().ids(split)) == list(local.prepare().ids(split))
    # all is here now: the network is needed no more
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    again = module(tmp_path, source="hub", version=103, raw=raw)
    assert again.prepare().folder == hub.prepare().folder
    with pytest.raises(UserError, match=r"HF_HUB_OFFLINE=1.*data\.source=local data\.root=.* or data\.source=sample"):
        module(tmp_path, source="hub", version=2, raw=raw).prepare()


def test_plain_text_becomes_tokens() -> None:
    plain = "\n= Well-known =\n\nIt rose 3.5% (to 1,234) in 1914–1918.\n"
    tokens = " \n = Well @-@ known = \n \n It rose 3 @.@ 5 % ( to 1 @,@ 234 ) in 1914 – 1918 . \n"
    assert wikitext.wikitext_tokens(plain) == tokens


@pytest.mark.slow
@pytest.mark.skipif("LIT_CTG_DATA" not in os.environ, reason="LIT_CTG_DATA names no folder of real data")
def test_the_official_counts(tmp_path: Path) -> None:
    root = Path(os.environ["LIT_CTG_DATA"]) / "wikitext2"
    data = module(tmp_path, root=root)
    splits = data.prepare().meta["splits"]
    assert [splits[name]["tokens"] for name in ("train", "val", "test")] == [2_088_628, 217_646, 245_569]
    assert [splits[name]["documents"] for name in ("train", "val", "test")] == [600, 60, 60]
    assert len(data.vocabulary) == 33_278 and all(split["duplicates"] == 0 for split in splits.values())


def test_the_sample_is_tokenised_unless_raw(tmp_path: Path) -> None:
    for raw in (False, True):
        data = module(tmp_path, source="sample", sample_size=20_000, raw=raw)
        assert ({"@,@", "="} <= set(data.vocabulary.tokens)) is not raw
