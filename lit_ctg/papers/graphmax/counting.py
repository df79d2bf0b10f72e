"""Bigram counts of a token stream of any size; memory grows with the number of distinct bigrams only (sec. 2.4).

Shape suffixes: V vocabulary, P bigrams of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import scipy.sparse as sp

from lit_ctg.errors import UserError


def count_bigrams(sequences: Iterable[Sequence[int]], vocab_size: int, block: int = 2_000_000) -> sp.csr_array:
    """Return ``count(i, j)``, how often token j follows token i inside a sequence, as a ``[V, V]`` float64 CSR matrix.

    Args:
        sequences: token ids of one text each (lists, arrays or tensors); bigrams never span two of them.
        vocab_size: V, the vocabulary of the language model.
        block: bigrams held before they are added to the matrix.

    Raises:
        UserError: an id outside the vocabulary, or no bigram in the whole corpus.
    """
    total = sp.csr_array((vocab_size, vocab_size), dtype=np.float64)
    for first_P, second_P in _blocks(_bigrams(sequences, vocab_size), block):
        counts = sp.coo_array((np.ones(len(first_P)), (first_P, second_P)), shape=total.shape)
        total = total + counts.tocsr()
    if total.nnz == 0:
        raise UserError("the corpus of the scene graph has no two tokens in a row: give it at least one bigram")
    total.sort_indices()
    return total


def _bigrams(sequences: Iterable[Sequence[int]], vocab_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number, sequence in enumerate(sequences):
        ids = np.asarray(sequence, dtype=np.int64).reshape(-1)
        if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
            wrong = ids[(ids < 0) | (ids >= vocab_size)][0]
            raise UserError(
                f"sequence {number} of the scene corpus holds token {wrong}; the vocabulary has {vocab_size}"
            )
        yield ids[:-1], ids[1:]


def _blocks(pairs: Iterator[tuple[np.ndarray, np.ndarray]], block: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    held: list[tuple[np.ndarray, np.ndarray]] = []
    size = 0
    for pair in pairs:
        held.append(pair)
        size += len(pair[0])
        if size >= block:
            yield tuple(np.concatenate(side) for side in zip(*held, strict=True))
            held, size = [], 0
    if size:
        yield tuple(np.concatenate(side) for side in zip(*held, strict=True))
