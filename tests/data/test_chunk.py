"""Chunks: they cut texts where the tokenizer says, never across texts, and put the ids of all back in order."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from lit_ctg.data.chunk import Chunks, run_starts, word_starts

WORDS = ["a", "bb", "ccc", "Äpfel", "12,5", "...", "\xa0", "\u2009x"]


def texts(seed: int, n: int) -> list[str]:
    rng = random.Random(seed)
    gaps = [" ", "  ", "\n", "\t", " \n ", "\r\n"]
    return ["".join(rng.choice(gaps) + rng.choice(WORDS) for _ in range(rng.randint(0, 9))) for _ in range(n)]


@pytest.mark.parametrize(("starts", "pattern"), [(word_starts, rb"\S+\s*|\s+"), (run_starts, rb"\s*\S+|\s+")])
def test_cuts_are_those_of_the_pattern(starts, pattern: bytes) -> None:
    cases = [text.replace("\u00a0", "_").replace("\u2009", "_").encode() for text in texts(0, 300)]
    chunks = Chunks(cases, starts)
    got = [chunks.distinct[index] for index in chunks.index_C]
    # bytes patterns know ASCII white space only, as the cuts do
    assert got == [piece for case in cases for piece in re.findall(pattern, case)]


def test_ids_come_back_in_order_and_by_text() -> None:
    cases = ["x yy x", "", "zzz", "  ", "yy\n"]
    chunks = Chunks([case.encode() for case in cases], word_starts)
    table = {"x": [1], "yy": [2, 3], "zzz": [], "": []}
    packed = [np.array(table[chunk.decode().strip()], dtype="<u4").tobytes() for chunk in chunks.distinct]
    ids_T, counts_N = chunks.gather(packed, np.dtype("<u4"))
    assert ids_T.tolist() == [1, 2, 3, 1, 2, 3] and counts_N.tolist() == [4, 0, 0, 0, 2]
    assert dict(chunks.counts())[b"x "] == 1


def test_nothing_at_all() -> None:
    for cases in ([], [b""], [b"", b""]):
        chunks = Chunks(cases, run_starts)
        ids_T, counts_N = chunks.gather([], np.dtype("<u2"))
        assert len(ids_T) == 0 and counts_N.tolist() == [0] * len(cases)


def test_white_space_beyond_ascii_keeps_a_run_together() -> None:
    for wide in ("\u0085", "\u00a0", "\u1680", "\u2000", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"):
        chunks = Chunks([f"a{wide} b c".encode()], run_starts)
        assert [chunks.distinct[i].decode() for i in chunks.index_C] == [f"a{wide} b", " c"], repr(wide)
    for letter in ("\u00e0", "\u2030", "\u0440"):
        assert len(Chunks([f"a{letter} b".encode()], run_starts).distinct) == 2
