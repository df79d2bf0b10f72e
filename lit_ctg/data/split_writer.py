"""Writes one split of a packed corpus, a block of documents at a time, so that memory does not grow with the corpus."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from lit_ctg.data.chunk import ChunkTable
from lit_ctg.data.document import Document
from lit_ctg.data.tokenizer import BLOCK_CHARACTERS, Tokenizer, WordTokenizer, blocks

MISSING = -1
Progress = Callable[[str, int], None]


class SplitWriter:
    """Turns the documents of a split into ``<split>.ids`` and ``<split>.npz``.

    Text is read only once where possible: ``count`` writes the numbers of chunks to a scratch file while counting words
    for the vocabulary, and ``write`` then replaces numbers by ids without splitting the text again.

    Args:
        folder: where the files go.
        split: its name.
        tokenizer: must have its vocabulary when ``write`` is called.
        end_documents: put the tokenizer's ``eos`` after every document.
        columns: names of integer entries of ``Document.meta`` to keep.
        progress: called with (split, documents so far).
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        tokenizer: Tokenizer,
        *,
        end_documents: bool = False,
        columns: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        self.folder, self.split, self.tokenizer, self.end_documents = folder, split, tokenizer, end_documents
        self.progress = progress
        self._scratch = folder / f"{split}.chunks"
        self._table: ChunkTable | None = None
        # for the scratch file: chunks of each text; texts and type of each block
        self._sizes = array("q")
        self._blocks: list[tuple[int, np.dtype]] = []
        self._begin, self._source, self._unknown, self._characters = array("q", [0]), array("H"), 0, 0
        self._sources: dict[str, int] = {}
        self._columns = {name: array("q") for name in columns}

    @property
    def counted(self) -> bool:
        """Whether ``count`` has already read the documents."""
        return self._table is not None

    def count(self, documents: Iterable[Document], table: ChunkTable) -> None:
        """Read the documents, count their chunks in ``table`` and remember their order for ``write``."""
        assert isinstance(self.tokenizer, WordTokenizer)
        self._table = table
        with open(self._scratch, "wb") as stream:
            for block in self._texts(documents):
                chunks = self.tokenizer.chunks(block)
                numbers_C = table.count(chunks)
                _write(stream, numbers_C)
                self._sizes.frombytes(chunks.sizes_N.astype(np.int64).tobytes())
                self._blocks.append((len(block), numbers_C.dtype))

    def write(self, documents: Iterable[Document], sources: list[str]) -> dict[str, int]:
        """Write the split.

        Args:
            documents: not read if ``count`` has read them.
            sources: names of the sources of all splits so far; new ones are appended.

        Returns:
            how many documents, tokens, characters and unknown tokens there are.
        """
        with open(self.folder / f"{self.split}.ids", "wb") as stream:
            encoded = map(self.tokenizer.encode_many, self._texts(documents)) if not self.counted else self._counted()
            for ids_T, counts_N in encoded:
                self._append(ids_T, counts_N, stream)
        self._scratch.unlink(missing_ok=True)
        sources += [source for source in self._sources if source not in sources]
        codes = np.array([sources.index(source) for source in self._sources], dtype=np.uint16)
        tables: dict[str, Any] = {name: np.frombuffer(column, dtype=np.int64) for name, column in self._columns.items()}
        begin, source = np.frombuffer(self._begin, dtype=np.int64), codes[np.frombuffer(self._source, dtype=np.uint16)]
        with open(self.folder / f"{self.split}.npz", "wb") as stream:
            np.savez(stream, begin=begin, source=source, **tables)
        return {"documents": len(self._source), "tokens": self._begin[-1], "characters": self._characters,
                "unknown": self._unknown}  # fmt: skip

    def _texts(self, documents: Iterable[Document]) -> Iterator[list[str]]:
        return blocks(map(self._describe, documents), BLOCK_CHARACTERS)

    def _describe(self, document: Document) -> str:
        """Record what is kept of a document besides its text; return the text."""
        self._source.append(self._sources.setdefault(document.source, len(self._sources)))
        self._characters += len(document.text)
        for name, column in self._columns.items():
            value = document.meta.get(name)
            column.append(MISSING if value is None else int(value))
        return document.text

    def _counted(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield ids_T and counts_N of each block that ``count`` has read."""
        begin = 0
        assert self._table is not None, "count comes first"
        with open(self._scratch, "rb") as stream:
            for texts, dtype in self._blocks:
                sizes_N = np.array(self._sizes[begin : begin + texts], dtype=np.int64)
                yield self._table.gather(np.fromfile(stream, dtype=dtype, count=int(sizes_N.sum())), sizes_N)
                begin += texts

    def _append(self, ids_T: np.ndarray, counts_N: np.ndarray, stream: IO[bytes]) -> None:
        if self.tokenizer.unknown_id is not None:
            self._unknown += int(np.count_nonzero(ids_T == self.tokenizer.unknown_id))
        if self.end_documents:
            assert self.tokenizer.eos_id is not None, "checked where end_documents is set"
            ids_T = np.insert(ids_T, np.cumsum(counts_N), self.tokenizer.eos_id)
            counts_N = counts_N + 1
        _write(stream, ids_T)
        self._begin.extend((np.cumsum(counts_N) + self._begin[-1]).tolist())
        if self.progress is not None:
            self.progress(self.split, len(self._begin) - 1)


def _write(stream: IO[bytes], values: np.ndarray) -> None:
    stream.write(np.ascontiguousarray(values).data)
