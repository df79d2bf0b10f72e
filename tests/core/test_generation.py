"""The generation contract: controls and routes are checked in one place, rows do not depend on their batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from lit_ctg.core.generation import LARGEST, ControlSetting, GeneratedText, Generator, control_of_each
from lit_ctg.decoding.rule import ScoreRule, per_row
from lit_ctg.errors import UserError

SIZE = 9


class Counter(nn.Module):
    """The next token is the last one plus 1 in the first place, plus 2 in the second."""

    context = 12

    @property
    def backbone(self) -> Counter:
        return self

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def start(self, batch_size: int, controls: Any) -> Any:
        return controls

    def step(self, ids_B1: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        scores_BV = torch.zeros(len(ids_B1), SIZE, dtype=torch.float64)
        scores_BV.scatter_(1, (ids_B1 + 1) % SIZE, 2.0)
        scores_BV.scatter_(1, (ids_B1 + 2) % SIZE, 1.0)
        return scores_BV, state


class Push(ScoreRule):
    """Adds its strength to token 8."""

    def __init__(self, strength: Sequence[float]) -> None:
        self.strength = strength

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        pushed = scores.clone()
        pushed[:, 8:] += per_row(self.strength, scores)
        return pushed


class Pushing(Generator[GeneratedText]):
    routes = ("rule", "none")

    @property
    def controls(self) -> tuple[ControlSetting, ...]:
        return (
            ControlSetting("strength", "logits added to token 8", default=0.0, low=0, high=10),
            ControlSetting("mood", "of no effect", choices=("calm", "wild")),
            ControlSetting("mix", "of no effect", of_names=True),
        )

    def prompt_ids(self, text: str) -> list[int]:
        return [int(word) for word in text.split()] or [0]

    def rules(self, controls: Sequence[dict[str, Any]], routes: Collection[str], state: Any) -> ScoreRule:
        return Push([each["strength"] if "rule" in routes else 0.0 for each in controls])

    def text(self, ids: list[int], prompt_length: int, control: dict[str, Any]) -> GeneratedText:
        return GeneratedText(" ".join(map(str, ids)), tuple(ids), prompt_length, control)


@pytest.fixture
def generator() -> Pushing:
    return Pushing(Counter(), max_new_tokens=3)


def test_each_row_has_its_own_prompt_and_control(generator: Pushing) -> None:
    texts = generator.generate(3, ["1", "2 3", ""], {"strength": [0, 5, 0.5]}, seed=None)
    assert [text.ids for text in texts] == [(1, 2, 3, 4), (2, 3, 8, 8, 8), (0, 1, 2, 3)]
    assert [text.prompt_length for text in texts] == [1, 2, 1]
    assert [text.control for text in texts] == [{"strength": 0.0}, {"strength": 5.0}, {"strength": 0.5}]


def test_a_row_does_not_depend_on_its_batch(generator: Pushing) -> None:
    batch = generator.generate(4, ["1", "2 3", "4 5 6", "7"], {"strength": [0, 1, 2, 3]}, seed=3)
    for number, prompt in enumerate(["1", "2 3", "4 5 6", "7"]):
        alone = generator.generate(1, prompt, {"strength": number}, seed=3, rows=[number])
        assert alone == [batch[number]]


def test_strength_zero_is_the_bare_model(generator: Pushing) -> None:
    bare = [text.ids for text in generator.generate(4, seed=1, routes=["none"], control={"strength": 9})]
    assert [text.ids for text in generator.generate(4, seed=1, control={"strength": 0})] == bare
    assert [text.ids for text in generator.generate(4, seed=1)] == bare


@pytest.mark.parametrize(
    ("given", "named"),
    [
        *(({"control": {"strength": value}}, "control.strength") for value in ("much", True, math.nan, math.inf, 11)),
        ({"control": {"strenght": 1}}, "did you mean 'strength'?"),
        ({"control": {"strength": [1, 2, 3]}}, "control.strength"),
        ({"control": [{"strength": 1}]}, "1 controls for 2 texts"),
        ({"control": {"mood": "wyld"}}, "did you mean 'wild'?"),
        *(({"control": {"mix": value}}, "control.mix.<name>=0.5") for value in (0.5, {})),
        ({"routes": ["ruel"]}, "did you mean 'rule'?"),
        ({"prompt": ["1"]}, "1 prompts for 2 texts"),
        ({"prompt": "1 2 3 4 5 6 7 8 1 2 3"}, "12 positions"),
    ],
)
def test_mistakes_are_named_in_one_line(generator: Pushing, given: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError) as caught:
        generator.generate(2, **{"seed": 0, **given})
    assert named in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("limits", "inside", "outside"),
    [
        ({"low": 0, "high": 1}, (0, 1), (-0.1, 1.1)),
        ({"low": 0}, (0, LARGEST), (-1, 2 * LARGEST)),
        ({"high": 5}, (5, -LARGEST), (6, -2 * LARGEST)),
        ({}, (-LARGEST, LARGEST), (1e308, math.inf, 10**400)),
    ],
)
def test_the_ends_of_a_range_belong_to_it(limits: dict[str, Any], inside: Any, outside: Any) -> None:
    setting = ControlSetting("size", "of something", **limits)
    assert [setting.checked(value) for value in inside] == list(inside)
    for value in outside:
        with pytest.raises(UserError, match=r"^mine\.size="):
            setting.checked(value, "mine.size")


def test_what_a_user_leaves_out_has_its_default_or_is_left_out(generator: Pushing) -> None:
    assert generator.checked({}) == {"strength": 0.0}
    assert generator.checked({"mood": "calm", "mix": {"a": 0.5}}) == {
        "strength": 0.0, "mood": "calm", "mix": {"a": 0.5},
    }  # fmt: skip
    assert generator.checked_routes(["none", "rule"]) == generator.checked_routes(None) == ("rule", "none")
    assert generator.checked_routes([]) == ()
    assert generator.checked_routes("none") == ("none",), "one route needs no brackets"

    class Weighted(Pushing):
        controls = (ControlSetting("weight", "", 0.25, off=0.0), ControlSetting("prior", "", 1.0))

    assert Weighted(Counter(), max_new_tokens=1).bare() == {"weight": 0.0} and generator.bare() == {}


class Ending(Pushing):
    """Its texts end at token 5; its rows know their numbers."""

    eos_id = 5

    def row(self, control: dict[str, Any], number: int) -> dict[str, Any]:
        return control | {"number": number}


def test_texts_end_at_their_end_or_length_and_can_be_watched() -> None:
    seen: list[list[list[int]]] = []
    made = Ending(Counter(), max_new_tokens=4).generate(
        2, ["3", "4"], seed=None, max_new_tokens=3, watch=lambda ids_BT: seen.append(ids_BT.tolist())
    )
    assert [text.ids for text in made] == [(3, 4, 5), (4, 5)]
    assert [text.control["number"] for text in made] == [0, 1]
    assert seen == [[[3], [4]], [[3, 4], [4, 5]]]


@pytest.mark.parametrize("kind", [Pushing, Ending])
def test_log_probs_are_those_of_the_rules_step_by_step(kind: type[Pushing]) -> None:
    """A text's end within the continuation ends nothing: the tokens behind it have their probabilities too."""
    generator, ids = kind(Counter(), max_new_tokens=3), [5, 8, 2]
    found = generator.log_probs("3 4", ids, [{"strength": 0.5}, {"strength": 3}])
    assert found.shape == (2, 3) and found.dtype == torch.float64
    for row, strength in enumerate((0.5, 3.0)):
        last = 4
        for place, token in enumerate(ids):
            scores = [0.0] * SIZE
            scores[(last + 1) % SIZE], scores[(last + 2) % SIZE] = 2.0, 1.0
            scores[8] += strength
            assert float(found[row, place]) == pytest.approx(scores[token] - math.log(sum(map(math.exp, scores))))
            last = token
    without = generator.log_probs("3 4", ids, [{"strength": 3}], routes=["none"])
    assert torch.equal(without, generator.log_probs("3 4", ids, [{}])) and not torch.equal(without[0], found[1])
    assert generator.log_probs("3", [], [{}, {}]).shape == (2, 0) and generator.log_probs("3", [1], []).shape == (0, 1)
    assert generator.log_probs("3 4", [5] * 11, [{}]).shape == (1, 11)
    with pytest.raises(UserError, match="14 tokens together"):
        generator.log_probs("3 4", [5] * 12, [{}])


def test_a_model_without_controls_says_so() -> None:
    class Bare(Pushing):
        controls = ()
        routes = ()

        def rules(self, controls: Any, routes: Any, state: Any) -> ScoreRule:
            return Push([0.0])

    bare = Bare(Counter(), max_new_tokens=2)
    assert len(bare.generate(2, seed=0)) == 2
    with pytest.raises(UserError, match="this model has none"):
        bare.generate(1, control={"strength": 1}, seed=0)
    with pytest.raises(UserError, match="'banana'; there are: none"):
        bare.generate(1, routes=["banana"], seed=0)


def test_the_longest_text_that_fits_is_made(generator: Pushing) -> None:
    # 10 + 3 tokens: the last one is drawn, not fed, so 12 positions do
    assert len(generator.generate(1, "1 2 3 4 5 6 7 8 1 2", seed=0)[0].ids) == 13


def test_a_list_of_mappings_is_left_as_it_is() -> None:
    assert control_of_each([{"a": 1}, {"b": [2]}], 2) == [{"a": 1}, {"b": [2]}]
    assert control_of_each({"a": (1, 2), "b": 3}, 2) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
