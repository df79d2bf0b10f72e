"""Hostile input, by the surface it arrives on. A new surface gets a section here.

Every case ends in one line that names the file or key, runs nothing, and leaves nothing half-written.
"""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from lit_ctg import files
from lit_ctg.data.source import read_lines, read_records
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


# ---- field reports --------------------------------------------------------------------------------------------------


# ---- settings -------------------------------------------------------------------------------------------------------
