"""The contract of controls: settings, attaching, prefixes, strength 0."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.control import NO_TOKEN, Control, Prefix, Steered
from lit_ctg.control.base import Stage, row_values, shares
from lit_ctg.core.generation import ControlSetting
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "controls.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE + (ROOT / "CONTRIBUTING.md").read_text("utf-8"), flags=re.S)


@pytest.fixture(scope="module")
def raise_tokens() -> Any:
    """The class that the page shows."""
    names: dict[str, Any] = {}
    exec(next(block for block in BLOCKS if "class RaiseTokens" in block), names)
    return names["RaiseTokens"]


def test_the_page_s_control_steers_and_leaves_the_model_as_it_was(
    model: Any, tokenizer: Any, raise_tokens: Any
) -> None:
    before = set(model.__dict__), len(model._forward_hooks)
    steered = Steered(model, [raise_tokens(torch.tensor([3]))], tokenizer=tokenizer)
    plain, acid = steered.write(
        ["the war began", "in 1914 the war"], {"raise_tokens.strength": [0, 500]}, max_new_tokens=4
    )
    assert acid == " acid acid acid acid", "it reads on behind the prompt"
    assert plain == Steered(model, [], tokenizer=tokenizer).write("the war began", max_new_tokens=4)[0] != acid
    assert (set(model.__dict__), len(model._forward_hooks)) == before


def test_the_page_s_first_lines_run(model: Any, tokenizer: Any, carried_controls: Any, tmp_path: Path) -> None:
    made = carried_controls()
    folders = [str(tmp_path / name) for name in ("idea_gate", "graphmax")]
    for name, folder in zip(("idea_gate", "graphmax"), folders, strict=True):
        made[name].save_pretrained(folder)
    names = {"model": model, "tokenizer": tokenizer, "folders": folders}
    exec(BLOCKS[0], names)
    assert [control.name for control in names["steered"].controls] == ["idea_gate", "graphmax"]
    kinds = set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.M))
    assert kinds == {*made, "soft_prompt", "clause_channel", "guidance", "instruction", "best_of"}, (
        "the table of the page names every kind of the papers"
    )


def test_shares_sum_to_one_or_are_zero_where_nothing_is_set() -> None:
    nan = float("nan")
    values = {name: torch.tensor(row, dtype=torch.float64) for name, row in
              {"a": [1, nan, 0, nan], "b": [3, nan, 0, 2], "other": [5, 5, 5, 5]}.items()}  # fmt: skip
    assert shares(["a", "b"], values).tolist() == [[0.25, 0.75], [0, 0], [0, 0], [0, 1]]


def test_row_values_repeat_for_beams() -> None:
    assert row_values(torch.tensor([1, 2]), 6).tolist() == [1, 1, 1, 2, 2, 2]
    with pytest.raises(ValueError, match="2 settings for 3 rows"):
        row_values(torch.tensor([1, 2]), 3)
    with pytest.raises(ValueError, match="0 settings for 3 rows"):
        row_values(torch.tensor([]), 3)


class Flat(ScoreRule):
    """Makes all scores 0 and keeps the prefixes it is given."""

    def __init__(self) -> None:
        self.seen: list[list[list[int]]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen.append(input_ids.tolist())
        return torch.zeros_like(scores)


class Dial(Control):
    """A rule whatever its settings, and a hook that counts calls of the embedding."""

    kind, stage = "dial", Stage.NETWORK
    settings = (
        ControlSetting("strength", "", 1.0, low=0.0),
        ControlSetting("mood", "", choices=("calm", "wild")),
        ControlSetting("limit", ""),
    )

    def __init__(self, depth: int | None = None) -> None:
        super().__init__()
        self.depth, self.calls, self.flat = depth, 0, Flat()

    def rule(self, values: Any, prefix: Any) -> ScoreRule:
        return self.flat

    def hooks(self, model: Any, values: Any, prefix: Any) -> list[Any]:
        def count(*_: Any) -> None:
            self.calls += 1

        return [model.get_input_embeddings().register_forward_hook(count)]

    def shape(self) -> dict[str, int]:
        return {} if self.depth is None else {"depth": self.depth}


def test_settings_become_one_number_a_prompt() -> None:
    values = Dial().values({"strength": [None, 2], "mood": ["wild", None]}, 2)
    assert values["strength"].tolist() == [1, 2] and values["mood"][0] == 1 and values["mood"].isnan().tolist()[1]
    assert values["limit"].isnan().tolist() == [True, True]
    assert Dial().values({"strength": [3], "mood": "calm"}, 2)["strength"].tolist() == [3, 3]
    assert Dial().values({"strength": torch.tensor([4.0, 5.0])}, 2)["strength"].tolist() == [4, 5]


def test_an_attached_control_works_on_its_rows_and_goes_without_a_trace(model: Any) -> None:
    ids, mask = torch.tensor([[9, 1, 2], [3, 4, 5]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    dial, prefix, scores = Dial(), Prefix(), torch.ones(2, 14)
    prefix.take(ids, mask)
    with dial.attach(model, {"strength": [0, 0.5]}, rows=2, prefix=prefix) as rules:
        model(ids)
        made = rules(ids, scores)
        beams = rules(ids.repeat_interleave(2, 0), scores.repeat(2, 1))
    assert dial.calls == 1 and made[:, 0].tolist() == [1, 0] and beams[:, 0].tolist() == [1, 1, 0, 0]
    assert dial.flat.seen[0] == [[NO_TOKEN, 1, 2], [3, 4, 5]], "padding is marked"
    model(ids)
    assert dial.calls == 1, "the hook is gone"
    with pytest.raises(UserError, match="depth=3, this one has None"), Dial(3).attach(model):
        pass
    with pytest.raises(UserError, match="kind dial has no tensors"):
        Dial.restore({}, {"x": scores})


def test_a_prefix_belongs_to_its_step(model: Any) -> None:
    ids, mask = torch.tensor([[9, 1, 2], [3, 4, 5]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    marked, wide, prefix = [[NO_TOKEN, 1, 2], [3, 4, 5]], torch.zeros(2, 4, dtype=torch.long), Prefix()
    assert prefix.of(ids) is ids and prefix.newest(ids) is ids, "before the first step"
    with prefix.watch(model):
        prefix.take(ids, mask)
        assert prefix.of(ids).tolist() == prefix.newest(ids[:, -1:]).tolist() == marked
        # prefixes and calls of another shape are of something else
        assert all(prefix.of(other) is other for other in (ids[:, :2], wide, ids + 1)), "nor those of other ids"
        assert prefix.of(ids.clone()).tolist() == marked, "the ids count, not the tensor"
        assert prefix.real(2, 2).tolist() == [[True, True], [True, True]] and not prefix.real(2, 3).all()
        assert prefix.real(1, 2) is None and prefix.real(2, 4) is None
        assert all(prefix.newest(other) is other for other in (ids[:1], wide))
        model(ids)
        assert prefix.real(2, 3) is None, "a plain call has no padding that we know of"
        assert prefix.newest(ids) is ids and prefix.of(ids).tolist() == marked, "the step's rules come after its call"
    prefix.take(ids, mask[:, :2])
    assert prefix.of(ids).tolist() == ids.tolist(), "a mask of another length says nothing"
    prefix.hidden = 1
    prefix.take(ids, None)
    assert prefix.of(ids).tolist() == [[NO_TOKEN, 1, 2], [NO_TOKEN, 4, 5]]


def test_a_watch_within_a_watch_leaves_the_outer_one(model: Any) -> None:
    with Prefix().watch(model):
        outer = model.prepare_inputs_for_generation
        with Prefix().watch(model):
            assert model.prepare_inputs_for_generation is not outer
        assert model.prepare_inputs_for_generation is outer
    assert "prepare_inputs_for_generation" not in model.__dict__


def test_prefixes_are_told_from_padding_and_follow_the_beams(model: Any) -> None:
    """The rules see every row's whole prefix, with or without a cache."""
    ids = torch.tensor([[0, 0, 3], [1, 2, 4]])
    mask = torch.tensor([[0, 0, 1], [1, 1, 1]])
    for cached in (True, False):
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        prefix = Prefix()

        def rule(input_ids: torch.Tensor, scores: torch.Tensor, seen: Any = seen, prefix: Any = prefix) -> torch.Tensor:
            seen.append((input_ids, prefix.of(input_ids)))
            return scores

        with prefix.watch(model):
            model.generate(
                ids, attention_mask=mask, num_beams=2, max_new_tokens=3, logits_processor=[rule], use_cache=cached,
                pad_token_id=0,
            )  # fmt: skip
        assert len(seen) == 3
        for given, whole in seen:
            assert (whole[:2, :2] == NO_TOKEN).all()
            assert (whole[:2, 2:] == given[:2, 2:]).all() and (whole[2:] == given[2:]).all()


@pytest.mark.parametrize(
    ("settings", "rows", "named"),
    [
        ({"strenght": 1}, 2, "'strenght'; did you mean 'strength'"),
        *(({"strength": value}, 2, "raise_tokens.strength") for value in (-1, 2e4, "much", True, [1, 2, 3])),
        (["strength"], 2, "raise_tokens"),
        ({}, "2", "rows='2'"),
    ],
)
def test_a_setting_that_does_not_fit_is_named(
    model: Any, raise_tokens: Any, settings: Any, rows: Any, named: str
) -> None:
    control = raise_tokens(torch.tensor([5]))
    with pytest.raises(UserError, match=re.escape(named)), control.attach(model, settings, rows=rows):
        pass
    assert not model._forward_hooks and "prepare_inputs_for_generation" not in vars(model)


def test_a_control_has_a_word_for_a_name_and_steers_language_models(model: Any, raise_tokens: Any) -> None:
    with pytest.raises(UserError, match=r"a\.b"):
        raise_tokens(torch.tensor([1]), name="a.b")
    control = raise_tokens(torch.tensor([5]))
    with pytest.raises(UserError, match="a Linear"):
        control.check_model(torch.nn.Linear(2, 2))
    one_line = pytest.raises(ValueError, match="3 settings for 2 rows")
    with one_line, control.attach(model, {"strength": [1, 1, 1]}, rows=3) as rules:
        model.generate(torch.tensor([[1, 2], [3, 4]]), logits_processor=list(rules), max_new_tokens=1, pad_token_id=0)
