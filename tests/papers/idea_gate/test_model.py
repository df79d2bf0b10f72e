"""The method: window and idea loss, stopwords, gate, the module they make, each against the equations written out."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lit_ctg.config import compose
from lit_ctg.core.causality_probe import probe
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.papers.idea_gate import GateForm, IdeaGateModule, IdeaGateRule, IdeaHead, watch_idea_logits
from lit_ctg.papers.idea_gate import model as module_file
from lit_ctg.papers.idea_gate.decode import IdeaGateDecoding
from lit_ctg.papers.idea_gate.gate import (
    AUTHORS,
    authors_mask,
    base_rates,
    distinct,
    frequent_mask,
    future_window,
    gated_scores,
    idea_loss,
)
from lit_ctg.run.build import build
from tests.papers.idea_gate.conftest import SETTINGS, TEXT

# window: Windows and the idea loss against the dense multi-hot target


@pytest.mark.parametrize("start", [1, 2])
@pytest.mark.parametrize("size", [1, 3, 9])
def test_window_holds_the_tokens_to_come(size, start):
    text = torch.arange(100, 107).repeat(2, 1)  # x_0 .. x_6; targets are x_1 .. x_6
    window = future_window(text[:, 1:], size=size, start=start)
    for t in range(6):
        expected = [100 + t + start + k if t + start + k <= 6 else -1 for k in range(size)]
        assert window[1, t].tolist() == expected


def test_windows_hold_each_token_once_and_no_stopword():
    target = torch.tensor([[1, 2, 3, 4]])
    window = future_window(target, torch.tensor([[True, True, False, False]]), size=3, start=1)
    assert window[0, 0].tolist() == [1, 2, -1]
    stop = torch.zeros(10, dtype=torch.bool)
    stop[4] = True
    kept = distinct(torch.tensor([[5, 4, 5, -1, 0, 4, 5]]), stop)
    assert sorted(kept[0].tolist()) == [-1, -1, -1, -1, -1, 0, 5]


def dense(logits: torch.Tensor, window: torch.Tensor, weight: float, stop: torch.Tensor | None) -> torch.Tensor:
    """Sec. 3.3 as written: a multi-hot target, weighted binary cross-entropy, stopwords zeroed."""
    hot = torch.zeros_like(logits)
    for place in torch.cartesian_prod(*map(torch.arange, window.shape)):
        token = window[tuple(place)]
        if token >= 0:
            hot[(*place[:-1], token)] = 1.0
    p = torch.sigmoid(logits)
    loss = -(weight * hot * p.log() + (1 - hot) * (1 - p).log())
    if stop is not None:
        loss = loss * ~stop
    return loss.sum(-1).mean()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_idea_loss_equals_the_dense_form(masked, dtype):
    torch.manual_seed(2)
    logits = (torch.randn(2, 5, 30, dtype=dtype) * 3).requires_grad_()
    window = torch.randint(-1, 30, (2, 5, 12))
    window[0, 0] = 7  # one token, twelve times
    window[0, 1] = -1
    stop = (torch.arange(30) % 6 == 0) if masked else None
    exact = logits.detach().double().requires_grad_()
    expected = dense(exact, window, 5.0, stop)
    got = idea_loss(logits, window, positive_weight=5.0, stopword_mask=stop)
    assert got.item() == pytest.approx(expected.item(), rel=1e-6)
    (gradient,) = torch.autograd.grad(got, logits)
    (wanted,) = torch.autograd.grad(expected, exact)
    assert torch.allclose(gradient.double(), wanted, rtol=2e-6, atol=1e-8)


# stopword: Stopwords: the authors' list and the commonest tokens (deviation 2)


def test_stopwords_are_the_authors_or_the_commonest(vocabulary):
    mask = authors_mask(vocabulary, len(vocabulary) + 3)
    assert mask.shape == (len(vocabulary) + 3,)
    masked = {vocabulary.decode([i]) for i in mask.nonzero().flatten().tolist()}
    assert {" the", ",", "\n", " a"} <= masked <= set(AUTHORS)
    assert not masked & {"the", " ,", " .", "("} and len(AUTHORS) == len(set(AUTHORS)) == 18
    mask = frequent_mask([4, 4, 4, 2, 2, 9, 1, 1], 12, 2)
    assert mask.nonzero().flatten().tolist() == [1, 4]
    assert torch.equal(frequent_mask([4], 12, 0), torch.zeros(12, dtype=torch.bool))


# gate: The gate against Eq. 3 to 6 written out, as a function, as a score rule and inside Hugging Face's generate


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


def test_the_lift_is_log_p_less_its_base_rate_bounded_on_both_sides() -> None:
    form = GateForm(clamp="after_scaling", epsilon=1e-8)
    logits = torch.tensor([-9.0, -3.0, -3.0, 4.0], dtype=torch.float64)
    base = torch.tensor([0.5, 0.01, 0.3, 0.001], dtype=torch.float64).log()
    expected = [
        max(-2.0, min(2.0, 0.5 * (math.log(sigmoid(x) + 1e-8) - b)))
        for x, b in zip(logits.tolist(), base.tolist(), strict=True)
    ]
    assert form(logits, 0.5, -2.0, base).tolist() == pytest.approx(expected, abs=1e-12)
    assert expected[0] == -2.0 and expected[1] > 0 > expected[2] and expected[3] == 2.0
    ids = torch.randint(7, (60,), generator=torch.Generator().manual_seed(0)).numpy()
    rate = base_rates(ids, 9, 4)
    for token in range(9):
        windows = [token in ids[start : start + 4] for start in range(len(ids))]
        assert float(rate[token]) == pytest.approx(sum(windows) / len(ids))
    # Deviation 1: with alpha 0.5 and beta -2 the published form stops at -1, Eq. 5 at -2.
    unlikely = torch.tensor([-50.0])
    assert AFTER(unlikely, 0.5, -2.0).item() == pytest.approx(-2.0)
    assert BEFORE(unlikely, 0.5, -2.0).item() == pytest.approx(-1.0)


@pytest.mark.parametrize(("form", "bound"), [(AFTER, -2.0), (BEFORE, -1.0)], ids=["after_scaling", "before_scaling"])
def test_where_the_gate_is_at_its_bound(form, bound):
    logits = torch.tensor([-30.0, -4.0, -3.0, -1.0, 3.0], dtype=torch.float64)
    assert form.clamped(logits, 0.5, -2.0).tolist() == (form(logits, 0.5, -2.0) == bound).tolist()
    assert form.clamped(logits, 0.5, -2.0).sum() == (2 if form is AFTER else 3)
    assert not form.clamped(logits, 0.0, -2.0).any()


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


@pytest.mark.parametrize("options", [{"do_sample": False}, {"num_beams": 3}])
def test_rule_in_hugging_faces_generate(options):
    """Cached generation with the gate equals choosing from gated scores of whole prefixes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=32, n_embd=16, n_layer=2, n_head=2)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    head = IdeaHead(16, 40)
    torch.nn.init.normal_(head.outer.weight, std=2.0)
    prompt = torch.tensor([[3, 4, 5], [6, 7, 8]])
    settings = {"max_new_tokens": 6, "pad_token_id": 0, "eos_token_id": None, **options}
    with torch.no_grad(), watch_idea_logits(model, head) as idea_logits:
        rule = IdeaGateRule(idea_logits, alpha=1.5, beta=-3.0, form=AFTER)
        with pytest.raises(RuntimeError, match="has not run"):
            rule(prompt, torch.zeros(2, 40))
        gated = model.generate(prompt, logits_processor=[rule], **settings)
    assert not torch.equal(gated, model.generate(prompt, **settings))
    assert not model.lm_head._forward_pre_hooks
    if "num_beams" in options:
        return
    ids = prompt
    with torch.no_grad():
        for _ in range(6):
            out = model(ids, output_hidden_states=True)
            gate = AFTER(head(out.hidden_states[-1][:, -1]), 1.5, -3.0)
            ids = torch.cat([ids, (out.logits[:, -1] + gate).argmax(-1, keepdim=True)], 1)
    assert torch.equal(gated, ids)


# module: The whole model against the paper's equations, its limits, its baselines, and training that is resumed


def straight_losses(module, batch):
    """Eq. 1 to 7 for every position by itself, in float64."""
    token_total, idea_total, count = 0.0, 0.0, 0
    for row in range(len(batch["input_ids_BT"])):
        mask = batch["mask_target_BT"][row]
        hidden = module.backbone(module.embedding(batch["input_ids_BT"][row : row + 1]))[0]
        targets = batch["target_ids_BT"][row]
        for t in range(int(mask.sum())):
            token = module.embedding.weight @ hidden[t]
            head = module.idea_head
            idea = head.outer.weight @ torch.relu(head.inner.weight @ hidden[t] + head.inner.bias) + head.outer.bias
            p = 1 / (1 + torch.exp(-idea))
            gate = torch.clamp(0.5 * torch.log(p + 1e-8), min=-2.0)
            token_total = token_total + F.cross_entropy((token + gate)[None], targets[t : t + 1])
            hot = torch.zeros_like(idea)
            hot[targets[t : int(mask.sum())][:4]] = 1.0
            cost = -(5.0 * hot * p.log() + (1 - hot) * (1 - p).log())
            idea_total = idea_total + cost[~module.stopword_mask_V].sum()
            count += 1
    return token_total / count, idea_total / count


def test_losses_are_the_papers(make_module, batch):
    module = make_module()
    assert module.stopword_mask_V.any()
    token, idea = straight_losses(module, batch)
    got = module.losses(batch)
    assert got["token_loss"].item() == pytest.approx(token.item(), rel=1e-10)
    assert got["idea_loss"].item() == pytest.approx(idea.item(), rel=1e-10)
    assert got["loss"].item() == pytest.approx((token + 0.01 * idea).item(), rel=1e-10)
    parameters = list(module.parameters())
    wanted = torch.autograd.grad(token + 0.01 * idea, parameters)
    found = torch.autograd.grad(got["loss"], parameters)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(wanted, found, strict=True))


def test_forward_gives_gated_scores_and_what_they_are_made_of(make_module, batch, monkeypatch):
    module = make_module().eval()
    monkeypatch.setattr(module_file, "CHUNK", 3 * module.vocabulary_size)  # the last chunk is a short one
    with torch.no_grad():
        output = module(batch)
    token, idea = output.token_BTV, output.idea_BTV
    assert torch.allclose(output.scores_BTV, token + module.gate(idea), atol=1e-14)
    assert torch.allclose(token, output.hidden_BTD @ module.embedding.weight.T)
    assert torch.allclose(idea, module.idea_head(output.hidden_BTD))
    assert torch.allclose(module(batch).scores_BTV, output.scores_BTV)  # with gradients
    assert output.scores_BTV.softmax(-1).sum(-1).allclose(torch.ones(3, 14, dtype=torch.float64))
    kept = batch["mask_target_BT"]
    nats = F.cross_entropy(output.scores_BTV[kept], batch["target_ids_BT"][kept])
    assert nats.item() == pytest.approx(module.losses(batch)["token_loss"].item(), rel=1e-10)
    expected = idea_loss(
        idea[kept], module.future_window(batch)[kept], positive_weight=5.0, stopword_mask=module.stopword_mask_V
    )
    assert expected.item() == pytest.approx(module.losses(batch)["idea_loss"].item(), rel=1e-10)


def test_a_batch_is_its_rows(make_module, batch):
    module = make_module().eval()
    together = module(batch).scores_BTV
    for row in range(3):
        alone = module({name: value[row : row + 1] for name, value in batch.items()}).scores_BTV
        assert torch.allclose(together[row], alone[0], atol=1e-12)
    # The padding of ``batch`` is at its very end, where the first windows would be the right ones by chance.
    module = make_module().eval()
    moved = {name: value.roll(1, dims=0) for name, value in batch.items()}
    found, expected = module.losses(moved), module.losses(batch)
    assert {name: value.item() for name, value in found.items()} == pytest.approx(
        {name: value.item() for name, value in expected.items()}, rel=1e-10
    )
    # Window of t+1 (the paper) and of t+2 (ablation) differ in the target by the next token.
    first, second = make_module(window_start=1), make_module(window_start=2)
    targets = batch["target_ids_BT"]
    assert torch.equal(first.window(targets)[:, 1:, 0], targets[:, 1:])
    assert torch.equal(second.window(targets)[:, :-1, 0], targets[:, 1:])
    assert first.window(targets).shape == (3, 14, 4)
    assert (first.future_window(batch)[2, 6:].max(-1).values[3:] == -1).all()


def test_no_strength_is_the_bare_model_exactly(make_module, batch):
    gated, bare = make_module().eval(), make_module(gated=False).eval()
    bare.load_state_dict(gated.state_dict(), strict=False)
    gated.alpha = 0.0
    output = gated(batch)
    assert torch.equal(output.scores_BTV, bare(batch).scores_BTV)
    assert bare(batch).idea_BTV is None
    assert gated.losses(batch)["token_loss"].item() == pytest.approx(bare.losses(batch)["loss"].item(), rel=1e-12)
    assert set(bare.losses(batch)) == {"loss", "token_loss"}
    assert not any("idea" in name for name, _ in bare.named_parameters())


@pytest.mark.parametrize("gated", [True, False])
def test_the_probe_finds_it_causal(make_module, batch, gated):
    module = make_module(gated=gated).eval()
    batch["mask_input_BT"] = batch["mask_target_BT"] = torch.ones_like(batch["mask_input_BT"])
    found = probe(module, batch)
    assert found.is_causal and found.n > 0


def test_ramp_scales_the_training_gate_only(make_module, batch):
    module = make_module()
    scores, full = module(batch).scores_BTV, module.losses(batch)["token_loss"]
    module._trainer = SimpleNamespace(estimated_stepping_batches=100, global_step=1)  # the ramp is 4 steps
    module.on_train_batch_start(batch, 0)
    assert module.ramp == 0.25
    assert torch.equal(module(batch).scores_BTV, scores)
    quarter = module.losses(batch)["token_loss"]
    module.ramp, module.alpha = 1.0, 0.5 * 0.25
    assert quarter.item() == pytest.approx(module.losses(batch)["token_loss"].item(), rel=1e-12)
    assert quarter.item() != pytest.approx(full.item(), rel=1e-6)
    # the ramp of 4 steps, of a single one, and of less than one
    for whole, step, expected in ((100, 0, 0.0), (100, 4, 1.0), (100, 90, 1.0), (25, 0, 0.0), (24, 0, 1.0)):
        module._trainer = SimpleNamespace(estimated_stepping_batches=whole, global_step=step)
        module.on_train_batch_start(batch, 0)
        assert module.ramp == expected


def fresh(vocabulary, **changes) -> IdeaGateModule:
    cfg = compose(["experiment=idea_gate/main", "size=smoke"]).model
    settings = {name: cfg[name] for name in cfg if name != "_target_"} | changes
    backbone = GPT2Backbone(dim=8, layers=1, heads=1, context=8, dropout=0.0)
    return IdeaGateModule(vocabulary=vocabulary, backbone=backbone, **settings)


def test_first_bias_is_zero_or_the_base_rate(vocabulary, batch):
    # Deviation 3.
    assert not fresh(vocabulary, idea_bias="zero").idea_head.outer.bias.any()
    bias = fresh(vocabulary, idea_bias="base_rate").idea_head.outer.bias
    assert torch.allclose(bias, torch.full_like(bias, math.log(5 * 20 / len(vocabulary))))
    # At strength 0 the gate changes no score; at idea weight 0 the idea loss adds nothing.
    module = fresh(vocabulary, alpha=0.0, beta=0.0, window=1, window_start=1, idea_weight=0.0, stopword_count=0,
                   alpha_ramp_fraction=1.0, warmup_fraction=0.0, final_fraction=1.0)  # fmt: skip
    short = {name: value[:, :8] for name, value in batch.items()}  # the context
    output, losses = module(short), module.losses(short)
    assert torch.equal(output.scores_BTV, output.token_BTV) and output.idea_BTV is not None
    assert losses["idea_loss"] > 0 and losses["loss"].item() == losses["token_loss"].item()


@pytest.mark.long
@pytest.mark.parametrize(("size", "tokens"), [("smoke", 400), ("small", 8000), ("paper", 50257)])
def test_matched_baseline_has_as_many_parameters(size, tokens):
    """Deviation 6: within 1% of the gated model; the published baseline is the smaller one."""
    counts = {}
    for name, regime in (("main", "corrected"), ("baseline", "corrected"), ("baseline", "as_published")):
        cfg = compose([f"experiment=idea_gate/{name}", f"size={size}", f"regime={regime}"])
        sizes = {key: cfg.backbone[key] for key in cfg.backbone if key != "_target_"}
        with torch.device("meta"):
            backbone = GPT2Backbone(**sizes)
        count = sum(p.numel() for p in backbone.parameters()) + tokens * sizes["dim"]
        head = sizes["dim"] ** 2 + sizes["dim"] + tokens * (sizes["dim"] + 1)
        counts[name, regime] = count + head * cfg.model.gated
    gated = counts["main", "corrected"]
    assert abs(counts["baseline", "corrected"] / gated - 1) < 0.01
    assert counts["baseline", "as_published"] < 0.9 * gated


# ours: lift, neutral stopwords, first values ------------------------------------------------------------------------


def test_the_papers_gate_boosts_stopwords_and_the_neutral_one_leaves_them_together_as_they_are() -> None:
    """Deviation 11: a stopword's idea logit is free, so training draws it up; here it stands high already."""
    generator = torch.Generator().manual_seed(0)
    token = torch.randn(5, 9, generator=generator, dtype=torch.float64)
    stop = torch.arange(9) < 3
    idea = torch.where(stop, 4.0, torch.randn(9, generator=generator, dtype=torch.float64) - 4)
    gate = GateForm(clamp="after_scaling", epsilon=1e-8)(idea, 0.5, -2.0).expand_as(token)
    before = token.softmax(-1)
    paper, neutral = (gated_scores(token, gate, mask).softmax(-1) for mask in (None, stop))
    assert (paper[:, stop].sum(-1) > 1.2 * before[:, stop].sum(-1)).all()
    assert torch.allclose(neutral[:, stop], before[:, stop], atol=1e-12)
    # among the others the gate does what it did
    for row in range(5):
        ratio = neutral[row, ~stop] / paper[row, ~stop]
        assert torch.allclose(ratio, ratio[:1].expand_as(ratio), rtol=1e-10)


def test_where_only_stopwords_are_allowed_the_neutral_gate_leaves_them() -> None:
    token = torch.tensor([[0.5, -1.0, -torch.inf, -torch.inf]], dtype=torch.float64)
    stop = torch.tensor([True, True, False, False])
    for gate in (torch.zeros(4), torch.full((4,), -2.0)):
        assert torch.equal(gated_scores(token, gate, stop), token)


def test_training_draws_up_the_stopwords_idea_logits(make_module, batch) -> None:
    """Deviation 11: the idea loss gives a stopword no gradient, the token loss of one that stands in the text does."""
    module = make_module(idea_weight=0.0, stopwords="frequent")
    stop = int(batch["target_ids_BT"][0].mode().values)
    module.stopword_mask_V[stop] = True
    idea = torch.zeros(len(module.vocabulary), requires_grad=True, dtype=torch.float64)
    gate = module.gate(idea)
    target = batch["target_ids_BT"].flatten()
    torch.nn.functional.cross_entropy(gate.expand(len(target), -1), target).backward()
    assert idea.grad[stop] < 0, "a step against the gradient raises it"
    loss = idea_loss(idea.detach().requires_grad_(), torch.tensor([stop, -1]), positive_weight=5.0,
                     stopword_mask=module.stopword_mask_V)  # fmt: skip
    other = idea_loss(idea.detach() + 3 * module.stopword_mask_V, torch.tensor([stop, -1]), positive_weight=5.0,
                      stopword_mask=module.stopword_mask_V)  # fmt: skip
    assert loss.item() == other.item()


@pytest.mark.parametrize(("beta", "bias"), [(0.0, 0.0), (-1e-9, None), (-1000.0, -1800.0), (-math.inf, 0.0)])
def test_a_bias_above_the_clamp_is_a_number_at_every_bound(vocabulary, beta, bias) -> None:
    """At a bound of 0 the gate is flat everywhere, at one of -inf nowhere: the bias says nothing then."""
    module = fresh(vocabulary, alpha=0.5, beta=beta, idea_bias="above_clamp")
    found = module.idea_head.outer.bias[0].item()
    p = math.exp(0.9 * beta / 0.5) if bias is None else 0.0
    assert found == pytest.approx(math.log(p / (1 - p)) if bias is None else bias, rel=1e-5)


@pytest.mark.parametrize(("bias", "alive"), [("base_rate", False), ("above_clamp", True)])
def test_at_the_base_rate_the_gate_starts_dead(vocabulary, bias, alive) -> None:
    """Deviation 12: with 8,000 tokens the base rate lies below exp(beta / alpha) = .018, where the gate is flat."""
    tokens = type("Tokens", (), {"__len__": lambda self: 8000, "bos_id": None})()
    backbone = GPT2Backbone(dim=16, layers=1, heads=2, context=8, dropout=0.0)
    settings = SETTINGS | {"window": 20, "idea_bias": bias, "stopwords": "none"}
    module = IdeaGateModule(vocabulary=tokens, backbone=backbone, **settings)
    p = module.idea_head.outer.bias.sigmoid()[0].item()
    assert (p > math.exp(-2.0 / 0.5)) == alive
    idea = module.idea_head(torch.randn(4, 16, generator=torch.Generator().manual_seed(1)))
    idea.retain_grad()
    module.gate(idea)[:, 7].sum().backward()
    assert bool((idea.grad[:, 7] != 0).all()) == alive
    if alive:
        assert module.gate(idea).mean().item() == pytest.approx(0.9 * -2.0, abs=0.02)


def test_a_token_rate_start_says_of_each_token_how_often_it_comes(tmp_path) -> None:
    words = ["experiment=idea_gate/main", "size=smoke", "trainer.max_steps=1", "trainer.limit_val_batches=1"]
    words += ["metric=[]", "callback=[epoch_seed]", "trainer.enable_progress_bar=false", "trainer.accelerator=cpu"]
    words += ["+model.lift=true", "+model.neutral_stopwords=true", "model.idea_bias=token_rate"]
    words += ["model.learning_rate=1e-9"]
    experiment = build(compose(words), tmp_path, loggers=False)
    experiment.trainer.fit(experiment.module, experiment.datamodule)
    module = experiment.module
    rate = base_rates(experiment.datamodule.packed.ids("train"), module.vocabulary_size, module.ideas.window)
    p = module.idea_head.outer.bias.detach().sigmoid().double()
    common = (rate > 0.01) & (rate < 0.9)
    assert torch.allclose(p[common], 5 * rate[common] / (1 + 4 * rate[common]), rtol=1e-4)
    odds = 5 * 0.5 / len(experiment.datamodule.packed.ids("train"))  # of an unseen token, as if it came half a time
    assert bool((rate == 0).any())
    assert torch.allclose(p[rate == 0], torch.tensor(odds / (1 + odds), dtype=torch.float64), rtol=1e-4)
    # so the gate begins as no gate: every token's lift is near 0
    gate = module.gate(module.idea_head.outer.bias.detach()[None])
    assert gate.abs().max() < 1e-4
    assert module.state_dict()["base_V"].shape == (module.vocabulary_size,)
    # and both choices are those of generation and the X-ray
    assert module.neutral is module.stopword_mask_V and module.base_rate is module.base_V


def test_a_start_from_the_token_head_says_what_it_says_beyond_its_mean(vocabulary) -> None:
    torch.manual_seed(3)
    backbone = GPT2Backbone(dim=16, layers=2, heads=2, context=8, dropout=0.5)
    settings = SETTINGS | {"idea_bias": "token_rate", "from_token_head": 0.25}
    module = IdeaGateModule(vocabulary=vocabulary, backbone=backbone, **settings).train()
    text = np.array(vocabulary.encode(TEXT))
    module.count_text(text)
    assert module.backbone.training
    module.eval()
    rows = torch.from_numpy(text[: len(text) // 8 * 8].reshape(-1, 8))
    output = module({"input_ids_BT": rows})
    token = output.token_BTV.double()
    expected = module._odds(text).log() + 0.25 * (token - token.mean((0, 1)))
    assert torch.allclose(output.idea_BTV.double(), expected, atol=1e-4)
    assert token.std() > 0.02  # so that a head that ignores the context would differ
    module.count_text(text)
    assert not module.backbone.training


@pytest.mark.parametrize(
    "change", [{"stopwords": "frequent"}, {"lift": True}, {"idea_bias": "token_rate"}, {"from_token_head": 0.5}]
)
def test_text_is_counted_for_each_option_that_needs_it(make_module, change) -> None:
    assert make_module(**change).counts_text and not make_module().counts_text
    assert not make_module(gated=False, **change).counts_text


OURS = {"lift": True, "neutral_stopwords": True}


@pytest.mark.parametrize("change", [{"lift": True}, {"neutral_stopwords": True}, OURS])
def test_training_scores_what_is_generated_with_our_gates(make_module, batch, change) -> None:
    module = make_module(**change)
    if module.lift:
        module.base_V.uniform_(-6, -1, generator=torch.Generator().manual_seed(0))
    module.stopword_mask_V[:9] = True
    module.eval()
    output = module(batch)
    kept = batch["mask_target_BT"]
    expected = torch.nn.functional.cross_entropy(output.scores_BTV[kept], batch["target_ids_BT"][kept])
    assert module.losses(batch)["token_loss"].item() == pytest.approx(expected.item(), rel=1e-12)
    generator = IdeaGateDecoding(temperature=1.0, repetition_penalty=1.0, max_new_tokens=1).generator(
        module, SimpleNamespace(vocabulary=module.vocabulary)
    )
    state = generator.state([], ())
    rule = generator.rules([{"alpha": module.alpha, "beta": module.beta}], (), state)
    inner, ids = module.start(1, state), batch["input_ids_BT"][:1]
    with torch.no_grad():
        for place in range(ids.shape[1]):
            scores, inner = module.step(ids[:, place : place + 1], inner)
            assert torch.allclose(rule(ids[:, : place + 1], scores), output.scores_BTV[:1, place], atol=1e-10)


@pytest.mark.parametrize("change", [{}, {"lift": True}, {"neutral_stopwords": True}, OURS, OURS | {"alpha": 0.0}])
@pytest.mark.parametrize("ramp", [0.0, 0.3, 1.0])
def test_the_plain_form_and_the_fused_one_are_one(make_module, batch, change, ramp) -> None:
    """Values and gradients of every parameter, over rows of unequal length, while the strength rises."""
    found = {}
    for fast in ("never", "always"):
        module = make_module(fast=fast, **change)
        module.ramp = ramp
        module.stopword_mask_V[:5] = True
        if module.lift:
            module.base_V.copy_(torch.linspace(-9.0, -0.1, module.vocabulary_size))
        losses = module.losses(batch)
        losses["loss"].backward()
        found[fast] = losses, {name: parameter.grad for name, parameter in module.named_parameters()}
    (plain, slopes), (fused_losses, fused_slopes) = found["never"], found["always"]
    assert set(plain) == set(fused_losses)
    for name in plain:
        assert fused_losses[name].item() == pytest.approx(plain[name].item(), rel=1e-12)
    assert all(torch.allclose(slopes[name], fused_slopes[name], atol=1e-12) for name in slopes)


def test_small_batches_take_the_plain_form_and_large_ones_the_fused(make_module, batch, monkeypatch) -> None:
    module = make_module()
    taken = []
    monkeypatch.setattr(IdeaGateModule, "_fused_losses", lambda *given: taken.append(1))
    module.losses(batch)
    assert not taken
    # the logits of both heads at the counted positions
    logits = 2 * int(batch["mask_target_BT"].sum()) * module.vocabulary_size
    monkeypatch.setattr(module_file, "FAST_FROM", logits + 1)
    module.losses(batch)
    assert not taken
    monkeypatch.setattr(module_file, "FAST_FROM", logits)
    module.losses(batch)
    assert taken
    for change in ({"lift": True}, {"neutral_stopwords": True}):
        make_module(**change).losses(batch)
    assert len(taken) == 3, "our gates take it too"
