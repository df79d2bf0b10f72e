"""Fetch one file over HTTP: retried, resumed where it broke off, checked, and put in place in one step."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lit_ctg.errors import UserError

ALTERNATIVES = "use data.source=local data.root=<folder> or data.source=sample"
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
BLOCK = 2**18
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


class _Broken(Exception):
    """The connection ended before the whole file came; the part that came is kept."""


def offline() -> str:
    """Return the name of the environment variable that forbids the network, or ``""``."""
    for name in OFFLINE_VARIABLES:
        if os.environ.get(name, "").lower() in ("1", "true", "yes", "on"):
            return name
    return ""


def require_network(what: str) -> None:
    """Raise the one line that names both alternatives when the environment forbids the network."""
    if name := offline():
        raise UserError(f"{what} is not here yet and {name}=1 forbids the network: {ALTERNATIVES}")


def download(
    url: str,
    target: str | Path,
    *,
    sha256: str | None = None,
    headers: Mapping[str, str] | None = None,
    retries: int = 4,
    wait_s: float = 1.0,
    timeout_s: float = 60.0,
    progress: Callable[[int, int | None], None] | None = None,
) -> str:
    """Fetch ``url`` into ``target`` and return the sha256 of its bytes.

    A transfer that breaks off leaves ``<target>.part``; the next try (or the next run) asks for the rest with a Range
    request. Only a complete file whose checksum is right gets its final name; one that is wrong is removed.

    Args:
        url: an http(s) address.
        target: the file to write; its folder is made.
        sha256: the checksum (64 hex digits) it must have; ``None`` accepts any.
        headers: more request headers, e.g. a token.
        retries: how often a broken connection or a busy server is tried again.
        wait_s: seconds before the first retry; doubled each time.
        timeout_s: seconds a connection may stay silent.
        progress: called with (bytes so far, bytes in all or ``None``).

    Raises:
        UserError: no such address, server refuses, connection keeps failing, wrong checksum, disk full.
    """
    require_network(url)
    target = Path(target)
    part = target.with_name(target.name + ".part")
    for attempt in range(retries + 1):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _transfer(url, part, headers or {}, timeout_s, progress)
            break
        except _Broken as error:
            if attempt == retries:
                raise UserError(f"{url} failed {retries + 1} times ({error}): try again later (it resumes), or "
                                f"{ALTERNATIVES}") from error  # fmt: skip
            time.sleep(wait_s * 2**attempt)
        except OSError as error:
            raise UserError(f"{part} cannot be written ({error.strerror or error}): free the disk or set "
                            "data.cache_root to another folder") from error  # fmt: skip
    got = _sha256(part)
    if sha256 is not None and got != sha256.lower():
        part.unlink()
        raise UserError(f"{url} has the wrong checksum (sha256 {got[:16]}..., expected {sha256[:16].lower()}...): the "
                        f"file changed or was damaged on its way; try again, or {ALTERNATIVES}")  # fmt: skip
    os.replace(part, target)
    return got


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _transfer(
    url: str,
    part: Path,
    headers: Mapping[str, str],
    timeout_s: float,
    progress: Callable[[int, int | None], None] | None,
) -> None:
    """Append what is missing of ``url`` to ``part``; ``_Broken`` when it ends too early."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "lit-ctg", **headers})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            if error.code == 416 and have:
                # nothing is left to send: either the part is whole (the checksum tells) or it must start again
                if error.headers.get("Content-Range", "").endswith(f"/{have}"):
                    return
                part.unlink()
                raise _Broken("the part on disk does not belong to this file") from error
            if error.code in RETRIED:
                raise _Broken(f"HTTP {error.code}") from error
        raise UserError(f"{url} answered HTTP {error.code}: {_hint(error)}, or {ALTERNATIVES}") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _Broken(str(getattr(error, "reason", error))) from error
    with response:
        resumed = response.status == 206
        length = response.headers.get("Content-Length")
        total = None if length is None else int(length) + (have if resumed else 0)
        done = have if resumed else 0
        with open(part, "ab" if resumed else "wb") as stream:
            for block in _blocks(response):
                stream.write(block)
                done += len(block)
                if progress is not None:
                    progress(done, total)
    if total is not None and done < total:
        raise _Broken(f"only {done} of {total} bytes came")


def _hint(error: urllib.error.HTTPError) -> str:
    """What to do about a refusal; the hub says in a header what exactly it missed."""
    hints = {
        "RevisionNotFound": "it has no such revision, check data.revision",
        "RepoNotFound": "no such repository (or a private one: set HF_TOKEN), check its name",
        "GatedRepo": "accept its terms on the hub and set HF_TOKEN",
    }
    default = "set HF_TOKEN" if error.code in (401, 403) else "no such file, check name and revision"
    return hints.get(error.headers.get("X-Error-Code", ""), default)


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            block = response.read1(BLOCK)
        except http.client.IncompleteRead as error:
            if error.partial:
                yield error.partial
            return
        except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
            raise _Broken(str(error) or type(error).__name__) from error
        if not block:
            return
        yield block
