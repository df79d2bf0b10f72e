"""lit_ctg.papers.graphmax.decode: graphmax in our loop's contract and in Hugging Face's generate."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lit_ctg.decoding.filters import TopK
from lit_ctg.decoding.rule import RuleList
from lit_ctg.papers.graphmax import CooccurrenceGraph, VariantRule, graphmax, variants

IDS = torch.zeros(12, 1, dtype=torch.long)


def rule(graph: CooccurrenceGraph, strength: float | list[float]) -> VariantRule:
    return VariantRule(variants(graph)["graphmax"], strength)


def test_softmax_of_the_new_scores_is_graphmax(zipf_graph, zipf_logits) -> None:
    before = zipf_logits.clone()
    scores = rule(zipf_graph, 1.0)(IDS, zipf_logits)
    assert torch.equal(zipf_logits, before)
    np.testing.assert_allclose(scores.softmax(-1), graphmax(zipf_logits, zipf_graph).probs_BV, atol=1e-6)


def test_strength_zero_leaves_scores_alone_and_rows_may_differ(zipf_graph, zipf_logits) -> None:
    assert torch.equal(rule(zipf_graph, 0.0)(IDS, zipf_logits), zipf_logits)
    scores = rule(zipf_graph, [0.0, 1.0] * 6)(IDS, zipf_logits)
    assert torch.equal(scores[::2], zipf_logits[::2])
    np.testing.assert_allclose(scores[1].exp(), graphmax(zipf_logits[1], zipf_graph).probs_BV, atol=2e-4)
    with pytest.raises(ValueError, match="5 settings for 12 rows"):
        rule(zipf_graph, [0.0, 1.0, 2.0, 3.0, 4.0])(IDS, zipf_logits)


def test_top_k_solves_over_the_best_tokens(zipf_graph, zipf_logits) -> None:
    scores = RuleList([TopK(50), rule(zipf_graph, 1.0)])(IDS, zipf_logits)
    assert ((scores > float("-inf")).sum(dim=-1) == 50).all()
    whole = graphmax(zipf_logits, zipf_graph).probs_BV
    errors = []
    for k in (5, 50, 500, 3000):
        restricted = RuleList([TopK(k), rule(zipf_graph, 1.0)])(IDS, zipf_logits).softmax(-1)
        errors.append(float((restricted - whole).abs().sum(dim=-1).mean() / 2))
    # the error is what the cut tokens would have had, and vanishes with all of them
    assert errors == sorted(errors, reverse=True) and errors[0] > 0.05 and errors[-1] < 1e-3


def test_inside_hugging_face_generate(slow) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    graph = CooccurrenceGraph.from_matrix(slow.random_matrix(np.random.default_rng(1), 40))
    prompt = torch.tensor([[1, 2, 3], [4, 5, 6]])
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}

    def run(strength: float) -> torch.Tensor:
        return model.generate(prompt, logits_processor=[rule(graph, strength)], **settings)

    plain = model.generate(prompt, **settings)
    assert torch.equal(run(0.0), plain)
    steered = run(20.0)
    assert not torch.equal(steered, plain)
    ids = prompt
    for _ in range(6):
        logits = model(ids).logits[:, -1]
        ids = torch.cat([ids, graphmax(logits.detach(), graph, 20.0).probs_BV.argmax(-1, keepdim=True)], dim=-1)
    assert torch.equal(steered, ids)
