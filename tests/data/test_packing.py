"""Packed corpora: right ids, checked on load, made whole or not at all, made once by processes that start together."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lit_ctg.data import packing
from lit_ctg.data.document import Document
from lit_ctg.data.packing import MISSING, digest, ensure_packed, identity_key, open_packed
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.errors import UserError

TRAIN = [Document("a b a\n", "x", {"stars": 5}), Document("b c\n", "y"), Document("d d\n", "x", {"stars": 1})]
VAL = [Document("a z\n", "y")]
IDENTITY = {"corpus": "abc", "options": {"lower": False}}


def splits(train: list[Document] = TRAIN, val: list[Document] = VAL) -> dict[str, Callable[[], list[Document]]]:
    return {"val": lambda: val, "train": lambda: train}


def packed(folder: Path, **options):
    tokenizer = WordTokenizer()
    return ensure_packed(folder, splits(), tokenizer, IDENTITY, **options), tokenizer


def one_line(error: pytest.ExceptionInfo) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_ids_documents_sources_and_columns(tmp_path: Path) -> None:
    corpus, tokenizer = packed(tmp_path / "c", columns=["stars"])
    assert tokenizer.decode(corpus.ids("train")) == "a b a\nb c\nd d\n"
    assert tokenizer.decode(corpus.document("train", 1)) == "b c\n"
    assert corpus.table("train", "begin").tolist() == [0, 4, 7, 10]
    assert [corpus.sources[i] for i in corpus.table("train", "source")] == ["x", "y", "x"]
    assert corpus.table("train", "stars").tolist() == [5, MISSING, 1]
    facts = corpus.meta["splits"]
    assert facts["train"] == {"documents": 3, "tokens": 10, "characters": 14, "unknown": 0, "duplicates": 0}
    # "z" occurs in no training text
    assert facts["val"]["unknown"] == 1 and corpus.ids("val").dtype == np.dtype("<u2")


def test_a_second_run_reads_what_the_first_made(tmp_path: Path) -> None:
    first, tokenizer = packed(tmp_path / "c")
    other = WordTokenizer()

    def never() -> list[Document]:
        raise AssertionError("a good cache must not read the corpus again")

    again = ensure_packed(tmp_path / "c", {"val": never, "train": never}, other, IDENTITY)
    assert other.tokens == tokenizer.tokens and again.ids("train").tolist() == first.ids("train").tolist()


def test_documents_in_two_splits_are_trained_on_in_none(tmp_path: Path) -> None:
    train = [*TRAIN, Document("  a z\n\n", "x"), Document("a z", "x")]
    tokenizer = WordTokenizer()
    corpus = ensure_packed(tmp_path / "c", splits(train), tokenizer, IDENTITY)
    assert corpus.meta["splits"]["train"]["duplicates"] == 2 and corpus.meta["splits"]["train"]["documents"] == 3
    seen = {digest(document) for document in VAL}
    texts = [tokenizer.decode(corpus.document("train", n)) for n in range(3)]
    assert not seen & {digest(Document(text, "")) for text in texts}
    assert "z" not in tokenizer.tokens
    shared = ensure_packed(tmp_path / "s", splits(train), WordTokenizer(), IDENTITY, shared=True)
    assert shared.meta["splits"]["train"]["documents"] == 5


def test_vocabulary_may_come_from_all_splits(tmp_path: Path) -> None:
    corpus, tokenizer = packed(tmp_path / "c", vocabulary_splits=("train", "val"))
    assert "z" in tokenizer.tokens and corpus.meta["splits"]["val"]["unknown"] == 0


def test_end_of_document_tokens(tmp_path: Path) -> None:
    tokenizer = WordTokenizer(eol=None, specials=("<unk>", "<eos>"))
    corpus = ensure_packed(tmp_path / "c", splits(), tokenizer, IDENTITY, end_documents=True)
    text = [tokenizer.tokens[i] for i in corpus.ids("train")]
    assert text == ["a", "b", "a", "<eos>", "b", "c", "<eos>", "d", "d", "<eos>"]
    assert corpus.table("train", "begin").tolist() == [0, 4, 7, 10]
    with pytest.raises(UserError, match="needs an <eos> token"):
        ensure_packed(tmp_path / "d", splits(), WordTokenizer(eol=None), IDENTITY, end_documents=True)
    assert not (tmp_path / "d").exists()


def test_blocks_do_not_show(tmp_path: Path, monkeypatch) -> None:
    whole, _ = packed(tmp_path / "c")
    monkeypatch.setattr(packing, "BLOCK_CHARACTERS", 1)
    parts, _ = packed(tmp_path / "d")
    assert whole.ids("train").tolist() == parts.ids("train").tolist()
    assert whole.table("train", "begin").tolist() == parts.table("train", "begin").tolist()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_failing_disk_leaves_nothing(tmp_path: Path, monkeypatch, code: int) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(packing, "_write", fail)
    with pytest.raises(UserError) as error:
        packed(tmp_path / "c")
    assert os.strerror(code) in one_line(error) and "data.cache_root" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] in ([], ["c.lock"])


def test_a_reader_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    def broken():
        yield TRAIN[0]
        raise UserError("file x is truncated")

    with pytest.raises(UserError, match="file x is truncated"):
        ensure_packed(tmp_path / "c", {"val": lambda: VAL, "train": broken}, WordTokenizer(), IDENTITY)
    assert [path.name for path in tmp_path.iterdir()] in ([], ["c.lock"])


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file where a folder should be")
    with pytest.raises(UserError) as error:
        packed(tmp_path / "file" / "c")
    assert "data.cache_root" in one_line(error)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="Permission denied"):
        packed(tmp_path / "c")
    tmp_path.chmod(0o700)


def test_a_folder_without_permission_as_root(tmp_path: Path, monkeypatch) -> None:
    def refuse(self: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match="Permission denied") as error:
        packed(tmp_path / "c")
    assert "data.cache_root" in one_line(error)


def edit_meta(folder: Path, **values: object) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | values))


def damage(folder: Path, how: str) -> None:
    if how == "flipped byte":
        data = bytearray((folder / "train.ids").read_bytes())
        data[3] ^= 1
        (folder / "train.ids").write_bytes(data)
    elif how == "truncated":
        (folder / "train.ids").write_bytes((folder / "train.ids").read_bytes()[:-2])
    elif how == "missing file":
        (folder / "val.npz").unlink()
    elif how == "other version":
        edit_meta(folder, format=99)
    elif how == "other corpus":
        edit_meta(folder, identity={"corpus": "other"})
    elif how == "half meta":
        (folder / "meta.json").write_text('{"format": 1')
    elif how == "no meta":
        (folder / "meta.json").unlink()


@pytest.mark.parametrize(
    ("how", "word"),
    [
        ("flipped byte", "train.ids is missing or has the wrong checksum"),
        ("truncated", "train.ids is missing or has the wrong checksum"),
        ("missing file", "val.npz is missing"),
        ("other version", "was written in format 99, this lit_ctg reads format 1"),
        ("other corpus", "holds another corpus"),
        ("half meta", "is not JSON"),
        ("no meta", "cannot be read"),
    ],
)
def test_a_damaged_cache_is_one_line(tmp_path: Path, how: str, word: str) -> None:
    packed(tmp_path / "c")
    damage(tmp_path / "c", how)
    with pytest.raises(UserError) as error:
        packed(tmp_path / "c")
    assert word in one_line(error)


def test_a_complete_cache_is_only_read(tmp_path: Path) -> None:
    """As on a mount that cannot be written: not a lock file appears."""
    first, _ = packed(tmp_path / "c")
    (tmp_path / "c.lock").unlink()
    before = {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]}
    again, tokenizer = packed(tmp_path / "c")
    assert list(again.ids("train")) == list(first.ids("train")) and tokenizer.trained
    assert {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]} == before


def test_nothing_to_train_on(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no document to train on"):
        ensure_packed(tmp_path / "c", splits(train=[]), WordTokenizer(), IDENTITY)
    assert not (tmp_path / "c").exists()


def _job(folder: str, barrier, results) -> None:
    barrier.wait()
    made = []

    def train():
        made.append(1)
        for number in range(3000):
            yield Document(f"word{number % 500} again and again\n", "x")

    corpus = ensure_packed(Path(folder), {"val": lambda: VAL, "train": train}, WordTokenizer(), IDENTITY)
    results.put((len(made), int(corpus.ids("train").astype(np.int64).sum())))


def test_processes_that_start_together_make_one_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    jobs = [context.Process(target=_job, args=(str(tmp_path / "c"), barrier, results)) for _ in range(3)]
    for job in jobs:
        job.start()
    answers = [results.get(timeout=60) for _ in jobs]
    for job in jobs:
        job.join()
    assert sorted(made for made, _ in answers) == [0, 0, 1]  # one process read the text, once
    assert len({total for _, total in answers}) == 1
    open_packed(tmp_path / "c", IDENTITY)
    assert {path.name for path in tmp_path.iterdir()} <= {"c", "c.lock"}


def test_keys_tell_identities_apart() -> None:
    assert identity_key({"a": 1, "b": 2}) == identity_key({"b": 2, "a": 1}) != identity_key({"a": 1, "b": 3})
