"""The paper's number classes over a small vocabulary, and a slow reading of texts to compare with."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from lit_ctg.config import compose
from lit_ctg.papers.nslm.classes import ClassTable, Recogniser, class_table, make_recogniser


@functools.cache  # composing takes a second
def recognisers(kind: str) -> list[Recogniser]:
    """Return the classes of ``conf/model/nslm_class/<kind>.yaml`` in the default regime, in order."""
    found = compose([f"experiment=nslm/{kind}s"]).model.classes
    return [make_recogniser(name, {k: v for k, v in entry.items() if k != "name"}) for name, entry in found.items()]


def lstm_layer(lstm: torch.nn.LSTM, layer: int, x_TD: torch.Tensor) -> torch.Tensor:
    """One layer for one text, gate by gate in float64 (Zaremba et al., eq. 1 to 3)."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    w, u, b, c = (getattr(lstm, f"{name}_l{layer}").double() for name in names)
    hidden = cell = torch.zeros(lstm.hidden_size, dtype=torch.float64)
    rows = []
    for x in x_TD.double():
        i, f, g, o = (w @ x + b + u @ hidden + c).chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        rows.append(hidden)
    return torch.stack(rows)


class Text:
    """Documents of words with the number classes over their vocabulary."""

    def __init__(self, *documents: str, kind: str = "number") -> None:
        self.words = [word for document in documents for word in document.split()]
        self.tokens = tuple(dict.fromkeys([*self.words, "5"]))
        self.ids_T = np.array([self.tokens.index(word) for word in self.words])
        self.begin_N = np.cumsum([0, *(len(document.split()) for document in documents)])
        self.table: ClassTable = class_table(self.tokens, recognisers(kind))

    def id(self, word: str) -> int:
        """Return the id of a word."""
        return self.tokens.index(word)


@pytest.fixture
def text() -> type[Text]:
    """Return the maker of texts."""
    return Text
