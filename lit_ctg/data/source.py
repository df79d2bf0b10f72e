"""Read text and records from a folder: .txt .jsonl .csv .tsv .parquet, plain or .xz .gz .zst, as streams.

Nothing here loads a whole file: memory stays flat however large a corpus is. Every way in which a file can be bad
(truncated, not UTF-8, NUL bytes, an endless line, a missing column, a list in place of text, an unclosed quote, endless
nesting, empty, unreadable, a pipe) ends in a ``UserError`` that names the file and the line or row.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import gzip
import hashlib
import io
import itertools
import json
import logging
import lzma
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.files import Unpacked, check_regular

TEXT_SUFFIXES = (".txt", ".tokens", ".raw", "")
# rows of a .jsonl file that are read to find out which columns it has
_LOOK_AT = 1000
# formats of rows
ROWS = (".jsonl", ".csv", ".tsv", ".parquet")
SUFFIXES = (*TEXT_SUFFIXES, *ROWS)
PACKED_SUFFIXES = ("", ".xz", ".gz", ".zst")
# usual names of the column that holds the text
TEXT_COLUMNS = ("text", "reviewText", "review_body")
# of the fields of a .csv file, the usual one first; that which occurs most often in its header is taken
SEPARATORS = (",", ";", "\t", "|")
# a line longer than this is a damaged or binary file: real lines of all our corpora stay under 100 kB
MAX_LINE_BYTES = 32 * 2**20
_logger = logging.getLogger(__name__)


def find_file(root: str | Path | None, stems: Sequence[str], *, suffixes: Sequence[str] = SUFFIXES) -> Path:
    """Return the first existing ``root/<stem><suffix><packing>``; the ``UserError`` names what was looked for."""
    found = find_optional(root, stems, suffixes=suffixes)
    if found is None:
        raise UserError(
            f"data.root={root}: no file called {', '.join(stems)} (.txt .jsonl .csv .tsv .parquet, also .xz .gz .zst); "
            "point data.root at the folder that holds it or use data.source=sample"
        )
    return found


def find_optional(root: str | Path | None, stems: Sequence[str], *, suffixes: Sequence[str] = SUFFIXES) -> Path | None:
    """Like ``find_file`` but ``None`` if no candidate exists; a missing root is still a ``UserError``."""
    folder = root_folder(root)
    names = {path.name for path in folder.iterdir()}
    for stem, suffix, packing in itertools.product(stems, suffixes, PACKED_SUFFIXES):
        name = stem + suffix + packing
        if name in names and (folder / name).is_file():
            return folder / name
    return None


def root_folder(root: str | Path | None) -> Path:
    """Return ``data.root`` as a readable folder; ``UserError`` otherwise."""
    try:
        folder = Path(root or "").expanduser()
        next(folder.iterdir(), None)
        reason = "" if root else "it is not set"
    except (OSError, RuntimeError, ValueError) as error:  # circular links, no such user, a NUL byte
        reason = str(getattr(error, "strerror", None) or error)
    if reason:
        raise UserError(
            f"data.root={root} cannot be read ({reason}): data.source=local needs data.root=<folder>, one that exists; "
            "or use data.source=sample"
        )
    return folder


def open_bytes(path: str | Path) -> IO[bytes]:
    """Open a plain or compressed (.xz .gz .zst) file to read the bytes of its content.

    Raises:
        UserError: it is not a file (a pipe could make the run wait for ever, and can be read only once), or, while it
            is read, it unpacks to more than text would (``files.Unpacked``).
        OSError: it cannot be opened.
    """
    path = Path(path)
    check_regular(path)
    if path.suffix not in PACKED_SUFFIXES[1:]:
        return open(path, "rb")
    import pyarrow

    # pyarrow notices a missing end
    openers: dict[str, Callable[[str], Any]] = {".xz": lzma.open, ".gz": gzip.open}
    opened = openers.get(path.suffix, lambda name: pyarrow.CompressedInputStream(pyarrow.OSFile(name), "zstd"))
    return io.BufferedReader(Unpacked(opened(str(path)), path), 2**17)


def _short(text: object) -> str:
    """Return a message of a library or a file as one short line."""
    return " ".join(str(text).split())[:200]


def _listed(columns: Iterable[object]) -> str:
    return ", ".join(_short(name)[:40] for name in columns) or "nothing"


@contextlib.contextmanager
def reading(path: str | Path, remedy: str = "fetch the file again") -> Iterator[None]:
    """Turn any failure to read and parse ``path`` into one line, a ``UserError``.

    Args:
        remedy: what to do about a damaged one, the end of the line.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (problem := _problem(error, remedy)) is None:
            raise
        raise UserError(f"{path} {problem}") from error


def _problem(error: Exception, remedy: str) -> str | None:
    """Return the problem of a file and its remedy; None for an error that no file causes."""
    # pyarrow's own classes exist only once it is imported; its and gzip's OSError have no number
    damaged = isinstance(error, (EOFError, lzma.LZMAError, zlib.error)) or type(error).__module__.startswith("pyarrow")
    if damaged or (isinstance(error, OSError) and error.errno is None):
        return f"is truncated or damaged ({_short(error)}): {remedy}"
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 ({error.reason}): convert it, e.g. with iconv -t UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON ({error.msg}): {remedy}"
    if isinstance(error, OSError):
        return f"cannot be read ({_short(error.strerror)})"
    return f"is nested too deep: {remedy}" if isinstance(error, RecursionError) else None


def read_lines(path: str | Path, *, empty: bool = False) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file without their line ends.

    Raises:
        UserError: a truncated archive, bytes that are not UTF-8, NUL bytes, a line longer than ``MAX_LINE_BYTES`` and
            (unless ``empty``) a file without any visible character.
    """
    path, visible = Path(path), False
    with reading(path), open_bytes(path) as stream:
        for number in itertools.count(1):
            line = stream.readline(MAX_LINE_BYTES + 1)
            if not line:
                break
            text, problem = _decoded(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
            if problem:
                raise UserError(f"{path} line {number} {problem}")
            visible = visible or not text.isspace()
            yield text.rstrip("\r\n")
    _check_not_empty(path, visible or empty)


def _decoded(line: bytes) -> tuple[str, str]:
    """Return the text of a line and its problem."""
    if len(line) > MAX_LINE_BYTES:
        return "", f"is longer than {MAX_LINE_BYTES // 2**20} MiB: is this a text file? break its lines"
    if b"\0" in line:
        return "", "holds NUL bytes: this is not UTF-8 text; convert or clean it"
    try:
        return line.decode("utf-8"), ""
    except UnicodeDecodeError as error:
        return "", f"byte {error.start + 1} is not UTF-8: convert the file, e.g. with iconv -t UTF-8"


def _check_not_empty(path: str | Path, filled: bool) -> None:
    if not filled:
        raise UserError(f"{path} is empty: give a file that holds text")


def read_text(path: str | Path) -> str:
    """Return a whole text file (a book); every line ends with one line feed."""
    return "".join(line + "\n" for line in read_lines(path))


def data_suffix(path: str | Path) -> str:
    """Return the suffix that names the format: ``.jsonl`` for ``reviews.jsonl.xz``."""
    path = Path(path)
    return Path(path.stem).suffix if path.suffix in PACKED_SUFFIXES[1:] else path.suffix


class Row(dict[str, Any]):
    """A row of a file, by column.

    Attributes:
        where: the file and the line (in parquet the row, counting from 1) it begins on.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        super().__init__(values)
        self.where = where

    def text(self, column: str) -> str:
        """Return the text of a column, "" if the column is missing or empty.

        Raises:
            UserError: something other than text, or text that UTF-8 cannot encode.
        """
        value = self.get(column)
        if value is None:
            return ""
        problem = ""
        if not isinstance(value, str):
            problem = f"{_kind(value)}, not text: give text in quotes"
        elif half := _SURROGATE.search(value):
            problem = f"half of a surrogate pair (character {half.start() + 1}), not a character: clean the text"
        elif "\0" in value:
            problem = "NUL characters: clean the text"
        self._check(column, problem)
        return value

    def number(self, column: str, low: float, high: float) -> float | None:
        """Return the number in a column (also one written as text), None if the column is missing or empty.

        Raises:
            UserError: something else, or a number outside ``low`` to ``high``.
        """
        value = self.get(column)
        if value is None or value == "":
            return None
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        shown = str(value) if isinstance(value, (int, float)) else f"{_kind(value)} ({str(value)[:40]!r})"
        wrong = f"{shown}: give a number from {low:g} to {high:g}, or nothing"
        self._check(column, "" if low <= number <= high else wrong)
        return number

    def _check(self, column: str, problem: str) -> None:
        if problem:
            raise UserError(f"{self.where}: column '{column}' holds {problem}")


_SURROGATE = re.compile("[\ud800-\udfff]")


def _kind(value: Any) -> str:
    names = {list: "a list", tuple: "a list", dict: "an object", bytes: "bytes", bool: "a truth value", str: "text"}
    return names.get(type(value), "a number" if isinstance(value, (int, float)) else f"a {type(value).__name__}")


def read_records(
    path: str | Path, columns: Iterable[str], optional: Iterable[str] = (), *, empty: bool = False
) -> Iterator[Row]:
    """Yield the rows of a .jsonl, .csv, .tsv or .parquet file with (at least) ``columns``.

    Args:
        columns: what every row must have.
        optional: columns that are also read if the file has them.
        empty: accept a file without rows.

    Raises ``UserError`` naming file, row and the column that is missing, and for an empty file.
    """
    suffix, needed, filled = data_suffix(path), list(columns), empty
    readers = dict(zip(ROWS, (_read_jsonl, _read_csv, _read_csv, _read_parquet), strict=True))
    if suffix not in readers:
        raise UserError(f"{path}: rows can be read from {' '.join(ROWS)}, not from '{suffix}'")
    for row in readers[suffix](path, needed, list(optional), empty):
        filled = True
        for column in needed:
            check_column(row.where, column, row, row.get(column) is not None)
        yield row
    _check_not_empty(path, filled)


def check_column(where: object, column: str, names: Iterable[str], found: bool, remedy: str = "") -> None:
    """Refuse a column that is not ``found``: ``names`` lacks it, or its row has nothing there."""
    if found:
        return
    if column in names:
        problem = f"nothing in column '{column}': fill it or leave the row out"
    else:
        hint = did_you_mean(column, map(str, names))
        problem = f"no column '{column}' (it has {_listed(names)}): name the column so, or another column{hint}{remedy}"
    raise UserError(f"{where} has {problem}")


def column_names(path: str | Path) -> list[str]:
    """Return the columns of a file of rows (for .jsonl those of its first rows, none of which need have them all)."""
    if data_suffix(path) != ".parquet":
        return list({str(name): None for row in itertools.islice(read_records(path, []), _LOOK_AT) for name in row})
    with reading(path):
        import pyarrow.parquet

        with open_bytes(path) as stream:
            return pyarrow.parquet.read_schema(_seekable(path, stream)).names


def _seekable(path: str | Path, stream: IO[bytes]) -> IO[bytes]:
    """Return a stream of parquet; a compressed file is read into memory (parquet is already compressed inside)."""
    return stream if Path(path).suffix == ".parquet" else io.BytesIO(stream.read())


def text_column(path: str | Path, given: str | None = None, also: Sequence[str] = ()) -> str:
    """Return the column of a file of rows that holds the text: ``given``, one of the usual names, or the only one.

    A warning names the columns that are not read, of which ``also`` are none, once for files of a folder that have the
    same ones.
    """
    names = column_names(path)
    found = next((name for name in ([given] if given else TEXT_COLUMNS) if name in names), None)
    if found is None and not given and len(names) == 1:
        found = names[0]
    check_column(path, given or TEXT_COLUMNS[0], names, found is not None)
    assert found is not None, "check_column raises"
    _warn_of_unread(Path(path).parent, found, tuple(name for name in names if name != found and name not in also))
    return found


@functools.cache
def _warn_of_unread(folder: Path, text: str, others: Sequence[str]) -> None:
    if others:
        _logger.warning(
            f"{folder}: column '{_short(text)}' is taken as the text, other columns ({_listed(others)}) are ignored; "
            "labels are files and subfolders, not columns"
        )


def read_json(path: str | Path) -> Any:
    """Return the value in a JSON file, plain or compressed; ``UserError`` if it is not JSON."""
    with reading(path):
        return json.loads("\n".join(read_lines(path)))


def _read_jsonl(path: str | Path, columns: Sequence[str], optional: Sequence[str], empty: bool) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path, empty=empty), start=1):
        if not line.strip():
            continue
        row, problem = None, "is not a JSON object"
        try:
            row = json.loads(line)
        except ValueError as error:  # JSONDecodeError, or a number with thousands of digits
            problem = f"is not JSON ({getattr(error, 'msg', error)})"
        except RecursionError:
            problem = "is nested too deep"
        if not isinstance(row, dict):
            raise UserError(f"{path} line {number} {problem}: give one flat object per line")
        yield Row(row, f"{path} line {number}")


def _read_csv(path: str | Path, columns: Sequence[str], optional: Sequence[str], empty: bool) -> Iterator[Row]:
    csv.field_size_limit(MAX_LINE_BYTES)
    # strict: an unclosed quote would otherwise silently swallow the rest of the file
    lines = (line + "\n" for line in read_lines(path, empty=empty))
    mark = separator(path)
    rows = csv.DictReader(lines, delimiter=mark, strict=True)
    end = 0
    try:
        _check_header(rows.fieldnames or (), path)
        end = 1
        for row in rows:
            if None in row:
                raise csv.Error("more fields than the header")
            yield Row(row, f"{path} line {end + 1}")
            end = rows.line_num
    except csv.Error as error:
        raise UserError(
            f"{path} line {end + 1} is not CSV ({error}): put text with {mark!r} in quotes, close every quote, double "
            "the quotes inside a field"
        ) from error


def separator(path: str | Path) -> str:
    """Return what stands between the fields of a .csv or .tsv file, "" for other formats."""
    if data_suffix(path) == ".tsv":
        return "\t"
    return max(SEPARATORS, key=next(read_lines(path, empty=True), "").count) if data_suffix(path) == ".csv" else ""


def _check_header(names: Sequence[str], path: str | Path) -> None:
    """Refuse two columns of one name: only one of them would be read."""
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise UserError(f"{path} has two columns called '{_short(twice)}': rename one")


def _read_parquet(path: str | Path, columns: Sequence[str], optional: Sequence[str], empty: bool) -> Iterator[Row]:
    number = 0
    with reading(path):
        import pyarrow.parquet

        with open_bytes(path) as stream:
            table = pyarrow.parquet.ParquetFile(_seekable(path, stream))
            names = table.schema_arrow.names
            _check_header(names, path)
            for name in columns:
                check_column(path, name, names, name in names)
            wanted = [*columns, *(name for name in optional if name in names)]
            for batch in table.iter_batches(batch_size=2048, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield Row(row, f"{path} row {number}")


def file_checksum(path: str | Path) -> str:
    """Return the sha256 (64 hex digits) of a file's bytes as stored on disk."""
    with reading(path):
        check_regular(path)
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
