"""lit_ctg.papers.graphmax.decode: graphmax in our loop's contract and in Hugging Face's generate."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lit_ctg.papers.graphmax import AlgorithmOne, CooccurrenceGraph, GraphmaxRule, NotConverged, certify, graphmax
from lit_ctg.papers.graphmax.decode import MAX_ITERATIONS, EachVariant
from lit_ctg.papers.graphmax.variant import variants

IDS = torch.zeros(12, 1, dtype=torch.long)


def test_softmax_of_the_new_scores_is_graphmax(zipf_graph, zipf_logits) -> None:
    before = zipf_logits.clone()
    scores = GraphmaxRule(zipf_graph, 1.0)(IDS, zipf_logits)
    assert torch.equal(zipf_logits, before)
    np.testing.assert_allclose(scores.softmax(-1), graphmax(zipf_logits, zipf_graph).probs_BV, atol=1e-6)


def test_strength_zero_leaves_scores_alone_and_rows_may_differ(zipf_graph, zipf_logits) -> None:
    assert torch.equal(GraphmaxRule(zipf_graph, 0.0)(IDS, zipf_logits), zipf_logits)
    scores = GraphmaxRule(zipf_graph, [0.0, 1.0] * 6)(IDS, zipf_logits)
    assert torch.equal(scores[::2], zipf_logits[::2])
    np.testing.assert_allclose(scores[1].exp(), graphmax(zipf_logits[1], zipf_graph).probs_BV, atol=2e-4)
    with pytest.raises(ValueError, match="5 settings for 12 rows"):
        GraphmaxRule(zipf_graph, [0.0, 1.0, 2.0, 3.0, 4.0])(IDS, zipf_logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores_come_back_certified(zipf_graph, zipf_logits, dtype, arithmetic) -> None:
    logits = zipf_logits.to(dtype)
    scores = GraphmaxRule(zipf_graph, 1.0)(IDS, logits)
    # in bfloat16 the gap of what is handed out would be 6e-5
    gap = certify(scores, logits, zipf_graph)
    assert scores.dtype == torch.float32 and ((gap >= 0) & (gap <= 1e-6)).all()
    mixed = GraphmaxRule(zipf_graph, [0.0, 1.0] * 6)(IDS, logits)
    assert torch.equal(mixed[::2], logits[::2].float())


def test_top_k_solves_over_the_best_tokens(zipf_graph, zipf_logits) -> None:
    scores = GraphmaxRule(zipf_graph, 1.0, top_k=50)(IDS, zipf_logits)
    assert ((scores > float("-inf")).sum(dim=-1) == 50).all()
    whole = graphmax(zipf_logits, zipf_graph).probs_BV
    errors = []
    for k in (5, 50, 500, 3000):
        restricted = GraphmaxRule(zipf_graph, 1.0, top_k=k)(IDS, zipf_logits).softmax(-1)
        errors.append(float((restricted - whole).abs().sum(dim=-1).mean() / 2))
    # the error is what the cut tokens would have had, and vanishes with all of them
    assert errors == sorted(errors, reverse=True) and errors[0] > 0.05 and errors[-1] < 1e-3


def test_nothing_unconverged_is_silent(zipf_graph, zipf_logits) -> None:
    with pytest.raises(NotConverged):
        GraphmaxRule(zipf_graph, 10.0, max_iterations=1, tol=1e-9)(IDS, zipf_logits)
    with pytest.warns(RuntimeWarning, match="the graphmax rule: graphmax certified 0 of 12 rows"):
        GraphmaxRule(zipf_graph, 10.0, max_iterations=1, tol=1e-9, strict=False)(IDS, zipf_logits)
    published = AlgorithmOne(step_size=1e-4, steps=20, threshold=1e-4, sort="descending", log_floor=1e-12)
    with pytest.raises(NotConverged):
        GraphmaxRule(zipf_graph, solver=published)(IDS, zipf_logits)
    scores = GraphmaxRule(zipf_graph, solver=published, strict=False)(IDS, zipf_logits)
    np.testing.assert_allclose(scores.exp().sum(dim=-1), 1, atol=1e-4)
    assert MAX_ITERATIONS >= 20


def test_inside_hugging_face_generate(slow) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    graph = CooccurrenceGraph.from_matrix(slow.random_matrix(np.random.default_rng(1), 40))
    prompt = torch.tensor([[1, 2, 3], [4, 5, 6]])
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}

    def run(strength: float) -> torch.Tensor:
        return model.generate(prompt, logits_processor=[GraphmaxRule(graph, strength)], **settings)

    plain = model.generate(prompt, **settings)
    assert torch.equal(run(0.0), plain)
    steered = run(20.0)
    assert not torch.equal(steered, plain)
    ids = prompt
    for _ in range(6):
        logits = model(ids).logits[:, -1]
        ids = torch.cat([ids, graphmax(logits.detach(), graph, 20.0).probs_BV.argmax(-1, keepdim=True)], dim=-1)
    assert torch.equal(steered, ids)


def test_layers_of_each_row_take_half_precision(zipf_graph, zipf_logits) -> None:
    names = ["graphmax", "softmax"] * 6
    rule = EachVariant(variants(zipf_graph), names, [1.0] * 12)
    scores = rule(IDS, zipf_logits.bfloat16())
    assert scores.dtype == torch.float32 and torch.equal(scores[1::2], zipf_logits[1::2].bfloat16().float())
    torch.testing.assert_close(scores[::2], GraphmaxRule(zipf_graph, 1.0)(IDS, zipf_logits.bfloat16())[::2])
