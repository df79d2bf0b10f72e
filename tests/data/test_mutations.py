"""Mutated data files: each is read, or ends in one line that names the file (and not in an error of a library)."""

from __future__ import annotations

import gzip
import json
import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from lit_ctg.data.byte_pair import END, GPT2Tokenizer
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.folder import FolderDataModule
from lit_ctg.data.reviews import ReviewsDataModule
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.data.wikipedia import WikipediaDataModule
from lit_ctg.data.wikitext import WikiTextDataModule
from lit_ctg.errors import UserError

ROWS = [{"text": f'review "{n}", of a café,\nand more', "stars": n % 5 + 1} for n in range(30)]
ARTICLES = "".join(f"\n = Title {n} = \n\n Some words of article {n} . \n" for n in range(12))
DEEP = b"[" * 10_000 + b"]" * 10_000
# what a value of a row may be instead
VALUES = [b"NaN", b"-Infinity", b"null", b"true", b"[1, [2]]", b'{"a": 1}', b'"\\ud800"', b'"\\u0000"', b"1e999",
          b"9" * 5000, b'""', b'"five"', b"-7", DEEP]  # fmt: skip


def csv_of(rows: list[dict[str, Any]]) -> bytes:
    lines = ['"' + row["text"].replace('"', '""') + f'",{row["stars"]}' for row in rows]
    return ("text,stars\n" + "\n".join(lines) + "\n").encode()


def parquet_of(rows: list[dict[str, Any]], folder: Path) -> bytes:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "made.parquet")
    data = (folder / "made.parquet").read_bytes()
    (folder / "made.parquet").unlink()
    return data


def files_of(folder: Path) -> dict[str, dict[str, bytes]]:
    """Return the files of each corpus, all in order; the first of each is the one that is mutated."""
    jsonl = "\n".join(map(json.dumps, ROWS)).encode()
    splits = {"valid.txt": ARTICLES[:90].encode(), "test.txt": ARTICLES[:80].encode()}
    tokens = [chr(256 + n) if n < 33 else chr(n) for n in range(256)]
    vocabulary = json.dumps({token: n for n, token in enumerate([*dict.fromkeys(tokens), "ab", END])}).encode()
    return {
        "reviews": {"amazon.jsonl": jsonl},
        "reviews csv": {"amazon.csv": csv_of(ROWS)},
        "reviews parquet": {"amazon.parquet": parquet_of(ROWS, folder)},
        "wikitext": {"train.txt": ARTICLES.encode(), **splits},
        "wikitext packed": {"train.txt.gz": gzip.compress(ARTICLES.encode()), **splits},
        "wikipedia": {"some-thing.txt": ARTICLES.encode()},
        "folder": {"a.jsonl": jsonl, "b.txt": ARTICLES.encode()},
        "folder csv": {"a.csv": csv_of(ROWS), "b.txt": ARTICLES.encode()},
        "merges": {"vocab.bpe": b"#version: 0.2\na b\n", "encoder.json": vocabulary},
        "table": {"encoder.json": vocabulary, "vocab.bpe": b"#version: 0.2\na b\n"},
    }


def corpus(kind: str, root: Path) -> CorpusDataModule:
    options: dict[str, Any] = {
        "source": "local", "root": root, "cache_root": root.parent / "cache", "tokenizer": WordTokenizer(),
        "batching": "chunks", "length": 8, "batch_size": 4, "seed": 0,
    }  # fmt: skip
    shares = {"val_fraction": 0.1, "test_fraction": 0.1}
    if kind in ("merges", "table"):
        GPT2Tokenizer(root=root).train([])
    if kind.startswith("reviews"):
        return ReviewsDataModule(corpus="amazon", hub={"amazon": {}}, **shares, **options)
    if kind.startswith("folder"):
        return FolderDataModule(**shares, **options)
    if kind == "wikipedia":
        return WikipediaDataModule(holdout=4, **options)
    return WikiTextDataModule(version=2, raw=False, **options)


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 3, 30])):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def insert(rng: random.Random, data: bytes) -> bytes:
    piece = rng.choice(
        [b"\0", b"\xff\xfe", b'"', b"\r", b",", b"\n", b"{", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x1b[31m", DEEP]
    )
    place = rng.randrange(len(data))
    return data[:place] + piece + data[place:]


def drop(rng: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(line for line in lines if rng.random() < rng.choice([0.1, 0.7, 0.95]))


def swap(rng: random.Random, data: bytes) -> bytes:
    """Put another value, key or line in."""
    lines = data.splitlines(keepends=True)
    place = rng.randrange(len(lines))
    key, colon, _ = lines[place].partition(b'"stars": ')
    if colon:
        lines[place] = key + colon + rng.choice(VALUES) + b"}\n"
        if rng.random() < 0.5:
            lines[place] = b'{"text": ' + rng.choice(VALUES) + b', "stars": 3}\n'
    else:
        lines[place] = rng.choice([b"= =\n", b",,,\n", b"\n", b"x" * 100_000 + b"\n", b'"', *VALUES])
    return b"".join(lines)


def noise(rng: random.Random, data: bytes) -> bytes:
    return rng.choice([b"", b"\n", rng.randbytes(200), data + data, data[::-1], "\u2028".encode() * 50, b"PAR1" + data])


MUTATIONS: list[Callable[[random.Random, bytes], bytes]] = [cut, flip, insert, drop, swap, noise]
PLACES = [lambda path: os.mkfifo(path), lambda path: path.symlink_to(path.name), lambda path: path.mkdir(),
          lambda path: path.symlink_to("/dev/null")]  # fmt: skip


def attempt(folder: Path, seed: int) -> str:
    """Read one mutated corpus and return how it ended: "" or the line; whatever else is raised fails the test."""
    rng = random.Random(seed)
    every = files_of(folder)
    kind = list(every)[seed % len(every)]
    root = folder / f"root{seed}"
    root.mkdir()
    (mutated, original), *others = every[kind].items()
    for name, data in others:
        (root / name).write_bytes(data)
    if rng.random() < 0.08:
        rng.choice(PLACES)(root / mutated)
    else:
        (root / mutated).write_bytes(rng.choice(MUTATIONS)(rng, original))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            data = corpus(kind, root)
            data.setup("fit")
            for batch in data.train_dataloader():
                assert int(batch["input_ids_BT"].max()) < len(data.vocabulary)
    except UserError as error:
        line = str(error)
        assert "\n" not in line and len(line) < 700, f"seed {seed}, {kind}: {line}"
        # a corpus left without a document names no one file
        assert str(root) in line or "no document to train on" in line or "nothing to predict" in line, (
            f"seed {seed}: {line}"
        )
        return line
    except Exception as error:
        raise AssertionError(f"seed {seed}, {kind}: {type(error).__name__}: {error}") from error
    return ""


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(1000, 1300), marks=pytest.mark.slow)])
def test_mutated_files(tmp_path: Path, seeds: range) -> None:
    assert sum(bool(attempt(tmp_path, seed)) for seed in seeds) > 0.25 * len(seeds), "are the files mutated?"
