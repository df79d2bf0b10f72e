"""DExperts and GeDi against slow restatements; what a reader has read is not read again."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lit_ctg.config import compose
from lit_ctg.control import NO_TOKEN, Control
from lit_ctg.control import class_models as class_models_module
from lit_ctg.control.base import Prefix
from lit_ctg.control.class_models import Experts, GenerativeClassifier, Reader
from lit_ctg.errors import UserError
from lit_ctg.papers.idea_gate.portable import portable
from lit_ctg.run.build import build_datamodule, build_model
from tests.conftest import make_model
from tests.controls import V, class_models

TEXTS = [[1, 5, 6], [8, 7, 3, 11, 2]]


def padded(texts: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, texts))
    return torch.tensor([[NO_TOKEN] * (longest - len(text)) + text for text in texts])


@torch.no_grad()
def log_probs(model: Any, text: list[int]) -> torch.Tensor:
    """log p(next token) after every token of a text, [T, V]."""
    return model(input_ids=torch.tensor([text]), use_cache=False).logits[0].double().log_softmax(-1)


def test_a_reader_reads_on_and_begins_anew_with_the_same_result() -> None:
    model = make_model(V)
    reader = Reader(model, likelihood=True)
    texts = [list(text) for text in TEXTS]
    for step in range(3):
        log_p_NV, total_N = reader(padded(texts))
        for row, text in enumerate(texts):
            slow = log_probs(model, text)
            assert torch.allclose(log_p_NV[row].double(), slow[-1], atol=1e-4)
            said = sum(float(slow[place, token]) for place, token in enumerate(text[1:]))
            assert abs(float(total_N[row]) - said) < 1e-3, (step, row)
        for number, text in enumerate(texts):
            text.append((3 * step + number) % V)
    texts.reverse()  # rows that moved, as beams do
    assert torch.allclose(reader(padded(texts))[0][0].double(), log_probs(model, texts[0])[-1], atol=1e-4)


@pytest.mark.parametrize("pieces", [2, 64])
def test_a_long_prompt_is_read_in_pieces(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of all its positions at once would take gigabytes with a large vocabulary."""
    monkeypatch.setattr(class_models_module, "POSITIONS", pieces)
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(V, (length,), generator=generator).tolist() for length in (11, 3, 6)]
    counted: list[int] = []
    for likelihood in (True, False):
        model = make_model(V)
        model.lm_head.register_forward_pre_hook(lambda _, given: counted.append(given[0].shape[1]))
        reader = Reader(model, likelihood=likelihood)
        for step in range(2):
            counted.clear()
            log_p_NV, total_N = reader(padded(texts))
            assert max(counted) <= (pieces if likelihood else 1)
            assert sum(counted) == (11 if likelihood and not step else 1)
            for row, text in enumerate(texts):
                slow = log_probs(make_model(V), text)
                assert torch.allclose(log_p_NV[row].double(), slow[-1], atol=1e-4)
                said = sum(float(slow[place, token]) for place, token in enumerate(text[1:]))
                assert not likelihood or abs(float(total_N[row]) - said) < 1e-3, (step, row)
            texts = [[*text, 4] for text in texts]


def score(control: Control, text: list[int], scores_V: torch.Tensor, strength: float, target: str) -> torch.Tensor:
    rule = control.rule(control.values({"strength": strength, f"to_{target}": 1}, 1), Prefix())
    assert rule is not None
    return rule(torch.tensor([text]), scores_V[None])[0]


def test_experts_add_the_difference_of_the_scores() -> None:
    models, scores_V = class_models(), torch.randn(V, dtype=torch.float64)
    found = score(Experts(models, filter_p=1), TEXTS[1], scores_V, 1.5, "bad")
    good, bad = (log_probs(models[name], TEXTS[1])[-1] for name in ("good", "bad"))
    assert torch.allclose(found.log_softmax(-1), (scores_V + 1.5 * (bad - good)).log_softmax(-1), atol=1e-4)


def test_experts_choose_among_the_nucleus_of_the_model() -> None:
    models, scores_V = class_models(), torch.linspace(-1, 1, V, dtype=torch.float64)[torch.arange(V) * 5 % V]
    good, bad = (log_probs(models[name], TEXTS[1])[-1] for name in ("good", "bad"))
    order = scores_V.argsort(descending=True)
    mass = scores_V.softmax(-1)[order].cumsum(0)
    kept = order[: int((mass < 0.6).sum()) + 1]
    assert 1 < len(kept) < V
    expected = torch.full_like(scores_V, -torch.inf)
    expected[kept] = (scores_V + 1.5 * (bad - good))[kept]
    found = score(Experts(models, filter_p=0.6), TEXTS[1], scores_V, 1.5, "bad")
    assert torch.allclose(found.log_softmax(-1), expected.log_softmax(-1), atol=1e-4)
    again = Experts.restore(Experts(models, filter_p=0.6).config(), Experts(models).tensors())
    assert again.filter_p == 0.6 and Experts(models).filter_p == 0.9
    older = {key: value for key, value in Experts(models).config().items() if key != "filter_p"}
    assert Experts.restore(older, Experts(models).tensors()).filter_p == 1, "a bundle from before it existed"
    for wrong in (0, 1.5, True):
        with pytest.raises(UserError, match="filter_p"):
            Experts(models, filter_p=wrong)


def test_models_of_classes_are_read_without_dropout() -> None:
    models, scores_V = class_models(), torch.zeros(V, dtype=torch.float64)
    expected = score(Experts(models), TEXTS[0], scores_V, 1.0, "good")
    training = {name: model.train() for name, model in class_models().items()}
    assert torch.equal(score(Experts(training), TEXTS[0], scores_V, 1.0, "good"), expected)


def test_of_three_experts_the_mean_of_the_others_is_taken_away() -> None:
    models = {**class_models(), "third": make_model(V, n_head=4)}
    found = score(Experts(models, filter_p=1), TEXTS[0], torch.zeros(V, dtype=torch.float64), 1.0, "good")
    good, bad, third = (log_probs(model, TEXTS[0])[-1] for model in models.values())
    assert torch.allclose(found, good - (bad + third) / 2, atol=1e-4)


@pytest.mark.parametrize("target", ["good", "bad"])
def test_the_generative_classifier_is_bayes_rule_by_length(target: str) -> None:
    models, scores_V = class_models(), torch.randn(V, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():  # less sharp than elsewhere, so that both classes stay possible
        for model in models.values():
            model.transformer.wte.weight.div_(20)
    text = TEXTS[1]
    found = score(GenerativeClassifier(models), text, scores_V, 3.0, target)
    slow, posteriors = torch.zeros(V, dtype=torch.float64), []
    for token in range(V):
        likely = {}
        for name, model in models.items():
            steps = log_probs(model, text)
            total = sum(float(steps[place, given]) for place, given in enumerate([*text[1:], token]))
            likely[name] = torch.tensor(total / len(text)).exp()
        posteriors.append(float(likely[target] / (likely["good"] + likely["bad"])))
        slow[token] = scores_V.softmax(-1)[token] * posteriors[-1] ** 3.0
    assert min(posteriors) > 0.1 and max(posteriors) < 0.9 and max(posteriors) - min(posteriors) > 0.05
    assert torch.allclose(found.softmax(-1), slow / slow.sum(), atol=1e-5)


def test_models_must_share_their_vocabulary() -> None:
    with pytest.raises(UserError, match="different vocabularies"):
        Experts({"good": make_model(V), "bad": make_model(V + 1)})


def test_half_precision_rounds_weights_only(tmp_path: Path) -> None:
    """A Llama has its positions' frequencies, which a bundle does not hold, in float32 whatever its weights are."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=V, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64,
    )  # fmt: skip
    models = {}
    for number, name in enumerate(("good", "bad")):
        torch.manual_seed(number)
        models[name] = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    Experts(models).save_pretrained(tmp_path)  # an empty folder
    again = Control.from_pretrained(tmp_path)
    assert isinstance(again, Experts)
    ids_BT = torch.arange(40).view(1, -1) % V
    for name, model in models.items():
        other = again.models[name]
        assert other.dtype == torch.bfloat16
        with torch.no_grad():
            assert torch.equal(model(input_ids=ids_BT).logits, other(input_ids=ids_BT).logits)


def test_exported_models_as_experts_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of our own code is known only where its paper's module was loaded."""
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    cfg = compose(["experiment=idea_gate/main", "size=smoke", "data.sample_size=3000"])
    datamodule = build_datamodule(cfg)
    model = portable(build_model(cfg, datamodule).eval(), datamodule).model
    Experts({"a": model, "b": copy.deepcopy(model)}).save_pretrained(tmp_path / "experts")
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING._extra_content
    monkeypatch.delitem(known, "lit_ctg_idea_gate", raising=False)
    found = Control.from_pretrained(tmp_path / "experts")
    assert isinstance(found, Experts) and type(found.models["a"]) is type(model)
