"""Writing a split: read once or twice, in one block or many: ids, vocabulary and counts are those of plain loops."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from lit_ctg.data import chunk, packing
from lit_ctg.data.chunk import ChunkTable
from lit_ctg.data.document import Document
from lit_ctg.data.packing import SplitWriter, ensure_packed
from lit_ctg.data.tokenizer import SpacyTokenizer, WordTokenizer

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
    monkeypatch.setattr(chunk, "FIRST", 10)
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
