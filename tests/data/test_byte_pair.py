"""Byte-level BPE against a slow reference written from the algorithm, on tables trained here and on GPT-2's own."""

from __future__ import annotations

import itertools
import json
import lzma
import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest

from lit_ctg.data.byte_pair import GPT2Tokenizer, TrainedBPETokenizer
from lit_ctg.data.source import read_lines
from lit_ctg.errors import UserError

TEXT = "The lighthouse wasn't lit in 1907; it's said they'll light it.\n\n Größe zählt\u00a0 nicht, 東京 is far.\n" * 3
LETTERS = ["the", "light", " ", "  ", "\n", "\t", "\u00a0", "\u2009", "\u3000", "'s", "'ll", "ö", "東", "1907", "!?",
           "\x1c", "a"]  # fmt: skip


class SlowBPE:
    """GPT-2's algorithm step by step: split by the pattern, bytes to letters, merge the best pair while any can be."""

    def __init__(self, ids: dict[str, int], merges: list[tuple[str, str]]) -> None:
        import regex

        self.ids, self.rank = ids, {pair: number for number, pair in enumerate(merges)}
        self.pattern = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in shown]
        self.letter = {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}

    def word(self, word: str) -> list[int]:
        parts = [self.letter[byte] for byte in word.encode()]
        while True:
            ranks = [self.rank.get(pair, 10**9) for pair in itertools.pairwise(parts)]
            if not ranks or min(ranks) == 10**9:
                return [self.ids[part] for part in parts]
            at = ranks.index(min(ranks))
            best = parts[at], parts[at + 1]
            merged, at = [], 0
            while at < len(parts):
                if tuple(parts[at : at + 2]) == best:
                    merged.append("".join(best))
                    at += 2
                else:
                    merged.append(parts[at])
                    at += 1
            parts = merged

    def encode(self, text: str) -> list[int]:
        return [number for word in self.pattern.findall(text) for number in self.word(word)]


@pytest.fixture(scope="module")
def trained() -> TrainedBPETokenizer:
    tokenizer = TrainedBPETokenizer(size=400)
    tokenizer.train([TEXT])
    return tokenizer


def write_tables(tokenizer: TrainedBPETokenizer, folder: Path, packed: bool = False) -> None:
    model = json.loads(tokenizer.state()["engine"])["model"]
    merges = "#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in model["merges"])
    for name, data in (("encoder.json", json.dumps(model["vocab"])), ("vocab.bpe", merges)):
        if packed:
            (folder / f"{name}.xz").write_bytes(lzma.compress(data.encode()))
        else:
            (folder / name).write_text(data, encoding="utf-8")


@pytest.mark.parametrize("packed", [False, True])
def test_tables_from_a_folder_equal_the_slow_reference(trained, tmp_path: Path, packed: bool) -> None:
    write_tables(trained, tmp_path, packed)
    tokenizer = GPT2Tokenizer(root=tmp_path)
    tokenizer.train([])
    model = json.loads(trained.state()["engine"])["model"]
    slow = SlowBPE(model["vocab"], [tuple(pair) for pair in model["merges"]])
    rng = random.Random(0)
    texts = [TEXT, "", *("".join(rng.choices(LETTERS, k=rng.randint(1, 12))) for _ in range(400))]
    ids_T, counts_N = tokenizer.encode_many(texts)
    for text, part in zip(texts, np.split(ids_T, np.cumsum(counts_N)[:-1]), strict=True):
        assert part.tolist() == slow.encode(text) == tokenizer.encode(text), repr(text)
        assert tokenizer.decode(part) == text


def test_a_text_that_quotes_the_end_does_not_end() -> None:
    tokenizer, text = TrainedBPETokenizer(size=300), "so <|endoftext|> is\nits name <|endoftext|>"
    tokenizer.train([text] * 3)
    again = pickle.loads(pickle.dumps(tokenizer))
    again.restore(tokenizer.state())
    for each in (tokenizer, again):
        ids_T, _ = each.encode_many([text])
        assert each.eos_id is not None and each.eos_id not in each.encode(text) and each.encode(text) == ids_T.tolist()
        assert each.decode(ids_T) == text


def test_training_is_deterministic_and_restores(trained) -> None:
    again = TrainedBPETokenizer(size=400)
    again.train([TEXT])
    assert again.state() == trained.state() and len(again) <= 400
    other = TrainedBPETokenizer(size=400)
    other.restore(json.loads(json.dumps(trained.state())))
    assert other.encode(TEXT) == trained.encode(TEXT) and other.eos_id == trained.eos_id == other.id("<|endoftext|>")
    assert len(trained.encode(TEXT)) < len(TEXT.encode()) / 3


def test_bad_tables(trained, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs encoder\.json and vocab\.bpe"):
        GPT2Tokenizer(root=tmp_path).train([])
    write_tables(trained, tmp_path)
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\nQ Z\n")
    with pytest.raises(UserError, match="does not belong to"):
        GPT2Tokenizer(root=tmp_path).train([])
    (tmp_path / "encoder.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        GPT2Tokenizer(root=tmp_path).train([])


def test_without_tables_or_network_the_message_names_the_ways_out(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"HF_HUB_OFFLINE=1.*data\.tokenizer\.root=.*data/tokenizer=bpe") as error:
        GPT2Tokenizer(revision="0" * 40, cache_root=tmp_path).train([])
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.skipif("LIT_CTG_DATA" not in os.environ, reason="LIT_CTG_DATA names no folder of real data")
def test_gpt2_on_a_thousand_lines_of_wikitext() -> None:
    root = Path(os.environ["LIT_CTG_DATA"])
    tokenizer = GPT2Tokenizer(root=root / "gpt2_bpe")
    tokenizer.train([])
    assert len(tokenizer) == 50_257
    ids = json.loads("\n".join(read_lines(root / "gpt2_bpe" / "encoder.json.xz")))
    merges = [tuple(line.split()) for line in list(read_lines(root / "gpt2_bpe" / "vocab.bpe.xz"))[1:] if line]
    slow = SlowBPE(ids, merges)
    lines = [line + "\n" for line, _ in zip(read_lines(root / "wikitext2" / "test.txt.xz"), range(1000), strict=False)]
    ids_T, counts_N = tokenizer.encode_many(lines)
    for line, part in zip(lines, np.split(ids_T, np.cumsum(counts_N)[:-1]), strict=True):
        assert part.tolist() == slow.encode(line)
        assert tokenizer.decode(part) == line
