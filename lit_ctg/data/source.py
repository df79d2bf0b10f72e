"""Read text and records from a folder: .txt .jsonl .csv .parquet, plain or .xz .gz .zst, as streams.

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
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.files import Unpacked, check_regular

TEXT_SUFFIXES = (".txt", ".tokens", ".raw", "")
# rows of a .jsonl file that are read to find out which columns it has
_LOOK_AT = 1000
SUFFIXES = (*TEXT_SUFFIXES, ".jsonl", ".csv", ".parquet")
PACKED_SUFFIXES = ("", ".xz", ".gz", ".zst")
# usual names of the column that holds the text
TEXT_COLUMNS = ("text", "reviewText", "review_body")
# of the fields of a .csv file, the usual one first; the first that is in its header is taken
SEPARATORS = (",", ";", "\t", "|")
# a line longer than this is a damaged or binary file: real lines of all our corpora stay under 100 kB
MAX_LINE_BYTES = 32 * 2**20
_logger = logging.getLogger(__name__)


def find_file(root: str | Path | None, stems: Sequence[str], *, suffixes: Sequence[str] = SUFFIXES) -> Path:
    """Return the first existing ``root/<stem><suffix><packing>``; the ``UserError`` names what was looked for."""
    found = find_optional(root, stems, suffixes=suffixes)
    if found is None:
        names = ", ".join(stems)
        raise UserError(
            f"data.root={root}: no file called {names} (.txt .jsonl .csv .parquet, also .xz .gz .zst); "
            "point data.root at the folder that holds it or use data.source=sample"
        )
    return found


def find_optional(root: str | Path | None, stems: Sequence[str], *, suffixes: Sequence[str] = SUFFIXES) -> Path | None:
    """Like ``find_file`` but ``None`` if no candidate exists; a missing root is still a ``UserError``."""
    folder = root_folder(root)
    names = {path.name for path in folder.iterdir()}
    for stem in stems:
        for suffix in suffixes:
            for packing in PACKED_SUFFIXES:
                name = stem + suffix + packing
                if name in names and (folder / name).is_file():
                    return folder / name
    return None


def root_folder(root: str | Path | None) -> Path:
    """Return ``data.root`` as a readable folder; ``UserError`` otherwise."""
    if root is None:
        raise UserError("data.source=local needs data.root=<folder>; or use data.source=sample")
    try:
        folder = Path(root).expanduser()
        next(folder.iterdir(), None)
    except (OSError, RuntimeError, ValueError) as error:
        # circular links, no such user, a NUL byte
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"data.root={root} cannot be read ({reason}): give an existing folder") from error
    return folder


class _ZstdStream(io.RawIOBase):
    """Decompress zstd frames and notice a missing end, which zstandard's own reader silently ignores."""

    def __init__(self, raw: IO[bytes]) -> None:
        import zstandard

        self._raw, self._new = raw, zstandard.ZstdDecompressor().decompressobj
        self._frame, self._ready, self._inside = self._new(), b"", False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._raw.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = self._raw.read(2**10)  # may become 32 MiB at once
            if not block:
                if self._inside:
                    raise EOFError("compressed file ended before the end of its last frame")
                return 0
            while block:
                self._ready += self._frame.decompress(block)
                self._inside = not self._frame.eof
                block = self._frame.unused_data if self._frame.eof else b""
                if self._frame.eof:
                    self._frame = self._new()
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


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
    return io.BufferedReader(Unpacked(_unpacking(path), path), 2**17)


def _unpacking(path: Path) -> IO[bytes]:
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return io.BufferedReader(_ZstdStream(open(path, "rb")), 2**17)


def _said(what: object) -> str:
    """Return a message of a library or a file as one short line."""
    return " ".join(str(what).split())[:200]


def _listed(columns: Iterable[object]) -> str:
    return ", ".join(_said(name)[:40] for name in columns) or "nothing"


@contextlib.contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turn what can go wrong while ``path`` is read into one clear line."""
    try:
        yield
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is truncated or damaged ({_said(error)}): fetch the file again") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error.reason}): convert it, e.g. with iconv -t UTF-8") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({_said(error.strerror or error)})") from error
    except RecursionError as error:
        raise UserError(f"{path} is nested too deep: is this a data file? fetch it again") from error
    except ImportError as error:
        raise UserError(f"{path} needs the package {error.name}: pip install {error.name}") from error
    except Exception as error:
        # zstandard and pyarrow raise their own classes, which exist only once those packages are imported
        if type(error).__module__.partition(".")[0] in ("zstandard", "pyarrow"):
            raise UserError(f"{path} is truncated or damaged ({_said(error)}): fetch the file again") from error
        raise


def read_lines(path: str | Path, *, empty: bool = False) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file without their line ends.

    Raises ``UserError`` for a truncated archive, bytes that are not UTF-8, NUL bytes, a line longer than
    ``MAX_LINE_BYTES`` and (unless ``empty``) a file without any visible character.
    """
    path, visible = Path(path), False
    with reading(path), open_bytes(path) as stream:
        for number in itertools.count(1):
            line = stream.readline(MAX_LINE_BYTES + 1)
            if not line:
                break
            if len(line) > MAX_LINE_BYTES:
                size = MAX_LINE_BYTES // 2**20
                raise UserError(f"{path} line {number} is longer than {size} MiB: is this a text file? break its lines")
            if b"\0" in line:
                raise UserError(f"{path} line {number} holds NUL bytes: this is not UTF-8 text; convert or clean it")
            if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                line = line[3:]
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                byte = error.start + 1
                raise UserError(
                    f"{path} line {number} byte {byte} is not UTF-8: convert the file, e.g. with iconv -t UTF-8"
                ) from error
            visible = visible or not text.isspace()
            yield text.rstrip("\r\n")
    if not visible and not empty:
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
        if not isinstance(value, str):
            raise UserError(f"{self.where}: column '{column}' holds {_kind(value)}, not text: give text in quotes")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise UserError(
                    f"{self.where}: column '{column}' holds half of a surrogate pair (character {error.start + 1}), "
                    "which is not a character: clean the text"
                ) from error
        if "\0" in value:
            raise UserError(f"{self.where}: column '{column}' holds NUL characters: clean the text")
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
        if not low <= number <= high:
            shown = str(value) if isinstance(value, (int, float)) else f"{_kind(value)} ({str(value)[:40]!r})"
            raise UserError(
                f"{self.where}: column '{column}' holds {shown}: give a number from {low:g} to {high:g}, or nothing"
            )
        return number


def _kind(value: Any) -> str:
    names = {list: "a list", tuple: "a list", dict: "an object", bytes: "bytes", bool: "a truth value", str: "text"}
    return names.get(type(value), "a number" if isinstance(value, (int, float)) else f"a {type(value).__name__}")


def read_records(
    path: str | Path, columns: Iterable[str], optional: Iterable[str] = (), *, empty: bool = False
) -> Iterator[Row]:
    """Yield the rows of a .jsonl, .csv or .parquet file with (at least) ``columns``.

    Args:
        path: the file.
        columns: what every row must have.
        optional: columns that are also read if the file has them.
        empty: accept a file without rows.

    Raises ``UserError`` naming file, row and the column that is missing, and for an empty file.
    """
    suffix, needed = data_suffix(path), list(columns)
    readers = {".jsonl": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}
    if suffix not in readers:
        raise UserError(f"{path}: rows can be read from .jsonl, .csv or .parquet, not from '{suffix}'")
    found = False
    for row in readers[suffix](path, needed, list(optional), empty):
        found = True
        for column in needed:
            if row.get(column) is None:
                if column in row:
                    raise UserError(f"{row.where} has nothing in column '{column}': fill it or leave the row out")
                hint = did_you_mean(column, map(str, row))
                raise UserError(f"{row.where} has no column '{column}' (it has {_listed(row)}){hint}")
        yield row
    if not found and not empty:
        raise UserError(f"{path} is empty: give a file that holds rows")


def column_names(path: str | Path) -> list[str]:
    """Return the columns of a file of rows (for .jsonl those of its first rows, none of which need have them all)."""
    if data_suffix(path) != ".parquet":
        return list({str(name): None for row in itertools.islice(read_records(path, []), _LOOK_AT) for name in row})
    with reading(path):
        import pyarrow.parquet

        with open_bytes(path) as stream:
            plain = Path(path).suffix == ".parquet"
            return pyarrow.parquet.read_schema(stream if plain else io.BytesIO(stream.read())).names


def text_column(path: str | Path, given: str | None = None, also: Sequence[str] = ()) -> str:
    """Return the column of a file of rows that holds the text: ``given``, one of the usual names, or the only one.

    A warning names the columns that are not read, of which ``also`` are none, once for files of a folder that have the
    same ones.
    """
    names = column_names(path)
    found = next((name for name in ([given] if given else TEXT_COLUMNS) if name in names), None)
    if found is None and not given and len(names) == 1:
        found = names[0]
    if found is None:
        hint = did_you_mean(given, names) if given else ""
        wanted = given or TEXT_COLUMNS[0]
        raise UserError(f"{path} has no column '{wanted}' (it has {_listed(names)}): call it 'text'{hint}")
    _warn_of_unread(Path(path).parent, found, tuple(name for name in names if name != found and name not in also))
    return found


@functools.cache
def _warn_of_unread(folder: Path, text: str, others: Sequence[str]) -> None:
    if others:
        _logger.warning(
            f"{folder}: column '{_said(text)}' is taken as the text, other columns ({_listed(others)}) are ignored; "
            "labels are files and subfolders, not columns"
        )


def read_json(path: str | Path) -> Any:
    """Return the value in a JSON file, plain or compressed; ``UserError`` if it is not JSON."""
    with reading(path):
        try:
            return json.loads("\n".join(read_lines(path)))
        except ValueError as error:
            raise UserError(f"{path} is not JSON ({getattr(error, 'msg', error)}): fetch the file again") from error


def _read_jsonl(path: str | Path, columns: Sequence[str], optional: Sequence[str], empty: bool) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path, empty=empty), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:  # JSONDecodeError, or a number with thousands of digits
            raise UserError(
                f"{path} line {number} is not JSON ({getattr(error, 'msg', error)}): one object per line"
            ) from error
        except RecursionError as error:
            raise UserError(f"{path} line {number} is nested too deep: one flat object per line") from error
        if not isinstance(row, dict):
            raise UserError(f"{path} line {number} is not a JSON object: one object per line")
        yield Row(row, f"{path} line {number}")


def _read_csv(path: str | Path, columns: Sequence[str], optional: Sequence[str], empty: bool) -> Iterator[Row]:
    csv.field_size_limit(MAX_LINE_BYTES)
    # strict: an unclosed quote would otherwise silently swallow the rest of the file
    lines = (line + "\n" for line in read_lines(path, empty=empty))
    header = next(lines, "")
    mark = next((mark for mark in SEPARATORS if mark in header), SEPARATORS[0])
    rows = csv.DictReader(itertools.chain([header], lines), delimiter=mark, strict=True)
    begin = 1
    try:
        _check_header(rows.fieldnames or (), path)
        for row in rows:
            begin = max(begin + 1, 2)
            where = f"{path} line {begin}"
            if None in row:
                raise UserError(f"{where} has more fields than the header: put text with {mark!r} in quotes")
            begin = rows.line_num
            yield Row(row, where)
    except csv.Error as error:
        raise UserError(
            f"{path} line {begin + 1} is not CSV ({error}): close every quote, double the quotes inside a field"
        ) from error


def _check_header(names: Sequence[str], path: str | Path) -> None:
    """Refuse two columns of one name: only one of them would be read."""
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise UserError(f"{path} has two columns called '{_said(twice)}': rename one")


def _read_parquet(path: str | Path, columns: Sequence[str], optional: Sequence[str], empty: bool) -> Iterator[Row]:
    number = 0
    with reading(path):
        import pyarrow.parquet

        with open_bytes(path) as stream:
            # parquet needs to seek; a compressed file is read into memory (parquet is already compressed inside)
            plain = Path(path).suffix == ".parquet"
            table = pyarrow.parquet.ParquetFile(stream if plain else io.BytesIO(stream.read()))
            names = table.schema_arrow.names
            _check_header(names, path)
            missing = next((name for name in columns if name not in names), None)
            if missing is not None:
                hint = did_you_mean(missing, names)
                raise UserError(f"{path} has no column '{missing}' (it has {_listed(names)}){hint}")
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
