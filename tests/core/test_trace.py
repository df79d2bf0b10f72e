"""What controls did to each token, against log-softmaxes written out by hand."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch

from lit_ctg.core.generation import ControlSetting, GeneratedText, Generator
from lit_ctg.core.trace import compare, strength_curve
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError

SIZE = 5


class Flat(torch.nn.Module):
    """Every token alike, whatever came before; room for twelve."""

    context = 12

    @property
    def backbone(self) -> Flat:
        return self

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def start(self, batch_size: int, controls: Any) -> None:
        return None

    def step(self, ids_B1: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        return torch.zeros(len(ids_B1), SIZE, dtype=torch.float64), state


class Two(ScoreRule):
    """Adds ``up`` to token 3 and ``down`` to token 4; ``only`` forbids all but 3 and 4."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = rows

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        changed = scores.clone()
        for row, control in enumerate(self.rows):
            changed[row, 3] += control["up"]
            changed[row, 4] += control.get("down", 0.0)
            if control.get("only") == "yes":
                changed[row, :3] = -math.inf
        return changed


class TwoControls(Generator[GeneratedText]):
    @property
    def controls(self) -> tuple[ControlSetting, ...]:
        return (
            ControlSetting("up", "of token 3", default=2.0, low=0, high=9, off=0.0),
            ControlSetting("down", "of token 4", low=-9, high=9),
            ControlSetting("only", "3 and 4", choices=("yes",)),
        )

    def prompt_ids(self, text: str) -> list[int]:
        return [int(word) for word in text.split()] or [0]

    def rules(self, controls: Sequence[dict[str, Any]], routes: Collection[str], state: Any) -> ScoreRule:
        return Two(controls)

    def text(self, ids: list[int], prompt_length: int, control: dict[str, Any]) -> GeneratedText:
        return GeneratedText(" ".join(map(str, ids)), tuple(ids), prompt_length, control)


@pytest.fixture
def generator() -> TwoControls:
    return TwoControls(Flat(), max_new_tokens=6)


def log_p(token: int, up: float = 0.0, down: float = 0.0, only: bool = False) -> float:
    scores = [-math.inf if only else 0.0] * 3 + [up, down]
    return scores[token] - math.log(sum(math.exp(score) for score in scores))


def test_every_token_has_the_effect_of_all_controls_and_of_each(generator: TwoControls) -> None:
    found = compare(generator, "1 2", {"up": 1.5, "down": -0.5}, seed=4)
    assert found.controlled.control == {"up": 1.5, "down": -0.5} and found.bare.control == {"up": 0.0}
    assert len(found.tokens) == 6 and [token.text.strip() for token in found.tokens] == list(
        map(str, (token.id for token in found.tokens))
    )
    assert len({token.id for token in found.tokens}) > 2
    for token in found.tokens:
        assert token.controlled == pytest.approx(log_p(token.id, 1.5, -0.5), abs=1e-12)
        assert token.bare == pytest.approx(log_p(token.id), abs=1e-12)
        assert token.by == {
            "up": pytest.approx(log_p(token.id, 1.5, -0.5) - log_p(token.id, 0.0, -0.5), abs=1e-12),
            "down": pytest.approx(log_p(token.id, 1.5, -0.5) - log_p(token.id, 1.5), abs=1e-12),
        }


def test_both_texts_have_the_same_draws(generator: TwoControls) -> None:
    same = compare(generator, "", {"up": 0.0}, seed=7)
    assert same.controlled.ids == same.bare.ids
    assert all(token.by == {} and token.raised == 0.0 for token in same.tokens)
    other = compare(generator, "", {"up": 9.0}, seed=7)
    assert other.bare.ids == same.bare.ids and set(other.controlled.ids[1:]) == {3}


def test_what_the_bare_model_excludes_is_infinite_and_what_a_default_does_counts(generator: TwoControls) -> None:
    """``up`` is on by default; its part in the text is told though nobody set it."""
    found = compare(generator, "", {"only": "yes"}, seed=1)
    assert found.controlled.control == {"up": 2.0, "only": "yes"}
    for token in found.tokens:
        assert token.by["only"] == pytest.approx(log_p(token.id, 2.0, only=True) - log_p(token.id, 2.0))
        assert token.by["up"] == pytest.approx(log_p(token.id, 2.0, only=True) - log_p(token.id, only=True))
    bare = found.bare
    assert {*bare.ids} - {3, 4}
    assert strength_curve(generator, "", [found.controlled, bare], "up", [0.0, 2.0])[1] == [-math.inf, -math.inf]


def test_a_text_can_be_watched_as_it_grows(generator: TwoControls) -> None:
    seen: list[tuple[str, str]] = []
    found = compare(generator, "1 2", {"up": 3.0}, seed=0, watch=lambda one, other: seen.append((one, other)))
    assert len(seen) == 6 and seen[0] == ("1 2", "1 2")
    for one, other in seen:
        assert found.controlled.text.startswith(one) and found.bare.text.startswith(other)


def test_curve_over_strength(generator: TwoControls) -> None:
    found = compare(generator, "", {"up": 1.0}, seed=2)
    values = [0.0, 0.5, 9.0]
    curves = strength_curve(generator, "", [found.controlled, found.bare], "up", values)
    for text, curve in zip((found.controlled, found.bare), curves, strict=True):
        for value, mean in zip(values, curve, strict=True):
            assert mean == pytest.approx(sum(log_p(token, value) for token in text.ids[1:]) / 6, abs=1e-12)
    with pytest.raises(UserError, match=r"control\.up=10\.0"):
        strength_curve(generator, "", [found.controlled], "up", [10.0])
