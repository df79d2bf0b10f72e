"""Reviews: two topics (control-code paper, Table 2) or Amazon and Yelp with stars (graphmax paper, scene corpora)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.document import Document
from lit_ctg.data.hub import HubFiles
from lit_ctg.data.source import ROWS, column_names, data_suffix, find_file, read_lines, read_records, text_column
from lit_ctg.data.split import check_fractions, tail_documents
from lit_ctg.limits import Choice, Fraction

# sources of each corpus
_SOURCES = {"topics": ("garden", "music"), "amazon": ("amazon",), "yelp": ("yelp",)}
_FILES = {
    "garden": ("reviews_garden", "garden", "Patio_Lawn_and_Garden"),
    "music": ("reviews_music", "music", "Musical_Instruments"),
    "amazon": ("reviews_amazon", "amazon"),
    "yelp": ("reviews_yelp", "yelp", "yelp10k"),
}
# names under which a review's stars occur
_STARS = ("stars", "rating", "overall", "star_rating")
# a higher number counts something else
MOST_STARS = 100


class ReviewsDataModule(CorpusDataModule):
    """Single reviews; each topic is a source with its control code, stars are kept in the column ``stars``.

    Args:
        corpus: topics (garden and music), amazon or yelp.
        val_fraction, test_fraction: share of each source's reviews, taken from the end. With a test share of 0, testing
        reads the validation part, as in the control-code paper.
        hub: for each corpus ``{repository, revision, files}`` on the hub; ``files`` has a pattern for each source.
    """

    name = stored = "reviews"
    columns = ("stars",)

    def __init__(
        self,
        *,
        corpus: Annotated[str, Choice(_SOURCES)],
        val_fraction: Fraction,
        test_fraction: Fraction,
        hub: Mapping[str, Mapping[str, Any]],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.corpus, self.names = corpus, _SOURCES[corpus]
        self.val_fraction, self.test_fraction = check_fractions(val_fraction, test_fraction)
        self.hub = hub[corpus]

    def options(self) -> dict[str, Any]:
        return {"corpus": self.corpus, "fractions": [self.val_fraction, self.test_fraction]}

    def sample_documents(self, split: str) -> Iterator[Document]:
        return self.sample(split, self.names, cut=False)

    def local_files(self) -> list[Path]:
        return [find_file(self.root, _FILES[name]) for name in self.names]

    def local_documents(self, split: str) -> Iterator[Document]:
        for name, path in zip(self.names, self.local_files(), strict=True):
            yield from self._split(name, [path], split)

    def _split(self, name: str, paths: list[Path], split: str) -> Iterator[Document]:
        read = functools.partial(_reviews, name, paths, self.max_documents)
        return tail_documents(read, split, self.val_fraction, self.test_fraction)

    def _files(self) -> HubFiles:
        return HubFiles(self.hub["repository"], self.hub["revision"], root=self.cache_root)

    def hub_checksum(self) -> str:
        files = self._files()
        for name in self.names:
            files.fetch(self.hub["files"][name], progress=self.fetching)
        return files.checksum([self.hub["files"][name] for name in self.names])

    def hub_documents(self, split: str) -> Iterator[Document]:
        for name in self.names:
            yield from self._split(name, self._files().fetch(self.hub["files"][name]), split)


def _reviews(name: str, paths: list[Path], limit: int | None) -> Iterator[Document]:
    found = itertools.chain.from_iterable(_file_reviews(name, path) for path in paths)
    return itertools.islice(found, limit) if limit is not None else found


def _file_reviews(name: str, path: Path) -> Iterator[Document]:
    """Yield the reviews of a file: one per line, or as rows with text and stars."""
    if data_suffix(path) not in ROWS:
        for number, line in enumerate(read_lines(path)):
            # the first line of a file may be its tag, "<garden>"
            tag = number == 0 and line.startswith("<") and line.rstrip().endswith(">")
            if line.strip() and not tag:
                yield Document(line.strip() + "\n", name)
        return
    text, stars, shift = _columns(path)
    for row in read_records(path, [text], [stars] if stars else []):
        body = row.text(text).strip()
        value = row.number(stars, 0, MOST_STARS) if stars else None
        if body:
            yield Document(body + "\n", name, {} if value is None else {"stars": round(value) + shift})


def _columns(path: Path) -> tuple[str, str | None, int]:
    """Return which columns hold text and stars, and what to add for stars (Yelp's ``label`` counts from 0)."""
    names = column_names(path)
    stars = next((name for name in (*_STARS, "label") if name in names), None)
    text = text_column(path, also=[stars] if stars else [])
    return text, stars, int(stars == "label")
