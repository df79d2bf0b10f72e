"""Packed corpora: right ids, checked on load, made whole or not at all, made once by processes that start together."""

from __future__ import annotations

import errno
import itertools
import json
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from lit_ctg.data import packing
from lit_ctg.data.chunk import ChunkTable
from lit_ctg.data.document import Document
from lit_ctg.data.packing import MISSING, SplitWriter, digest, ensure_packed, identity_key, open_packed
from lit_ctg.data.tokenizer import SpacyTokenizer, WordTokenizer
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


def test_a_complete_cache_is_only_read(tmp_path: Path) -> None:
    """As on a mount that cannot be written: neither the corpus is read again nor a lock file written."""
    first, tokenizer = packed(tmp_path / "c")
    (tmp_path / "c.lock").unlink()
    before = {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]}

    def never() -> list[Document]:
        raise AssertionError("a good cache must not read the corpus again")

    other = WordTokenizer()
    again = ensure_packed(tmp_path / "c", {"val": never, "train": never}, other, IDENTITY)
    assert other.tokens == tokenizer.tokens and again.ids("train").tolist() == first.ids("train").tolist()
    assert {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]} == before


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


@pytest.mark.parametrize(
    ("place", "name", "code"),
    [(packing, "_write", errno.ENOSPC), (Path, "mkdir", errno.EACCES), (None, "", 0)],
)
def test_what_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch, place, name, code) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    if place is None:
        (tmp_path / "c").write_text("a file where a folder should be")
    else:
        monkeypatch.setattr(place, name, fail)
    with pytest.raises(UserError) as error:
        packed(tmp_path / "c" / "d")
    monkeypatch.undo()
    assert (os.strerror(code) if code else "folder") in one_line(error) and "data.cache_root" in str(error.value)
    assert {path.name for path in tmp_path.rglob("*")} <= {"c", "d.lock"}


def test_a_reader_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    def broken():
        yield TRAIN[0]
        raise UserError("file x is truncated")

    with pytest.raises(UserError, match="file x is truncated"):
        ensure_packed(tmp_path / "c", {"val": lambda: VAL, "train": broken}, WordTokenizer(), IDENTITY)
    assert [path.name for path in tmp_path.iterdir()] in ([], ["c.lock"])


def edit_meta(folder: Path, **values: object) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | values))


DAMAGES = {
    "train.ids is missing or has the wrong checksum": lambda c: (c / "train.ids").write_bytes(bytes(20)),
    "val.npz is missing": lambda c: (c / "val.npz").unlink(),
    "was written in format 99, this lit_ctg reads format 1": lambda c: edit_meta(c, format=99),
    "holds another corpus": lambda c: edit_meta(c, identity={"corpus": "other"}),
    "is damaged": lambda c: (c / "meta.json").write_text("[]"),
    "is not JSON": lambda c: (c / "meta.json").write_text('{"format": 1'),
    "cannot be read": lambda c: (c / "meta.json").unlink(),
}


@pytest.mark.parametrize("word", DAMAGES)
def test_a_damaged_cache_is_one_line(tmp_path: Path, word: str) -> None:
    packed(tmp_path / "c")
    DAMAGES[word](tmp_path / "c")
    with pytest.raises(UserError) as error:
        packed(tmp_path / "c")
    assert word in one_line(error)


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


MAKERS = {
    "plain": WordTokenizer,
    "folded, rare words unknown": lambda: WordTokenizer(lower=True, minimum=40, specials=("<pad>", "<unk>", "the")),
    "no line ends, small": lambda: WordTokenizer(eol=None, size=9),
    "spacy": lambda: SpacyTokenizer(eol="<eos>", whitespace=True),
}  # fmt: skip


def documents(seed: int, n: int) -> list[Document]:
    rng = random.Random(seed)
    words = ["the", "The", "cat", "don't", "\u00c4pfel", "3.5%", "<unk>", "<eos>", "a\u00a0b", "x\u2028y", "(we)"]
    gaps = [" ", " ", "  ", "\n", "\t ", "\r\n", " \n \n"]

    def text() -> str:
        return "".join(rng.choice(gaps) + rng.choice(words) for _ in range(rng.randint(0, 30))) + rng.choice(gaps)

    return [Document(text(), rng.choice("xyz")) for _ in range(n)]


def plain(make: Callable[[], WordTokenizer], texts: Sequence[str]) -> tuple[list[str], list[list[int]]]:
    """Return tokens and ids as a loop over words makes them."""
    tokenizer = make()
    words = [tokenizer._words(tokenizer._bytes(text)) for text in texts]
    counts = Counter(itertools.chain.from_iterable(words))
    kept = [word for word, count in counts.items() if count >= tokenizer.minimum and word not in tokenizer.specials]
    tokens = [*tokenizer.specials, *sorted(kept, key=lambda word: (-counts[word], word))][: tokenizer.size]
    table = {token: number for number, token in enumerate(tokens)}
    return tokens, [[table.get(word, table["<unk>"]) for word in text] for text in words]


@pytest.mark.parametrize("characters", [1, 500, 2**22])
@pytest.mark.parametrize("name", MAKERS)
def test_ids_and_vocabulary_are_those_of_a_loop(tmp_path: Path, monkeypatch, name: str, characters: int) -> None:
    monkeypatch.setattr(packing, "BLOCK_CHARACTERS", characters)
    train, tokenizer = documents(1, 150), MAKERS[name]()
    packed = ensure_packed(tmp_path / "c", {"train": lambda: train}, tokenizer, {})
    tokens, ids = plain(MAKERS[name], [document.text for document in train])
    assert list(tokenizer.tokens) == tokens
    assert [packed.document("train", number).tolist() for number in range(len(train))] == ids
    facts = packed.meta["splits"]["train"]
    assert facts["unknown"] == sum(number == tokenizer.unknown_id for text in ids for number in text) > 0
    assert facts["tokens"] == sum(map(len, ids)) and facts["documents"] == len(train)


def test_text_read_once_gives_the_files_of_text_read_twice(tmp_path: Path) -> None:
    splits = {"val": documents(2, 40), "train": documents(3, 90)}
    readers = {name: lambda found=found: found for name, found in splits.items()}
    once, tokenizer = WordTokenizer(), WordTokenizer()
    tokenizer.train(document.text for document in splits["train"])
    options = {"end_documents": True}
    ensure_packed(tmp_path / "once", readers, once, {}, **options)
    ensure_packed(tmp_path / "twice", readers, tokenizer, {}, **options)
    names = {path.name for path in (tmp_path / "once").iterdir()}
    assert names == {"meta.json", "tokenizer.json", "train.ids", "train.npz", "val.ids", "val.npz"}
    for name in names:
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes(), name


def test_words_are_read_once(tmp_path: Path) -> None:
    reads: list[str] = []

    def reader(name: str, found: Iterable[Document]) -> Callable[[], Iterator[Document]]:
        def read() -> Iterator[Document]:
            reads.append(name)
            yield from found

        return read

    splits = {name: reader(name, documents(seed, 20)) for seed, name in enumerate(("val", "train"))}
    ensure_packed(tmp_path / "c", splits, WordTokenizer(), {})
    # evaluation text twice: first to leave it out of what is trained on
    assert sorted(reads) == ["train", "val", "val"]


def test_sources_are_numbered_in_the_order_of_splits(tmp_path: Path) -> None:
    sources: list[str] = []
    tokenizer, table = WordTokenizer(), ChunkTable()
    writers = {name: SplitWriter(tmp_path, name, tokenizer) for name in ("val", "train")}
    writers["train"].count([Document("a\n", "second"), Document("b\n", "first")], table)
    tokenizer.learn(table)
    assert writers["train"].counted and not writers["val"].counted
    writers["val"].write([Document("a\n", "first")], sources)
    facts = writers["train"].write([], sources)
    assert sources == ["first", "second"] and facts["documents"] == 2
    with np.load(tmp_path / "train.npz") as tables:
        assert tables["source"].tolist() == [1, 0] and tables["source"].dtype == np.uint16
    assert not (tmp_path / "train.chunks").exists()


def test_the_remedy_of_a_full_cache_is_an_override_that_works(tmp_path: Path, run_cli) -> None:
    words, folder = ["data", "prepare", "data=scripts", "size=smoke", "data.sample_size=2000"], tmp_path / "a b, c=d"
    assert run_cli(*words, f"data.cache_root={folder}")[::2] == (0, "")
    assert list((folder / "packed").glob("scripts-*/meta.json"))
