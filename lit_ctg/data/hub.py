"""Hugging Face datasets by name and pinned revision, as files whose checksums the hub itself states.

The hub's tree of a commit names each file and the sha256 its storage knows; ``huggingface_hub`` knows addresses and
tokens. The transfer is ``download.download``, which Project Gutenberg shares, so that retry, resume and checksum have
one implementation and one set of tests. A file once fetched is recorded in ``manifest.json`` and checked on every use.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from lit_ctg.data.download import ALTERNATIVES, download, require_network
from lit_ctg.data.lock import exclusive
from lit_ctg.data.source import file_checksum, reading
from lit_ctg.errors import UserError

DEFAULT_ENDPOINT = "https://huggingface.co"
Progress = Callable[[str, int, int | None], None]


def cache_root(given: str | Path | None) -> Path:
    """Return the folder for downloads and packed corpora: given, else LIT_CTG_CACHE, else ~/.cache/lit_ctg."""
    return Path(given or os.environ.get("LIT_CTG_CACHE") or "~/.cache/lit_ctg").expanduser()


def check_revision(repository: str, revision: str | None) -> str:
    """Return ``revision`` when it is a full commit hash; a branch or nothing could change under a run."""
    if revision is None or not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise UserError(
            f"{repository}: revision '{revision}' is no commit hash; pin it: data.revision=<the 40 hex digits that "
            f"its page on the hub shows under Files>, or {ALTERNATIVES}"
        )
    return revision


class HubFiles:
    """The files of one dataset (or model) repository at one commit.

    Args:
        repository: e.g. ``Salesforce/wikitext``.
        revision: the commit, 40 hex digits; ``UserError`` otherwise.
        root: the cache folder.
        kind: ``dataset`` or ``model``.
        endpoint: address of the hub; by default HF_ENDPOINT or huggingface.co.
        retries: tries after a failed transfer.
        wait_s: seconds before the first retry.
    """

    def __init__(
        self,
        repository: str,
        revision: str | None,
        *,
        root: str | Path | None = None,
        kind: str = "dataset",
        endpoint: str | None = None,
        retries: int = 4,
        wait_s: float = 1.0,
    ) -> None:
        self.repository, self.revision = repository, check_revision(repository, revision)
        self.kind, self.retries, self.wait_s = kind, retries, wait_s
        self.endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
        self.folder = cache_root(root) / "hub" / repository.replace("/", "--") / self.revision
        self.manifest = self.folder / "manifest.json"

    def fetch(self, pattern: str, *, progress: Progress | None = None) -> list[Path]:
        """Return local paths of all files that match ``pattern`` (e.g. ``wikitext-2-v1/train-*.parquet``).

        Raises ``UserError`` for a missing repository, revision or file, a wrong checksum, and offline mode.
        """
        with exclusive(self.folder / "fetch"):
            return self._fetch(pattern, progress)

    def _fetch(self, pattern: str, progress: Progress | None) -> list[Path]:
        known = self._known()
        if pattern not in known:
            require_network(f"{self.repository}@{self.revision[:8]} {pattern}")
            known[pattern] = self._listing(pattern)
        files = {}
        for path, entry in known[pattern].items():
            files[path] = self._one(path, entry["sha256"], progress)
        known[pattern] = {path: {"sha256": digest} for path, (_, digest) in files.items()}
        self._remember(known)
        return [local for local, _ in files.values()]

    def checksum(self, patterns: Sequence[str]) -> str:
        """Return one line that identifies the content behind ``patterns``, for the key of the packed cache."""
        known = self._known()
        return json.dumps([self.repository, self.revision, [known.get(pattern) for pattern in patterns]])

    def _one(self, path: str, sha256: str | None, progress: Progress | None) -> tuple[Path, str]:
        target = self.folder / path
        if target.exists():
            digest = file_checksum(target)
            if sha256 is None or digest == sha256:
                return target, digest
            raise UserError(f"{target} changed since it was fetched (wrong checksum): delete it and run again")
        report = None if progress is None else (lambda done, total: progress(path, done, total))
        digest = download(
            self._address(path), target, sha256=sha256, headers=self._headers(),
            retries=self.retries, wait_s=self.wait_s, progress=report,
        )  # fmt: skip
        return target, digest

    def _address(self, path: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self.repository, path, repo_type=self.kind, revision=self.revision, endpoint=self.endpoint)

    def _headers(self) -> dict[str, str]:
        from huggingface_hub.utils import build_hf_headers

        return build_hf_headers()

    def _listing(self, pattern: str) -> dict[str, dict[str, str | None]]:
        """Ask the hub for the files of the commit and the sha256 of each that lies in its large-file storage."""
        folder = pattern.rpartition("/")[0]
        address = f"{self.endpoint}/api/{self.kind}s/{self.repository}/tree/{self.revision}/{folder}".rstrip("/")
        answer = self.folder / "listing.json"
        download(address, answer, headers=self._headers(), retries=self.retries, wait_s=self.wait_s)
        try:
            entries = json.loads(answer.read_text(encoding="utf-8"))
            found = {
                entry["path"]: {"sha256": (entry.get("lfs") or {}).get("oid")}
                for entry in entries
                if entry["type"] == "file" and fnmatch.fnmatch(entry["path"], pattern)
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{address} did not answer as a hub does: check HF_ENDPOINT, or {ALTERNATIVES}") from error
        finally:
            answer.unlink(missing_ok=True)
        if not found:
            what = f"{self.repository}@{self.revision[:8]}"
            raise UserError(f"{what} holds no file {pattern}: check data.revision and options, or {ALTERNATIVES}")
        return dict(sorted(found.items()))

    def _known(self) -> dict[str, dict[str, dict[str, str | None]]]:
        if not self.manifest.exists():
            return {}
        with reading(self.manifest):
            try:
                return json.loads(self.manifest.read_text(encoding="utf-8"))
            except json.JSONDecodeError as error:
                raise UserError(f"{self.manifest} is damaged: delete it and run again") from error

    def _remember(self, known: dict) -> None:
        text = json.dumps(known, indent=1, sort_keys=True) + "\n"
        if self.manifest.exists() and self.manifest.read_text(encoding="utf-8") == text:
            return
        partial = self.manifest.with_name(f"manifest.{os.getpid()}.tmp")
        try:
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, self.manifest)
        except OSError as error:
            raise UserError(f"{self.manifest} cannot be written ({error.strerror}): set data.cache_root") from error
