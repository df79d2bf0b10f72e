"""A web server on 127.0.0.1 that speaks the hub's protocol and can misbehave: the network of all download tests."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Network:
    """What the server holds and how it misbehaves.

    ``requests`` is what it was asked (method, path, Range), ``tokens`` the Authorization of each request.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    stated: dict[str, str] = field(default_factory=dict)
    small: set[str] = field(default_factory=set)
    redirects: dict[str, str] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    refuse: list[int] = field(default_factory=list)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    def add_dataset(self, repository: str, files: dict[str, bytes]) -> None:
        """Serve ``files`` as the commit REVISION of a dataset on the hub."""
        for path, data in files.items():
            self.files[f"/datasets/{repository}/resolve/{REVISION}/{path}"] = data

    def downloads(self) -> list[tuple[str, str, str | None]]:
        """Return the requests for content."""
        return [request for request in self.requests if request[0] == "GET" and "/resolve/" in request[1]]


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def tree(network: Network, path: str) -> tuple[int, str, bytes]:
    match = re.fullmatch(r"/api/datasets/(\w[\w-]*/[\w-]+)/tree/([^/?]+)(/[^?]*)?(\?.*)?", path)
    repository, revision, folder = match.group(1), match.group(2), (match.group(3) or "").strip("/")
    prefix = f"/datasets/{repository}/resolve/{REVISION}/"
    if not any(name.startswith(prefix) for name in network.files):
        return 404, "RepoNotFound", b"{}"
    if revision != REVISION:
        return 404, "RevisionNotFound", b"{}"
    entries = []
    for name, data in network.files.items():
        inner = name.removeprefix(prefix)
        if name.startswith(prefix) and (inner.rpartition("/")[0] == folder or "evil" in inner):
            entry = {"type": "file", "path": inner, "size": len(data)}
            if name in network.small:
                entry["oid"] = network.stated.get(name, git_hash(data))
            else:
                digest = network.stated.get(name, hashlib.sha256(data).hexdigest())
                entry |= {"oid": "0" * 40, "lfs": {"oid": digest, "size": len(data), "pointerSize": 130}}
            entries.append(entry)
    return 200, "", json.dumps(entries).encode()


def handler(network: Network) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            """Keep the test output quiet."""

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            if self.path == "/":  # is somebody there?
                return self.answer(200, b"")
            wanted = self.headers.get("Range")
            network.requests.append((self.command, self.path, wanted))
            network.tokens.append(self.headers.get("Authorization"))
            if network.refuse:
                return self.answer(network.refuse.pop(0), b"")
            if self.path in network.redirects:
                facts = self.facts(network.files[self.path])
                facts["X-Linked-Size"], facts["X-Linked-Etag"] = str(len(network.files[self.path])), facts["ETag"]
                return self.answer(302, b"", facts | {"Location": network.redirects[self.path]})
            if self.path.startswith("/api/datasets/"):
                status, code, body = tree(network, self.path)
                return self.answer(status, body, {"X-Error-Code": code} if code else {})
            data = network.files.get(self.path)
            if data is None:
                return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted).group(1)) if wanted else 0
            if wanted and start >= len(data):
                return self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            limit = network.cut_after.pop(0) if network.cut_after and self.command == "GET" else None
            self.answer(206 if wanted else 200, data[start:], self.facts(data), limit)

        def facts(self, data: bytes) -> dict[str, str]:
            return {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": REVISION}

        def answer(
            self, status: int, body: bytes, headers: dict[str, str] | None = None, limit: int | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[:limit])

    return Handler


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """A running server; no environment variable of the machine reaches it, and nobody waits before a retry."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_ENDPOINT", "HF_TOKEN", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    # read once, when the library was imported
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))
    state = Network()
    # a client that gives up is part of these tests, not news
    monkeypatch.setattr(http.server.ThreadingHTTPServer, "handle_error", lambda *arguments: None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(state))
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()
