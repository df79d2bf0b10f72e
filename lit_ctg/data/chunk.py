"""Tokenize each distinct piece of a block of text once, and gather the ids of all its occurrences with numpy.

Natural text repeats: a block of a million words holds some ten thousand distinct ones. A *chunk* is a piece of text
whose tokens do not depend on its surroundings; where chunks may begin is what a tokenizer states (``word_starts``,
``run_starts``). Arrow finds the distinct chunks of a block; only those that were never seen reach Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

# third byte of the white space of Unicode that UTF-8 writes as E2 80 xx
_E280 = np.zeros(256, dtype=bool)
_E280[[*range(0x80, 0x8B), 0xA8, 0xA9, 0xAF]] = True


def _space(data: np.ndarray) -> np.ndarray:
    """Return which bytes are ASCII white space (9 to 13 and 32; smaller bytes wrap around)."""
    return (data == 32) | ((data - np.uint8(9)) < 5)


def word_starts(data: np.ndarray) -> np.ndarray:
    """Return where (bool per byte) chunks begin when a chunk is one word and the ASCII white space behind it."""
    space = _space(data)
    begins = np.zeros(len(data), dtype=bool)
    begins[1:] = space[:-1] & ~space[1:]
    return begins


def run_starts(data: np.ndarray) -> np.ndarray:
    """Return where (bool per byte) chunks begin when a chunk is a run of white space and the word behind it.

    This is the unit of byte-level BPE: GPT-2's pattern gives the last blank of a run to the word that follows. A run
    that goes on in white space beyond ASCII (no-break space, ...) must stay in one piece.
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
    """The chunks of some texts: the distinct ones, and for every occurrence which one it is.

    Attributes:
        distinct: the distinct chunks, bytes of UTF-8.
        index_C: for each of C chunks in order its place in ``distinct``.
        first_N: for each of N texts the number of its first chunk.
    """

    def __init__(self, texts: Sequence[bytes], starts_of: Callable[[np.ndarray], np.ndarray]) -> None:
        import pyarrow

        joined = b"".join(texts)
        lengths_N = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        begins_N = np.cumsum(lengths_N) - lengths_N
        data = np.frombuffer(joined, dtype=np.uint8)
        begins = starts_of(data)
        # a text begins a chunk of its own whatever stands before it
        begins[begins_N[lengths_N > 0]] = True
        starts_C = np.flatnonzero(begins)
        offsets = np.concatenate([starts_C, [len(data)]]).astype(np.int64)
        array = pyarrow.LargeBinaryArray.from_buffers(
            pyarrow.large_binary(), len(starts_C), [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(joined)]
        )
        encoded = array.dictionary_encode()
        self.distinct: list[bytes] = encoded.dictionary.to_pylist()
        self.index_C = encoded.indices.to_numpy()
        self.first_N = np.searchsorted(starts_C, begins_N)

    def counts(self) -> Iterator[tuple[bytes, int]]:
        """Yield each distinct chunk with how often it occurs."""
        return zip(self.distinct, np.bincount(self.index_C, minlength=len(self.distinct)).tolist(), strict=True)

    def gather(self, packed: Sequence[bytes], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """Replace chunks by their token ids.

        Args:
            packed: for each distinct chunk its ids as bytes of ``dtype``.
            dtype: integer type of the ids.

        Returns:
            ids_T of all texts one behind the other, and counts_N, the tokens of each text.
        """
        flat = np.frombuffer(b"".join(packed), dtype=dtype)
        lengths = np.fromiter(map(len, packed), dtype=np.int64, count=len(packed)) // dtype.itemsize
        lengths_C = lengths[self.index_C]
        ends_C = np.cumsum(lengths_C)
        total = int(ends_C[-1]) if len(ends_C) else 0
        if (lengths == 1).all():
            ids_T = flat[self.index_C]
        else:
            shift_C = (np.cumsum(lengths) - lengths)[self.index_C] - (ends_C - lengths_C)
            ids_T = flat[np.repeat(shift_C, lengths_C) + np.arange(total)]
        before_C = np.concatenate([[0], ends_C])
        edges = np.concatenate([before_C[self.first_N], [total]])
        return ids_T, np.diff(edges)
