"""Run directories are never shared and never overwritten."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path

import pytest

from lit_ctg.errors import UserError
from lit_ctg.run.directory import Finished, RunDirectory, claim, finished, run_status, run_stem


def record(path: Path, status: str) -> None:
    (path / "run.json").write_text(json.dumps({"status": status}), encoding="utf-8")


def claimed(path: Path, skip_completed: bool = False) -> RunDirectory:
    """Return the directory of a run that is not finished."""
    found = claim(path, skip_completed)
    assert isinstance(found, RunDirectory)
    return found


def ended(path: Path, status: str) -> RunDirectory:
    """Return the directory of a run that left a record."""
    found = claimed(path)
    record(found.path, status)
    found.release()
    return found


def test_a_busy_directory_is_not_claimed_twice(tmp_path: Path) -> None:
    first, second = claimed(tmp_path / "run"), claimed(tmp_path / "run")
    assert (first.path.name, second.path.name) == ("run", "run-1")
    third = claim(tmp_path / "run", skip_completed=True)
    assert isinstance(third, Finished) and third.busy == f"process {os.getpid()} on {socket.gethostname()}"


def test_a_full_disk_names_the_directory_and_frees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries write there too, and their errors do not know the file."""
    first = claimed(tmp_path / "run")
    with pytest.raises(UserError, match=f"cannot write {first.path}: No space left"), first:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    again = claimed(tmp_path / "run")
    assert again.path == first.path
    with pytest.raises(FileNotFoundError), again:
        raise FileNotFoundError(errno.ENOENT, "No such file", "corpus")

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match=r"run/\.owner: No space left"):
        claim(tmp_path / "run", skip_completed=False)


def test_a_done_run_is_kept_and_skipped_only_on_request(tmp_path: Path) -> None:
    first = ended(tmp_path / "run", "DONE")
    skipped = claim(tmp_path / "run", skip_completed=True)
    assert skipped == Finished(first.path)
    assert claimed(tmp_path / "run").path.name == "run-1"
    assert run_status(first.record) == "DONE"


def test_a_run_that_diverged_is_a_result(tmp_path: Path) -> None:
    """It would diverge again: it is neither taken up nor overwritten, and skipped like one that is done."""
    first = ended(tmp_path / "run", "DIVERGED")
    assert claim(tmp_path / "run", skip_completed=True) == Finished(first.path)
    assert finished(tmp_path / "run") == []  # there is nothing to generate with
    assert claimed(tmp_path / "run").path.name == "run-1"


def test_a_run_on_another_corpus_is_not_this_run(tmp_path: Path) -> None:
    first = ended(tmp_path / "run", "DONE")
    seen = []
    other = claim(tmp_path / "run", True, lambda path: bool(seen.append(path)))
    assert isinstance(other, RunDirectory) and other.path.name == "run-1"
    assert set(seen) == {first.record}
    assert claim(tmp_path / "run", True, lambda path: True) == Finished(first.path)


@pytest.mark.parametrize("text", ["[" * 20000, "[]", '"', "\udcff", '{"status": "DO', '{"status": {}, "config": []}'])
def test_a_record_that_is_none_is_no_finished_run(tmp_path: Path, text: str) -> None:
    for name in ("run", "run-12345678"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    assert claimed(tmp_path / "run", skip_completed=True).path.name == "run"


def test_an_unfinished_run_is_taken_up_and_a_failed_record_is_kept(tmp_path: Path) -> None:
    first = claimed(tmp_path / "run", skip_completed=True)
    record(first.path, "FAILED")
    half = first.path / "checkpoints" / ".last.ckpt.7.tmp"
    half.parent.mkdir()
    half.write_bytes(b"half a checkp")
    (first.path / ".export.7.tmp").mkdir()
    (first.path / ".export.7.tmp" / ".model.8.tmp").write_bytes(b"half an export")
    (first.path / "metrics.csv").write_text("epoch,loss\n", encoding="utf-8")
    first.release()
    again = claimed(tmp_path / "run", skip_completed=True)
    assert again.path == first.path
    assert not again.record.exists()
    assert run_status(first.path / "run.before-0.json") == "FAILED"
    assert not half.exists() and not (first.path / ".export.7.tmp").exists()
    assert (first.path / "metrics.before-0.csv").read_text(encoding="utf-8") == "epoch,loss\n"


def test_a_folder_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    with pytest.raises(UserError, match="output_root"):
        claim(tmp_path / "file" / "run", skip_completed=False)


def test_the_stem_tells_what_it_holds() -> None:
    stem = run_stem(Path("outputs"), "semantic_fusion", "main", "corrected", "paper", 111, "0123456789abcdef")
    assert stem == Path("outputs/semantic_fusion/main/corrected-paper-seed111-01234567")
