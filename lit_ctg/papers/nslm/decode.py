"""The micro-models in generation: as a score rule on any language model, and in texts drawn from our own.

``MicroModelRule`` redistributes a language model's mass on a class within the class (Eq. 4). It works in our decoding
loop and in Hugging Face's ``generate(logits_processor=[rule])``, with any vocabulary in which members of the classes
are single tokens. Shape letters: B rows, T prefix tokens, V vocabulary, K members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_ctg import limits
from lit_ctg.control.trie import Running
from lit_ctg.core.generation import ControlSetting, GeneratedText, Generator
from lit_ctg.data.tokenizer import texts_behind
from lit_ctg.decoding.filters import Nucleus, Temperature
from lit_ctg.decoding.rule import PerRow, RuleList, ScoreRule, per_row
from lit_ctg.errors import UserError
from lit_ctg.limits import Count, Positive, checked
from lit_ctg.papers.nslm.classes import ClassTable
from lit_ctg.papers.nslm.micro_model import Blend, MicroModel
from lit_ctg.papers.nslm.model import NSLMModule
from lit_ctg.papers.nslm.occurrences import Carry, Contexts, ContextTracker


def word_texts(tokenizer: Any) -> tuple[str, ...]:
    """Return the words of a Hugging Face tokenizer's vocabulary, by id, for ``class_table``.

    In a vocabulary of pieces (GPT-2's, Llama's) a token that begins a word starts with a space; the others go on in a
    word and get the text "", which is in no class. A token may still be the first piece of a longer word.
    """
    texts = texts_behind(tokenizer, tokenizer.all_special_ids)
    if any(text.startswith(" ") for text in texts):
        return tuple(text[1:] if text.startswith(" ") else "" for text in texts)
    return tuple(texts)


@dataclass(frozen=True)
class Fired:
    """The effect of the rule in one row.

    Attributes:
        class_name: the class.
        state: the left context.
        previous: text of the previous member; "" where there is none.
        mass: the language model's probability of the class.
    """

    class_name: str
    state: str
    previous: str
    mass: float


class MicroModelRule(ScoreRule):
    """Keeps every class's mass, and shares it among the members by the micro-model.

    Args:
        table: the classes over the language model's vocabulary; the prefix is one document.
        models: the micro-model of each class by name; a class without one keeps its scores.
        strength: 1 is Eq. 4; less mixes with the language model's own distribution (the final model of sec. 5.3); with
            0 a row keeps its scores. One number or one per row.

    Raises:
        UserError: no class has a member among the tokens, a micro-model for a class that the table lacks, or a
            strength outside [0, 1].
    """

    def __init__(self, table: ClassTable, models: Mapping[str, MicroModel | Blend], *, strength: PerRow = 1.0) -> None:
        if not table.classes:
            raise UserError(
                "no class has a member that is one token of this vocabulary (some split numbers into digits): the "
                "control MicroModels (papers/nslm/control.py) takes members of several tokens"
            )
        for name in models:
            if name not in table.names:
                raise UserError(f"micro-model for '{name}': the vocabulary has the classes {', '.join(table.names)}")
        strengths = torch.as_tensor(strength)
        if not bool(((strengths >= 0) & (strengths <= 1)).all()):
            raise UserError(f"strength {strength} of a micro-model rule must lie in [0, 1]")
        self.table, self.models, self.strength = table, dict(models), strength
        self.tracker = ContextTracker(table)
        self._running: Running[tuple[Contexts | None, Carry]] = Running((None, self.tracker.start(1)), self._read_on)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return log-probabilities ``[B, V]`` in the dtype of ``scores`` (unchanged scores where strength is 0)."""
        strength_B1 = per_row(self.strength, scores)
        if (strength_B1 == 0).all():
            return scores
        log_probs_BV = scores.double().log_softmax(-1)
        shared_BV = self._share(self._contexts(input_ids), log_probs_BV)
        mixed_BV = torch.logaddexp(
            shared_BV + strength_B1.double().log(), log_probs_BV + torch.log1p(-strength_B1.double())
        )
        return torch.where(strength_B1 == 0, scores, mixed_BV.to(scores.dtype))

    def _read_on(self, state: tuple[Contexts | None, Carry], tokens: list[int]) -> tuple[Contexts | None, Carry]:
        """Return the context of the token after ``tokens``, and the state to continue from."""
        contexts, carry = self.tracker.read(np.array([tokens]), None, state[1])
        return _last(contexts), carry

    def _contexts(self, input_ids_BT: Tensor) -> Contexts:
        """Return the context of the next token of each row, reading only the new part of a prefix."""
        rows = [contexts for contexts, _ in self._running.of(input_ids_BT) if contexts is not None]
        fields = ("state_BT", "previous_BTC", "source_value_BT", "source_unit_BT")
        return Contexts(self.table, *(np.concatenate([getattr(row, name) for row in rows]) for name in fields))

    def _share(self, contexts: Contexts, log_probs_BV: Tensor) -> Tensor:
        shared_BV = log_probs_BV.clone()
        for number, members in enumerate(self.table.classes):
            rows_B1 = self.table.available_SC[contexts.state_BT, number]
            if members.name not in self.models or not rows_B1.any():
                continue
            inside_NK = self.models[members.name].log_prob(contexts.evidence(number, rows_B1))
            rows_N = torch.from_numpy(rows_B1[:, 0].nonzero()[0]).to(log_probs_BV.device)
            ids_K = torch.from_numpy(members.ids_K).to(log_probs_BV.device)
            own_NK = log_probs_BV[rows_N[:, None], ids_K]
            # a member that another rule has forbidden stays so; the others share the mass
            dealt_NK = torch.from_numpy(inside_NK).to(own_NK).masked_fill(own_NK.isneginf(), -torch.inf)
            all_N1 = dealt_NK.logsumexp(1, keepdim=True)
            mass_N1 = own_NK.logsumexp(1, keepdim=True)
            shared_BV[rows_N[:, None], ids_K] = torch.where(all_N1.isfinite(), mass_N1 + dealt_NK - all_N1, own_NK)
        return shared_BV

    def explain(self, input_ids: Tensor, scores: Tensor) -> list[list[Fired]]:
        """Return, for each row, the classes on which the rule acts and why, the largest mass first."""
        contexts, log_probs_BV = self._contexts(input_ids), scores.double().log_softmax(-1)
        rows: list[list[Fired]] = []
        for row, state in enumerate(contexts.state_BT[:, 0]):
            fired = []
            for number, members in enumerate(self.table.classes):
                if members.name in self.models and self.table.available_SC[state, number]:
                    place = int(contexts.previous_BTC[row, 0, number])
                    previous = members.tokens[place] if place >= 0 else ""
                    mass = float(log_probs_BV[row, torch.from_numpy(members.ids_K)].exp().sum())
                    fired.append(Fired(members.name, self.table.states[state], previous, mass))
            rows.append(sorted(fired, key=lambda entry: -entry.mass))
        return rows


def _last(contexts: Contexts) -> Contexts:
    """Return the context of the token after the last one."""
    fields = (contexts.state_BT, contexts.previous_BTC, contexts.source_value_BT, contexts.source_unit_BT)
    return Contexts(contexts.table, *(field[:, -1:] for field in fields))


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
        temperature, top_p: of the draws.
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
