"""A model under carried controls behind the common contract of generation (``core/generation.py``).

Shape letters: B ways to set the controls, T tokens of a continuation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lit_ctg.control.steered import Steered
from lit_ctg.core.chat import chat_ids
from lit_ctg.core.generation import (
    NO_END,
    Controls,
    ControlSetting,
    Forced,
    GeneratedText,
    Watched,
    Writer,
    control_of_each,
    one_each,
)
from lit_ctg.decoding.rule import RuleList
from lit_ctg.errors import UserError


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
        if steered.tokenizer is None:
            raise UserError("texts need a tokenizer: Steered(model, controls, tokenizer=...)")
        for control in steered.controls:
            if control.kind == "soft_prompt":
                raise UserError(
                    f"control {control.name} stands in front of the text, so a text with it cannot be drawn beside one "
                    "without: use lit-ctg generate model=..."
                )
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
        said = self.steered.tokenizer.decode(ids[self.chat * prompt_length :], skip_special_tokens=True)
        return GeneratedText(said, tuple(ids), prompt_length, control)

    def generate(
        self,
        n: int,
        prompt: str | Sequence[str] = "",
        control: Controls | Sequence[Controls] | None = None,
        *,
        routes: Collection[str] | None = None,
        seed: int | None,
        rows: Sequence[int] | None = None,
        max_new_tokens: int | None = None,
        watch: Callable[[Tensor], None] | None = None,
    ) -> list[GeneratedText]:
        """As in the contract; the model's own generation settings (temperature, nucleus) apply while it samples."""
        self.checked_routes(routes)
        checked = [self.checked(each) for each in control_of_each(control or {}, n)]
        prompts = [self.prompt_ids(text) for text in one_each(prompt, n, "prompts")]
        length = self.max_new_tokens if max_new_tokens is None else max_new_tokens
        self.check_room(max(map(len, prompts), default=0), length)
        drawn: dict[str, Any] = {"do_sample": False}
        if seed is not None:
            drawn = {"do_sample": True, "seed": seed, "rows": rows}
        watching = [] if watch is None else [Watched(RuleList(), watch)]
        made = self.steered.generate(
            prompts,
            columns(checked),
            max_new_tokens=length,
            logits_processor=watching,
            num_beams=1,
            reply_only=self.chat,
            **drawn,
        )
        longest, found = max(map(len, prompts), default=0), []
        for own, ids, values in zip(prompts, made.tolist(), checked, strict=True):
            new = ids[longest:]
            stop = next((place + 1 for place, number in enumerate(new) if number in self.ends), len(new))
            found.append(self.text([*own, *new[:stop]], len(own), values))
        return found

    def log_probs(
        self,
        prompt: str,
        ids: Sequence[int],
        controls: Sequence[Controls],
        *,
        routes: Collection[str] | None = None,
    ) -> Tensor:
        """As in the contract, from the scores under the controls, before temperature, nucleus and the like."""
        self.checked_routes(routes)
        checked = [self.checked(control) for control in controls]
        if not ids or not checked:
            return torch.zeros(len(checked), len(ids), dtype=torch.float64)
        begin = self.prompt_ids(prompt)
        self.check_room(len(begin), len(ids))
        forced = Forced(RuleList(), len(begin), ids)
        self.steered.generate(
            [begin] * len(checked), columns(checked), max_new_tokens=len(ids), do_sample=False, num_beams=1,
            logits_processor=[forced], eos_token_id=NO_END, reply_only=self.chat,
        )  # fmt: skip
        return torch.stack(forced.found, dim=1)


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return settings by name with one value per row; None where a row sets nothing."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
