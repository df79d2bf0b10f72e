"""Hugging Face datasets by name and pinned commit: ``huggingface_hub`` fetches and caches, every file is checked.

The hub lists the files of a commit with a checksum of each. The listing is kept beside the files
(``listings/<repository>-<commit>.json``), so a complete cache needs neither network nor write permission, and a file
that changed on disk is noticed.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from lit_ctg.data.source import file_checksum, reading
from lit_ctg.errors import UserError, only_errors_of
from lit_ctg.files import cache_root, locked, offline, write_atomic
from lit_ctg.network.pretrained import hub_problem

ALTERNATIVES = "use data.source=local data.root=<folder> or data.source=sample"
SET_CACHE = "free the disk or set data.cache_root=<another folder>"
# called with (file, bytes so far, total bytes or None)
Progress = Callable[[str, int, int | None], None]


def require_network(what: str) -> None:
    """Raise a ``UserError`` naming both alternatives if the environment forbids the network."""
    if name := offline():
        raise UserError(f"{what} is not here yet and {name}=1 forbids the network: {ALTERNATIVES}")


class HubFiles:
    """The files of one dataset (or model) repository at one commit.

    Args:
        revision: the commit, 40 hex digits; ``UserError`` otherwise.
        kind: ``dataset`` or ``model``.
        endpoint: address of the hub; by default HF_ENDPOINT or huggingface.co.
    """

    def __init__(
        self,
        repository: str,
        revision: str | None,
        *,
        root: str | Path | None = None,
        kind: str = "dataset",
        endpoint: str | None = None,
    ) -> None:
        # a branch or an empty value could change during a run
        if revision is None or not re.fullmatch(r"[0-9a-f]{40}", revision):
            raise UserError(f"{repository}: revision '{revision}' is not a commit hash; pin it: data.revision=<the 40 "
                            f"hex digits that its page on the hub shows under Files>, or {ALTERNATIVES}")  # fmt: skip
        self.repository, self.revision = repository, revision
        self.kind, self.endpoint = kind, endpoint or os.environ.get("HF_ENDPOINT") or None
        self.folder = cache_root(root) / "hub"
        self.listing = self.folder / "listings" / f"{kind}s--{repository.replace('/', '--')}-{self.revision}.json"
        self.what = f"{repository}@{self.revision[:8]}"

    def fetch(self, pattern: str, *, progress: Progress | None = None) -> list[Path]:
        """Return the local paths of all files that match ``pattern`` (e.g. ``wikitext-2-v1/train-*.parquet``).

        Raises ``UserError`` for a missing repository, revision or file, a wrong checksum, and in offline mode.
        """
        if (here := self._here(pattern)) is not None:
            return here
        require_network(f"{self.what} {pattern}")
        with self._talking():
            if problem := hub_problem(self.endpoint):
                raise ConnectionError(problem)
        with locked(self.listing.with_suffix(".lock"), remedy=SET_CACHE):
            known = self._known()
            listed = known.get(pattern) or self._listed(pattern)
            paths = {name: self._download(name, progress) for name in listed}
            reason = "the file changed or was damaged on its way"
            known[pattern] = {name: _check(path, listed[name], reason) for name, path in paths.items()}
            write_atomic(self.listing, json.dumps(known, indent=1, sort_keys=True) + "\n", remedy=SET_CACHE)
        return list(paths.values())

    def checksum(self, patterns: Sequence[str]) -> str:
        """Return one line that identifies the content behind ``patterns``, for the key of the packed cache."""
        known = self._known()
        found = [{name: {"sha256": digest} for name, digest in known[pattern].items()} if pattern in known else None
                 for pattern in patterns]  # fmt: skip
        return json.dumps([self.repository, self.revision, found])

    def _here(self, pattern: str) -> list[Path] | None:
        """Return the paths if all files are in the cache with the right checksums."""
        import huggingface_hub

        listed = self._known().get(pattern, {})
        paths = [huggingface_hub.try_to_load_from_cache(self.repository, name, **self._place()) for name in listed]
        if not paths or not all(isinstance(path, str) for path in paths):
            return None
        for path, digest in zip(paths, listed.values(), strict=True):
            _check(Path(path), digest, "it changed since it was fetched")
        return [Path(path) for path in paths]

    def _place(self) -> dict[str, Any]:
        return {"cache_dir": self.folder, "revision": self.revision, "repo_type": self.kind}

    def _download(self, name: str, progress: Progress | None) -> Path:
        from huggingface_hub import hf_hub_download

        options = {"endpoint": self.endpoint, "tqdm_class": _bar(name, progress), **self._place()}
        with self._talking():
            return Path(hf_hub_download(self.repository, name, **options))

    def _listed(self, pattern: str) -> dict[str, str]:
        """Ask the hub for the matching files of the commit, each with its stated checksum."""
        import huggingface_hub

        with self._talking():
            entries = huggingface_hub.HfApi(endpoint=self.endpoint).list_repo_tree(
                self.repository, pattern.rpartition("/")[0] or None, revision=self.revision, repo_type=self.kind
            )
            # large files have a sha256, others git's hash of a file
            found = {
                entry.path: entry.lfs.sha256 if entry.lfs else f"git {entry.blob_id}"
                for entry in entries
                if isinstance(entry, huggingface_hub.RepoFile) and fnmatch.fnmatch(entry.path, pattern)
            }
        outside = next((path for path in found if path.startswith("/") or ".." in PurePosixPath(path).parts), None)
        if outside is not None or not found:
            listed = f"lists a file outside its folder ({outside!r}): do not trust this hub"
            none = f"holds no file {pattern}: check data.revision and options, or {ALTERNATIVES}"
            raise UserError(f"{self.what} {none if outside is None else listed}")
        return dict(sorted(found.items()))

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """Turn any failure of the hub into one line, without the library's warnings."""
        try:
            with only_errors_of("huggingface_hub"):
                yield
        except Exception as error:
            if (problem := self._problem(error)) is None:
                raise
            raise UserError(f"{self.what}: {problem}, or {ALTERNATIVES}") from error

    def _problem(self, error: Exception) -> str | None:
        """Return the problem and its remedy, None for an error of another kind."""
        from huggingface_hub import errors

        hub = self.endpoint or "the hub"
        known = {
            errors.GatedRepoError: "it is gated: accept its terms on the hub and set HF_TOKEN",
            errors.RepositoryNotFoundError: f"{hub} has no such repository (or a private one: set HF_TOKEN), check its "
            "name",
            errors.RevisionNotFoundError: "it has no such revision, check data.revision",
            errors.RemoteEntryNotFoundError: "it holds no such file: check data.revision and options",
        }
        if line := next((line for kind, line in known.items() if isinstance(error, kind)), None):
            return line
        if isinstance(error, errors.HfHubHTTPError):
            status = error.response.status_code
            return f"{hub} answered HTTP {status}: {'set HF_TOKEN' if status in (401, 403) else 'try again later'}"
        if isinstance(error, OSError) and error.errno is not None:
            return f"{self.folder} cannot be written ({error.strerror}): {SET_CACHE}"
        strange = isinstance(error.__cause__, errors.FileMetadataError)
        if strange or isinstance(error, (ValueError, KeyError, TypeError, AttributeError)):
            return f"{hub} did not answer as a hub does: check HF_ENDPOINT"
        # the underlying library (httpx, depending on its version) has no common base class for "no connection"
        if isinstance(error, OSError) or type(error).__module__.startswith(("httpx", "httpcore")):
            cause = error.__cause__ if isinstance(error, OSError) and error.__cause__ else error
            reason = " ".join(str(cause).split())[:160] or type(cause).__name__
            return f"it could not be fetched from {hub} ({reason}): try again later"
        return None

    def _known(self) -> dict[str, dict[str, str]]:
        """Return, by pattern, the files that match it, each with the sha256 of its bytes."""
        if not self.listing.exists():
            return {}
        with reading(self.listing, "delete it and run again"):
            return json.loads(self.listing.read_text(encoding="utf-8"))


def _check(path: Path, stated: str, reason: str) -> str:
    """Return the sha256 of a file; one without the stated checksum is removed from the cache.

    Args:
        stated: its sha256, or ``git <hash of the file as a git blob>``.
    """
    digest = file_checksum(path)
    found = f"git {_git_hash(path)}" if stated.startswith("git ") else digest
    if found == stated:
        return digest
    # a name in the snapshot is a link to the content
    content = path.resolve()
    with contextlib.suppress(OSError):
        path.unlink()
        content.unlink(missing_ok=True)
    raise UserError(f"{path} has the wrong checksum ({found[:16]}..., expected {stated[:16]}...): {reason}; it was "
                    f"deleted, run again to fetch it, or {ALTERNATIVES}")  # fmt: skip


def _git_hash(path: Path) -> str:
    with reading(path), open(path, "rb") as stream:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        return hashlib.file_digest(stream, lambda: digest).hexdigest()


def _bar(name: str, progress: Progress | None) -> Any:
    """Return a class of progress bars, as huggingface_hub asks for, that draws nothing and calls ``progress``."""
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.done, self.whole = options.get("initial") or 0, options.get("total")
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self.done += int(n or 0)
            if progress is not None:
                progress(name, self.done, self.whole)

    return Silent
