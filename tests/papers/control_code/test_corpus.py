"""Books, news and blogs: one source each, the end for evaluation; what is fetched and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.data.tokenizer import SpacyTokenizer, WordTokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.control_code.corpus import GutenbergDataModule, ScriptsDataModule
from lit_ctg.papers.control_code.gutenberg_text import book_text

NUMBERS = {"greatgatsby": 64317, "shakespeare": 100, "home": None}
COLLECTIONS = {"books2": ["greatgatsby", "shakespeare"], "own": ["greatgatsby", "home"]}


def book(name: str, lines: int = 200) -> str:
    body = "".join(f"Line {number} of {name}, unlike any other.\n" for number in range(lines))
    return (
        f"\ufeffThe Project Gutenberg eBook of {name}\r\n*** START OF THE PROJECT GUTENBERG EBOOK {name} ***\r\n\r\n"
        + body.replace("\n", "\r\n") + f"\r\n*** END OF THE PROJECT GUTENBERG EBOOK {name} ***\r\nlicence\r\n"
    )  # fmt: skip


def books_of(tmp_path: Path, **changes: Any) -> GutenbergDataModule:
    options: dict[str, Any] = {
        "source": "local", "root": tmp_path / "text", "cache_root": tmp_path / "cache", "collection": "books2",
        "tokenizer": WordTokenizer(eol=None), "collections": COLLECTIONS, "books": NUMBERS, "characters": {},
        "val_fraction": 0.05, "test_fraction": 0.05, "batching": "chunks", "length": 8, "batch_size": 4, "seed": 0,
        "by_source": True,
    }  # fmt: skip
    return GutenbergDataModule(**{**options, **changes})


def folder(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "books_greatgatsby.txt").write_text("<greatgatsby>\n" + book_text(book("gatsby")))
    (tmp_path / "text" / "pg100.txt").write_text(book("hamlet"))


def test_sources_splits_and_codes(tmp_path: Path) -> None:
    folder(tmp_path)
    data = books_of(tmp_path)
    assert data.sources == ("greatgatsby", "shakespeare")
    texts = {split: {doc.source: doc.text for doc in data.documents(split)} for split in ("train", "val", "test")}
    for name, title in (("greatgatsby", "gatsby"), ("shakespeare", "hamlet")):
        whole = "".join(texts[split][name] for split in ("train", "val", "test"))
        assert whole == book_text(book(title)) and "licence" not in whole and not whole.startswith("<")
        assert 0.04 < len(texts["val"][name]) / len(whole) < 0.06
    codes = [set(batch["control_code_B"].tolist()) for batch in data.train_dataloader()]
    assert {frozenset(code) for code in codes} == {frozenset({0}), frozenset({1})}
    data = books_of(tmp_path, test_fraction=0.0)
    assert len(list(data.test_dataloader())) == len(list(data.val_dataloader())) > 0
    assert data.prepare().meta["splits"]["test"]["documents"] == 0
    data = books_of(tmp_path, characters={"shakespeare": 1000})
    whole = sum(len(doc.text) for split in ("train", "val", "test") for doc in data.documents(split)
                if doc.source == "shakespeare")  # fmt: skip
    assert whole == 1000


def serve(book_server) -> None:
    for number, title in ((64317, "gatsby"), (100, "hamlet")):
        book_server.files[f"/cache/epub/{number}/pg{number}.txt"] = book(title).encode()


def test_fetched_books_equal_those_of_a_folder(book_server, tmp_path: Path, monkeypatch) -> None:
    serve(book_server)
    folder(tmp_path)
    hub, local = books_of(tmp_path, source="hub", mirror=book_server.address), books_of(tmp_path)
    for split in ("train", "val", "test"):
        assert list(hub.prepare().ids(split)) == list(local.prepare().ids(split))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    books_of(tmp_path, source="hub", mirror=book_server.address, length=4).prepare()
    assert len(book_server.requests) == 2
    with pytest.raises(UserError, match=r"HF_HUB_OFFLINE=1.*data\.source=local.*data\.source=sample"):
        books_of(tmp_path, source="hub", cache_root=tmp_path / "elsewhere").prepare()


def test_a_book_that_changes_is_noticed(book_server, tmp_path: Path) -> None:
    serve(book_server)
    books_of(tmp_path, source="hub", mirror=book_server.address).prepare()
    path = tmp_path / "cache" / "gutenberg" / "pg100.txt"
    ledger = json.loads(path.with_suffix(".json").read_text())
    assert ledger["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text("tampered")
    with pytest.raises(UserError, match="wrong checksum"):
        books_of(tmp_path, source="hub", mirror=book_server.address).prepare()
    # revised at its source: the first checksum is held on to
    path.unlink()
    book_server.files["/cache/epub/100/pg100.txt"] = book("revised").encode()
    with pytest.raises(UserError, match="wrong checksum"):
        books_of(tmp_path, source="hub", mirror=book_server.address).prepare()
    with pytest.raises(UserError, match="wrong checksum"):
        books_of(tmp_path / "b", source="hub", mirror=book_server.address, sha256={100: "0" * 64}).prepare()


def test_a_download_that_breaks_off_is_tried_again(book_server, tmp_path: Path) -> None:
    serve(book_server)
    data = books_of(tmp_path, source="hub", mirror=book_server.address)
    told = []
    data.fetching = lambda *state: told.append(state)
    book_server.cut_after, book_server.refuse = [100], [503, 429]
    path = data.fetch("greatgatsby")
    whole = book_server.files["/cache/epub/64317/pg64317.txt"]
    assert path.read_bytes() == whole and len(book_server.requests) == 4
    assert told[-1] == ("pg64317.txt", len(whole), len(whole))
    assert {file.name for file in path.parent.iterdir()} == {"pg64317.txt", "pg64317.json", "pg64317.lock"}


def test_what_cannot_be_fetched_is_one_line(book_server, tmp_path: Path, monkeypatch) -> None:
    serve(book_server)
    data = books_of(tmp_path, source="hub", mirror=book_server.address)
    cases = [([404], r"HTTP 404: check data\.books and data\.mirror", 1), ([503] * 9, "failed 5 times", 5)]
    for refused, message, asked in cases:
        book_server.refuse, book_server.requests = list(refused), []
        with pytest.raises(UserError, match=message) as error:
            data.fetch("greatgatsby")
        assert "\n" not in str(error.value) and len(book_server.requests) == asked
    book_server.refuse = []
    with pytest.raises(UserError, match=r"failed 5 times .*data\.source=sample"):
        books_of(tmp_path, source="hub", mirror="http://127.0.0.1:9").fetch("greatgatsby")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", full)
    with pytest.raises(UserError, match=r"No space left on device.*data\.cache_root"):
        data.fetch("greatgatsby")
    assert {file.suffix for file in (tmp_path / "cache" / "gutenberg").iterdir()} == {".lock"}
    (tmp_path / "cache" / "gutenberg" / "pg100.json").write_text("{")
    with pytest.raises(UserError, match=r"pg100\.json is damaged"):
        data.fetch("shakespeare")


def test_wrong_names(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'books2'"):
        books_of(tmp_path, collection="books22")
    with pytest.raises(UserError, match="has no number at Project Gutenberg"):
        books_of(tmp_path, collection="own", source="hub").fetch("home")
    with pytest.raises(UserError, match="books2=b"):
        books_of(tmp_path, collections={"books2": ["b"]})


@pytest.mark.slow
@pytest.mark.skipif("LIT_CTG_DATA" not in os.environ, reason="LIT_CTG_DATA names no folder of real data")
@pytest.mark.parametrize("folder_name", ["control_code", "books"])
def test_real_books_load(tmp_path: Path, folder_name: str) -> None:
    names = ["greatgatsby", "shakespeare", "twocities", "alice", "iliad", "mobydick"]
    data = books_of(
        tmp_path, root=Path(os.environ["LIT_CTG_DATA"]) / folder_name, collection="books6",
        collections={"books6": names}, books=dict.fromkeys(names), tokenizer=SpacyTokenizer(),
    )  # fmt: skip
    splits = data.prepare().meta["splits"]
    assert data.sources == tuple(names)
    assert 700_000 < sum(split["tokens"] for split in splits.values()) < 900_000


NEWS = "".join(f"Firm {number} grew.\n\n" for number in range(100))
BLOG = [{"title": f"Day {number}", "text": f"I slept {number} hours.", "id": number} for number in range(40)]


def styles_of(tmp_path: Path, **changes: Any) -> ScriptsDataModule:
    options: dict[str, Any] = {
        "source": "local", "root": tmp_path / "text", "cache_root": tmp_path / "cache",
        "tokenizer": WordTokenizer(eol=None), "val_fraction": 0.1, "test_fraction": 0.1, "batching": "chunks",
        "length": 8, "batch_size": 4, "seed": 0, "by_source": True,
    }  # fmt: skip
    return ScriptsDataModule(**{**options, **changes})


def test_texts_are_cut_and_rows_are_documents(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "style_news.txt").write_text("<news>\n" + NEWS)
    (tmp_path / "text" / "blog.jsonl").write_text("\n".join(map(json.dumps, BLOG)))
    data = styles_of(tmp_path)
    splits = data.prepare().meta["splits"]
    assert data.sources == ("news", "blog")
    assert [splits[name]["documents"] for name in ("train", "val", "test")] == [1 + 32, 1 + 4, 1 + 4]
    news = [document.text for name in ("train", "val", "test") for document in data.documents(name)
            if document.source == "news"]  # fmt: skip
    assert "".join(news) == NEWS
    assert [document.text for document in data.documents("test")][1] == "Day 36\n\nI slept 36 hours.\n"


def test_styles_give_the_order_of_codes_and_of_training(tmp_path: Path) -> None:
    assert styles_of(tmp_path, source="sample", sample_size=4000, styles=["blog", "news"]).sources == ("blog", "news")
    other = styles_of(tmp_path, source="sample", sample_size=4000)
    assert other.sources == ("news", "blog"), "the order is part of what packed text is kept under"
    with pytest.raises(UserError, match=r"data\.styles=\['news', 'blogs'\]: give news and blog, each once"):
        styles_of(tmp_path, styles=["news", "blogs"])
    data = styles_of(tmp_path, source="sample", sample_size=4000)
    codes = {int(code) for batch in data.train_dataloader() for code in batch["control_code_B"]}
    assert data.sources == ("news", "blog") and codes == {0, 1}
    with pytest.raises(UserError, match=r"no hub.*data\.source=local data\.root=.*data\.source=sample"):
        styles_of(tmp_path, source="hub").prepare()


@pytest.mark.slow
@pytest.mark.skipif("LIT_CTG_DATA" not in os.environ, reason="LIT_CTG_DATA names no folder of real data")
def test_the_published_token_count_is_95_percent_of_all_tokens(tmp_path: Path) -> None:
    data = styles_of(
        tmp_path, root=Path(os.environ["LIT_CTG_DATA"]) / "control_code", val_fraction=0.05, test_fraction=0.0,
        tokenizer=SpacyTokenizer(whitespace=True, lower=False),
    )  # fmt: skip
    total = sum(split["tokens"] for split in data.prepare().meta["splits"].values())
    # control-code paper, Table 2: 115,286
    assert abs(0.95 * total / 115_286 - 1) < 1e-3
