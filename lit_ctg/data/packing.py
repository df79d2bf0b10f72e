"""Token ids of a corpus, computed once and read from memory-mapped files.

A packed corpus is a folder: ``<split>.ids`` (little-endian unsigned integers), ``<split>.npz`` (where documents begin,
their sources, numbers that describe them), ``tokenizer.json`` and, written last, ``meta.json`` with the checksum of
every file. It is made under a temporary name and renamed when complete, under a lock, so that sweep jobs that start
together end up with one good copy. The folder's name contains a key of corpus checksum, tokenizer and options.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from lit_ctg.core.batch import checksum
from lit_ctg.data.chunk import ChunkTable
from lit_ctg.data.document import Document
from lit_ctg.data.hub import SET_CACHE
from lit_ctg.data.source import file_checksum, reading
from lit_ctg.data.tokenizer import BLOCK_CHARACTERS, Tokenizer, WordTokenizer, blocks
from lit_ctg.errors import UserError
from lit_ctg.files import leftovers, locked, replacing

FORMAT = 1
MISSING = -1
Documents = Callable[[], Iterable[Document]]
# called with (split, documents so far)
Progress = Callable[[str, int], None]


def identity_key(identity: Mapping[str, Any]) -> str:
    """Return 16 hex digits that identify the content of a packed corpus."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def digest(document: Document) -> bytes:
    """Return 8 bytes that identify a text; texts that differ only in surrounding white space are one document."""
    return hashlib.blake2b(document.text.strip().encode(), digest_size=8).digest()


class PackedCorpus:
    """A packed corpus on disk; each process maps a file into memory when it first reads it."""

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder, self.meta = folder, meta
        self._ids: dict[str, np.ndarray] = {}
        self._tables: dict[str, dict[str, np.ndarray]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "meta": self.meta, "_ids": {}, "_tables": {}}

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources; a document's source is its index here (the control code)."""
        return tuple(self.meta["sources"])

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.meta["splits"])

    def checksum(self) -> str:
        """Return a checksum of the ids of all splits, the places where documents begin and their sources."""
        tables = {name: digest for name, digest in self.meta["files"].items() if name != "tokenizer.json"}
        return checksum([tables, self.meta["dtype"], self.meta["sources"]])

    def ids(self, split: str) -> np.ndarray:
        """Return the ids of a split, shape (T,), memory-mapped."""
        if split not in self._ids:
            path = self.folder / f"{split}.ids"
            dtype = np.dtype(self.meta["dtype"])
            empty = path.stat().st_size == 0
            self._ids[split] = np.empty(0, dtype) if empty else np.memmap(path, dtype=dtype, mode="r")
        return self._ids[split]

    def table(self, split: str, name: str) -> np.ndarray:
        """Return ``begin`` (N + 1 token positions), ``source`` (N,) or a column of numbers (N,; -1 where missing)."""
        if split not in self._tables:
            with np.load(self.folder / f"{split}.npz") as tables:
                self._tables[split] = dict(tables)
        return self._tables[split][name]

    def document(self, split: str, number: int) -> np.ndarray:
        begin_N = self.table(split, "begin")
        return self.ids(split)[begin_N[number] : begin_N[number + 1]]


def ensure_packed(
    folder: Path, splits: Mapping[str, Documents], tokenizer: Tokenizer, identity: Mapping[str, Any], **options: Any
) -> PackedCorpus:
    """Return the packed corpus in ``folder``, created (by exactly one process) if it is not there.

    Args:
        folder: where it is or will be; its name should carry ``identity_key(identity)``.
        splits: for each split, a function that starts reading its documents; evaluation splits before training splits.
        tokenizer: trained on ``train`` if it has no vocabulary, and restored from the folder if that exists.
        identity: plain values that determine the content.

    Raises:
        UserError: damaged or foreign folder, full disk, no permission, empty corpus; no half-written folder remains.
    """
    # a folder gets its name when it is complete: an existing one needs no lock, which a read-only mount would refuse
    if not folder.exists():
        with locked(folder.with_name(f"{folder.name}.lock"), remedy=SET_CACHE):
            if not folder.exists():
                for stale in leftovers(folder):
                    shutil.rmtree(stale, ignore_errors=True)
                with replacing(folder, remedy=SET_CACHE) as partial:
                    partial.mkdir()
                    meta = pack(partial, splits, tokenizer, **options)
                    _write_json(partial / "meta.json", meta | {"format": FORMAT, "identity": dict(identity)})
    packed = open_packed(folder, identity)
    if not tokenizer.trained:
        with reading(folder / "tokenizer.json"):
            tokenizer.restore(json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")))
    return packed


def open_packed(folder: Path, identity: Mapping[str, Any] | None = None) -> PackedCorpus:
    """Open a packed corpus after checking format, identity, sizes and checksums; a ``UserError`` names the problem."""
    path, remedy = folder / "meta.json", f"delete {folder} and run again"
    with reading(path, remedy):
        meta = json.loads(path.read_text(encoding="utf-8"))
    problem = ""
    if not isinstance(meta, dict) or not {"format", "files", "identity"} <= meta.keys():
        problem = f"{path} is damaged"
    elif meta["format"] != FORMAT:
        problem = f"{folder} was written in format {meta['format']}, this lit_ctg reads format {FORMAT}"
    elif identity is not None and meta["identity"] != json.loads(json.dumps(identity)):
        problem = f"{folder} holds another corpus or other options than its name says"
    else:
        for name, expected in meta["files"].items():
            if not (folder / name).exists() or file_checksum(folder / name) != expected:
                problem = f"{folder / name} is missing or has the wrong checksum"
    if problem:
        raise UserError(f"{problem}: {remedy}")
    return PackedCorpus(folder, meta)


def pack(
    folder: Path,
    splits: Mapping[str, Documents],
    tokenizer: Tokenizer,
    *,
    end_documents: bool = False,
    columns: Sequence[str] = (),
    vocabulary_splits: Sequence[str] = ("train",),
    shared: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the files of a packed corpus (except meta.json) and return its metadata.

    A document that already occurred in an earlier split is left out of the later one and counted: nothing evaluated was
    trained on.

    Args:
        end_documents: put the tokenizer's ``eos`` after every document.
        columns: names of integer entries of ``Document.meta`` to keep.
        vocabulary_splits: the splits a vocabulary is built on.
        shared: splits are sides of the same texts (translation), so equal documents are not a leak.
        progress: called with (current step, documents so far).
    """
    order, first = list(splits), dict[bytes, int]()
    dropped = dict.fromkeys(order, 0)

    def unseen(split: str) -> Iterator[Document]:
        """Yield the documents that are in no earlier split."""
        place, dropped[split] = order.index(split), 0
        for document in splits[split]():
            if first and first.get(digest(document), place) < place:
                dropped[split] += 1
            else:
                yield document

    for place, split in enumerate([] if shared else order[:-1]):
        for document in splits[split]():
            first.setdefault(digest(document), place)
    options: dict[str, Any] = {"end_documents": end_documents, "columns": columns, "progress": progress}
    writers = {split: SplitWriter(folder, split, tokenizer, **options) for split in order}
    if not tokenizer.trained:
        _train(tokenizer, dict.fromkeys(vocabulary_splits), unseen, writers, progress)
    if end_documents and tokenizer.eos_id is None:
        raise UserError("data.document_end=true needs an <eos> token: add it to data.tokenizer.specials")
    specials = {name: getattr(tokenizer, f"{name}_id") for name in ("unknown", "pad", "bos", "eos")}
    facts = {"kind": tokenizer.kind, "size": len(tokenizer), "specials": specials}
    meta: dict[str, Any] = {"splits": {}, "sources": [], "dtype": tokenizer.dtype.str, "tokenizer": facts}
    _write_json(folder / "tokenizer.json", tokenizer.state())
    for split, writer in writers.items():
        counts = writer.write(() if writer.counted else unseen(split), meta["sources"])
        meta["splits"][split] = {**counts, "duplicates": dropped[split]}
    if not meta["splits"].get("train", {"documents": 1})["documents"]:
        raise UserError("the corpus has no document to train on: give more text or smaller evaluation fractions")
    return meta | {"files": {path.name: file_checksum(path) for path in sorted(folder.iterdir())}}


def _train(
    tokenizer: Tokenizer,
    chosen: Iterable[str],
    unseen: Callable[[str], Iterator[Document]],
    writers: Mapping[str, SplitWriter],
    progress: Progress | None,
) -> None:
    """Build the vocabulary on the ``chosen`` splits; their writers keep what was read where the tokenizer allows it."""
    numbers = itertools.count(1)

    def reported(split: str) -> Iterator[Document]:
        for document, number in zip(unseen(split), numbers, strict=False):
            if progress is not None and number % 256 == 0:
                progress("vocabulary", number)
            yield document

    if isinstance(tokenizer, WordTokenizer):
        table = ChunkTable()
        for split in chosen:
            writers[split].count(reported(split), table)
        tokenizer.learn(table)
    else:
        tokenizer.train(document.text for split in chosen for document in reported(split))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    # one entry per line; "indent" would do this in Python, ten times slower
    text = json.dumps(value, ensure_ascii=False, separators=(",\n", ": "))
    path.write_text(text + "\n", encoding="utf-8")


class SplitWriter:
    """Turns the documents of a split into ``<split>.ids`` and ``<split>.npz``.

    Text is read only once where possible: ``count`` writes the numbers of chunks to a scratch file while counting words
    for the vocabulary, and ``write`` then replaces numbers by ids without splitting the text again.

    Args:
        tokenizer: must have its vocabulary when ``write`` is called; the others are those of ``pack``.
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
        # for the scratch file: chunks of each text, texts of each block
        self._sizes, self._blocks = array("q"), array("q")
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
                _write(stream, table.count(chunks).astype(np.uint32))
                self._sizes.frombytes(chunks.sizes_N.astype(np.int64).tobytes())
                self._blocks.append(len(block))

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
        """Record source, length and columns of a document; return its text."""
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
            for texts in self._blocks:
                sizes_N = np.array(self._sizes[begin : begin + texts], dtype=np.int64)
                yield self._table.gather(np.fromfile(stream, dtype=np.uint32, count=int(sizes_N.sum())), sizes_N)
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
