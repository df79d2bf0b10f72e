"""Reading folders: every format and packing gives the same text; every damage is one line."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import random
from pathlib import Path

import pytest
import zstandard

from lit_ctg.data.source import check_source, data_suffix, find_file, read_lines, read_records, read_text
from lit_ctg.errors import UserError

TEXT = "first line\nzweite Zeile: äöü\n\nlast\n"
PACK = {
    "": lambda data: data,
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def one_line(error: pytest.ExceptionInfo) -> str:
    message = str(error.value)
    assert "\n" not in message and len(message) > 10
    return message


@pytest.mark.parametrize("packing", PACK)
def test_text_is_the_same_however_packed(tmp_path: Path, packing: str) -> None:
    path = tmp_path / f"a.txt{packing}"
    path.write_bytes(PACK[packing](TEXT.encode()))
    assert read_text(path) == TEXT
    assert find_file(tmp_path, ["b", "a"]) == path


def test_two_zstd_frames_are_one_text(tmp_path: Path) -> None:
    pack = PACK[".zst"]
    (tmp_path / "a.txt.zst").write_bytes(pack(b"one\ntw") + pack(b"o\n"))
    assert list(read_lines(tmp_path / "a.txt.zst")) == ["one", "two"]


def test_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    assert list(read_lines(tmp_path / "a.txt")) == ["one", "two"]


@pytest.mark.parametrize("packing", [".xz", ".gz", ".zst"])
def test_truncated_archive(tmp_path: Path, packing: str) -> None:
    noise = "\n".join(str(random.Random(0).random()) for _ in range(20_000)).encode()
    path = tmp_path / f"a.txt{packing}"
    path.write_bytes(PACK[packing](noise)[:-400])
    with pytest.raises(UserError) as error:
        list(read_lines(path))
    assert "truncated" in one_line(error) and str(path) in str(error.value)


def test_garbage_in_an_archive(tmp_path: Path) -> None:
    for packing in (".xz", ".gz", ".zst"):
        path = tmp_path / f"a.txt{packing}"
        path.write_bytes(b"this was never compressed")
        with pytest.raises(UserError, match="truncated or damaged"):
            list(read_lines(path))


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ("naïve".encode("latin-1"), "line 1 byte 3 is not UTF-8"),
        (b"", "is empty"),
        (b" \n \n", "is empty"),
        (b"fine\nbad \0 byte\n", "line 2 holds NUL bytes"),
    ],
)
def test_damaged_text(tmp_path: Path, data: bytes, word: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(UserError) as error:
        list(read_lines(path))
    assert word in one_line(error)


def test_a_200_megabyte_line_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(b"short\n")
        for _ in range(200):
            stream.write(b"x" * 2**20)
    lines = read_lines(path)
    assert next(lines) == "short"
    with pytest.raises(UserError) as error:
        next(lines)
    assert "line 2 is longer than 32 MiB" in one_line(error)


def test_records_from_every_format(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"stars": 5, "text": 'say "hi",\nthen go'}, {"stars": 1, "text": "bad"}]
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))
    with open(tmp_path / "b.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, ["stars", "text"])
        writer.writeheader()
        writer.writerows(rows)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    for name in ("a.jsonl.xz", "b.csv", "c.parquet"):
        got = [(int(row["stars"]), row["text"]) for row in read_records(tmp_path / name, ["stars", "text"])]
        assert got == [(row["stars"], row["text"]) for row in rows], name
        with pytest.raises(UserError) as error:
            list(read_records(tmp_path / name, ["star"]))
        assert "no column 'star'" in one_line(error) and "did you mean 'stars'" in str(error.value)


def test_bad_records(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{oops\n')
    with pytest.raises(UserError, match="line 2 is not JSON"):
        list(read_records(tmp_path / "a.jsonl", ["text"]))
    (tmp_path / "b.csv").write_text("text\n")
    with pytest.raises(UserError, match="is empty"):
        list(read_records(tmp_path / "b.csv", ["text"]))
    (tmp_path / "c.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(UserError, match="truncated or damaged"):
        list(read_records(tmp_path / "c.parquet", ["text"]))
    with pytest.raises(UserError, match=r"not from '\.txt'"):
        list(read_records(tmp_path / "d.txt", ["text"]))


def test_missing_things_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file called train, wiki\.train"):
        find_file(tmp_path, ["train", "wiki.train"])
    with pytest.raises(UserError, match="cannot be read"):
        find_file(tmp_path / "nowhere", ["train"])
    with pytest.raises(UserError, match=r"needs data\.root"):
        find_file(None, ["train"])
    with pytest.raises(UserError, match="cannot be read"):
        list(read_lines(tmp_path / "nothing.txt"))
    with pytest.raises(UserError, match="did you mean 'local'"):
        check_source("locale")
    assert data_suffix("a/b.jsonl.xz") == ".jsonl" and data_suffix("a.txt") == ".txt"
