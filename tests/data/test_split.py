"""Fixed splits: all documents, each in one split, the last for evaluation."""

from __future__ import annotations

import pytest

from lit_ctg.data.document import Document
from lit_ctg.data.split import check_fractions, tail_bounds, tail_documents, tail_text
from lit_ctg.errors import UserError


@pytest.mark.parametrize(("val", "test"), [(0.05, 0.0), (0.025, 0.025), (0.3, 0.2), (0.0, 0.0)])
def test_every_document_is_in_one_split(val: float, test: float) -> None:
    documents = [Document(f"text {number}\n", "x") for number in range(1000)]
    names = ("train", "val", "test")
    parts = {split: list(tail_documents(lambda: iter(documents), split, val, test)) for split in names}
    assert parts["train"] + parts["val"] + parts["test"] == documents
    assert len(parts["val"]) == round(val * 1000) and len(parts["test"]) == round(test * 1000)
    assert tail_bounds(0, val, test)["train"] == (0, 0)
    assert check_fractions(val, test) == (val, test)


def test_parts_are_rounded_to_the_nearest_document() -> None:
    assert tail_bounds(999, 0.025, 0.025) == {"train": (0, 949), "val": (949, 974), "test": (974, 999)}
    assert tail_bounds(10, 0.12, 0.12) == {"train": (0, 8), "val": (8, 9), "test": (9, 10)}


@pytest.mark.parametrize(("val", "test"), [(0.1, 0.05), (0.05, 0.0), (0.0, 0.2), (0.0, 0.0)])
def test_a_text_is_cut_at_line_ends(val: float, test: float) -> None:
    text = "".join(f"line {number}\n" for number in range(1000))
    parts = [tail_text(text, split, val, test) for split in ("train", "val", "test")]
    assert "".join(parts) == text and all(part.startswith("line") for part in parts if part)
    assert [len(part) / len(text) for part in parts] == pytest.approx([1 - val - test, val, test], abs=0.005)


@pytest.mark.parametrize(("val", "test"), [(-0.1, 0), (0.5, 0.5), (1.0, 0), (0, 1.5)])
def test_shares_that_leave_nothing_are_refused(val: float, test: float) -> None:
    with pytest.raises(UserError, match="val_fraction"):
        check_fractions(val, test)
