"""WikiText-2 and WikiText-103, raw or tokenised."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.document import Document
from lit_ctg.data.source import ROWS, data_suffix, find_file, read_lines, read_records

# " = Title = ": one "=" on either side; " = = Section = = " has more
_TITLE = re.compile(r"\s*= ([^=].*[^=]|[^=\s]) =\s*")
_FILES = {
    "train": ("wiki.train", "train"),
    "val": ("wiki.valid", "valid", "validation", "val"),
    "test": ("wiki.test", "test"),
}
# characters in a document; no Wikipedia article is this long
LONGEST = 2**20
_HUB_SPLIT = {"train": "train", "val": "validation", "test": "test"}


_GROUP = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_POINT = re.compile(r"(?<=\d)\.(?=\d)")
_HYPHEN = re.compile(r"(?<=\w)-(?=\w)")
_APART = re.compile(r"\s*([,;:()\"%?!$–°]|(?:'s\b)|(?<=[a-z])'(?= )|\.(?=\s|$|\"|\)))\s*")


def wikitext_tokens(text: str) -> str:
    """Return plain text as WikiText writes it: ``1 @,@ 234``, ``3 @.@ 5``, ``well @-@ known``, marks apart."""
    lines = []
    for line in text.removesuffix("\n").split("\n"):
        line = _GROUP.sub(" @\0@ ", line)  # hides a comma inside a number from the rule of marks
        line = _HYPHEN.sub(" @-@ ", _POINT.sub(" @.@ ", line))
        line = _APART.sub(r" \1 ", line)
        lines.append(f" {' '.join(line.replace(chr(0), ',').split())} \n" if line else " \n")
    return "".join(lines)


def articles(lines: Iterable[str]) -> Iterator[Document]:
    """Group the lines of WikiText into articles; every line is in exactly one, blank lines become empty.

    An article begins at a title line between two blank lines; legend lines of tables, such as ``= Played , W =``, look
    like titles but are in the middle of text. Anything longer than ``LONGEST`` characters, as a text without titles,
    is cut at a line end into several documents, so memory does not grow with the file.
    """
    current, title, before, size = list[str](), "", "", 0
    plain = (line if line.strip() else "" for line in lines)
    for line, after in itertools.pairwise(itertools.chain(plain, [""])):
        found = _TITLE.fullmatch(line) if line and not before and not after else None
        if current and (size >= LONGEST or (found and title)):
            yield Document("\n".join(current) + "\n", "wikitext", {"title": title})
            current, size = [], 0
        title = found[1] if found else title
        current.append(line)
        before, size = line, size + len(line) + 1
    if current:
        yield Document("\n".join(current) + "\n", "wikitext", {"title": title})


class WikiTextDataModule(CorpusDataModule):
    """WikiText (Merity et al. 2016) in its three official splits; documents are articles.

    Args:
        version: 2 or 103.
        raw: the raw variant (for GPT-2 BPE) instead of the tokenised one with ``<unk>``.
    """

    name = "wikitext"
    stored = "encyclopedia"

    def __init__(self, *, version: Literal[2, 103], raw: bool, **options: Any) -> None:
        super().__init__(**options)
        self.version, self.raw = version, raw

    def options(self) -> dict[str, Any]:
        return {"raw": self.raw, "version": self.version if self.source == "hub" else None}

    def documents(self, split: str) -> Iterator[Document]:
        for document in super().documents(split):
            yield Document(self.transform(document.text), document.source, document.meta)

    def transform(self, text: str) -> str:
        """Return an article's text as a paper needs it; its corpus class overrides this and ``options``."""
        return text

    def sample_documents(self, split: str) -> Iterator[Document]:
        return self.sample(split, change=str if self.raw else wikitext_tokens)

    def _file(self, split: str) -> Path:
        own = ".raw" if self.raw else ".tokens"
        return find_file(self.root, _FILES[split], suffixes=(own, ".txt", "", ".jsonl", ".csv", ".parquet"))

    def local_files(self) -> list[Path]:
        return [self._file(split) for split in self.splits]

    def local_documents(self, split: str) -> Iterator[Document]:
        return articles(_lines(self._file(split)))

    def hub_pattern(self, split: str) -> str:
        variant = "-raw" if self.raw else ""
        return f"wikitext-{self.version}{variant}-v1/{_HUB_SPLIT[split]}-*.parquet"

    def hub_documents(self, split: str) -> Iterator[Document]:
        return articles(itertools.chain.from_iterable(map(_lines, self.hub_files(split))))


def _lines(path: Path) -> Iterator[str]:
    """Yield lines of text, or of the column ``text``, with one row per line (as on the hub) or several."""
    if data_suffix(path) in ROWS:
        for row in read_records(path, ["text"]):
            yield from row.text("text").removesuffix("\n").split("\n")
    else:
        yield from read_lines(path)
