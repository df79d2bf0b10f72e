"""BLEU of generations against the real continuation, by sacrebleu (control codes, sec. 4.4, Table 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from sacrebleu.metrics import BLEU

from lit_ctg.core.result import Direction, MetricResult
from lit_ctg.errors import only_errors_of
from lit_ctg.limits import Choice, Whole, checked

REFERENCES = ("aligned", "flat")


@checked
class Bleu:
    """Corpus BLEU on sacrebleu's 0 to 100 scale, its interval by sacrebleu's bootstrap over texts.

    Args:
        references: ``aligned`` compares text i with reference i. ``flat`` is the authors' call: sacrebleu takes a
            list of references as a list of *streams*, so each reference text is a stream of letters, and text i is
            compared with the i-th letter of every reference. Identical texts then do not score 100.
        resamples: of the bootstrap; fewer than two give no interval.
    """

    unit = "BLEU"
    direction: Direction = "higher"
    version = 1

    def __init__(self, *, references: Annotated[str, Choice(REFERENCES)], resamples: Whole = 1000) -> None:
        self.references, self.resamples = references, resamples

    def score(self, texts: Sequence[str], references: Sequence[str]) -> MetricResult:
        """Return the BLEU of N texts with one reference each; NaN without texts.

        Raises:
            ValueError: not as many references as texts.
        """
        if len(texts) != len(references):
            raise ValueError(f"{len(texts)} texts for {len(references)} references")
        if not texts:
            return MetricResult(math.nan, self.unit, self.direction, 0, None, self.version)
        flat = self.references == "flat"
        streams = [text or " " for text in references] if flat else [list(references)]
        scored = min(len(texts), *map(len, streams)) if flat else len(texts)
        # of one resample sacrebleu makes no bootstrap and returns -1 for its mean
        resamples = self.resamples if scored > 1 and self.resamples > 1 else 0
        # sacrebleu logs its bootstrap, and takes tokenised text for a mistake
        with only_errors_of("sacrebleu"):
            found = BLEU().corpus_score(list(texts), streams, n_bootstrap=resamples)
        ci95 = (max(0.0, found._mean - found._ci), min(100.0, found._mean + found._ci)) if resamples else None
        return MetricResult(float(found.score), self.unit, self.direction, scored, ci95, self.version)
