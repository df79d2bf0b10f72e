"""A folder of the user's texts: labels, splits of small texts, warnings, and runs of the papers on it."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import os
import random
from collections import Counter
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


def own_of(tmp_path: Path, **texts: str) -> Path:
    """Write ``name__suffix="text"`` as files of a folder."""
    (tmp_path / "own").mkdir()
    for name, text in texts.items():
        (tmp_path / "own" / name.replace("__", ".")).write_text(text)
    return tmp_path / "own"


def texts_of(data: FolderDataModule, label: str) -> list[str]:
    return [d.text for split in ("train", "val", "test") for d in data.documents(split) if d.source == label]


def counts(data: FolderDataModule, split: str) -> dict[str, int]:
    return Counter(document.source for document in data.documents(split))


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
    def pairs(count: int, gap: str = "\n\n") -> str:
        return gap.join(f"one {n}\ntwo {n}" for n in range(count))

    rows = "text\n" + "\n".join(f'"one {n}\ntwo {n}"' for n in range(9))
    data = module(own_of(tmp_path, a__txt=pairs(40), b__txt=pairs(12), c__csv=rows))
    assert texts_of(data, "a") == [f"one {n}\ntwo {n}\n" for n in range(40)]
    assert texts_of(data, "b") == [line + "\n" for line in pairs(12, "\n").split("\n")]
    assert texts_of(data, "c") == [line + "\n" for line in pairs(9, "\n").split("\n")]


def test_a_row_has_the_lines_of_a_file(tmp_path: Path) -> None:
    """A form feed or U+2028 ends no line, neither in .txt nor in a row."""
    texts = [f"one {n}\u2028two\x0cthree\nfour {n}" for n in range(9)]
    rows = "\n".join(json.dumps({"text": text}) for text in texts)
    data = module(own_of(tmp_path, a__jsonl=rows, b__txt="\n".join(texts)))
    for label in "ab":
        assert texts_of(data, label) == [line + "\n" for text in texts for line in text.split("\n")]


@pytest.mark.parametrize(("val", "test"), [(0.45, 0.5), (0.9, 0.05), (0.0, 0.9)])
def test_every_label_has_something_to_train_on(tmp_path: Path, val: float, test: float) -> None:
    """Rounding up the shares of a label of three lines would take all of it."""
    data = module(own_of(tmp_path, a__txt="one\ntwo\nthree\n"), val_fraction=val, test_fraction=test)
    assert texts_of(data, "a") == ["one\n", "two\n", "three\n"]
    parts = {"train": 1.0, "val": val, "test": test}
    assert all(list(data.documents(split)) for split, share in parts.items() if share)


def test_a_warning_names_unread_files(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    (own / "notes.pdf").write_text("x")
    (own / ".hidden.txt").write_text("x")
    (own / "nothing.txt").write_text(" \n\n")
    (own / "poems" / "cover.png").write_text("x")
    (own / "songs").mkdir()
    with caplog.at_level(logging.WARNING):
        assert list(labels_of(own)) == ["letters", "news", "poems"]
        labels_of(own)
    first, second = caplog.messages
    assert "left out notes.pdf, poems/cover.png (.txt .jsonl .csv .tsv .parquet are read)" in first
    assert "left out nothing, songs: no text there" in second


def test_files_without_rows_beside_others_are_no_documents(own: Path) -> None:
    before = counts(module(own), "train")
    for name, content in (("a.jsonl", "\n"), ("b.csv", "text,date\n"), ("c.txt", "\n")):
        (own / "poems" / name).write_text(content)
    assert counts(module(own), "train") == before


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda root: None, "holds no text: give one file"),
        (lambda root: (root / "a.txt").write_text("one\n\ntwo\n"), "label 'a' has 2 lines of text.* need 3 at least"),
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
    root = own_of(tmp_path, a__csv="id,body\n" + "\n".join(f"{n},text {n}" for n in range(30)))
    assert len(list(module(root, column="body").documents("train"))) == 25
    with pytest.raises(UserError, match=r"no column 'bode' .*did you mean 'body'"):
        module(root, column="bode").prepare()


def test_a_long_text_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "LONGEST", 200)
    text = "\n".join(f"line {n} of a long text" for n in range(400))
    texts = texts_of(module(own_of(tmp_path, a__txt=text)), "a")
    assert "".join(texts) == text + "\n" and max(map(len, texts)) <= 201


def test_a_changed_folder_is_another_corpus(own: Path) -> None:
    first = module(own).fingerprint()
    (own / "letters.txt").rename(own / "mail.txt")
    data = module(own)
    assert data.sources == ("mail", "news", "poems") and data.fingerprint() != first
    assert len(list(module(own, max_documents=5).documents("train"))) == 15


def test_a_renamed_file_is_read_by_its_new_format(tmp_path: Path) -> None:
    """The same bytes, but other texts: what was packed before is not taken for them."""
    root = own_of(tmp_path, news__txt="".join(f'{{"text": "number {n}"}}\n' for n in range(30)))
    first = module(root).fingerprint()
    (root / "news.txt").rename(root / "news.jsonl")
    assert module(root).fingerprint() != first and texts_of(module(root), "news")[0].strip() == "number 0"


def test_a_subfolder_that_cannot_be_read_is_named(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "songs").mkdir()
    scan = os.scandir

    def refused(path: Any) -> Any:
        if str(path).endswith("songs"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(UserError, match=r"songs cannot be read \(Permission denied\)"):
        labels_of(own)


def test_no_other_source_than_a_folder(own: Path) -> None:
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
    # without a variant of the paper: the shared option
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
