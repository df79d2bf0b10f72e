"""Plain Wikipedia text in files by subject: whole articles, without WikiText's tokenisation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.document import Document
from lit_ctg.data.source import read_lines, root_folder
from lit_ctg.data.wikitext import articles
from lit_ctg.errors import UserError, check_unicode

# any name but a hidden one
_NAME = re.compile(r"(?!\.)(?:domain_)?(.+?)\.txt(?:\.xz|\.gz|\.zst)?")


class WikipediaDataModule(CorpusDataModule):
    """Articles of English Wikipedia; every text file of a folder is one source, named after the file.

    ``source=local`` reads all ``*.txt`` files (also compressed) of ``root`` in order of name; an article begins at a
    line `` = Title = `` between blank lines (see ``wikitext.articles``). A source is the file's name without
    ``domain_``. In each file, every ``holdout``-th article is for testing and those half-way between for validation,
    so that both are spread over files that are sorted by subject. ``source=sample`` is raw text of the encyclopaedia
    sample; no hub has a copy.

    Args:
        holdout: one article in this many is in each evaluation split; at least 3.
    """

    name = "wikipedia"
    stored = "encyclopedia"

    def __init__(self, *, holdout: Annotated[int, Ge(3)], **options: Any) -> None:
        super().__init__(**options)
        self.holdout = holdout

    def options(self) -> dict[str, Any]:
        return {"holdout": self.holdout}

    def sample_documents(self, split: str) -> Iterator[Document]:
        return self.sample(split)

    def local_files(self) -> list[Path]:
        files = sorted(path for path in root_folder(self.root).iterdir() if _NAME.fullmatch(path.name))
        for path in files:
            check_unicode(path.name, f"data.root={self.root}: the file")
        if not files:
            raise UserError(f"data.root={self.root}: no text files (.txt, also .xz .gz .zst); "
                            "point data.root at the folder that holds them or use data.source=sample")  # fmt: skip
        return files

    def local_documents(self, split: str) -> Iterator[Document]:
        for path in self.local_files():
            match = _NAME.fullmatch(path.name)
            assert match is not None
            for number, article in enumerate(articles(read_lines(path))):
                if self._split(number) == split:
                    yield Document(article.text, match[1], article.meta)

    def _split(self, number: int) -> str:
        place = number % self.holdout
        return {self.holdout - 1: "test", self.holdout // 2 - 1: "val"}.get(place, "train")
