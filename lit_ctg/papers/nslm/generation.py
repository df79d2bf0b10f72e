"""Texts drawn from the final mixture, with what each class token came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lit_ctg.core.model import evaluating
from lit_ctg.decoding.filters import Nucleus, Temperature
from lit_ctg.decoding.loop import generate
from lit_ctg.decoding.rule import RuleList
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.papers.nslm.module import NSLMModule

CONTROLS = ("mixture_weight",)


@dataclass(frozen=True)
class GeneratedText:
    """A text and its class tokens.

    Attributes:
        text: prompt and continuation.
        ids: the same.
        fired: (token, class, earlier member of the class or "") of every class token behind the prompt.
    """

    text: str
    ids: tuple[int, ...]
    fired: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class NSLMDecoding:
    """Sampling settings (ours: the paper generates nothing).

    Attributes:
        temperature, top_p: of the draws.
        max_new_tokens: length of a continuation.
    """

    temperature: float
    top_p: float
    max_new_tokens: int

    def generator(self, module: NSLMModule, datamodule: Any) -> TextGenerator:
        """Return what generates with a trained module; fits the micro-models where that has not been done."""
        if module.micro_models is None:
            module.choose_micro_models(datamodule)
        return TextGenerator(module, self, getattr(datamodule, "transform", str))


class TextGenerator:
    """Draws texts; row i is a function of (seed, i).

    Args:
        module, decoding: what is drawn from, and how.
        prepare: what the corpus does to a text before its tokens are split (numbers joined, places chunked).
    """

    def __init__(self, module: NSLMModule, decoding: NSLMDecoding, prepare: Callable[[str], str] = str) -> None:
        self.module, self.decoding, self.prepare = module, decoding, prepare

    def generate(
        self,
        n: int,
        prompt: str = "",
        *,
        control: Mapping[str, Any] | None = None,
        paths: Mapping[str, bool] | None = None,
        seed: int = 0,
    ) -> list[GeneratedText]:
        """Continue ``prompt`` ``n`` times.

        Args:
            prompt: as the corpus writes it (``New York , 3 @.@ 5``); prepared as its texts are.
            control: ``mixture_weight``: 0 draws from the NNLM alone, 1 from Eq. 4 alone; default: the tuned weight.
            paths: nothing to choose here.

        Raises:
            UserError: an unknown control, a weight outside [0, 1], a prompt with a word that is not in the vocabulary.
        """
        vocabulary, module = self.module.vocabulary, self.module
        weight = float(module.mixture_weight)
        for name, value in (control or {}).items():
            if name not in CONTROLS:
                raise UserError(f"control.{name}: nslm has {', '.join(CONTROLS)}{did_you_mean(name, CONTROLS)}")
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise UserError(f"control.{name}={value}: give a number from 0 to 1")
            weight = float(value)
        # a line end begins the text, as in WikiText
        ids = [vocabulary.id("<eos>"), *(vocabulary.id(word) for word in self.prepare(prompt).split())]
        rules = RuleList([Temperature(self.decoding.temperature), Nucleus(self.decoding.top_p, keep_crossing=True)])
        tuned = module.mixture_weight.clone()
        try:
            module.mixture_weight.fill_(weight)
            with evaluating(module):
                texts = generate(
                    module, [ids] * n, rules, seed=seed, max_new_tokens=self.decoding.max_new_tokens, eos_id=-1
                )
        finally:
            module.mixture_weight.copy_(tuned)
        return [GeneratedText(vocabulary.decode(text[1:]), tuple(text), self._fired(text, len(ids))) for text in texts]

    def _fired(self, text: Sequence[int], start: int) -> tuple[tuple[str, str, str], ...]:
        """Say which tokens behind the prompt are in a class, and after which earlier member."""
        table, tokens = self.module.table, self.module.vocabulary.tokens
        contexts, _ = self.module.tracker.read(np.array([text[:-1]]))
        found = contexts.occurrences(np.array([text[1:]]))
        fired = []
        for place, number, index, previous in zip(
            found.position_N, found.class_N, found.index_N, found.evidence.previous_N, strict=True
        ):
            if place + 1 >= start:
                members = table.classes[number]
                before = tokens[members.ids_K[previous]] if previous >= 0 else ""
                fired.append((members.tokens[index], members.name, before))
        return tuple(fired)
