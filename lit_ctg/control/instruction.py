"""An instruction of a class before the text, in the model's chat template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lit_ctg.control.base import Prefix, Stage, Values
from lit_ctg.control.token_bias import ClassControl, check_classes, class_settings
from lit_ctg.core.chat import ROLES, chat_ids
from lit_ctg.core.generation import ControlSetting
from lit_ctg.errors import UserError, refuse
from lit_ctg.limits import check_value

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

# the user's message, or messages by role: {"system": "...", "user": "..."}
Wording = str | Mapping[str, str]


class Instruction(ClassControl):
    """Asks for a class before the text, which begins the model's reply; other controls see the text alone.

    Args:
        wordings: class -> the wordings of its instruction. A class such as ``neutral`` serves as the reference.

    Raises:
        UserError: a class without a wording, a wording without a user's message, or fewer than two classes.
    """

    kind, stage, of_ids = "instruction", Stage.NETWORK, False
    excludes = frozenset({"instruction"})

    def __init__(self, wordings: Mapping[str, Sequence[Wording]], *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.classes = check_classes(list(wordings))
        self.wordings = {each: list(own) for each, own in wordings.items()}
        where = f"control {self.name}: wordings"
        for each, own in self.wordings.items():
            for wording in own:
                check_value(f"{where}.{each}", wording, str | Mapping[str, str])
            roles = [{"user"} if isinstance(wording, str) else set(wording) for wording in own]
            refuse({
                "give a list of texts, one at least": isinstance(wordings[each], str) or not own,
                "give a user's message, or messages by role, user among them":
                    not all("user" in found and found <= set(ROLES) for found in roles),
            }, f"{where}.{each}: ")  # fmt: skip

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        most = max(map(len, self.wordings.values()))
        return (
            ControlSetting("strength", "1: with the instruction; 0: without", 1.0, low=0.0, high=1.0),
            ControlSetting("wording", "number of its wording, from 1", 1.0, low=1.0, high=float(most)),
            *class_settings(self.classes),
        )

    def before(self, values: Values, tokenizer: Any) -> list[list[int]]:
        found: list[list[int]] = []
        for row, off in enumerate(self.off(values).tolist()):
            asked = [each for each in self.classes if float(values[f"to_{each}"][row]) > 0]
            number = float(values["wording"][row])
            me = f"control {self.name}"
            refuse({
                f"{me}: {', '.join(asked)}: a prompt has one instruction: name one class": not off and len(asked) > 1,
                f"{me}: strength={float(values['strength'][row]):g}: give 0 or 1":
                    float(values["strength"][row]) not in (0.0, 1.0),
                f"{me}: it needs a tokenizer: Steered(model, controls, tokenizer=...)": not off and tokenizer is None,
            })  # fmt: skip
            if off:
                found.append([])
                continue
            wordings = self.wordings[asked[0]]
            if number not in range(1, len(wordings) + 1):
                raise UserError(f"{me}: wording={number:g}: {asked[0]} has the wordings 1 to {len(wordings)}")
            wording = wordings[int(number) - 1]
            messages = [{"role": "user", "content": wording}] if isinstance(wording, str) else [
                {"role": role, "content": wording[role]} for role in ("system", "user") if role in wording
            ]  # fmt: skip
            found.append(chat_ids(tokenizer, messages, where=me))
        return found

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        if prefix.reply is None:
            raise UserError(f"control {self.name} is put before the prompts: generate with Steered(model, ...)")
        return ()

    def config(self) -> dict[str, Any]:
        return {"wordings": self.wordings}
