"""The LSTM that learns f(i) = i + 1 as words (Table 7), and the micro-model that knows it.

Shape letters: B pairs, T positions, D hidden size, V vocabulary, N pairs of a split.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.core.model import Batch, LitLanguageModel, LMOutput, evaluating
from lit_ctg.papers.nslm.construction import class_table
from lit_ctg.papers.nslm.grounding import read_vectors
from lit_ctg.papers.nslm.occurrence import Evidence, Occurrences
from lit_ctg.papers.nslm.recogniser import PatternRecogniser
from lit_ctg.papers.nslm.selection import class_perplexity, select

BLOCK = 1 << 24  # scores at one time
IN_CHUNKS = nn.LinearCrossEntropyOptions(batch_chunk_size=128)
MOST_PAIRS = 500  # on which micro-models are chosen and tried: all are alike


class IncrementModule(LitLanguageModel):
    """Embedding, one LSTM layer, untied softmax.

    Args:
        vocabulary: the integers.
        dim: of the embedding and the LSTM.
        learning_rate: of Adam.
        embedding_file: text file of vectors (GloVe's format) that embeddings start from; None: random.
    """

    def __init__(self, *, vocabulary: Any, dim: int, learning_rate: float, embedding_file: str | None = None) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.embedding = nn.Embedding(len(vocabulary), dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.output = nn.Linear(dim, len(vocabulary))
        nn.init.zeros_(self.output.bias)
        self.vectors_found = 0
        if embedding_file is not None:
            vectors_VD, found_V = read_vectors(embedding_file, vocabulary.tokens, dim)
            self.embedding.weight.data[found_V] = vectors_VD[found_V]
            self.vectors_found = int(found_V.sum())

    def forward(self, batch: Batch) -> LMOutput:
        """Score the word after each position."""
        hidden_BTD = self._hidden(batch)
        return LMOutput(self.output(hidden_BTD), hidden_BTD)

    def _hidden(self, batch: Batch) -> Tensor:
        return self.lstm(self.embedding(batch["input_ids_BT"]))[0]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy of the second integer."""
        target_N = batch["target_ids_BT"].flatten()
        if len(target_N) * self.output.out_features <= BLOCK:
            return {"loss": nn.functional.cross_entropy(self(batch).scores_BTV.flatten(0, 1), target_N)}
        # n = 100,000: scores of a whole batch would be 800 MB, their gradient as much
        hidden_ND = self._hidden(batch).flatten(0, 1)
        loss = nn.functional.linear_cross_entropy(
            hidden_ND, self.output.weight, target_N, linear_bias=self.output.bias, options=IN_CHUNKS
        )
        return {"loss": loss}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate, fused=True)

    @torch.no_grad()
    def score(self, pairs_N2: Tensor) -> tuple[float, float]:
        """Return (perplexity, accuracy) of the second integers of some pairs, float64 sums."""
        nll, hits = 0.0, 0
        with evaluating(self):
            for pairs_B2 in pairs_N2.split(max(1, BLOCK // self.output.out_features)):
                scores_BV = self({"input_ids_BT": pairs_B2[:, :1]}).scores_BTV[:, 0]
                target_B = pairs_B2[:, 1]
                nll += nn.functional.cross_entropy(scores_BV.double(), target_B, reduction="sum").item()
                hits += int((scores_BV.argmax(1) == target_B).sum())
        return float(np.exp(nll / len(pairs_N2))), hits / len(pairs_N2)


def micro_model_perplexities(datamodule: Any) -> tuple[dict[str, float], str]:
    """Choose a micro-model for the class of all integers and return its perplexity a split, and what it is.

    Every word is a number, so P_tag is 1 and NSLM is the micro-model. Of large splits an evenly spaced sample is tried.
    """
    number = PatternRecogniser(
        name="number", pattern=r"\d+", metrics=("difference",), densities=("multinomial", "gaussian", "mixture")
    )
    table = class_table(datamodule.vocabulary.tokens, [number])

    def occurrences(split: str, most: int | None = None) -> Occurrences:
        pairs_N2 = datamodule.pairs(split).numpy()
        if most is not None and len(pairs_N2) > most:
            pairs_N2 = pairs_N2[np.linspace(0, len(pairs_N2) - 1, most).astype(int)]
        places_N = np.arange(len(pairs_N2))
        return Occurrences(places_N, np.zeros_like(places_N), pairs_N2[:, 1], Evidence.of_previous(pairs_N2[:, 0]))

    chosen = select(table, occurrences("train"), occurrences("val", MOST_PAIRS)).models["number"]
    perplexities = {split: class_perplexity(chosen, occurrences(split, MOST_PAIRS)) for split in ("train", "test")}
    found = chosen.describe()
    return perplexities, f"{found['metric']}/{found['density']}"
