"""Wikipedia by subject: a file is a source, evaluation articles are spread over it."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.data.wikipedia import WikipediaDataModule
from lit_ctg.errors import UserError


def text(subject: str, count: int) -> str:
    return "\n".join(f" = {subject} {number} = \n\n{subject} number {number} is known.\n" for number in range(count))


def module(tmp_path: Path, **changes: Any) -> WikipediaDataModule:
    options: dict[str, Any] = {
        "source": "local", "root": tmp_path / "text", "cache_root": tmp_path / "cache", "holdout": 10,
        "tokenizer": WordTokenizer(eol=None), "batching": "chunks", "length": 8, "batch_size": 4, "seed": 0,
    }  # fmt: skip
    return WikipediaDataModule(**{**options, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "domain_war.txt").write_text(text("war", 23))
    (tmp_path / "text" / "general_0.txt.gz").write_bytes(gzip.compress(text("river", 10).encode()))
    (tmp_path / "text" / "README.md").write_text("no text")
    return tmp_path


def test_files_are_sources_and_every_article_is_in_one_split(folder: Path) -> None:
    data = module(folder)
    titles = {split: [d.meta["title"] for d in data.documents(split)] for split in data.splits}
    assert titles["val"] == ["war 4", "war 14", "river 4"]
    assert titles["test"] == ["war 9", "war 19", "river 9"]
    together = [title for split in data.splits for title in titles[split]]
    assert len(together) == len(set(together)) == 33
    assert data.sources == ("war", "general_0")
    assert next(iter(data.documents("train"))).text == " = war 0 = \n\nwar number 0 is known.\n\n"


def test_the_sample_is_raw_text(tmp_path: Path) -> None:
    documents = list(module(tmp_path, source="sample", sample_size=3000).documents("train"))
    assert len(documents) > 5
    assert not any("@-@" in document.text or " , " in document.text for document in documents)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"root": None}, r"needs data\.root"),
        ({"root": "missing"}, "cannot be read"),
        ({"source": "hub"}, "no hub"),
        ({"root": "."}, "no text files"),
    ],
)
def test_bad_settings(tmp_path: Path, monkeypatch, changes: dict[str, Any], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        module(tmp_path, **changes).prepare()


def test_no_file_is_passed_over(folder: Path) -> None:
    for name in ("foo-bar", "a b", "Ünder (1999)", "domain_x.y"):
        (folder / "text" / f"{name}.txt").write_text(text("river", 10))
    (folder / "text" / ".hidden.txt").write_text("not meant")
    assert sorted(module(folder).sources) == ["a b", "foo-bar", "general_0", "war", "x.y", "Ünder (1999)"]


def test_a_pipe_and_a_name_that_is_not_unicode_are_named(folder: Path) -> None:
    os.mkfifo(folder / "text" / "pipe.txt")
    with pytest.raises(UserError, match=r"pipe\.txt is a pipe"):
        module(folder).prepare()
    (folder / "text" / "pipe.txt").unlink()
    os.close(os.open(os.fsencode(folder / "text") + b"/caf\xe9.txt", os.O_CREAT))
    with pytest.raises(UserError, match=r"the file 'caf\\udce9\.txt' is not UTF-8: rename"):
        module(folder).prepare()
