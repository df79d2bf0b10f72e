"""Hostile input, by the surface it arrives on. A new surface gets a section here.

Every case ends in one line that names the file or key, runs nothing, and leaves nothing half-written.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
from collections import Counter
from pathlib import Path, PurePath
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from lit_ctg import files
from lit_ctg.data.folder import FolderDataModule, labels_of
from lit_ctg.data.source import read_lines, read_records
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.errors import UserError
from lit_ctg.results.record import RunRecord, collect, load_records, write_record

# ---- checkpoints ----------------------------------------------------------------------------------------------------


# ---- records --------------------------------------------------------------------------------------------------------


def run_record(**changes: Any) -> RunRecord:
    """Return the least record that can be collected."""
    fields: dict[str, Any] = {
        "paper": "nslm", "name": "main", "experiment": "nslm/main", "regime": "corrected", "size": "small", "seed": 0,
        "config": {}, "config_hash": "ab" * 32, "git": {"commit": "c" * 40, "dirty": False}, "versions": {},
        "started_at": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return RunRecord(**{**fields, **changes})


@pytest.fixture
def bomb(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A few MB of one byte that pack to almost nothing; the limits are lowered so that they are too much."""
    monkeypatch.setattr(files, "UNPACKED_BYTES", 2**16)
    return b" " * 2**22


@pytest.mark.parametrize("name", ["run/samples.jsonl.xz", "results.tar.xz"])
def test_packed_texts_cannot_fill_the_memory(tmp_path: Path, bomb: bytes, name: str) -> None:
    path = tmp_path / name
    if name == "results.tar.xz":
        with tarfile.open(path, "w:xz") as archive:
            member = tarfile.TarInfo("a.samples.jsonl")
            member.size = len(bomb)
            archive.addfile(member, io.BytesIO(bomb))
    else:
        write_record(run_record(), path.with_name("run.json"))
        path.write_bytes(lzma.compress(bomb))
    with pytest.raises(UserError, match=rf"{name} unpacks to more than"):
        load_records([tmp_path / name.partition(".")[0].partition("/")[0]])


@pytest.mark.parametrize("left", [b"", b'{"text": "of another run"}\n'])
def test_a_record_without_its_texts_is_noticed(tmp_path: Path, run_cli, left: bytes) -> None:
    (path,) = collect([run_record(samples=[{"text": "a text"}])], tmp_path)
    texts = path.with_suffix(".samples.jsonl")
    texts.write_bytes(left)
    for words in (["verify", "paper=nslm", f"records={tmp_path}"], ["collect", f"records={tmp_path}", "out=x"]):
        code, _, err = run_cli(*words)
        assert code == 2 and str(path) in err and len(err.splitlines()) == 1
    texts.unlink()
    with pytest.raises(UserError, match="texts are missing or of another run"):
        load_records([tmp_path])


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"task": {"name": "sentiment", "rules": {"a": {}}}}},
        {"config": {"task": {"column": "words"}}},
        {"samples": [{"text": "no strength"}]},
        {"samples": [{"text": "a", "strength": "b"}]},
    ],
)
def test_a_record_of_another_shape_is_not_verified(tmp_path: Path, run_cli, changes: dict[str, Any]) -> None:
    write_record(run_record(paper="field", experiment="field/run", **changes), tmp_path / "run.json")
    code, out, err = run_cli("verify", "paper=field", f"records={tmp_path}")
    if "rules" in str(changes):  # of a task as it is now, its rules are not these: nothing is counted again
        assert code == 0 and "0 numbers recomputed" in out
    else:
        assert code == 2 and "run.json" in err and "Traceback" not in err and len(err.splitlines()) == 1


# ---- manifests ------------------------------------------------------------------------------------------------------


# ---- bundles and exports --------------------------------------------------------------------------------------------


# ---- the page -------------------------------------------------------------------------------------------------------


# ---- prompts --------------------------------------------------------------------------------------------------------


# ---- data folders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", [".xz", ".gz", ".zst"])
def test_a_packed_corpus_unpacks_to_no_more_than_text_would(tmp_path: Path, bomb: bytes, packing: str) -> None:
    pack = {".xz": lzma.compress, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[packing]
    for suffix in (".txt", ".jsonl", ".csv", ".parquet"):
        path = tmp_path / f"a{suffix}{packing}"
        path.write_bytes(pack(bomb))
        with pytest.raises(UserError, match=rf"a\{suffix}\{packing} unpacks to more than"):
            list(read_lines(path) if suffix == ".txt" else read_records(path, ["text"]))


def folder_of(root: Path, **texts: str) -> Path:
    """Write files of texts, long enough for every split, and return their folder."""
    root.mkdir()
    for name, text in texts.items():
        (root / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return root


def rows(mark: str, names: str = "text{}label") -> str:
    """Return 30 rows of a text and a label between ``mark``."""
    lines = [names.format(mark), *(f"a good film, number {number}{mark}positive" for number in range(30))]
    return "\n".join(lines if mark != "," else [line.replace("film, ", "film ") for line in lines])


def data_sample(run_cli: Any, root: Path) -> tuple[int, str, str]:
    return run_cli("data", "sample", "data=folder", f"data.root={root}", f"data.cache_root={root}.cache", "n=2")


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_labels_in_columns_are_no_text_and_are_told(tmp_path: Path, run_cli, caplog, mark: str) -> None:
    root = folder_of(tmp_path / "own", reviews__csv=rows(mark), more__csv=rows(mark))
    code, out, _ = data_sample(run_cli, root)
    assert code == 0 and "a good film" in out and "positive" not in out
    (message,) = caplog.messages
    assert str(root) in message and "'text'" in message and "label" in message


@pytest.mark.parametrize("packed", [True, False])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, packed: bool) -> None:
    root = folder_of(tmp_path / "own", a__csv=rows(",", "text{}text"))
    path = root / "a.csv"
    if packed:
        path = root / "a.parquet"
        pyarrow.parquet.write_table(pyarrow.table([["one"], ["two"]], names=["text", "text"]), path)
    with pytest.raises(UserError, match=rf"{path.name} has two columns called 'text'"):
        list(read_records(path, ["text"]))


def test_one_label_trains_no_control_code(tmp_path: Path, run_cli) -> None:
    root = folder_of(tmp_path / "own", reviews__csv=rows(","))
    words = ["experiment=control_code/transformer", "data=folder", f"data.root={root}", "size=smoke"]
    code, _, err = run_cli("train", *words, f"data.cache_root={tmp_path / 'cache'}", "trainer.accelerator=cpu")
    assert code == 2 and "one source (reviews)" in err.splitlines()[-1]


def test_labels_that_look_the_same_are_refused(tmp_path: Path) -> None:
    text = "\n".join(f"line {number}" for number in range(30))
    root = folder_of(tmp_path / "own", **{"caf\u00e9__txt": text, "cafe\u0301__txt": text})
    with pytest.raises(UserError, match=r"own: the labels 'cafe\\u0301' and 'caf\\xe9' look the same"):
        labels_of(root)


def test_a_label_cannot_steer_the_terminal(tmp_path: Path, run_cli, caplog) -> None:
    text = "\n".join(f"line {number}" for number in range(30))
    root = folder_of(tmp_path / "own", **{"pos\x1b[2J\u202e__txt": text, "neg__txt": text, "none\x1b[8m__txt": ""})
    for action in ("sample", "info", "prepare"):
        code, out, err = run_cli("data", action, "data=folder", f"data.root={root}", f"data.cache_root={root}.cache")
        assert code == 0 and not set("\x1b\u202e") & set(out + err)
    assert data_sample(run_cli, root)[1].count("pos\\x1b[2J\\u202e") == 1


def test_many_files_take_time_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 files no one waits for every pair; counted with 300 of them."""
    root = folder_of(tmp_path / "own", **{f"label{number}__txt": "a\nb\nc\n" for number in range(300)})
    (root / "many").mkdir()
    for number in range(300):
        (root / "many" / f"{number}.txt").write_text("a text\n")
    compared, looked = Counter[str](), os.lstat
    same = Path.__eq__

    def equal(one: Path, other: object) -> bool:
        compared["paths"] += 1
        return same(one, other)

    def lstat(path: Any, **options: Any) -> os.stat_result:
        compared["looks"] += 1
        return looked(path, **options)

    monkeypatch.setattr(PurePath, "__eq__", equal)
    monkeypatch.setattr(os, "lstat", lstat)
    data = FolderDataModule(
        source="local", root=root, cache_root=tmp_path / "cache", tokenizer=WordTokenizer(eol=None), val_fraction=0.1,
        test_fraction=0.1, batching="chunks", length=8, batch_size=4, seed=0,
    )  # fmt: skip
    assert sum(1 for _ in data.documents("train")) > 300
    assert compared["paths"] < 10 * 600 and compared["looks"] < 10 * 600


# ---- field reports --------------------------------------------------------------------------------------------------


# ---- settings -------------------------------------------------------------------------------------------------------
