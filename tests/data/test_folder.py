"""A folder of one's own: labels, splits of small texts, what is left out and told, and runs of the papers on it."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import os
import random
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.config import compose, plain
from lit_ctg.data import folder as folder_module
from lit_ctg.data.folder import FolderDataModule, labels_of
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.errors import UserError


def sentence(rng: random.Random) -> str:
    words = ["the", "a", "river", "house", "moon", "night", "stone", "walks", "12", "1990", "London", "under"]
    return " ".join(rng.choices(words, k=12)).capitalize() + "."


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A subfolder of files, a text of paragraphs, packed rows: three labels."""
    rng, root = random.Random(0), tmp_path / "own"
    (root / "poems" / "old").mkdir(parents=True)
    for number in range(30):
        place = root / "poems" / ("old" if number % 2 else "")
        (place / f"{number} p.txt").write_text("\n".join(sentence(rng) for _ in range(12)))
    (root / "letters.txt").write_text("\n\n".join("\n".join(sentence(rng) for _ in range(3)) for _ in range(150)))
    rows = [json.dumps({"text": " ".join(sentence(rng) for _ in range(4)), "date": n}) for n in range(120)]
    (root / "news.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    return root


def module(folder: Path, **changes: Any) -> FolderDataModule:
    options: dict[str, Any] = {
        "source": "local", "root": folder, "cache_root": folder.parent / "cache", "tokenizer": WordTokenizer(eol=None),
        "val_fraction": 0.1, "test_fraction": 0.05, "batching": "chunks", "length": 8, "batch_size": 4, "seed": 0,
    }  # fmt: skip
    return FolderDataModule(**{**options, **changes})


def counts(data: FolderDataModule, split: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for document in data.documents(split):
        found[document.source] = found.get(document.source, 0) + 1
    return found


def test_files_and_subfolders_are_labels_and_every_document_is_in_one_split(own: Path) -> None:
    data = module(own, by_source=True)
    assert data.sources == ("letters", "news", "poems")
    assert counts(data, "train") == {"letters": 127, "news": 102, "poems": 25}
    assert counts(data, "val") == {"letters": 15, "news": 12, "poems": 3}
    assert counts(data, "test") == {"letters": 8, "news": 6, "poems": 2}
    texts = [document.text for split in data.splits for document in data.documents(split)]
    assert len(texts) == len(set(texts)) == 300
    batch = next(iter(data.train_dataloader()))
    assert set(batch["control_code_B"].tolist()) <= {0, 1, 2}


def test_small_texts_are_cut_finer(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.txt").write_text("\n\n".join(f"one {n}\ntwo {n}" for n in range(40)))
    (tmp_path / "own" / "b.txt").write_text("\n\n".join(f"one {n}\ntwo {n}" for n in range(12)))
    (tmp_path / "own" / "c.csv").write_text("text\n" + "\n".join(f'"line {n}\nand {n}"' for n in range(9)))
    data = module(tmp_path / "own")
    documents = {label: [d.text for s in ("train", "val", "test") for d in data.documents(s) if d.source == label]
                 for label in data.labels}  # fmt: skip
    assert documents["a"] == [f"one {n}\ntwo {n}\n" for n in range(40)]
    assert documents["b"] == [f"{word} {n}\n" for n in range(12) for word in ("one", "two")]
    assert documents["c"] == [f"{word} {n}\n" for n in range(9) for word in ("line", "and")]


def test_a_row_has_the_lines_of_a_file(tmp_path: Path) -> None:
    """A form feed or U+2028 ends no line, neither in .txt nor in a row."""
    (tmp_path / "own").mkdir()
    texts = [f"one {n}\u2028two\x0cthree\nfour {n}" for n in range(9)]
    (tmp_path / "own" / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (tmp_path / "own" / "b.txt").write_text("\n".join(texts))
    data = module(tmp_path / "own")
    for label in "ab":
        documents = [d.text for s in ("train", "val", "test") for d in data.documents(s) if d.source == label]
        assert documents == [line + "\n" for text in texts for line in text.split("\n")]


@pytest.mark.parametrize(("val", "test"), [(0.45, 0.5), (0.9, 0.05), (0.0, 0.9)])
def test_every_label_has_something_to_train_on(tmp_path: Path, val: float, test: float) -> None:
    """Rounding up the shares of a label of three lines would take all of it."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.txt").write_text("one\ntwo\nthree\n")
    data = module(tmp_path / "own", val_fraction=val, test_fraction=test)
    parts = [[document.text for document in data.documents(split)] for split in ("train", "val", "test")]
    assert [text for part in parts for text in part] == ["one\n", "two\n", "three\n"]
    assert all(len(part) >= 1 for part, share in zip(parts, (1.0, val, test), strict=True) if share)


def test_a_label_that_is_too_small_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.txt").write_text("one\n\ntwo\n")
    line = "label 'a' has 2 lines of text; training, validation and test need 3 at least"
    with pytest.raises(UserError, match=rf"{line}.*where every file is one text, put the files into a subfolder"):
        module(tmp_path / "own").prepare()


def test_what_is_left_out_is_told(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    (own / "notes.pdf").write_text("x")
    (own / ".hidden.txt").write_text("x")
    (own / "nothing.txt").write_text(" \n\n")
    (own / "poems" / "cover.png").write_text("x")
    with caplog.at_level(logging.WARNING):
        assert list(labels_of(own)) == ["letters", "news", "poems"]
        labels_of(own)
    first, second = caplog.messages
    assert "left out notes.pdf, poems/cover.png (.txt .jsonl .csv .parquet are read)" in first
    assert "left out nothing: no text there" in second


def test_files_without_rows_beside_others_are_no_documents(own: Path) -> None:
    before = counts(module(own), "train")
    for name, content in (("a.jsonl", "\n"), ("b.csv", "text,date\n"), ("c.txt", "\n")):
        (own / "poems" / name).write_text(content)
    assert counts(module(own), "train") == before


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda root: None, "holds no text: give one file"),
        (lambda root: (root / "a.pdf").write_text("x"), "holds no text"),
        (lambda root: [(root / f"{name}.txt").write_text("x") for name in ("train", "test")], "are splits, not labels"),
        (lambda root: os.mkfifo(root / "a.txt"), r"a\.txt is a pipe"),
        (lambda root: (root / "a.txt").symlink_to("a.txt"), "Too many levels of symbolic links"),
        (lambda root: (root / "a.csv").write_text("x,y\n1,2\n"), r"a\.csv has no column 'text' \(it has x, y\)"),
        (lambda root: (root / "a.jsonl").write_text('{"text": [1]}\n' * 30), r"a\.jsonl line 1: .*holds a list"),
        (lambda root: (root / "a.txt").write_bytes(b"good\n\xff\n"), r"a\.txt line 2 byte 1 is not UTF-8"),
    ],
)
def test_bad_folders_are_one_line(tmp_path: Path, prepare: Any, message: str) -> None:
    (tmp_path / "own").mkdir()
    prepare(tmp_path / "own")
    with pytest.raises(UserError, match=message) as error:
        module(tmp_path / "own").prepare()
    assert "\n" not in str(error.value)


def test_the_column_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.csv").write_text("id,body\n" + "\n".join(f"{n},text {n}" for n in range(30)))
    assert len(list(module(tmp_path / "own", column="body").documents("train"))) == 25
    with pytest.raises(UserError, match=r"no column 'bode' .*did you mean 'body'"):
        module(tmp_path / "own", column="bode").prepare()


def test_a_long_text_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "LONGEST", 200)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.txt").write_text("\n".join(f"line {n} of a long text" for n in range(400)))
    texts = [d.text for split in ("train", "val", "test") for d in module(tmp_path / "own").documents(split)]
    assert "".join(texts).splitlines() == [f"line {n} of a long text" for n in range(400)]
    assert max(map(len, texts)) <= 201


def test_a_changed_folder_is_another_corpus(own: Path) -> None:
    first = module(own).fingerprint()
    (own / "letters.txt").rename(own / "mail.txt")
    data = module(own)
    assert data.sources == ("mail", "news", "poems") and data.fingerprint() != first
    assert len(list(module(own, max_documents=5).documents("train"))) == 15


def test_a_renamed_file_is_read_by_its_new_format(tmp_path: Path) -> None:
    """The same bytes, but other texts: what was packed before is not taken for them."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "news.txt").write_text("".join(f'{{"text": "number {n}"}}\n' for n in range(30)))
    first = module(tmp_path / "own").fingerprint()
    (tmp_path / "own" / "news.txt").rename(tmp_path / "own" / "news.jsonl")
    data = module(tmp_path / "own")
    assert data.fingerprint() != first
    assert next(iter(data.documents("train"))).text.strip() == "number 0"


def test_a_subfolder_that_is_empty_or_cannot_be_read_is_told(
    own: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own / "songs").mkdir()
    with caplog.at_level(logging.WARNING):
        assert list(labels_of(own)) == ["letters", "news", "poems"]
    assert "left out songs: no text there" in caplog.text
    scan = os.scandir

    def refused(path: Any) -> Any:
        if str(path).endswith("songs"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(UserError, match=r"songs cannot be read \(Permission denied\)"):
        labels_of(own)


def test_only_a_folder_of_ones_own(own: Path) -> None:
    for changes in ({"root": None}, {"source": "sample"}, {"source": "hub"}):
        with pytest.raises(UserError, match=r"FolderDataModule\.(root=null|source=(sample|hub)): pass "):
            module(own, **changes)


def test_labels_become_the_codes_of_the_model(own: Path) -> None:
    words = ["experiment=control_code/transformer", "data=folder", f"data.root={own}"]
    cfg = plain(compose(words))
    assert cfg["model"]["codes"] == 3 and cfg["data"]["by_source"] is True
    with pytest.raises(UserError, match=r"needs data\.root"):
        compose(words[:2])
    nslm = plain(compose(["experiment=nslm/numbers", *words[1:]]))["data"]
    assert nslm["batching"] == "streams" and nslm["tokenizer"]["_target_"].endswith("WordTokenizer")
    # no variant of its own: the shared option
    assert plain(compose(["experiment=graphmax/main", *words[1:]]))["data"]["by_source"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    "experiment",
    ["control_code/transformer", "graphmax/main", "idea_gate/main", "nslm/numbers", "semantic_fusion/reviews"],
)
def test_every_paper_trains_on_it(own: Path, run_cli, experiment: str) -> None:
    words = ["train", f"experiment={experiment}", "data=folder", f"data.root={own}", "size=smoke",
             "trainer.accelerator=cpu", f"data.cache_root={own.parent / 'cache'}"]  # fmt: skip
    if experiment == "semantic_fusion/reviews":
        words.append("~data.corpus")
    code, _, err = run_cli(*words)
    assert code == 0, err
