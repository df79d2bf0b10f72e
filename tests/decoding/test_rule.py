from __future__ import annotations

import pytest
import torch

from lit_ctg.decoding.filters import Nucleus, RepetitionPenalty, Temperature, TopK
from lit_ctg.decoding.grammar import FiniteStateGrammar, GrammarMask
from lit_ctg.decoding.rule import RuleList, ScoreRule, per_row

VOCABULARY = ("<pad>", "<s>", "</s>", "a", "b", "c", "d")


class Add(ScoreRule):
    def __init__(self, amount: float):
        self.amount = amount

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + self.amount


class Double(ScoreRule):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores * 2


def abc_grammar() -> FiniteStateGrammar:
    return FiniteStateGrammar(
        tokens=VOCABULARY,
        classes={"start": (1,), "eos": (2,), "first": (3, 4), "second": (5, 6)},
        transitions={
            "BEGIN": {"start": "FIRST"},
            "FIRST": {"first": "SECOND"},
            "SECOND": {"second": "MORE"},
            "MORE": {"first": "SECOND", "eos": "END"},
        },
        start="BEGIN",
        end="END",
        pad_id=0,
    )


def all_rules() -> list[ScoreRule]:
    return [
        GrammarMask(abc_grammar()),
        RepetitionPenalty(2.5, window=3, last_ids=(5, 6), last_penalty=1.8),
        Temperature(0.7),
        TopK(3),
        Nucleus(0.9, keep_crossing=True),
    ]


def test_rules_apply_in_order_and_an_empty_list_changes_nothing():
    ids, scores = torch.tensor([[1]]), torch.tensor([[1.0, 2.0]])
    assert RuleList([Add(1.0), Double()])(ids, scores).tolist() == [[4.0, 6.0]]
    assert RuleList([Double(), Add(1.0)])(ids, scores).tolist() == [[3.0, 5.0]]
    assert RuleList()(ids, scores) is scores
    assert len(RuleList([Add(1.0), Double()])) == 2


def test_settings_are_one_for_all_or_one_a_row():
    scores = torch.zeros(3, 5, dtype=torch.float64)
    assert per_row(2.0, scores).shape == (1, 1)
    assert per_row([1.0, 2.0, 3.0], scores).flatten().tolist() == [1.0, 2.0, 3.0]
    assert per_row(2, scores).dtype == torch.float64
    with pytest.raises(ValueError, match="2 settings for 3 rows"):
        per_row([1.0, 2.0], scores)
    with pytest.raises(ValueError, match="0 settings"):
        per_row([], scores)


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: type(rule).__name__)
def test_rules_never_write_in_place_and_rows_do_not_see_each_other(rule):
    ids = torch.tensor([[1, 3, 5], [1, 4, 6], [1, 3, 6]])
    scores = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    ids_before, scores_before = ids.clone(), scores.clone()
    together = rule(ids, scores)
    assert torch.equal(ids, ids_before) and torch.equal(scores, scores_before)
    alone = torch.cat([rule(ids[i : i + 1], scores[i : i + 1]) for i in range(3)])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: type(rule).__name__)
def test_rules_let_gradients_through(rule):
    ids = torch.tensor([[1, 3, 5]])
    with torch.inference_mode():
        rule(ids, torch.randn(1, 7))  # nothing remembered from generation may break a later backward pass
    scores = torch.randn(1, 7, requires_grad=True)
    rule(ids, scores).exp().sum().backward()
    assert scores.grad is not None and scores.grad.abs().sum() > 0


@pytest.mark.parametrize("search", [{"do_sample": True}, {"do_sample": False}, {"num_beams": 3, "do_sample": False}])
def test_rules_work_unchanged_in_hugging_face_generate(search):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=7, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2
        )
    ).eval()
    settings = {"max_new_tokens": 12, "pad_token_id": 0, **search}
    prompts = torch.tensor([[0, 1, 3], [1, 4, 6]])  # left-padded, as decoder-only models want it
    mask = (prompts != 0).long()

    free = model.generate(prompts, attention_mask=mask, **settings)
    bound = model.generate(prompts, attention_mask=mask, logits_processor=all_rules(), **settings)
    as_one = [RuleList(all_rules())]

    def follows_the_grammar(row: list[int]) -> bool:
        grammar = abc_grammar()
        return bool(grammar.states_after(torch.tensor([row])) < len(grammar.states))

    assert bound.shape[1] > 3 and bound[:, :3].tolist() == prompts.tolist()
    assert all(follows_the_grammar(row) for row in bound.tolist())
    assert not all(follows_the_grammar(row) for row in free.tolist())
    if not search["do_sample"]:
        again = model.generate(prompts, attention_mask=mask, logits_processor=as_one, **settings)
        assert torch.equal(bound, again)
