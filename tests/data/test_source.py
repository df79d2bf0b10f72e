"""Reading folders: every format and packing gives the same text; every damage is one line."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import os
import random
from pathlib import Path

import pytest
import zstandard

from lit_ctg.data.source import (
    data_suffix,
    file_checksum,
    find_file,
    read_json,
    read_lines,
    read_records,
    read_text,
)
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


def rows(path: Path, *columns: str) -> list:
    return list(read_records(path, columns))


def test_nesting_without_end_is_one_line(tmp_path: Path) -> None:
    deep = "[" * 10_000 + "]" * 10_000
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n\n{"text": ' + deep + "}\n")
    with pytest.raises(UserError, match=r"a\.jsonl line 3 is nested too deep"):
        rows(tmp_path / "a.jsonl")
    (tmp_path / "a.json").write_text(deep)
    with pytest.raises(UserError, match=r"a\.json is nested too deep"):
        read_json(tmp_path / "a.json")
    (tmp_path / "b.jsonl").write_text('{"text": ' + "9" * 5000 + "}\n")
    with pytest.raises(UserError, match=r"b\.jsonl line 1 is not JSON"):
        rows(tmp_path / "b.jsonl")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('["a", "b"]', "holds a list, not text"),
        ('{"a": 1}', "holds an object, not text"),
        ("12", "holds a number, not text"),
        ("true", "holds a truth value, not text"),
        ('"half \\ud800 pair"', r"half of a surrogate pair \(character 6\)"),
        ('"a \\u0000"', "NUL characters"),
    ],
)
def test_what_is_no_text_is_not_made_one(tmp_path: Path, value: str, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"text": ' + value + "}\n")
    first, second = rows(tmp_path / "a.jsonl", "text")
    assert first.text("text") == "x" and first.text("title") == ""
    with pytest.raises(UserError, match=rf"a\.jsonl line 2: column 'text' .*{reason}"):
        second.text("text")


def test_bytes_of_parquet_are_no_text(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": [b"ab", b"c"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet row 2: column 'text' holds bytes, not text"):
        rows(tmp_path / "a.parquet", "text")[1].text("text")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["ab", None]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet row 2 has nothing in column 'text'"):
        rows(tmp_path / "b.parquet", "text")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", "1e300", '"many"', "[4]", "true", "{}", '"nan"'])
def test_a_number_that_is_none(tmp_path: Path, value: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"stars": 4.0}\n{"stars": "3"}\n{"stars": ""}\n{"stars": ' + value + "}\n")
    *good, bad = rows(tmp_path / "a.jsonl")
    assert [row.number("stars", 0, 5) for row in good] == [4.0, 3.0, None] and good[0].number("else", 0, 5) is None
    with pytest.raises(UserError, match=r"a\.jsonl line 4: column 'stars' holds .*give a number from 0 to 5"):
        bad.number("stars", 0, 5)


def test_csv_says_where_a_row_begins(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,stars\n"one\ntwo",1\n"three",2\n')
    assert [row.where for row in rows(path)] == [f"{path} line 2", f"{path} line 4"]
    path.write_text('text,stars\n"one\ntwo",1\n"never closed,2\nmore\nand more\n')
    with pytest.raises(UserError, match=r"a\.csv line 4 is not CSV .*close every quote"):
        rows(path)
    path.write_text("text,stars\none,1\ntwo, three,2\n")
    with pytest.raises(UserError, match=r"a\.csv line 3 is not CSV .more fields than the header"):
        rows(path)


def test_pipes_and_devices_do_not_make_a_run_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.txt")
    (tmp_path / "valid.txt").symlink_to("/dev/zero")
    (tmp_path / "test.txt").mkdir()
    for name, kind in (("train.txt", "a pipe"), ("valid.txt", "a device"), ("test.txt", "a folder")):
        for read in (lambda path: list(read_lines(path)), file_checksum):
            with pytest.raises(UserError, match=rf"{name} is .*{kind}.*give a file"):
                read(tmp_path / name)
    with pytest.raises(UserError, match="no file called train"):
        find_file(tmp_path, ["train"])


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to("b.txt")
    (tmp_path / "b.txt").symlink_to("a.txt")
    (tmp_path / "folder").symlink_to("folder")
    with pytest.raises(UserError, match=r"a\.txt cannot be read \(Too many levels of symbolic links\)"):
        list(read_lines(tmp_path / "a.txt"))
    with pytest.raises(UserError, match=r"folder cannot be read \(Too many levels of symbolic links\)"):
        find_file(tmp_path / "folder", ["a"])
    with pytest.raises(UserError, match="cannot be read"):
        find_file("~nobody-of-this-name/text", ["a"])


def test_missing_things_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file called train, wiki\.train"):
        find_file(tmp_path, ["train", "wiki.train"])
    with pytest.raises(UserError, match="cannot be read"):
        find_file(tmp_path / "nowhere", ["train"])
    with pytest.raises(UserError, match=r"needs data\.root"):
        find_file(None, ["train"])
    with pytest.raises(UserError, match="cannot be read"):
        list(read_lines(tmp_path / "nothing.txt"))
    assert data_suffix("a/b.jsonl.xz") == ".jsonl" and data_suffix("a.txt") == ".txt"
