"""Retry, resume, checksum, refusal and full disk against a real server on 127.0.0.1."""

from __future__ import annotations

import errno
import hashlib
import random
from pathlib import Path

import pytest

from lit_ctg.data import download as module
from lit_ctg.data.download import download
from lit_ctg.errors import UserError

DATA = random.Random(1).randbytes(600_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_plain_download(network, tmp_path: Path) -> None:
    network.files["/a"] = DATA
    seen: list[tuple[int, int | None]] = []
    digest = download(network.address + "/a", tmp_path / "x" / "a", progress=lambda *state: seen.append(state))
    assert digest == SHA256 and (tmp_path / "x" / "a").read_bytes() == DATA
    assert seen[-1] == (len(DATA), len(DATA)) and left_behind(tmp_path) == ["a"]


def test_a_broken_connection_is_resumed(network, tmp_path: Path) -> None:
    network.files["/a"] = DATA
    network.cut_after = [200_000, 150_000]
    download(network.address + "/a", tmp_path / "a", sha256=SHA256, wait_s=0.01)
    assert (tmp_path / "a").read_bytes() == DATA
    assert [wanted for _, wanted in network.requests] == [None, "bytes=200000-", "bytes=350000-"]


def test_the_next_run_resumes_what_this_run_could_not_end(network, tmp_path: Path) -> None:
    network.files["/a"] = DATA
    network.cut_after = [1000, 1000]
    with pytest.raises(UserError, match=r"failed 2 times .*data\.source=sample"):
        download(network.address + "/a", tmp_path / "a", retries=1, wait_s=0.01)
    assert left_behind(tmp_path) == ["a.part"]
    download(network.address + "/a", tmp_path / "a", sha256=SHA256)
    assert network.requests[-1] == ("/a", "bytes=2000-") and left_behind(tmp_path) == ["a"]


def test_a_whole_part_is_only_checked(network, tmp_path: Path) -> None:
    network.files["/a"] = DATA
    (tmp_path / "a.part").write_bytes(DATA)
    assert download(network.address + "/a", tmp_path / "a", sha256=SHA256) == SHA256
    # a part longer than the file belongs to something else: start again
    (tmp_path / "a").unlink()
    (tmp_path / "a.part").write_bytes(DATA + b"more")
    assert download(network.address + "/a", tmp_path / "a", sha256=SHA256, wait_s=0.01) == SHA256


def test_a_busy_server_is_asked_again(network, tmp_path: Path) -> None:
    network.files["/a"] = DATA
    network.refuse = [503, 429]
    assert download(network.address + "/a", tmp_path / "a", wait_s=0.01) == SHA256
    assert len(network.requests) == 3


def test_wrong_checksum_leaves_nothing(network, tmp_path: Path) -> None:
    network.files["/a"] = DATA
    with pytest.raises(UserError, match="wrong checksum") as error:
        download(network.address + "/a", tmp_path / "a", sha256="0" * 64)
    assert "\n" not in str(error.value) and left_behind(tmp_path) == []


def test_refusals_are_not_retried(network, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="HTTP 404"):
        download(network.address + "/nothing", tmp_path / "a")
    network.refuse = [403]
    with pytest.raises(UserError, match="HF_TOKEN"):
        download(network.address + "/private", tmp_path / "a")
    assert len(network.requests) == 2


def test_no_server(tmp_path: Path, network) -> None:
    with pytest.raises(UserError, match=r"data\.source=local"):
        download("http://127.0.0.1:9/a", tmp_path / "a", retries=1, wait_s=0.01)


def test_offline_mode_names_the_alternatives(network, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"HF_HUB_OFFLINE=1.*data\.source=local data\.root=.*data\.source=sample"):
        download(network.address + "/a", tmp_path / "a")
    assert network.requests == []


def test_full_disk(network, tmp_path: Path, monkeypatch) -> None:
    network.files["/a"] = DATA

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_blocks", full)
    with pytest.raises(UserError, match="No space left on device") as error:
        download(network.address + "/a", tmp_path / "a")
    assert "\n" not in str(error.value) and not (tmp_path / "a").exists()
