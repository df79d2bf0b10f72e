"""A model under carried controls behind the common contract of generation (``core/generation.py``).

Shape letters: B ways to set the controls, T tokens of a continuation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lit_ctg.control.steered import Steered
from lit_ctg.core.chat import chat_ids
from lit_ctg.core.generation import NO_END, Batch, ControlSetting, GeneratedText, Writer
from lit_ctg.decoding.rule import RuleList
from lit_ctg.errors import only_errors_of, refuse


class SteeredGenerator(Writer[GeneratedText]):
    """Continues prompts by ``Steered.generate``; its controls are the settings of all controls, by their full names.

    Args:
        steered: model and controls, with the tokenizer.
        max_new_tokens: maximum length of a continuation.
        chat: a prompt is a message, which the model answers under the controls.
        system: the message before it, with ``chat``.

    Raises:
        UserError: no tokenizer, or a control that needs positions before the text: rows with and without do not batch.
    """

    def __init__(self, steered: Steered, *, max_new_tokens: int, chat: bool = False, system: str | None = None) -> None:
        super().__init__(steered.model, max_new_tokens=max_new_tokens)
        before = [control.name for control in steered.controls if control.kind == "soft_prompt"]
        refuse({
            "texts need a tokenizer: Steered(model, controls, tokenizer=...)": steered.tokenizer is None,
            f"control {before[:1]} needs positions before every text: use lit-ctg generate model=...": before,
        })  # fmt: skip
        self.steered, self.chat, self.system = steered, chat, system
        ends = steered.model.generation_config.eos_token_id
        self.ends = {ends} if isinstance(ends, int) else set(ends or ())
        self.eos_id = min(self.ends, default=NO_END)

    @property
    def controls(self) -> tuple[ControlSetting, ...]:
        return tuple(
            replace(setting, name=f"{each.name}.{setting.name}", off=0.0 if setting.name == each.strength else None)
            for each in self.steered.controls
            for setting in each.settings
        )

    @property
    def context(self) -> int | None:
        return getattr(self.steered.model.config, "max_position_embeddings", None)

    def prompt_ids(self, text: str) -> list[int]:
        return chat_ids(self.steered.tokenizer, text, self.system) if self.chat else self.steered.prompt_ids(text)

    def text(self, ids: list[int], prompt_length: int, control: dict[str, Any]) -> GeneratedText:
        """Return a row's text without special tokens, which stay in its ids; of a chat the reply alone."""
        shown = self.steered.tokenizer.decode(ids[self.chat * prompt_length :], skip_special_tokens=True)
        return GeneratedText(shown, tuple(ids), prompt_length, control)

    def draw(self, batch: Batch) -> list[list[int]]:
        """As in the contract; the model's own generation settings (temperature, nucleus) apply while it samples."""
        options: dict[str, Any] = {"max_new_tokens": batch.length, "num_beams": 1, "do_sample": batch.seed is not None}
        options |= {"reply_only": self.chat, "logits_processor": [batch.wrap(RuleList())]}
        options |= {} if batch.seed is None else {"seed": batch.seed, "rows": batch.rows}
        options |= {"eos_token_id": NO_END} if batch.eos_id == NO_END else {}
        with only_errors_of("transformers.generation.utils"):  # it warns of an id that no token has
            made = self.steered.generate(batch.prompts, columns(batch.controls), **options)
        longest, texts = max(map(len, batch.prompts), default=0), []
        for own, ids in zip(batch.prompts, made.tolist(), strict=True):
            new = ids[longest:]
            stop = next((place + 1 for place, number in enumerate(new) if number in self.ends), len(new))
            texts.append([*own, *(new if batch.eos_id == NO_END else new[:stop])])
        return texts


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return settings by name with one value per row; None where a row sets nothing."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
