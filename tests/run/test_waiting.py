"""Bars stand on a terminal and nowhere else."""

from __future__ import annotations

from io import StringIO
from typing import Any, cast

import pytest
import torch
from rich.console import Console

from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.run.waiting import prepared, tokens


class Corpus:
    """Fetches a file and packs a split."""

    fetching: Any = None

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def prepare(self, packing: Any) -> str:
        self.fetching("books [1].zip", 1_500_000, 3_000_000)
        packing("train", 1200)
        if self.error is not None:
            raise self.error
        return "packed"


def console(terminal: bool) -> tuple[Console, StringIO]:
    file = StringIO()
    return Console(file=file, force_terminal=terminal, width=100, _environ={"TERM": "xterm"}), file


@pytest.mark.parametrize("terminal", [True, False])
def test_preparing_a_corpus(terminal: bool) -> None:
    shown, file = console(terminal)
    corpus = Corpus()
    assert prepared(cast(CorpusDataModule, corpus), shown) == "packed"
    said = file.getvalue()
    if terminal:
        assert "books [1].zip" in said and "1.5 of 3.0 MB" in said and "1,200 documents" in said
    else:
        assert said == ""
    assert corpus.fetching is None


def test_a_corpus_that_fails_leaves_no_bar_behind() -> None:
    corpus = Corpus(ValueError("no disk"))
    with pytest.raises(ValueError, match="no disk"):
        prepared(cast(CorpusDataModule, corpus), console(True)[0])
    assert corpus.fetching is None


@pytest.mark.parametrize("terminal", [True, False])
def test_generating(terminal: bool) -> None:
    shown, file = console(terminal)
    with tokens(4, shown) as watch:
        for length in range(4):
            watch(torch.zeros(1, length))
    assert ("generating" in file.getvalue()) == terminal
