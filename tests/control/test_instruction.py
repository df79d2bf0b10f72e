"""An instruction before the text: per row, beside other controls, and none at strength 0."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.control import Control, Steered
from lit_ctg.control.instruction import Instruction
from lit_ctg.core.chat import chat_ids
from lit_ctg.errors import UserError
from tests.controls import controls

TEMPLATE = (
    "{% for m in messages %}{{ 'a ' if m['role'] == 'user' else 'the ' }}{{ m['content'] }} . {% endfor %}"
    "{% if add_generation_prompt %}began {% endif %}"
)
WORDINGS: dict[str, Any] = {
    "good": ["in good", {"system": "metal", "user": "good acid"}],
    "bad": ["bad bad in war"],
    "neutral": ["in"],
}
GREEDY: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}


@pytest.fixture
def chatty(tokenizer: Any) -> Any:
    made = copy.deepcopy(tokenizer)
    made.chat_template = TEMPLATE
    return made


def test_instructions_per_row_are_what_a_chat_gives(model: Any, chatty: Any, tmp_path: Path) -> None:
    Instruction(WORDINGS).save_pretrained(tmp_path / "asked")
    steered = Steered(model, [Control.from_pretrained(tmp_path / "asked")], tokenizer=chatty)
    settings = {"instruction.to_good": [1, 1, 0, 0, 1], "instruction.to_bad": [0, 0, 1, 0, 0],
                "instruction.wording": [1, 2, 1, 1, 1], "instruction.strength": [1, 1, 1, 1, 0]}  # fmt: skip
    prompts = ["the war", "the war", "acid", "the war began in", "the war"]
    made = steered.generate(prompts, settings, **GREEDY)
    longest = max(len(chatty(prompt).input_ids) for prompt in prompts)
    assert made.shape == (5, longest + 5), "the instruction is not returned"
    bare = Steered(model, [], tokenizer=chatty)
    asked: list[Any] = [
        WORDINGS["good"][0],
        [{"role": "system", "content": "metal"}, {"role": "user", "content": "good acid"}],
        WORDINGS["bad"][0],
        None,
        None,
    ]
    for row, (prompt, message) in enumerate(zip(prompts, asked, strict=True)):
        ids = chatty(prompt).input_ids
        before = [] if message is None else chat_ids(chatty, message)
        expected = bare.generate([[*before, *ids]], **GREEDY)[0, len(before) + len(ids) :]
        assert made[row, longest:].tolist() == expected.tolist()
        assert made[row, longest - len(ids) : longest].tolist() == ids
    assert steered.write(prompts[:1], {"instruction.to_good": 1}, **GREEDY) == [
        bare.continuation(made[0, :longest].tolist(), made[0, longest:].tolist())
    ]


def test_other_controls_see_the_text_alone(model: Any, chatty: Any) -> None:
    seen: list[Any] = []
    bias = controls()["token_bias"]
    rule: Any = bias.rule

    def watched(values: Any, prefix: Any) -> Any:
        inner = rule(values, prefix)

        def call(ids: Any, scores: Any) -> Any:
            seen.append(ids.tolist())
            return inner(ids, scores)

        return call

    bias.rule = watched  # type: ignore[method-assign]
    steered = Steered(model, [Instruction(WORDINGS), bias], tokenizer=chatty)
    settings = {"instruction.to_good": [1, 0], "token_bias.to_good": 1}
    steered.generate(["the war", "acid"], settings, max_new_tokens=1, do_sample=False)
    text = chatty("the war").input_ids
    (first, second) = seen[0]
    start = model.config.bos_token_id
    assert first[-3:] == [start, *text] and set(first[:-3]) == {-1}
    assert second[-1] == chatty("acid").input_ids[0] and set(second[:-1]) == {-1}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"instruction.to_good": 1, "instruction.to_bad": 1}, "one class"),
        ({"instruction.to_bad": 1, "instruction.wording": 2}, "wording"),
        ({"instruction.to_bad": 1, "instruction.strength": 0.5}, "strength"),
    ],
)
def test_bad_settings_are_refused(model: Any, chatty: Any, settings: Any, named: str) -> None:
    steered = Steered(model, [Instruction(WORDINGS)], tokenizer=chatty)
    for use in (steered.check, steered.generate):
        with pytest.raises(UserError, match=named):
            use("the war", settings, **GREEDY)


def test_where_no_instruction_can_be_put(model: Any, tokenizer: Any, chatty: Any) -> None:
    asked = Instruction(WORDINGS)
    with pytest.raises(UserError, match="chat template"):
        Steered(model, [asked], tokenizer=tokenizer).write("the war", {"instruction.to_good": 1})
    with pytest.raises(UserError, match="system="):
        Steered(model, [asked], tokenizer=chatty).chat("the war", {"instruction.to_good": 1})
    with pytest.raises(UserError, match="Steered"), asked.attach(model, {"to_good": 1}):
        pass
    with asked.attach(model):
        assert model(torch.tensor([[3]])).logits is not None
    for wrong in ({"good": "in", "bad": ["in"]}, {"good": [], "bad": ["in"]}, {"good": ["in"]},
                  {"good": [{"system": "in"}], "bad": ["in"]}, {"good": [7], "bad": ["in"]}):  # fmt: skip
        with pytest.raises(UserError, match=r"wordings|classes"):
            Instruction(wrong)  # type: ignore[arg-type]
