"""The paper's own corpora: books of Project Gutenberg, news and blogs (Tables 1 and 2).

Each book or style is a source with its control code; the last part of each is for evaluation (sec. 4.4).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.document import Document
from lit_ctg.data.hub import ALTERNATIVES, SET_CACHE, Progress, require_network
from lit_ctg.data.source import (
    ROWS,
    data_suffix,
    file_checksum,
    find_file,
    read_records,
    read_text,
    reading,
    text_column,
)
from lit_ctg.data.split import check_fractions, tail_documents, tail_text
from lit_ctg.errors import UserError, only_errors_of
from lit_ctg.files import locked, write_atomic
from lit_ctg.limits import Choice, Count, Fraction, check_value
from lit_ctg.papers.control_code.gutenberg_text import book_text, strip_tag

# alternative names of a book's files
_BOOK_FILES = {
    "greatgatsby": ("books_greatgatsby", "great_gatsby"),
    "shakespeare": ("books_shakespeare",),
    "twocities": ("books_twocities", "two_cities"),
    "alice": ("books_alice", "aliceinwonderland"),
    "iliad": ("books_iliad",),
    "mobydick": ("books_mobydick", "moby_dick"),
    "english": ("language_english",),
    "tagalog": ("language_tagalog",),
    "hungarian": ("language_hungarian",),
}
_STYLE_FILES = {"news": ("style_news", "news", "business"), "blog": ("style_blog", "blog")}
# invented books of the sample: six in English, and one of these with one in Spanish
_SAMPLE_BOOKS = ("city_romance", "stage_play", "courtroom_diary", "sea_log", "epic_verse", "nursery_tale")
_SAMPLE_LANGUAGES = ("city_romance", "cuaderno")
DEFAULT_MIRROR = "https://www.gutenberg.org"
# responses of a busy server
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})


class _Bar:
    """A progress bar for pooch that draws nothing and calls a function."""

    def __init__(self, name: str, report: Progress) -> None:
        self.name, self.report, self.total, self.done = name, report, 0, 0

    def update(self, count: int) -> None:
        # pooch counts whole blocks, including the last one
        self.done = min(self.done + count, self.total or self.done + count)
        self.report(self.name, self.done, self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _transfer(bar: _Bar | None, url: str, file: Any, books: Any) -> None:
    """Download as pooch does, but retry only temporary errors: a refusal ends it at once."""
    import pooch
    import requests

    try:
        pooch.HTTPDownloader(progressbar=bar or False, timeout=60, headers={"User-Agent": "lit-ctg"})(url, file, books)
    except requests.HTTPError as error:
        status = error.response.status_code
        if status not in _BUSY:
            raise UserError(f"{url} answered HTTP {status}: check data.books and data.mirror, or "
                            f"{ALTERNATIVES}") from error  # fmt: skip
        raise


def _ledger(path: Path) -> str | None:
    """Return the checksum of the first download, or None; ``UserError`` if the file with it is damaged."""
    if not path.exists():
        return None
    with reading(path):
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["sha256"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged: delete it and the book beside it, and run again") from error


class TailDataModule(CorpusDataModule):
    """A corpus of which the last part of each source is for evaluation.

    Args:
        val_fraction, test_fraction: share of each source, from its end, cut at line ends. A test share of 0 means that
            testing reads the validation part, as in the paper.
    """

    def __init__(self, *, val_fraction: Fraction, test_fraction: Fraction, **options: Any) -> None:
        super().__init__(**options)
        self.val_fraction, self.test_fraction = check_fractions(val_fraction, test_fraction)

    def part(self, text: str, split: str) -> str:
        return tail_text(text, split, self.val_fraction, self.test_fraction)


class GutenbergDataModule(TailDataModule):
    """Several books, each a source with its control code; the last part of each is for evaluation.

    Args:
        collections: names of the books of each collection.
        books: Project Gutenberg's number of each book; ``None`` for a book that only local folders have.
        characters: name -> number of first characters to which a book is cut; ``None`` takes all of it.
        sha256: checksum of the file of a number, for source=hub; otherwise that of the first download is stored and
            checked from then on (Project Gutenberg revises its texts in place, without revision numbers).
        mirror: address of Project Gutenberg or a mirror of its ``cache/epub`` tree.
    """

    name = "gutenberg"
    stored = "books"

    def __init__(
        self,
        *,
        collection: str,
        collections: Mapping[str, Sequence[str]],
        books: Mapping[str, Count | None],
        characters: Mapping[str, Count | None],
        sha256: Mapping[int, str] | None = None,
        mirror: str = DEFAULT_MIRROR,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_value("data.collection", collection, Annotated[str, Choice(collections)])
        self.collection, self.names = collection, tuple(collections[collection])
        for book in self.names:
            check_value(f"data.collections.{collection}", book, Annotated[str, Choice(books)])
        self.numbers = {name: books[name] for name in self.names}
        self.characters = {name: characters[name] for name in self.names if name in characters}
        self.sha256, self.mirror = {int(key): value for key, value in (sha256 or {}).items()}, mirror.rstrip("/")

    def options(self) -> dict[str, Any]:
        return {"collection": self.collection, "names": list(self.names), "characters": self.characters,
                "fractions": [self.val_fraction, self.test_fraction]}  # fmt: skip

    def sample_documents(self, split: str) -> Iterator[Document]:
        chosen = _SAMPLE_LANGUAGES if self.collection == "languages" else _SAMPLE_BOOKS[: len(self.names)]
        return self.sample(split, chosen)

    def _local(self, name: str) -> Path:
        number = self.numbers[name]
        numbered = (f"pg{number}", f"{number}-0", str(number)) if number else ()
        return find_file(self.root, (name, *_BOOK_FILES.get(name, ()), *numbered))

    def local_files(self) -> list[Path]:
        return [self._local(name) for name in self.names]

    def local_documents(self, split: str) -> Iterator[Document]:
        return self._parts(split, self._local)

    def _parts(self, split: str, path_of: Any) -> Iterator[Document]:
        for name in self.names:
            text = book_text(read_text(path_of(name)))[: self.characters.get(name)]
            yield Document(self.part(text, split), name, {"book": self.numbers[name]})

    def fetch(self, name: str) -> Path:
        """Return the file of a book, fetched if missing, checked by ``sha256`` or the first download."""
        number = self.numbers[name]
        if number is None:
            raise UserError(f"data.books.{name} has no number at Project Gutenberg: give it, or {ALTERNATIVES}")
        folder = self.cache_root / "gutenberg"
        path, ledger = folder / f"pg{number}.txt", folder / f"pg{number}.json"
        if not (path.exists() and ledger.exists()):
            if not path.exists():
                require_network(f"book {number} ({name}) of Project Gutenberg")
            with locked(folder / f"pg{number}.lock", remedy=SET_CACHE):
                if not path.exists():
                    self._download(number, path, self.sha256.get(number, _ledger(ledger)))
                if not ledger.exists():
                    note = {"url": self._address(number), "sha256": file_checksum(path)}
                    write_atomic(ledger, json.dumps(note) + "\n", remedy=SET_CACHE)
        wanted = self.sha256.get(number, _ledger(ledger))
        if wanted is not None and file_checksum(path) != wanted.lower():
            raise UserError(f"{path} has the wrong checksum: delete it (and {ledger.name}) to fetch it again")
        return path

    def _address(self, number: int) -> str:
        return f"{self.mirror}/cache/epub/{number}/pg{number}.txt"

    def _download(self, number: int, path: Path, sha256: str | None) -> None:
        """Fetch a book to ``path``, which only ever holds a whole file with the right checksum."""
        import pooch
        import requests

        url, report = self._address(number), self.fetching
        known = None if sha256 is None else f"sha256:{sha256.lower()}"
        books = pooch.create(path.parent, "", registry={path.name: known}, urls={path.name: url}, retry_if_failed=4)
        bar = None if report is None else _Bar(path.name, report)
        try:
            with only_errors_of("pooch"):  # otherwise it reports every retry
                books.fetch(path.name, downloader=functools.partial(_transfer, bar))
        except (ValueError, OSError) as error:  # a failed request is an OSError, too
            why = f"{path} cannot be written ({getattr(error, 'strerror', None) or error}): {SET_CACHE}"
            if isinstance(error, requests.RequestException):
                reason = " ".join(str(error).split())[:160]
                why = f"{url} failed 5 times ({reason}): try again later, or {ALTERNATIVES}"
            elif isinstance(error, ValueError):
                why = (f"{url} has the wrong checksum (expected sha256 {str(sha256)[:16].lower()}...): the file "
                       f"changed or was damaged on its way; try again, or {ALTERNATIVES}")  # fmt: skip
            raise UserError(why) from error

    def hub_checksum(self) -> str:
        return " ".join(f"{name}:{file_checksum(self.fetch(name))}" for name in self.names)

    def hub_documents(self, split: str) -> Iterator[Document]:
        return self._parts(split, self.fetch)


class ScriptsDataModule(TailDataModule):
    """News articles and blog posts; each style is a source with its control code.

    A text file is one stream, split at a line end; in .jsonl, .csv and .parquet every row (``text``, and ``title`` if
    there is one) is a document. No copy may be downloaded: BBC news and the blog corpus are distributed for research
    only by their owners, so ``source=hub`` names the alternatives.

    Args:
        styles: news and blog, in the order of their control codes and of unshuffled training.
    """

    name = stored = "scripts"

    def __init__(self, *, styles: Sequence[str] = tuple(_STYLE_FILES), **options: Any) -> None:
        super().__init__(**options)
        if sorted(styles) != sorted(_STYLE_FILES):
            raise UserError(f"data.styles={list(styles)}: give {' and '.join(_STYLE_FILES)}, each once, in any order")
        self.styles = tuple(styles)

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"fractions": [self.val_fraction, self.test_fraction]}
        # text packed before this option existed stays valid
        return options if self.styles == tuple(_STYLE_FILES) else {**options, "styles": list(self.styles)}

    def sample_documents(self, split: str) -> Iterator[Document]:
        return self.sample(split, self.styles)

    def local_files(self) -> list[Path]:
        return [find_file(self.root, _STYLE_FILES[style]) for style in self.styles]

    def local_documents(self, split: str) -> Iterator[Document]:
        for style, path in zip(self.styles, self.local_files(), strict=True):
            if data_suffix(path) in ROWS:
                read = functools.partial(_rows, style, path)
                yield from tail_documents(read, split, self.val_fraction, self.test_fraction)
            else:
                text = strip_tag(read_text(path))
                yield Document(self.part(text, split), style)

    def hub_documents(self, split: str) -> Iterator[Document]:
        # refused by hub_pattern before anything is read
        self.hub_pattern(split)
        return iter(())


def _rows(style: str, path: Path) -> Iterator[Document]:
    column = text_column(path, "text", also=["title"])
    for row in read_records(path, [column], ["title"]):
        title = row.text("title").strip()
        body = row.text(column).strip()
        yield Document(f"{title}\n\n{body}\n" if title else f"{body}\n", style)
