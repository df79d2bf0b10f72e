"""Topic drift: stickiness by distance from the prompt. The paper tells of it (sec. 5.3) and does not measure it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_ctg.core.metric import LitMetric
from lit_ctg.core.result import MetricResult
from lit_ctg.papers.idea_gate.sample_mean import SampleMean
from lit_ctg.papers.idea_gate.stickiness import Stickiness

Span = tuple[int, int]


def span_name(span: Span) -> str:
    """Return e.g. ``51-100`` for tokens 51 to 100 (both included)."""
    return f"{span[0]}-{span[1]}"


class StickinessFall(SampleMean):
    """By how much the stickiness of a sample falls between two spans; mean over samples."""

    unit = "share of content words"
    direction = "lower"

    def update(self, falls_N: Sequence[float], group: int = 0) -> None:
        """Add the falls of one prompt's samples; NaN where one of the spans has no words."""
        self.add_samples(falls_N, group)


class TopicDrift(LitMetric):
    """Stickiness in each span of new tokens, and ``fall``: first span minus last, sample by sample.

    Args:
        spans: first and last new token of each span, counted from 1.
        terms: the domain's list, lower case.
        function_words: words that are no content words.
    """

    unit = "share of content words"
    direction = "higher"

    def __init__(
        self, *, spans: Sequence[Span], terms: Collection[str], function_words: Collection[str], **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.spans = [(int(first), int(last)) for first, last in spans]
        self.parts = torch.nn.ModuleList(
            Stickiness(terms=terms, function_words=function_words, **kwargs) for _ in self.spans
        )
        self.fall = StickinessFall(**kwargs)

    def update(self, words_SN: Sequence[Sequence[Sequence[str]]], group: int = 0) -> None:
        """Add samples of one prompt: for every span the words of each sample in it.

        A sample that ends before a span has no words there, and so no value.
        """
        for part, words_N in zip(self.parts, words_SN, strict=True):
            part.update(words_N, group)
        share = self.parts[0].share
        pairs = zip(words_SN[0], words_SN[-1], strict=True)
        self.fall.update([share(near) - share(far) for near, far in pairs], group)

    def compute(self) -> Tensor:
        """Return the stickiness of every span, float64, (S,)."""
        return torch.stack([part.compute() for part in self.parts])

    def reset(self) -> None:
        """Forget all samples."""
        super().reset()
        for part in (*self.parts, self.fall):
            part.reset()

    def merge_state(self, incoming_state: Any) -> None:
        """Add another drift's samples."""
        pairs = zip((*self.parts, self.fall), (*incoming_state.parts, incoming_state.fall), strict=True)
        for part, incoming in pairs:
            part.merge_state(incoming)

    def _result(self) -> dict[str, MetricResult]:
        named = {span_name(span): part.result() for span, part in zip(self.spans, self.parts, strict=True)}
        return {**named, "fall": self.fall.result()}
