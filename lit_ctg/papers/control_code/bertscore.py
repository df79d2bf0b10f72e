"""BERTScore of generations (control codes, sec. 4.4, Table 3), by torchmetrics with an encoder from a local folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lit_ctg.papers.control_code.generation_mean import GenerationMean


class BertScore(GenerationMean):
    """BERTScore F1, averaged over texts; rescaled with the encoder's baseline where its table is given.

    Rescaling makes most scores of poor text negative, as the paper notes (sec. 4.4). Texts without a word are left out.

    Args:
        path: folder of a BERT-like encoder with its tokenizer (Hugging Face layout); nothing is fetched.
        layers: hidden layer to compare (17 for roberta-large, bert-score's choice); the last one by default.
        baseline: bert-score's ``rescale_baseline/<language>/<model>.tsv``; without it scores are not rescaled.
        batch_size: texts encoded at a time.
    """

    unit = "F1"
    direction = "higher"

    def __init__(
        self,
        *,
        path: str | Path | None,
        layers: int | None = None,
        baseline: str | Path | None = None,
        batch_size: int = 64,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        self.path, self.layers, self.baseline, self.batch_size = path, layers, baseline, batch_size

    @property
    def missing(self) -> str | None:
        """Why nothing can be scored, or None."""
        if self.path is None:
            return "BERTScore not measured: no folder of an encoder given (bertscore.path)"
        if not (Path(self.path) / "config.json").is_file():
            return f"BERTScore not measured: {self.path} has no config.json of an encoder"
        if self.baseline is not None and not Path(self.baseline).is_file():
            return f"BERTScore not measured: no baseline table {self.baseline}"
        return None

    def update(self, texts: Sequence[str], references: Sequence[str]) -> None:
        """Score each text against its reference.

        Raises:
            ValueError: as many references as there are not texts.
        """
        from torchmetrics.functional.text import bert_score

        pairs = [(t, r) for t, r in zip(texts, references, strict=True) if t.strip() and r.strip()]
        if not pairs:
            return
        mine, theirs = zip(*pairs, strict=True)
        scores = bert_score(
            list(mine),
            list(theirs),
            model_name_or_path=str(self.path),
            num_layers=self.layers,
            batch_size=self.batch_size,
            rescale_with_baseline=self.baseline is not None,
            baseline_path=None if self.baseline is None else str(self.baseline),
            truncation=True,
        )
        self.add_values(torch.atleast_1d(torch.as_tensor(scores["f1"])).tolist())
