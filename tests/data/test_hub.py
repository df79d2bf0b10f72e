"""Pinned datasets from a hub on 127.0.0.1: listing, checksums, resume, offline use, a hub that is not to be trusted."""

from __future__ import annotations

import json
import os
import random
import threading
from pathlib import Path

import pytest

from lit_ctg.data.hub import HubFiles
from lit_ctg.errors import UserError
from lit_ctg.files import cache_root

REVISION = "0123456789abcdef0123456789abcdef01234567"
FILES = {"v1/train-0.parquet": b"one", "v1/train-1.parquet": b"two", "v1/test-0.parquet": b"three"}
FOLDER = f"/datasets/some/corpus/resolve/{REVISION}"


@pytest.fixture
def network(network):
    network.add_dataset("some/corpus", FILES)
    return network


def hub(network, root: Path, revision: str | None = REVISION, repository: str = "some/corpus") -> HubFiles:
    return HubFiles(repository, revision, root=root, endpoint=network.address)


def test_fetch_then_work_without_network(network, tmp_path: Path, monkeypatch) -> None:
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


def test_a_complete_cache_is_only_read(network, tmp_path: Path) -> None:
    """As on a mount that cannot be written: not a lock file appears."""
    hub(network, tmp_path).fetch("v1/test-*.parquet")

    def state() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))}

    for lock in tmp_path.rglob("*.lock"):
        lock.unlink()
    before = state()
    assert hub(network, tmp_path).fetch("v1/test-*.parquet")[0].read_bytes() == b"three"
    assert state() == before


def test_progress_is_reported(network, tmp_path: Path) -> None:
    seen = []
    hub(network, tmp_path).fetch("v1/test-*.parquet", progress=lambda *state: seen.append(state))
    assert seen[-1] == ("v1/test-0.parquet", 5, 5)


def test_a_broken_connection_is_resumed(network, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 50_000)
    data = random.Random(1).randbytes(600_000)
    network.add_dataset("some/corpus", {"v1/a": data})
    network.cut_after = [200_000, 150_000]
    (path,) = hub(network, tmp_path).fetch("v1/a")
    assert path.read_bytes() == data
    assert [wanted for _, _, wanted in network.downloads()] == [None, "bytes=200000-", "bytes=350000-"]


def test_a_busy_server_is_asked_again(network, tmp_path: Path) -> None:
    network.refuse = [503, 429]
    assert hub(network, tmp_path).fetch("v1/test-*.parquet")


@pytest.mark.parametrize("small", [False, True])
def test_stated_checksum_is_held_against_the_bytes(network, tmp_path: Path, small: bool) -> None:
    """A large file's sha256, a small one's hash as a git blob."""
    name = f"{FOLDER}/v1/test-0.parquet"
    if small:
        network.small.add(name)
    assert hub(network, tmp_path / "right").fetch("v1/test-*.parquet")
    network.stated[name] = "f" * (40 if small else 64)
    with pytest.raises(UserError, match="wrong checksum") as error:
        hub(network, tmp_path / "wrong").fetch("v1/test-*.parquet")
    assert "\n" not in str(error.value)
    assert not [path for path in (tmp_path / "wrong").rglob("*") if path.is_file() and path.read_bytes() == b"three"]


def test_a_file_that_changes_on_disk_is_noticed(network, tmp_path: Path) -> None:
    (path,) = hub(network, tmp_path).fetch("v1/test-*.parquet")
    path.write_bytes(b"tampered")
    with pytest.raises(UserError, match="wrong checksum"):
        hub(network, tmp_path).fetch("v1/test-*.parquet")
    assert hub(network, tmp_path).fetch("v1/test-*.parquet")[0].read_bytes() == b"three", "fetched again"


@pytest.mark.parametrize(
    ("options", "pattern", "status", "message"),
    [
        ({"revision": "1" * 40}, "v1/test-*.parquet", 0, r"1111.*it has no such revision, check data\.revision"),
        ({"repository": "other/corpus"}, "v1/test-*.parquet", 0, r"other/corpus.*no such repository"),
        ({}, "v1/valid-*.parquet", 0, "holds no file"),
        ({}, "v1/test-*.parquet", 403, "HTTP 403: set HF_TOKEN"),
    ],
)
def test_a_refusal_is_named(network, tmp_path: Path, options, pattern: str, status: int, message: str) -> None:
    network.refuse = [status] * bool(status)
    with pytest.raises(UserError, match=message):
        hub(network, tmp_path, **options).fetch(pattern)


@pytest.mark.parametrize("revision", [None, "main", "0123abc"])
def test_only_a_commit_is_a_pin(network, tmp_path: Path, revision: str | None) -> None:
    with pytest.raises(UserError, match=r"pin it: data\.revision="):
        hub(network, tmp_path, revision)


def test_no_network_at_all(tmp_path: Path, network) -> None:
    files = HubFiles("some/corpus", REVISION, root=tmp_path, endpoint="http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"could not be fetched from http://127.0.0.1:9 .*data\.source=sample") as error:
        files.fetch("v1/test-*.parquet")
    assert "\n" not in str(error.value)


def test_a_hub_that_keeps_silent_is_given_up(network, tmp_path: Path, monkeypatch) -> None:
    """Whatever hangs: the look-up of its name, the connection, the answer."""
    begun, end = [], threading.Event()

    class Silent:
        def head(self, address: str, timeout: float) -> None:
            begun.append(address)
            end.wait(60)

    monkeypatch.setattr("huggingface_hub.get_session", Silent)
    monkeypatch.setattr("lit_ctg.network.pretrained.HUB_SECONDS", 0.01)
    with pytest.raises(UserError, match=r"some/corpus.*no answer within 0.01 s.*data\.source=local"):
        hub(network, tmp_path).fetch("v1/test-*.parquet")
    end.set()
    assert begun == [network.address] and not network.requests


def test_an_answer_that_is_no_hub(network, tmp_path: Path) -> None:
    network.files[f"/api/models/some/corpus/tree/{REVISION}/v1?recursive=false&expand=false"] = b"<html>welcome</html>"
    files = HubFiles("some/corpus", REVISION, root=tmp_path, endpoint=network.address, kind="model")
    with pytest.raises(UserError, match="did not answer as a hub does"):
        files.fetch("v1/x")


def test_a_full_disk(network, tmp_path: Path, monkeypatch) -> None:

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    with pytest.raises(UserError, match=r"No space left on device.*data\.cache_root") as error:
        hub(network, tmp_path).fetch("v1/test-*.parquet")
    assert "\n" not in str(error.value)


def test_a_token_does_not_follow_to_another_host(network, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    name = f"{FOLDER}/v1/test-0.parquet"
    network.files["/elsewhere"] = network.files[name]
    network.redirects[name] = network.address.replace("127.0.0.1", "localhost") + "/elsewhere"
    (path,) = hub(network, tmp_path).fetch("v1/test-*.parquet")
    assert path.read_bytes() == b"three"
    sent = {asked: token for (_, asked, _), token in zip(network.requests, network.tokens, strict=True)}
    assert sent["/elsewhere"] is None
    assert all(token == "Bearer hf_secret" for asked, token in sent.items() if asked != "/elsewhere")


@pytest.mark.parametrize("name", ["v1/../../../../../evil", "/etc/evil"])
def test_a_listing_that_leaves_the_cache_writes_nothing_there(network, tmp_path: Path, name: str) -> None:
    network.files[f"{FOLDER}/{name}"] = b"evil"
    with pytest.raises(UserError, match=r"lists a file outside its folder .*do not trust this hub"):
        hub(network, tmp_path / "a" / "b").fetch("*")
    assert not list(tmp_path.rglob("*evil*")) and not os.path.exists("/etc/evil")


def test_cache_root(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path))
    assert cache_root(None) == tmp_path and cache_root("x") == Path("x")
    monkeypatch.delenv("LIT_CTG_CACHE")
    assert cache_root(None).name == "lit_ctg"
