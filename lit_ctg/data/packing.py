"""Token ids of a corpus, made once and read from memory-mapped files.

A packed corpus is a folder: ``<split>.ids`` (little-endian unsigned integers), ``<split>.npz`` (where documents begin,
their sources, numbers that describe them), ``tokenizer.json`` and, written last, ``meta.json`` with the checksum of
every file. It is made under a temporary name and renamed when complete, under a lock, so that sweep jobs that start
together end with one good copy. The folder's name carries a key of corpus checksum, tokenizer and options.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from lit_ctg.data.document import Document
from lit_ctg.data.lock import exclusive
from lit_ctg.data.source import file_checksum, reading
from lit_ctg.data.tokenizer import BLOCK_CHARACTERS, Tokenizer
from lit_ctg.errors import UserError

FORMAT = 1
MISSING = -1
Documents = Callable[[], Iterable[Document]]
Progress = Callable[[str, int], None]


def identity_key(identity: Mapping[str, Any]) -> str:
    """Return 16 hex digits that stand for what a packed corpus is made of."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def digest(document: Document) -> bytes:
    """Return 8 bytes that stand for a text: equal but for white space around them, they are one document."""
    return hashlib.blake2b(document.text.strip().encode(), digest_size=8).digest()


class PackedCorpus:
    """A packed corpus on disk; maps its files into memory when they are first read, in each process anew."""

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
        """Return the ids of one document."""
        begin_N = self.table(split, "begin")
        return self.ids(split)[begin_N[number] : begin_N[number + 1]]


def ensure_packed(
    folder: Path,
    splits: Mapping[str, Documents],
    tokenizer: Tokenizer,
    identity: Mapping[str, Any],
    **options: Any,
) -> PackedCorpus:
    """Return the packed corpus in ``folder``, made now (by exactly one process) if it is not there.

    Args:
        folder: where it is or will be; its name should carry ``identity_key(identity)``.
        splits: for each split a function that starts reading its documents; evaluation splits before those trained on.
        tokenizer: trained on ``train`` when it has no vocabulary, and restored from the folder when that exists.
        identity: plain values that determine the content.
        options: see ``pack``.

    Raises:
        UserError: damaged or foreign folder, full disk, no permission, empty corpus; no half-written folder is left.
    """
    with exclusive(folder):
        if not folder.exists():
            for stale in folder.parent.glob(f"{folder.name}.*.tmp"):
                shutil.rmtree(stale, ignore_errors=True)
            _pack_into(folder, splits, tokenizer, identity, options)
        packed = open_packed(folder, identity)
    if not tokenizer.trained:
        with reading(folder / "tokenizer.json"):
            tokenizer.restore(json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")))
    return packed


def _pack_into(
    folder: Path,
    splits: Mapping[str, Documents],
    tokenizer: Tokenizer,
    identity: Mapping[str, Any],
    options: dict[str, Any],
) -> None:
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    try:
        partial.mkdir(parents=True)
        meta = pack(partial, splits, tokenizer, **options)
        meta |= {"format": FORMAT, "identity": dict(identity)}
        _write_json(partial / "meta.json", meta)
        os.replace(partial, folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror or error}): free the disk or set data.cache_root "
                        "to another folder") from error  # fmt: skip
    finally:
        # after success there is nothing under this name; after any failure nothing may look like a corpus
        shutil.rmtree(partial, ignore_errors=True)


def open_packed(folder: Path, identity: Mapping[str, Any] | None = None) -> PackedCorpus:
    """Open a packed corpus after checking format, identity, sizes and checksums; ``UserError`` says what is wrong."""
    path = folder / "meta.json"
    remedy = f"delete {folder} and run again"
    with reading(path):
        try:
            meta = json.loads(path.read_text(encoding="utf-8"))
            version, files = meta["format"], meta["files"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged: {remedy}") from error
    if version != FORMAT:
        raise UserError(f"{folder} was written in format {version}, this lit_ctg reads format {FORMAT}: {remedy}")
    if identity is not None and meta["identity"] != json.loads(json.dumps(identity)):
        raise UserError(f"{folder} holds another corpus or other options than its name says: {remedy}")
    for name, expected in files.items():
        if not (folder / name).exists() or file_checksum(folder / name) != expected:
            raise UserError(f"{folder / name} is missing or has the wrong checksum: {remedy}")
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
    """Write the files of a packed corpus (all but meta.json) and return its metadata.

    Args:
        end_documents: put the tokenizer's ``eos`` behind every document.
        columns: names of integer entries of ``Document.meta`` to keep.
        vocabulary_splits: the splits a vocabulary is built on.
        shared: splits are sides of the same texts (translation), so equal documents are no leak.
        progress: called with (what is done, documents of it so far).

    A document that already occurred in an earlier split is left out of the later one and counted: nothing that is
    evaluated was trained on.
    """
    order = list(splits)
    held: dict[str, set[bytes]] = {}
    for split in [] if shared else order[:-1]:
        held[split] = {digest(document) for document in _unseen(splits[split](), held)[0]}
    if not tokenizer.trained:
        tokenizer.train(_texts(splits, vocabulary_splits, order, held, progress))
    if end_documents and tokenizer.eos_id is None:
        raise UserError("document_end=true needs an <eos> token: add it to data.tokenizer.specials")
    meta: dict[str, Any] = {"splits": {}, "sources": [], "files": {}, "dtype": tokenizer.dtype.str}
    meta["tokenizer"] = {"kind": tokenizer.kind, "size": len(tokenizer), "specials": _specials(tokenizer)}
    _write_json(folder / "tokenizer.json", tokenizer.state())
    for split in order:
        earlier = {name: held[name] for name in order[: order.index(split)] if name in held}
        documents, dropped = _unseen(splits[split](), earlier)
        writer = _Writer(folder, split, tokenizer, end_documents, columns, meta["sources"], progress)
        meta["splits"][split] = {**writer.write(documents), "duplicates": sum(dropped)}
    if not meta["splits"].get("train", {"documents": 1})["documents"]:
        raise UserError("the corpus has no document to train on: give more text or smaller evaluation fractions")
    meta["files"] = {path.name: file_checksum(path) for path in sorted(folder.iterdir())}
    return meta


def _specials(tokenizer: Tokenizer) -> dict[str, int | None]:
    return {name: getattr(tokenizer, f"{name}_id") for name in ("unknown", "pad", "bos", "eos")}


def _unseen(documents: Iterable[Document], held: Mapping[str, set[bytes]]) -> tuple[Iterator[Document], array]:
    """Return the documents that no split of ``held`` has, and a counter (its sum) of those left out."""
    dropped, seen = array("q"), list(held.values())

    def generate() -> Iterator[Document]:
        for document in documents:
            if seen and any(digest(document) in texts for texts in seen):
                dropped.append(1)
            else:
                yield document

    return generate(), dropped


def _texts(
    splits: Mapping[str, Documents],
    chosen: Sequence[str],
    order: Sequence[str],
    held: Mapping[str, set[bytes]],
    progress: Progress | None,
) -> Iterator[str]:
    number = 0
    for split in chosen:
        earlier = {name: held[name] for name in order[: order.index(split)] if name in held}
        for document in _unseen(splits[split](), earlier)[0]:
            number += 1
            if progress is not None and number % 256 == 0:
                progress("vocabulary", number)
            yield document.text


class _Writer:
    """Writes one split, a block of documents at a time."""

    def __init__(
        self,
        folder: Path,
        split: str,
        tokenizer: Tokenizer,
        end_documents: bool,
        columns: Sequence[str],
        sources: list[str],
        progress: Progress | None,
    ) -> None:
        self.folder, self.split, self.tokenizer, self.end_documents = folder, split, tokenizer, end_documents
        self.sources, self.progress = sources, progress
        self.begin, self.source, self.unknown, self.characters = array("q", [0]), array("H"), 0, 0
        self.columns = {name: array("q") for name in columns}

    def write(self, documents: Iterable[Document]) -> dict[str, int]:
        """Write all documents; returns how many documents, tokens, characters and unknown tokens there were."""
        with open(self.folder / f"{self.split}.ids", "wb") as stream:
            block: list[str] = []
            size = 0
            for document in documents:
                self._describe(document)
                block.append(document.text)
                size += len(document.text)
                if size >= BLOCK_CHARACTERS:
                    self._flush(block, stream)
                    block, size = [], 0
            self._flush(block, stream)
        tables = {name: np.frombuffer(column, dtype=np.int64) for name, column in self.columns.items()}
        tables |= {"begin": np.frombuffer(self.begin, dtype=np.int64)}
        tables |= {"source": np.frombuffer(self.source, dtype=np.uint16)}
        with contextlib.closing(open(self.folder / f"{self.split}.npz", "wb")) as stream:
            np.savez(stream, **tables)
        return {"documents": len(self.source), "tokens": self.begin[-1], "characters": self.characters,
                "unknown": self.unknown}  # fmt: skip

    def _describe(self, document: Document) -> None:
        if document.source not in self.sources:
            self.sources.append(document.source)
        self.source.append(self.sources.index(document.source))
        self.characters += len(document.text)
        for name, column in self.columns.items():
            value = document.meta.get(name)
            column.append(MISSING if value is None else int(value))

    def _flush(self, block: list[str], stream: IO[bytes]) -> None:
        if not block:
            return
        ids_T, counts_N = self.tokenizer.encode_many(block)
        if self.tokenizer.unknown_id is not None:
            self.unknown += int(np.count_nonzero(ids_T == self.tokenizer.unknown_id))
        if self.end_documents:
            ids_T = np.insert(ids_T, np.cumsum(counts_N), self.tokenizer.eos_id)
            counts_N = counts_N + 1
        _write(stream, ids_T)
        self.begin.extend((np.cumsum(counts_N) + self.begin[-1]).tolist())
        if self.progress is not None:
            self.progress(self.split, len(self.source))


def _write(stream: IO[bytes], ids_T: np.ndarray) -> None:
    stream.write(memoryview(np.ascontiguousarray(ids_T)))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
