"""Generation: cached equals whole prefixes, rows of a batch are their own, strengths per row, bad input."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.idea_gate.generation import DividingPenalty, IdeaGateDecoding

PROMPTS = ["The market", "The price of a share", "Traders"]


def decoding(**changes) -> IdeaGateDecoding:
    return IdeaGateDecoding(**{"temperature": 0.6, "repetition_penalty": 1.2, "max_new_tokens": 7} | changes)


@pytest.fixture
def make_generator(make_module, vocabulary):
    def make(settings: dict | None = None, **changes):
        module = make_module(**changes)
        return decoding(**settings or {}).generator(module, SimpleNamespace(vocabulary=vocabulary))

    return make


def test_penalty_divides_positive_and_multiplies_negative_scores():
    scores = torch.tensor([[2.0, -2.0, 3.0, 0.5]])
    got = DividingPenalty(1.25)(torch.tensor([[0, 1, 0]]), scores)
    assert torch.allclose(got, torch.tensor([[1.6, -2.5, 3.0, 0.5]]))
    assert torch.equal(scores, torch.tensor([[2.0, -2.0, 3.0, 0.5]]))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.5])
def test_cached_greedy_text_is_that_of_whole_prefixes(make_generator, alpha):
    generator = make_generator(dropout=0.2)
    module = generator.module.eval()
    texts = generator.generate(3, PROMPTS, {"alpha": alpha}, seed=None)
    module.alpha = alpha
    for text, prompt in zip(texts, PROMPTS, strict=True):
        ids = list(generator.vocabulary.encode(prompt))
        for _ in range(7):
            batch = {"input_ids_BT": torch.tensor([ids])}
            with torch.no_grad():
                scores = module(batch).scores_BTV[0, -1]
            seen = torch.tensor(sorted(set(ids)))
            scores[seen] = torch.where(scores[seen] > 0, scores[seen] / 1.2, scores[seen] * 1.2)
            ids.append(int(scores.argmax()))
        assert list(text.ids) == ids
        assert text.text == generator.vocabulary.decode(ids)
        assert text.text.startswith(prompt) and text.text[len(prompt) :] == text.continuation
        assert text.prompt_length == len(generator.vocabulary.encode(prompt))


def test_a_row_is_a_function_of_seed_and_number(make_generator):
    generator = make_generator()
    controls = [{"alpha": 0.0}, {"alpha": 0.5}, {"alpha": 2.0, "beta": -8.0}]
    together = generator.generate(3, PROMPTS, controls, seed=4)
    for row in range(3):
        alone = generator.generate(1, PROMPTS[row], controls[row], seed=4, rows=[row])
        assert alone[0] == together[row]
    assert generator.generate(3, PROMPTS, controls, seed=5) != together


def test_strength_zero_is_the_model_without_its_head(make_generator):
    gated, bare = make_generator(), make_generator(gated=False)
    bare.module.load_state_dict(gated.module.state_dict(), strict=False)
    plain = bare.generate(2, "The market", seed=1)
    assert [t.ids for t in gated.generate(2, "The market", {"alpha": 0.0}, seed=1)] == [t.ids for t in plain]
    assert [t.ids for t in gated.generate(2, "The market", {"alpha": 3.0, "beta": -9.0}, seed=1)] != [
        t.ids for t in plain
    ]
    assert gated.has_gate and not bare.has_gate
    gated.module.alpha = 0.0  # the model's own strength is the default
    assert [t.ids for t in gated.generate(2, "The market", seed=1)] == [t.ids for t in plain]


def test_no_prompt_begins_with_the_end_token_and_the_mode_is_kept(make_generator):
    generator = make_generator()
    generator.module.train()
    (text,) = generator.generate(1, seed=0, max_new_tokens=3)
    assert text.ids[0] == generator.vocabulary.bos_id and len(text.ids) == 4
    assert generator.module.training


@pytest.mark.parametrize(
    ("control", "message"),
    [
        ({"alhpa": 1.0}, "did you mean 'alpha'"),
        ({"alpha": -1.0}, r"control\.alpha=-1"),
        ({"beta": 1.0}, r"control\.beta=1"),
        ({"alpha": "much"}, "not a number"),
    ],
)
def test_bad_controls(make_generator, control, message):
    with pytest.raises(UserError, match=message):
        make_generator().generate(1, "The market", control, seed=0)


def test_what_cannot_be_generated(make_generator):
    with pytest.raises(UserError, match="no gate"):
        make_generator(gated=False).generate(1, "The market", {"alpha": 0.5}, seed=0)
    with pytest.raises(UserError, match=r"backbone\.context=32"):
        make_generator().generate(1, "The market", seed=0, max_new_tokens=40)
    with pytest.raises(UserError, match="2 values of prompt for 3 texts"):
        make_generator().generate(3, ["a", "b"], seed=0)
    generator = make_generator()
    generator.vocabulary = SimpleNamespace(encode=lambda text: [], bos_id=None)
    with pytest.raises(UserError, match="prompt is empty"):
        generator.generate(1, "", seed=0)


@pytest.mark.parametrize("change", [{"temperature": 0.0}, {"repetition_penalty": 0.0}, {"max_new_tokens": 0}])
def test_bad_decoding(change):
    with pytest.raises(UserError, match="decoding"):
        decoding(**change)
