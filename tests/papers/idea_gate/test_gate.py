"""The gate against Eq. 3 to 6 written out, as a function, as a score rule and inside Hugging Face's generate."""

from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.idea_gate.gate import GateForm, IdeaGateRule, watch_idea_logits

AFTER, BEFORE = (GateForm(clamp=name, epsilon=1e-8) for name in ("after_scaling", "before_scaling"))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def straight(x: float, alpha: float, beta: float, clamp: str) -> float:
    log_p = math.log(sigmoid(x) + 1e-8)
    return max(alpha * log_p, beta) if clamp == "after_scaling" else alpha * max(log_p, beta)


@pytest.mark.parametrize("form", [AFTER, BEFORE], ids=lambda form: form.clamp)
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, -2.0), (1.0, -0.3), (0.0, -2.0), (2.0, 0.0)])
def test_gate_is_equations_4_and_5(form, alpha, beta):
    logits = torch.tensor([-30.0, -6.0, -4.0, -1.0, 0.0, 2.0, 30.0], dtype=torch.float64)
    expected = [straight(x, alpha, beta, form.clamp) for x in logits.tolist()]
    assert torch.allclose(form(logits, alpha, beta), torch.tensor(expected, dtype=torch.float64), atol=1e-14)


def test_the_two_clamps_differ():
    """Deviation 1: with alpha 0.5 and beta -2 the published form stops at -1, Eq. 5 at -2."""
    unlikely = torch.tensor([-50.0])
    assert AFTER(unlikely, 0.5, -2.0).item() == pytest.approx(-2.0)
    assert BEFORE(unlikely, 0.5, -2.0).item() == pytest.approx(-1.0)


@pytest.mark.parametrize("form", [AFTER, BEFORE], ids=lambda form: form.clamp)
def test_rule_takes_a_strength_and_a_bound_for_every_row(form):
    torch.manual_seed(0)
    ideas, scores, ids = torch.randn(3, 9) * 4, torch.randn(3, 9), torch.zeros(3, 2, dtype=torch.long)
    alphas, betas = [0.0, 0.5, 1.5], [-2.0, -0.5, -9.0]
    together = IdeaGateRule(lambda: ideas, alpha=alphas, beta=betas, form=form)(ids, scores)
    for row, (alpha, beta) in enumerate(zip(alphas, betas, strict=True)):
        one = slice(row, row + 1)
        alone = IdeaGateRule(lambda one=one: ideas[one], alpha=alpha, beta=beta, form=form)(ids[one], scores[one])
        assert torch.equal(together[one], alone)
    assert torch.equal(together[0], scores[0])
    assert not torch.allclose(together[1], scores[1])


@pytest.mark.parametrize(
    ("alpha", "beta", "word"), [(-0.1, -2.0, "alpha"), (0.5, 0.1, "beta"), (math.nan, -2, "alpha")]
)
def test_bad_strengths(alpha, beta, word):
    with pytest.raises(UserError, match=word):
        IdeaGateRule(lambda: torch.zeros(1, 1), alpha=alpha, beta=beta, form=AFTER)


def test_unknown_clamp():
    with pytest.raises(UserError, match="did you mean 'after_scaling'"):
        GateForm(clamp="after_scalling", epsilon=1e-8)


@pytest.mark.parametrize("options", [{"do_sample": False}, {"num_beams": 3}])
def test_rule_in_hugging_faces_generate(options):
    """Cached generation with the gate equals choosing from gated scores of whole prefixes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=32, n_embd=16, n_layer=2, n_head=2)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    head = torch.nn.Linear(16, 40)
    torch.nn.init.normal_(head.weight, std=2.0)
    prompt = torch.tensor([[3, 4, 5], [6, 7, 8]])
    settings = {"max_new_tokens": 6, "pad_token_id": 0, "eos_token_id": None, **options}
    with torch.no_grad(), watch_idea_logits(model, head) as idea_logits:
        rule = IdeaGateRule(idea_logits, alpha=1.5, beta=-3.0, form=AFTER)
        gated = model.generate(prompt, logits_processor=[rule], **settings)
    assert not torch.equal(gated, model.generate(prompt, **settings))
    assert not model.base_model._forward_hooks
    if "num_beams" in options:
        return
    ids = prompt
    with torch.no_grad():
        for _ in range(6):
            out = model(ids, output_hidden_states=True)
            gate = AFTER(head(out.hidden_states[-1][:, -1]), 1.5, -3.0)
            ids = torch.cat([ids, (out.logits[:, -1] + gate).argmax(-1, keepdim=True)], 1)
    assert torch.equal(gated, ids)


def test_hidden_states_are_asked_for_too_early():
    model = torch.nn.Module()
    model.base_model = torch.nn.Linear(2, 2)
    with watch_idea_logits(model, torch.nn.Linear(2, 3)) as idea_logits, pytest.raises(RuntimeError, match="not run"):
        idea_logits()
