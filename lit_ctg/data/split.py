"""Fixed splits for corpora that come without any: the last parts of each source, documents kept whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lit_ctg.data.document import Document
from lit_ctg.errors import UserError


def check_fractions(val: float, test: float) -> tuple[float, float]:
    """Return the two shares if they leave something to train on; ``UserError`` otherwise."""
    if not (0 <= val < 1 and 0 <= test < 1 and val + test < 1):
        raise UserError(f"val_fraction={val} and test_fraction={test}: give shares of at least 0 that leave a rest")
    return val, test


def tail_bounds(count: int, val: float, test: float) -> dict[str, tuple[int, int]]:
    """Return the range of documents for train, val and test: first the training part, then val, then test."""
    first_test = count - round(test * count)
    first_val = first_test - round(val * count)
    return {"train": (0, first_val), "val": (first_val, first_test), "test": (first_test, count)}


def tail_documents(read: Callable[[], Iterator[Document]], split: str, val: float, test: float) -> Iterator[Document]:
    """Yield a split of a source's documents; the source is read an extra time to count them."""
    first, stop = tail_bounds(sum(1 for _ in read()), val, test)[split]
    for number, document in enumerate(read()):
        if first <= number < stop:
            yield document


def tail_text(text: str, split: str, val: float, test: float) -> str:
    """Return a split of one long text (a book), cut at line ends; the three together are the text."""
    edges = {"test": len(text)}
    for name, before, share in (("test", "val", test), ("val", "train", val)):
        wanted = edges[name] - round(share * len(text))
        edges[before] = edges[name] if share == 0 else text.rfind("\n", 0, max(wanted, 0)) + 1
    begin = {"train": 0, "val": edges["train"], "test": edges["val"]}
    return text[begin[split] : edges[split]]
