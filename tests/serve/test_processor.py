"""The processor behind both of vLLM's interfaces: each text is the one that ``Steered`` writes alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lit_ctg.control import Steered
from lit_ctg.errors import UserError
from lit_ctg.serve.batch import REPLY, checked, load_served, settings_of
from lit_ctg.serve.plugin import SERVED, VARIABLE
from lit_ctg.serve.processor import ControlProcessor
from tests.conftest import WORDS
from tests.controls import controls
from tests.serve.engine import Engine, Text, engine_config, v2_states

# settings that change texts; a request takes some of them
ON = {
    "token_bias": {"to_good": 1.0, "strength": 3.0},
    "lexicon": {"to_polarity": 1.0},
    "grammar": {},
    "memory": {"mixture": "product"},
    "graphmax": {},
    "micro_models": {},
    "future": {"to_good": 1.0, "strength": 2.0},
}
PROMPTS = [[1, 2], [2, 3, 4], [1], [4, 5, 1, 2], [3, 4]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, word_tokenizer: Any) -> Path:
    """The tokenizer, and a bundle of each control on scores."""
    place = tmp_path_factory.mktemp("served")
    word_tokenizer.save_pretrained(place / "tokenizer")
    for name, control in controls().items():
        control.save_pretrained(place / name)
    return place


@pytest.fixture
def processor(folder: Path, word_model: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ControlProcessor]:
    """Return a maker of the processor of an engine with all controls on scores."""

    def make(*rest: Any, words: Any = ON, **changes: Any) -> ControlProcessor:
        monkeypatch.delenv(SERVED, raising=False)
        monkeypatch.setenv(VARIABLE, ",".join(str(folder / word) for word in sorted(words)))
        config = engine_config(word_model, str(folder / "tokenizer"), **changes)
        return ControlProcessor(config, *(rest or (torch.device("cpu"), False)))

    return make


def settings(*names: str) -> dict[str, Any]:
    return {f"{name}.{key}": value for name in names for key, value in {"strength": 1.0, **ON[name]}.items()}


def alone(steered: Steered, text: Text) -> list[int]:
    """Return what ``Steered`` writes for one text."""
    off = {f"{control.name}.strength": 0.0 for control in steered.controls}
    given = {**off, **settings_of(text.settings)}
    hidden = bool(given.pop(REPLY, 0))
    options = {"do_sample": False, "max_new_tokens": text.length, "eos_token_id": -1}
    return steered.generate([text.prompt], given, reply_only=hidden, **options)[0, len(text.prompt) :].tolist()


def texts() -> list[Text]:
    """Requests of all kinds, lengths and prompts: each control alone, some together, none, all off."""
    sets: list[dict[str, Any]] = [{"lit_ctg": settings(name)} for name in ON]
    sets += [
        {"lit_ctg": settings("token_bias", "memory", "micro_models")},
        {},
        {f"lit_ctg.{key}": value for key, value in settings("lexicon", "future", "graphmax").items()},
        {"lit_ctg": {f"{name}.strength": 0.0 for name in ON}},
        {"lit_ctg": settings("token_bias", "lexicon"), f"lit_ctg.{REPLY}": 1},
    ]
    return [Text(PROMPTS[place % len(PROMPTS)], each, 4 + place % 4) for place, each in enumerate(sets)]


@pytest.fixture(scope="module")
def expected(folder: Path, word_model: Any, word_tokenizer: Any) -> list[list[int]]:
    """What ``Steered`` writes for ``texts``, one at a time."""
    bundles = load_served(tuple(str(folder / name) for name in sorted(ON)))
    steered = Steered(word_model, bundles, tokenizer=word_tokenizer)
    return [alone(steered, text) for text in texts()]


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("most", [1, 4])
def test_each_text_is_the_one_that_steered_writes_alone(
    processor: Any, word_model: Any, expected: list[list[int]], most: int, v2: bool
) -> None:
    made = processor(v2_states(most)) if v2 else processor()
    assert Engine(word_model, made, most, v2).write(texts()) == expected
    assert len(set(map(tuple, expected))) > 6, "the controls do something"


def test_an_engine_without_controls_keeps_its_scores(processor: Any) -> None:
    made, scores = processor(words=()), torch.randn(2, 14)
    made.update_state(SimpleNamespace(removed=[], added=[(0, Text([1], {}, 1).params, [1], [])], moved=[]))
    assert made.apply(scores) is scores and not made.add_request(0, Text([1], {}, 1).params)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"lit_ctg": {"memry.strength": 1}}, "memory"),
        ({"lit_ctg": {"memory.strenth": 1}}, "strength"),
        ({"lit_ctg.memory.strength": -1}, "memory.strength"),
        ({"lit_ctg.memory.strength": "much"}, "memory.strength"),
        ({"lit_ctg.memory.strength": [1, 2]}, "memory.strength"),
        ({"lit_ctg": "memory.strength=1"}, "lit_ctg"),
        ({"lit_ctg.reply_only": 3}, "reply_only"),
        ({"lit_ctg.memory": 1}, "memory"),
    ],
)
def test_bad_settings_are_refused_at_the_door_and_end_their_request(
    processor: Any, word_model: Any, extra: dict[str, Any], named: str
) -> None:
    made = processor()
    with pytest.raises(ValueError, match=named) as refused:
        made.validate_params(Text([1], extra, 1).params)
    assert "\n" not in str(refused.value)
    request = Text([2], extra, 2)  # where nothing is checked at the door
    assert set(Engine(word_model, made).write([request])[0]) == {made.served.end_id}


def test_a_text_that_a_control_cannot_go_on_with_ends_alone(
    processor: Any, word_model: Any, expected: list[list[int]]
) -> None:
    outside = Text([WORDS.index("war"), WORDS.index("war")], {"lit_ctg": {"grammar.strength": 1.0}}, 3)
    written = Engine(word_model, made := processor(), 16).write([*texts(), outside])
    assert written[:-1] == expected
    assert set(written[-1]) == {made.served.end_id}


@pytest.mark.parametrize(
    ("words", "changes", "named"),
    [
        (("memory",), {"speculative_config": object()}, "speculative"),
        (("memory",), {"scheduler_config": SimpleNamespace(async_scheduling=True)}, "async"),
        (("idea_gate",), {}, "GPT2LMHeadModel"),
        (("experts",), {}, "experts"),
        (("memory", "memory"), {}, "memory"),
        (("nothing",), {}, "nothing"),
    ],
)
def test_an_engine_that_controls_cannot_follow_does_not_start(
    processor: Any, words: tuple[str, ...], changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        processor(words=words, **changes)


def test_the_engines_own_setting_comes_before_the_variable(processor: Any, folder: Path) -> None:
    made = processor(additional_config={"lit_ctg_controls": [f"mine={folder / 'memory'}"]})
    assert [control.name for control in made.served.controls] == ["mine"]


def test_settings_are_nested_or_flat(folder: Path) -> None:
    bundles = load_served((str(folder / "memory"),))
    for extra in ({"lit_ctg": {"memory.strength": 0.5}}, {"lit_ctg.memory.strength": 0.5, "other": 1}):
        assert checked(bundles, extra)[1]["memory"]["strength"].tolist() == [0.5]
    assert checked(bundles, None) == (False, {})


@pytest.mark.vllm
def test_vllms_loader_of_the_v2_runner_takes_the_processor(
    processor: Any, folder: Path, word_model: Any, expected: list[list[int]]
) -> None:
    v2 = pytest.importorskip("vllm.v1.worker.gpu.sample.logits_processor")
    from vllm.exceptions import VLLMValidationError

    processor()  # sets the variable
    states = v2_states(4)
    rest = {"device": torch.device("cpu"), "max_num_reqs": 4, "vocab_size": len(WORDS)}
    states = SimpleNamespace(**vars(states), **rest, prefill_len=states.prompt_len, total_len=states.prompt_len)
    config = engine_config(word_model, str(folder / "tokenizer"), use_v2_model_runner=True)
    (made,) = v2.build_custom_logits_processors(config, states, False)
    assert isinstance(made, ControlProcessor)
    assert Engine(word_model, made, 4, v2=True).write(texts()) == expected
    check = v2.build_custom_logits_processors_params_validator(None)
    check(Text([1], {"lit_ctg": settings("memory")}, 1).params)
    with pytest.raises(VLLMValidationError, match="memory"):
        check(Text([1], {"lit_ctg.memory.strenth": 1}, 1).params)
