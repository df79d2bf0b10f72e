"""Reading folders: every format and packing gives the same text; every damage is one line."""

from __future__ import annotations

import csv
import functools
import gzip
import json
import lzma
import os
import random
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from lit_ctg.data.source import data_suffix, file_checksum, find_file, read_json, read_lines, read_records, read_text
from lit_ctg.errors import UserError

TEXT = "first line\nzweite Zeile: äöü\n\nlast\n"
ZSTD = functools.partial(pyarrow.compress, codec="zstd", asbytes=True)
PACK = {"": lambda data: data, ".xz": lzma.compress, ".gz": gzip.compress, ".zst": ZSTD}


@pytest.mark.parametrize("packing", PACK)
def test_text_is_the_same_however_packed(tmp_path: Path, packing: str) -> None:
    path = tmp_path / f"a.txt{packing}"
    path.write_bytes(PACK[packing](TEXT.encode()))
    assert read_text(path) == TEXT
    assert find_file(tmp_path, ["b", "a"]) == path


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.txt", b"\xef\xbb\xbfone\r\ntwo"), ("a.txt.zst", PACK[".zst"](b"one\nt") + PACK[".zst"](b"wo\n"))],
)
def test_lines_of_unusual_files(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert list(read_lines(tmp_path / name)) == ["one", "two"]


NOISE = random.Random(0).randbytes(20_000).hex().encode()
DEEP = b"[" * 10_000 + b"]" * 10_000
DAMAGED = [
    *((f"a.txt{suffix}", PACK[suffix](NOISE)[:-400], "is truncated or damaged") for suffix in (".xz", ".gz", ".zst")),
    *((f"a.txt{suffix}", b"this was never compressed", "is truncated or damaged") for suffix in (".xz", ".gz", ".zst")),
    ("a.txt", "naïve".encode("latin-1"), "line 1 byte 3 is not UTF-8"),
    ("a.txt", b"", "is empty"),
    ("a.txt", b" \n \n", "is empty"),
    ("a.txt", b"fine\nbad \0 byte\n", "line 2 holds NUL bytes"),
    ("a.json", DEEP, "is nested too deep"),
    ("a.json", b"{", "is not JSON"),
    ("a.jsonl", b'{"text": "x"}\n{oops\n', "line 2 is not JSON"),
    ("a.jsonl", b"[]", "line 1 is not a JSON object"),
    ("a.jsonl", b'{"text": "x"}\n\n{"text": ' + DEEP + b"}\n", "line 3 is nested too deep"),
    ("a.jsonl", b'{"text": ' + b"9" * 5000 + b"}\n", "line 1 is not JSON"),
    ("a.csv", b"text\n", "is empty"),
    ("a.csv", b'text,stars\n"one\ntwo",1\n"never closed,2\nmore\nand more\n', "line 4 is not CSV"),
    ("a.csv", b"text,stars\none,1\ntwo, three,2\n", "line 3 is not CSV"),
    ("a.csv", b"text,text\none,two\n", "two columns called 'text'"),
    ("a.parquet", b"PAR1 nonsense", "is truncated or damaged"),
    ("a.rows", b"x", "not from '.rows'"),
]


@pytest.mark.parametrize(("name", "data", "words"), DAMAGED)
def test_damage_is_one_line(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UserError) as error:
        list(read_lines(path) if ".txt" in name else read_json(path) if name == "a.json" else rows(path))
    assert words in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_row_of_csv_has_the_line_that_it_begins_on(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,stars\n"one\ntwo",1\n"three",2\n')
    assert [row.where for row in rows(path)] == [f"{path} line 2", f"{path} line 4"]


def test_a_200_megabyte_line_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.txt.gz", "wb", compresslevel=1) as stream:
        stream.write(b"short\n")
        for _ in range(200):
            stream.write(b"x" * 2**20)
    lines = read_lines(tmp_path / "a.txt.gz")
    assert next(lines) == "short"
    with pytest.raises(UserError, match="line 2 is longer than 32 MiB"):
        next(lines)


def test_records_from_every_format(tmp_path: Path) -> None:
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
        with pytest.raises(UserError, match=r"no column 'star'.*did you mean 'stars'"):
            list(read_records(tmp_path / name, ["star"]))


def rows(path: Path, *columns: str) -> list:
    return list(read_records(path, columns))


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
def test_other_values_are_not_converted_to_text(tmp_path: Path, value: str, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"text": ' + value + "}\n")
    first, second = rows(tmp_path / "a.jsonl", "text")
    assert first.text("text") == "x" and first.text("title") == ""
    with pytest.raises(UserError, match=rf"a\.jsonl line 2: column 'text' .*{reason}"):
        second.text("text")


def test_bytes_of_parquet_are_no_text(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": [b"ab", b"c"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet row 2: column 'text' holds bytes, not text"):
        rows(tmp_path / "a.parquet", "text")[1].text("text")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["ab", None]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet row 2 has nothing in column 'text'"):
        rows(tmp_path / "b.parquet", "text")
    pyarrow.parquet.write_table(pyarrow.table([["one"], ["two"]], names=["text", "text"]), tmp_path / "c.parquet")
    with pytest.raises(UserError, match=r"c\.parquet has two columns called 'text'"):
        rows(tmp_path / "c.parquet", "text")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", "1e300", '"many"', "[4]", "true", "{}", '"nan"'])
def test_a_number_that_is_none(tmp_path: Path, value: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"stars": 4.0}\n{"stars": "3"}\n{"stars": ""}\n{"stars": ' + value + "}\n")
    *good, bad = rows(tmp_path / "a.jsonl")
    assert [row.number("stars", 0, 5) for row in good] == [4.0, 3.0, None] and good[0].number("else", 0, 5) is None
    with pytest.raises(UserError, match=r"a\.jsonl line 4: column 'stars' holds .*give a number from 0 to 5"):
        bad.number("stars", 0, 5)


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


@pytest.mark.parametrize(
    ("root", "message"),
    [(".", r"no file called train, wiki\.train"), ("nowhere", "cannot be read"), (None, r"needs data\.root")],
)
def test_a_missing_file_or_folder_is_named(tmp_path: Path, root: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_file(root and tmp_path / root, ["train", "wiki.train"])
    assert data_suffix("a/b.jsonl.xz") == ".jsonl" and data_suffix("a.txt") == ".txt"
