"""Chunks: they cut texts where the tokenizer says, never across texts, and put the ids of all back in order."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from lit_ctg.data import chunk
from lit_ctg.data.chunk import Chunks, ChunkTable, run_starts, word_starts

WORDS = ["a", "bb", "ccc", "Äpfel", "12,5", "...", "\xa0", "\u2009x"]


def texts(seed: int, n: int) -> list[str]:
    rng = random.Random(seed)
    gaps = [" ", "  ", "\n", "\t", " \n ", "\r\n"]
    return ["".join(rng.choice(gaps) + rng.choice(WORDS) for _ in range(rng.randint(0, 9))) for _ in range(n)]


@pytest.mark.parametrize(("starts", "pattern"), [(word_starts, rb"\S+\s*|\s+"), (run_starts, rb"\s*\S+|\s+")])
def test_cuts_are_those_of_the_pattern(starts, pattern: bytes) -> None:
    cases = [text.replace("\u00a0", "_").replace("\u2009", "_").encode() for text in texts(0, 300)]
    chunks = Chunks(cases, starts)
    got = [chunks.distinct[index].as_py() for index in chunks.index_C]
    # bytes patterns know ASCII white space only, as the cuts do
    assert got == [piece for case in cases for piece in re.findall(pattern, case)]


def test_ids_come_back_in_order_and_by_text() -> None:
    cases = ["x yy x", "", "zzz", "  ", "yy\n"]
    chunks = Chunks([case.encode() for case in cases], word_starts)
    table = ChunkTable()
    numbers_C = table.count(chunks)
    ids = {"x": [1], "yy": [2, 3], "zzz": [], "": []}
    per_chunk = [ids[piece.decode().strip()] for piece in table.new()]
    flat = [number for piece in per_chunk for number in piece]
    table.fill(np.array(flat, dtype="<u4"), np.array(list(map(len, per_chunk))))
    ids_T, counts_N = table.gather(numbers_C, chunks.sizes_N)
    assert ids_T.tolist() == [1, 2, 3, 1, 2, 3] and counts_N.tolist() == [4, 0, 0, 0, 2]


def test_numbers_go_on_and_counts_add_up_across_blocks() -> None:
    table = ChunkTable()
    first = table.count(Chunks([b"a b a "], word_starts))
    assert table.new() == [b"a ", b"b "] and first.tolist() == [0, 1, 0]
    table.fill(np.array([7, 8], dtype="<u2"), np.array([1, 1]))
    second = Chunks([b"c b ", b"b d "], word_starts)
    numbers_C = table.count(second)
    assert table.new() == [b"c ", b"d "] and table.counts_K.tolist() == [2, 3, 1, 1]
    table.fill(np.array([9, 9, 6], dtype="<u2"), np.array([2, 1]))
    ids_T, counts_N = table.gather(numbers_C, second.sizes_N)
    assert ids_T.tolist() == [9, 9, 8, 8, 6] and counts_N.tolist() == [3, 2] and ids_T.dtype == np.dtype("<u2")
    # looking up counts nothing
    assert table.numbers(Chunks([b"a d "], word_starts)).tolist() == [0, 3]
    assert table.counts_K.tolist() == [2, 3, 1, 1]


def test_numbers_beyond_two_bytes() -> None:
    table = ChunkTable()
    text = b" ".join(b"%d" % number for number in range(2**16)) + b" "
    assert table.numbers(Chunks([text], word_starts)).dtype == np.uint16
    numbers_C = table.numbers(Chunks([b"0 x 65535 "], word_starts))
    assert numbers_C.tolist() == [0, 65536, 65535] and numbers_C.dtype == np.uint32


@pytest.mark.parametrize("starts", [word_starts, run_starts])
def test_slices_do_not_show(monkeypatch, starts) -> None:
    cases = ["".join(texts(1, 40)).encode(), b"", " a\u3000 b\u2009 c\u00a0 d".encode(), b"x  "]
    whole = Chunks(cases, starts)
    for size in (1, 2, 3, 7):
        monkeypatch.setattr(chunk, "SLICE", size)
        parts = Chunks(cases, starts)
        assert parts.distinct.equals(whole.distinct) and parts.index_C.tolist() == whole.index_C.tolist()
        assert parts.sizes_N.tolist() == whole.sizes_N.tolist()


@pytest.mark.parametrize("starts", [word_starts, run_starts])
def test_texts_of_one_byte_and_control_characters(starts) -> None:
    assert Chunks([b"a", b"b", b"", b" ", b"c"], starts).sizes_N.tolist() == [1, 1, 0, 1, 1]
    # neighbours of the white space 9 to 13 and 32
    assert len(Chunks([b"a\x08b\x0ec\x1fd\x21e"], starts).index_C) == 1
    assert len(Chunks([b"a\x09b\x0ac\x0bd\x0ce\x0df g"], starts).index_C) == 7


def test_nothing_at_all() -> None:
    for cases in ([], [b""], [b"", b""]):
        chunks, table = Chunks(cases, run_starts), ChunkTable("<u2")
        ids_T, counts_N = table.gather(table.count(chunks), chunks.sizes_N)
        assert len(ids_T) == 0 and ids_T.dtype == np.dtype("<u2") and counts_N.tolist() == [0] * len(cases)


def test_white_space_beyond_ascii_keeps_a_run_together() -> None:
    for wide in ("\u0085", "\u00a0", "\u1680", "\u2000", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"):
        chunks = Chunks([f"a{wide} b c".encode()], run_starts)
        assert [chunks.distinct[i].as_py().decode() for i in chunks.index_C] == [f"a{wide} b", " c"], repr(wide)
    for letter in ("\u00e0", "\u2030", "\u0440"):
        assert len(Chunks([f"a{letter} b".encode()], run_starts).distinct) == 2
