"""Tokenize each distinct piece of a block of text once, and gather the ids of all its occurrences with numpy.

Natural text repeats: a block of a million words holds some ten thousand distinct ones. A *chunk* is a piece of text
whose tokens do not depend on its surroundings; the tokenizer states where chunks may begin (``word_starts``,
``run_starts``). Arrow finds the distinct chunks of a block; only those not seen before reach Python. A ``ChunkTable``
numbers them across blocks, so that text can be read once and turned into chunk numbers before it is known which token
ids the numbers mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

# bytes processed together: small enough for a processor's cache
SLICE = 2**16
# third byte of the Unicode white space that UTF-8 encodes as E2 80 xx
_E280 = np.zeros(256, dtype=bool)
_E280[[*range(0x80, 0x8B), 0xA8, 0xA9, 0xAF]] = True


def _space(data: np.ndarray) -> np.ndarray:
    """Return which bytes are ASCII white space (9 to 13 and 32; smaller bytes wrap around)."""
    return (data == 32) | ((data - np.uint8(9)) < 5)


def word_starts(data: np.ndarray) -> np.ndarray:
    """Return where (bool per byte) chunks begin if a chunk is one word and the ASCII white space after it."""
    space = _space(data)
    begins = np.zeros(len(data), dtype=bool)
    begins[1:] = space[:-1] & ~space[1:]
    return begins


def run_starts(data: np.ndarray) -> np.ndarray:
    """Return where (bool per byte) chunks begin if a chunk is a run of white space and the word after it.

    This is the unit of byte-level BPE: GPT-2's pattern attaches the last space of a run to the word that follows. A run
    that continues with white space beyond ASCII (no-break space, ...) must stay in one piece.
    """
    space = _space(data)
    begins = np.zeros(len(data), dtype=bool)
    begins[1:] = space[1:] & ~space[:-1]
    if data.max(initial=0) < 0x80:
        return begins
    starts = np.flatnonzero(begins)
    last, second, third = data[starts - 1], data[np.maximum(starts - 2, 0)], data[np.maximum(starts - 3, 0)]
    wide = (second == 0xC2) & ((last == 0x85) | (last == 0xA0))
    wide |= (third == 0xE2) & (second == 0x80) & _E280[last]
    wide |= (third == 0xE2) & (second == 0x81) & (last == 0x9F)
    wide |= (third == 0xE3) & (second == 0x80) & (last == 0x80)
    wide |= (third == 0xE1) & (second == 0x9A) & (last == 0x80)
    begins[starts[wide]] = False
    return begins


class Chunks:
    """The chunks of some texts: the distinct ones and, for every occurrence, which one it is.

    Attributes:
        distinct: the distinct chunks, an Arrow array of bytes (UTF-8).
        index_C: for each of C chunks in order, its index in ``distinct``.
        sizes_N: for each of N texts, the number of its chunks.
    """

    def __init__(self, texts: Sequence[bytes], starts_of: Callable[[np.ndarray], np.ndarray]) -> None:
        import pyarrow

        # one space more than the texts have: it marks the end of the last chunk
        joined = b"".join([*texts, b" "])
        lengths_N = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        begins_N = np.cumsum(lengths_N) - lengths_N
        data = np.frombuffer(joined, dtype=np.uint8)
        begins = np.empty(len(data), dtype=bool)
        for begin in range(0, len(data), SLICE):
            # whether a chunk begins at a byte depends on it and the three before
            before = max(begin - 3, 0)
            begins[begin : begin + SLICE] = starts_of(data[before : begin + SLICE])[begin - before :]
        # every text begins a chunk
        begins[begins_N[lengths_N > 0]] = True
        begins[-1] = True
        # int64 as Arrow wants offsets, one more than there are chunks
        offsets = np.flatnonzero(begins)
        buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(joined)]
        array = pyarrow.LargeBinaryArray.from_buffers(pyarrow.large_binary(), len(offsets) - 1, buffers)
        encoded = array.dictionary_encode()
        self.distinct = encoded.dictionary
        self.index_C = encoded.indices.to_numpy()
        self.sizes_N = np.diff(np.searchsorted(offsets, np.append(begins_N, len(data) - 1)))


class ChunkTable:
    """Numbers chunks in order of first occurrence; holds their counts and, once filled in, their token ids.

    Attributes:
        counts_K: occurrences of the K chunks that were counted.
    """

    def __init__(self, dtype: np.dtype | str = "<u4") -> None:
        self._numbers: dict[bytes, int] = {}
        self.counts_K = np.zeros(0, dtype=np.int64)
        self._ids = np.zeros(0, dtype=dtype)
        self._lengths_K = self._begins_K = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, chunks: Chunks) -> np.ndarray:
        """Return the number of every chunk in order, shape (C,), numbering new chunks; uint16 while that is enough."""
        return self._known(chunks)[chunks.index_C]

    def count(self, chunks: Chunks) -> np.ndarray:
        """Like ``numbers``, and also add up how often each occurs."""
        numbers_D = self._known(chunks)
        counts_K = np.zeros(len(self), dtype=np.int64)
        counts_K[numbers_D] = np.bincount(chunks.index_C, minlength=len(numbers_D))
        counts_K[: len(self.counts_K)] += self.counts_K
        self.counts_K = counts_K
        return numbers_D[chunks.index_C]

    def _known(self, chunks: Chunks) -> np.ndarray:
        numbers, distinct = self._numbers, chunks.distinct.to_pylist()
        for chunk in distinct:
            numbers.setdefault(chunk, len(numbers))
        dtype = np.uint16 if len(numbers) <= 2**16 else np.uint32
        return np.fromiter(map(numbers.__getitem__, distinct), dtype=dtype, count=len(distinct))

    def new(self) -> list[bytes]:
        """Return the chunks whose token ids are not known yet, in order of their numbers."""
        return list(itertools.islice(self._numbers, len(self._lengths_K), None))

    def fill(self, ids: np.ndarray, lengths_D: np.ndarray) -> None:
        """Take the token ids of the chunks that ``new`` returned: all concatenated, and how many each has."""
        self._ids = np.concatenate([self._ids, ids]) if len(self._ids) else ids
        self._lengths_K = np.concatenate([self._lengths_K, lengths_D])
        self._begins_K = np.cumsum(self._lengths_K) - self._lengths_K

    def gather(self, numbers_C: np.ndarray, sizes_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Replace chunks by their token ids.

        Args:
            numbers_C: the numbers of the chunks of some texts.
            sizes_N: how many of them each text has.

        Returns:
            ids_T of all texts concatenated, and counts_N, the number of tokens of each text.
        """
        if (self._lengths_K == 1).all():
            return self._ids[numbers_C], sizes_N
        lengths_C = self._lengths_K[numbers_C]
        ends_C = np.cumsum(lengths_C)
        total = int(ends_C[-1]) if len(ends_C) else 0
        shift_C = self._begins_K[numbers_C] - (ends_C - lengths_C)
        ids_T = self._ids[np.repeat(shift_C, lengths_C) + np.arange(total)]
        return ids_T, np.diff(np.append(0, ends_C)[np.append(0, np.cumsum(sizes_N))])
