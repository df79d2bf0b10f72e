"""Scripts: news and blogs, two styles of English (control-code paper, Table 2)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lit_ctg.data.corpus import SAMPLE_SPLIT, CorpusDataModule
from lit_ctg.data.document import Document
from lit_ctg.data.gutenberg_text import strip_tag
from lit_ctg.data.source import data_suffix, find_file, read_records, read_text
from lit_ctg.data.split import check_fractions, tail_documents, tail_text
from lit_ctg.papers.control_code.sample import scripts as sample_scripts

_FILES = {"news": ("style_news", "news", "business"), "blog": ("style_blog", "blog")}


class ScriptsDataModule(CorpusDataModule):
    """News articles and blog posts; each style is a source with its control code.

    A text file is one stream that is cut at a line end; of .jsonl, .csv and .parquet every row (``text``, and ``title``
    where there is one) is a document. There is no copy that may be fetched: BBC news and the blog corpus are given out
    for research by their owners only, so ``source=hub`` names the alternatives.

    Args:
        val_fraction, test_fraction: share of each style, from its end. A test share of 0 means that testing reads the
            validation part, as in the paper.
        options: see ``CorpusDataModule``.
    """

    name = "scripts"

    def __init__(self, *, val_fraction: float, test_fraction: float, **options: Any) -> None:
        super().__init__(**options)
        self.val_fraction, self.test_fraction = check_fractions(val_fraction, test_fraction)

    def options(self) -> dict[str, Any]:
        return {"fractions": [self.val_fraction, self.test_fraction]}

    def sample_documents(self, split: str) -> Iterator[Document]:
        if split == "test" and self.test_fraction == 0:
            return
        size = self.sample_size if split == "train" else max(self.sample_size // 10, 1000)
        for style in _FILES:
            share = max(size // len(_FILES), 100)
            for text in sample_scripts.documents(SAMPLE_SPLIT[split], self.sample_seed, share, styles=[style]):
                yield Document(text.text.rstrip("\n") + "\n", style, text.meta)

    def local_files(self) -> list[Path]:
        return [find_file(self.root, stems) for stems in _FILES.values()]

    def local_documents(self, split: str) -> Iterator[Document]:
        for style, path in zip(_FILES, self.local_files(), strict=True):
            if data_suffix(path) in (".jsonl", ".csv", ".parquet"):
                read = functools.partial(_rows, style, path)
                yield from tail_documents(read, split, self.val_fraction, self.test_fraction)
            else:
                text = strip_tag(read_text(path))
                yield Document(tail_text(text, split, self.val_fraction, self.test_fraction), style)

    def hub_documents(self, split: str) -> Iterator[Document]:
        # refused by hub_pattern before anything is read
        self.hub_pattern(split)
        return iter(())

    def test_dataloader(self) -> Any:
        return self.val_dataloader() if self.test_fraction == 0 else super().test_dataloader()


def _rows(style: str, path: Path) -> Iterator[Document]:
    for row in read_records(path, ["text"], ["title"]):
        title = row.text("title").strip()
        body = row.text("text").strip()
        yield Document(f"{title}\n\n{body}\n" if title else f"{body}\n", style)
