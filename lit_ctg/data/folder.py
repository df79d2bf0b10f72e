"""The user's texts: a folder with a file or subfolder per label, or one file of rows with a column of labels.

Files are .txt .jsonl .csv .tsv .parquet, also .xz .gz .zst.
"""

from __future__ import annotations

import functools
import io
import logging
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.document import Document
from lit_ctg.data.labelled import Labelled, gathered, read_file
from lit_ctg.data.source import (
    PACKED_SUFFIXES,
    ROWS,
    data_suffix,
    read_lines,
    read_records,
    reading,
    root_folder,
    text_column,
)
from lit_ctg.data.split import check_fractions
from lit_ctg.errors import UserError, check_unicode, refuse
from lit_ctg.files import check_regular
from lit_ctg.limits import Fraction

READ = (".txt", *ROWS)
# names that mean splits, not labels
_SPLITS = {"train", "valid", "validation", "val", "dev", "test"}
# how finely a label's text is cut into documents, coarsest first
WHOLE, PARAGRAPHS, LINES = range(3)
# a label with fewer documents than this is cut more finely, so that its last parts can be shares of its text
ENOUGH = 20
# characters in a document; a longer text file becomes several
LONGEST = 2**20
_logger = logging.getLogger(__name__)


def labels_of(root: str | Path | None, column: str | None = None) -> dict[str, tuple[Path, ...]]:
    """Return the files of every label of a folder, both ordered by name; of a file of rows, the file for each label.

    A label is a file without its suffixes, or a subfolder with everything below it. What cannot be read, and labels
    without any text, are left out with a warning.

    Raises:
        UserError: no such folder, no label, a name that is not UTF-8, two that look the same, a pipe, folders named
            after splits.
    """
    if (file := row_file(root)) is not None:
        return dict.fromkeys(_rows_of(file, _state([file]), column).attributes[0].labels, (file,))
    folder = root_folder(root)
    # called several times per run: files are read again, and reported, only where something has changed
    return _labels(str(root), folder, _state([folder, *_below(folder)]))


def _state(paths: Sequence[Path]) -> tuple[Any, ...]:
    return tuple((str(path), path.lstat().st_mtime_ns, path.lstat().st_size) for path in paths)


def row_file(root: str | Path | None) -> Path | None:
    """Return ``root`` where it is a file, whose rows have labels in a column; None for a folder."""
    path = Path(root or "").expanduser()
    return path if path.is_file() else None


@functools.lru_cache(maxsize=2)
def _rows_of(file: Path, state: tuple[Any, ...], column: str | None) -> Labelled:
    return read_file(file, column)


def read_labelled(path: str | Path, text: str | None = None, label: Sequence[str] = ()) -> Labelled:
    """Read texts and their labels, and report what was found (``Labelled.report``).

    Args:
        path: a file of rows, or a folder with a file or subfolder per label (one attribute, ``label``).
        text: the column of the text; by default ``text`` or another usual name.
        label: the columns of labels, an attribute each; by default one of a usual name, or the only other column.

    Raises:
        UserError: see ``read_file`` and ``labels_of``.
    """
    if (file := row_file(path)) is not None:
        return read_file(file, text, label)
    labels = labels_of(path)
    every = [file for files in labels.values() for file in files]
    if len(every) == 1 and data_suffix(every[0]) in ROWS:
        return read_file(every[0], text, label)
    rows = []
    for name, files in labels.items():
        parts = functools.partial(_parts, files, text)
        level = level_of(parts)[0]
        rows += [(document, [name]) for lines in parts() for document in _documents(lines, level)]
    return gathered(str(path), ["label"], rows)


@functools.lru_cache(maxsize=8)
def _labels(root: str, folder: Path, state: tuple[Any, ...]) -> dict[str, tuple[Path, ...]]:
    unread: list[str] = []
    found: dict[str, list[Path]] = {}
    bare: list[str] = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        check_unicode(entry.name, f"data.root={root}: the file")
        label, files = (entry.name, _below(entry)) if entry.is_dir() else (_stem(entry), [entry])
        readable = [path for path in files if data_suffix(path) in READ]
        unread += [path.relative_to(folder).as_posix() for path in files if data_suffix(path) not in READ]
        if readable:
            found.setdefault(label, []).extend(readable)
        elif not files:
            bare.append(label)
    splits = sorted(found.keys() & _SPLITS)
    if unread:
        _logger.warning(f"data.root={root}: left out {_shown(unread)} ({' '.join(READ)} are read)")
    labels = {label: tuple(files) for label, files in sorted(found.items()) if any(map(_has_text, files))}
    if empty := [*(label for label in found if label not in labels), *bare]:
        _logger.warning(f"data.root={root}: left out {_shown(empty)}: no text there")
    spelled: dict[str, list[str]] = {}
    for label in labels:
        spelled.setdefault(unicodedata.normalize("NFC", label), []).append(label)
    alike = next((names for names in spelled.values() if len(names) > 1), [])
    refuse({
        f"{' and '.join(splits)} are splits, not labels; give one file or subfolder per label (splits are made here), "
        "or use data=wikitext, which reads such files": len(splits) > 1,
        f"holds no text: give one file ({' '.join(READ)}) or subfolder per label": not labels,
        f"the labels {' and '.join(map(ascii, alike))} look the same: rename one, or put both into one "
        "subfolder": alike,
    }, f"data.root={root}: ")  # fmt: skip
    return labels


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _below(folder: Path) -> list[Path]:
    """Return the files below a folder but hidden ones; links to folders are not followed: they may be circular."""

    def refuse(error: OSError) -> None:
        with reading(error.filename):
            raise error

    files = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [Path(place) / name for name in sorted(names) if not name.startswith(".")]
    for path in files:
        check_unicode(str(path), "the file")
    return files


def _stem(path: Path) -> str:
    """Return a file's name without format and compression: ``a.b`` for ``a.b.jsonl.xz``."""
    name = path.stem if path.suffix in PACKED_SUFFIXES[1:] else path.name
    return Path(name).stem


def _has_text(path: Path) -> bool:
    with reading(path):
        check_regular(path)
        if data_suffix(path) != ".txt":
            return next(read_records(path, [], empty=True), None) is not None
        return any(not line.isspace() and line for line in read_lines(path, empty=True))


class FolderDataModule(CorpusDataModule):
    """The user's texts. Every label is a source with its control code; the last documents of each are for evaluation.

    A row (its text column) is a document, and so is a text file. A label with fewer than ``ENOUGH`` documents is cut
    into paragraphs (between blank lines), or into lines where that is still too few.

    Args:
        val_fraction, test_fraction: share of each label's documents, taken from the end; at least one document. With
        a test share of 0, testing reads the validation part.
        column: the column that holds the text; by default ``text`` (or another usual name), or the only one.
        options: see ``CorpusDataModule``; ``max_documents`` applies to each label.
    """

    name = "folder"

    def __init__(
        self,
        *,
        source: Literal["local"],
        root: Annotated[str, "a folder with one file or subfolder per label, or a file with a column of labels"],
        val_fraction: Fraction,
        test_fraction: Fraction,
        column: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(source=source, root=root, **options)
        self.val_fraction, self.test_fraction = check_fractions(val_fraction, test_fraction)
        self.column = column
        self._cuts: dict[str, tuple[int, int]] = {}

    @functools.cached_property
    def labels(self) -> dict[str, tuple[Path, ...]]:
        """The files of every label, in the order of the control codes."""
        return labels_of(self.root, self.column)

    def options(self) -> dict[str, Any]:
        names = {label: len(files) for label, files in self.labels.items()}
        return {"labels": names, "column": self.column, "fractions": [self.val_fraction, self.test_fraction]}

    def sample_documents(self, split: str) -> Iterator[Document]:
        raise NotImplementedError("source=sample is refused")

    def local_files(self) -> list[Path]:
        return list(dict.fromkeys(path for files in self.labels.values() for path in files))

    def documents(self, split: str) -> Iterator[Document]:
        return self.local_documents(split)

    def local_documents(self, split: str) -> Iterator[Document]:
        for label in self.labels:
            count = self._cut(label)[1]
            val, test = (
                max(1, round(share * count)) if share else 0 for share in (self.val_fraction, self.test_fraction)
            )
            # rounding may leave nothing to train on; then the larger part shrinks (``_cut`` has checked the count)
            while val + test >= count:
                val, test = (val - 1, test) if val >= test else (val, test - 1)
            first_val = count - val - test
            kept = first_val if self.max_documents is None else min(first_val, self.max_documents)
            first, stop = {"train": (0, kept), "val": (first_val, count - test), "test": (count - test, count)}[split]
            for number, text in enumerate(self._texts(label, self._cut(label)[0])):
                if first <= number < stop:
                    yield Document(text, label)

    def _cut(self, label: str) -> tuple[int, int]:
        """Return how finely a label is cut and how many documents that makes."""
        if label not in self._cuts:
            level, count = level_of(lambda: self._parts(label))
            parts = 1 + (self.val_fraction > 0) + (self.test_fraction > 0)
            if count < parts:
                raise UserError(
                    f"data.root={self.root}: label '{label}' has {count} line{'s' if count != 1 else ''} of text; "
                    f"training, validation and test need {parts} at least (better hundreds): give more, or remove it; "
                    "where every file is one text, put the files into a subfolder"
                )
            self._cuts[label] = level, count
        return self._cuts[label]

    def _parts(self, label: str) -> Iterable[Iterator[str]]:
        if (file := row_file(self.root)) is None:
            return _parts(self.labels[label], self.column)
        found = _rows_of(file, _state([file]), self.column)
        return map(_lines, found.of(found.attributes[0].name)[label])

    def _texts(self, label: str, level: int) -> Iterator[str]:
        """Yield the documents of a label, none of them blank, each ending in a line end."""
        return (text for lines in self._parts(label) for text in _documents(lines, level))


def level_of(parts: Callable[[], Iterable[Iterator[str]]]) -> tuple[int, int]:
    """Return how finely the texts of a label are cut, and how many documents that makes."""
    for level in (WHOLE, PARAGRAPHS, LINES):
        count = sum(1 for lines in parts() for _ in _documents(lines, level))
        if count >= ENOUGH:
            break
    return level, count


def _parts(files: Iterable[Path], column: str | None) -> Iterator[Iterator[str]]:
    """Yield the lines of each text file and of each row."""
    for path in files:
        if data_suffix(path) == ".txt":
            yield read_lines(path, empty=True)
        elif _has_text(path):
            found = text_column(path, column)
            yield from (_lines(row.text(found)) for row in read_records(path, [found], empty=True))


def _lines(text: str) -> Iterator[str]:
    # as in a file: str.splitlines also cuts at form feeds and U+2028, which would be lost
    return (line.rstrip("\n") for line in io.StringIO(text, newline=None))


def _documents(lines: Iterator[str], level: int) -> Iterator[str]:
    """Cut lines into documents: all as one, paragraphs between blank lines, or each line."""
    held: list[str] = []
    size = 0
    for line in lines:
        blank = not line.strip()
        ends = level == LINES or (level == PARAGRAPHS and blank) or size + len(line) > LONGEST
        if ends and size:
            yield "\n".join(held).rstrip("\n") + "\n"
            held, size = [], 0
        if not blank or size:
            held.append(line)
            size += len(line) + 1
    if size:
        yield "\n".join(held).rstrip("\n") + "\n"
