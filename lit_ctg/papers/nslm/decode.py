"""Texts drawn from the final mixture: ``lit-ctg generate experiment=nslm/numbers``.

Its class tags are part of the run's model. On any other language model the micro-models are a control (``control.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_ctg import limits
from lit_ctg.core.generation import ControlSetting, GeneratedText, Generator
from lit_ctg.decoding.filters import Nucleus, Temperature
from lit_ctg.decoding.rule import RuleList, ScoreRule
from lit_ctg.limits import Count, Positive, checked
from lit_ctg.papers.nslm.model import NSLMModule


@dataclass(frozen=True)
class ClassText(GeneratedText):
    """A text and its class tokens.

    Attributes:
        fired: (token, class, earlier member of the class or "") of every class token after the prompt.
    """

    fired: tuple[tuple[str, str, str], ...] = ()

    def note(self) -> str:
        """Return every class token with its class and its reference member."""
        parts = (f"{token}: {kind}" + (f" after {before}" if before else "") for token, kind, before in self.fired)
        return ", ".join(parts)


@checked
@dataclass(frozen=True)
class NSLMDecoding:
    """Sampling settings (ours: the paper generates nothing).

    Attributes:
        max_new_tokens: maximum length of a continuation.
    """

    temperature: Positive
    top_p: limits.Nucleus
    max_new_tokens: Count

    def generator(self, module: NSLMModule, datamodule: Any) -> TextGenerator:
        """Return the generator of a trained module; fit the micro-models if that has not been done."""
        if module.micro_models is None:
            module.choose_micro_models(datamodule)
        return TextGenerator(module, self, getattr(datamodule, "transform", str))


class TextGenerator(Generator[ClassText]):
    """Draws texts from the final mixture; ``control.mixture_weight`` is that of Eq. 4, for all rows or one per row.

    Args:
        module, decoding: the model and its sampling settings.
        prepare: the corpus's preprocessing of a text before it is split into tokens (numbers joined, places chunked).
    """

    def __init__(self, module: NSLMModule, decoding: NSLMDecoding, prepare: Callable[[str], str] = str) -> None:
        super().__init__(module, max_new_tokens=decoding.max_new_tokens)
        self.decoding, self.prepare = decoding, prepare

    @property
    def controls(self) -> tuple[ControlSetting, ...]:
        tuned = float(self.module.mixture_weight)
        meaning = "share of the micro-models: 0 draws from the plain language model, 1 from Eq. 4 alone"
        return (ControlSetting("mixture_weight", meaning, default=tuned, low=0.0, high=1.0, off=0.0),)

    def prompt_ids(self, text: str) -> list[int]:
        """Return the ids of a prompt written as in the corpus (``New York , 3 @.@ 5``) and prepared like its texts.

        Raises:
            UserError: a word that is not in the vocabulary.
        """
        vocabulary = self.module.vocabulary
        # the text starts with a line end, as in WikiText
        return [vocabulary.id("<eos>"), *(vocabulary.id(word) for word in self.prepare(text).split())]

    def rules(self, controls: Sequence[dict[str, Any]], routes: Collection[str], state: Any) -> ScoreRule:
        return RuleList([Temperature(self.decoding.temperature), Nucleus(self.decoding.top_p, keep_crossing=True)])

    def state(self, controls: Sequence[dict[str, Any]], routes: Collection[str]) -> Tensor:
        """Return the weight of each row, [B]."""
        return torch.tensor([control["mixture_weight"] for control in controls], device=self.module.device)

    def text(self, ids: list[int], prompt_length: int, control: dict[str, Any]) -> ClassText:
        written = self.module.vocabulary.decode(ids[1:])
        return ClassText(written, tuple(ids), prompt_length, control, self._fired(ids, prompt_length))

    def _fired(self, ids: Sequence[int], start: int) -> tuple[tuple[str, str, str], ...]:
        """Return which tokens after the prompt are in a class, and after which earlier member."""
        table, tokens = self.module.table, self.module.vocabulary.tokens
        contexts, _ = self.module.tracker.read(np.array([ids[:-1]]))
        found = contexts.occurrences(np.array([ids[1:]]))
        fired = []
        for place, number, index, previous in zip(
            found.position_N, found.class_N, found.index_N, found.evidence.previous_N, strict=True
        ):
            if place + 1 >= start:
                members = table.classes[number]
                before = tokens[members.ids_K[previous]] if previous >= 0 else ""
                fired.append((members.tokens[index], members.name, before))
        return tuple(fired)
