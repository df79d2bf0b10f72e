"""The default text of the corpora (``data.source=sample``): stored text, of which a size and a seed take a slice.

``sample/<name>.jsonl.xz`` has a row a document: split, source, text, and columns of its corpus. Seeded grammars of this
project wrote it (commit c54c51d5), so it is free to use. No document is in two splits.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from lit_ctg.data.document import Document
from lit_ctg.data.source import read_records
from lit_ctg.errors import UserError

FOLDER = Path(__file__).parent / "sample"
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=\S)")
# spreads the seeds over the documents; seed 0 begins with the first
_STEP = 2_654_435_761


def sample_file(name: str) -> Path:
    return FOLDER / f"{name}.jsonl.xz"


@functools.lru_cache(maxsize=2)
def _documents(name: str) -> dict[str, tuple[Document, ...]]:
    """Return the documents of each split; the further columns of a row are their ``meta``."""
    found: dict[str, list[Document]] = {}
    for row in read_records(sample_file(name), ["split", "source", "text"], ["stars", "es"]):
        meta = {key: row[key] for key in row.keys() - {"split", "source", "text"}}
        found.setdefault(row["split"], []).append(Document(row["text"], row["source"], meta))
    return {split: tuple(documents) for split, documents in found.items()}


def sample_documents(
    name: str,
    split: str,
    *,
    size: int,
    seed: int = 0,
    source: str | None = None,
    cut: bool = True,
    change: Callable[[str], str] = str,
) -> Iterator[Document]:
    """Yield documents that hold about ``size`` white-space tokens; none comes twice.

    Args:
        seed: where in the text to begin; behind its end, it continues at its beginning.
        source: read documents of this source only.
        cut: shorten the last document at a sentence end, to come close to ``size``; else documents stay whole.
        change: applied to each text before its tokens are counted.

    Raises:
        UserError: there is not as much text.
    """
    stored = [document for document in _documents(name)[split] if source in (None, document.source)]
    first, total = seed * _STEP % len(stored), 0
    for document in itertools.chain(stored[first:], stored[:first]):
        text = change(document.text)
        count = len(text.split())
        if cut and total + count > size * 1.02:
            text = _cut(text, size - total) or text * (not total)
            count = size
        if text:
            yield Document(text, document.source, document.meta)
        total += count
        if total >= size:
            return
    what = f"{name} ({source})" if source else name
    raise UserError(
        f"data.sample_size asks for {size:,} words of the {split} split of the sample text {what}, which has "
        f"{total:,}: lower data.sample_size, or use data.source=local data.root=<folder> or data.source=hub"
    )


def _cut(text: str, room: int) -> str:
    """Return the first sentences, of at most ``room`` tokens, without a heading or blank line at the end."""
    kept: list[str] = []
    for line in text.splitlines():
        sentences = []
        for sentence in _SENTENCE_END.split(line):
            room -= len(sentence.split())
            if room < 0:
                break
            sentences.append(sentence)
        kept.append(" ".join(sentences))
        if room < 0:
            break
    while kept and (not kept[-1].strip() or kept[-1].strip().startswith("=")):
        kept.pop()
    return "".join(f"{line}\n" for line in kept)
