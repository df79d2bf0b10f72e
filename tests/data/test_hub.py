"""Pinned datasets from a hub on 127.0.0.1: listing, checksums, manifest, offline use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lit_ctg.data.hub import HubFiles, cache_root
from lit_ctg.errors import UserError

REVISION = "0123456789abcdef0123456789abcdef01234567"
FILES = {"v1/train-0.parquet": b"one", "v1/train-1.parquet": b"two", "v1/test-0.parquet": b"three"}


def hub(network, root: Path, revision: str | None = REVISION, repository: str = "some/corpus") -> HubFiles:
    return HubFiles(repository, revision, root=root, endpoint=network.address, wait_s=0.01)


def test_fetch_then_work_without_network(network, tmp_path: Path, monkeypatch) -> None:
    network.add_dataset("some/corpus", FILES)
    files = hub(network, tmp_path)
    paths = files.fetch("v1/train-*.parquet")
    assert [path.read_bytes() for path in paths] == [b"one", b"two"]
    asked = len(network.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub(network, tmp_path).fetch("v1/train-*.parquet") == paths
    assert len(network.requests) == asked
    with pytest.raises(UserError, match=r"HF_HUB_OFFLINE=1.*data\.source=local.*data\.source=sample"):
        hub(network, tmp_path).fetch("v1/test-*.parquet")
    assert json.loads(files.checksum(["v1/train-*.parquet"]))[0] == "some/corpus"


def test_stated_checksum_is_held_against_the_bytes(network, tmp_path: Path) -> None:
    network.add_dataset("some/corpus", FILES)
    network.stated[f"/datasets/some/corpus/resolve/{REVISION}/v1/test-0.parquet"] = "f" * 64
    with pytest.raises(UserError, match="wrong checksum"):
        hub(network, tmp_path).fetch("v1/test-*.parquet")
    assert not list(tmp_path.rglob("*.parquet*"))


def test_a_file_that_changes_on_disk_is_noticed(network, tmp_path: Path) -> None:
    network.add_dataset("some/corpus", FILES)
    (path,) = hub(network, tmp_path).fetch("v1/test-*.parquet")
    path.write_bytes(b"tampered")
    with pytest.raises(UserError, match="wrong checksum"):
        hub(network, tmp_path).fetch("v1/test-*.parquet")


def test_what_is_not_there_is_named(network, tmp_path: Path) -> None:
    network.add_dataset("some/corpus", FILES)
    with pytest.raises(UserError, match=r"1111.*it has no such revision, check data\.revision"):
        hub(network, tmp_path, "1" * 40).fetch("v1/test-*.parquet")
    with pytest.raises(UserError, match=r"other/corpus.*no such repository"):
        hub(network, tmp_path, repository="other/corpus").fetch("v1/test-*.parquet")
    with pytest.raises(UserError, match="holds no file"):
        hub(network, tmp_path).fetch("v1/valid-*.parquet")


@pytest.mark.parametrize("revision", [None, "main", "0123abc"])
def test_only_a_commit_is_a_pin(network, tmp_path: Path, revision: str | None) -> None:
    with pytest.raises(UserError, match=r"pin it: data\.revision="):
        hub(network, tmp_path, revision)


def test_no_network_at_all(tmp_path: Path, network) -> None:
    files = HubFiles("some/corpus", REVISION, root=tmp_path, endpoint="http://127.0.0.1:9", retries=0)
    with pytest.raises(UserError, match=r"failed 1 times.*data\.source=sample") as error:
        files.fetch("v1/test-*.parquet")
    assert "\n" not in str(error.value)


def test_an_answer_that_is_no_hub(network, tmp_path: Path) -> None:
    network.files[f"/api/models/some/corpus/tree/{REVISION}/v1"] = b"<html>welcome to the hotel network</html>"
    files = HubFiles("some/corpus", REVISION, root=tmp_path, endpoint=network.address, kind="model")
    with pytest.raises(UserError, match="did not answer as a hub does"):
        files.fetch("v1/x")


def test_cache_root(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path))
    assert cache_root(None) == tmp_path and cache_root("x") == Path("x")
    monkeypatch.delenv("LIT_CTG_CACHE")
    assert cache_root(None).name == "lit_ctg"
