"""lit_ctg.callback.graphmax_portrait."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lit_ctg.callback.graphmax_portrait import Convergence, TopWords
from lit_ctg.callback.graphmax_scene import contexts_of
from lit_ctg.errors import UserError
from lit_ctg.model.graphmax import graphmax


def test_convergence_shows_what_each_step_moved(folds, module, published):
    numbers, _ = Convergence(contexts=4, length=5, strength=1.0, iterates=2).measure(folds[0], module)
    logits = contexts_of(folds[0], module, contexts=4, length=5).logits_NV
    ends = [
        graphmax(logits, folds[0].graph, 1.0, solver=replace(published, steps=steps)).probs_BV for steps in (2, 3)
    ]  # fmt: skip
    moved = float((ends[1] - ends[0]).norm(dim=-1).mean())
    assert numbers["convergence/shop/published/step_3"].value == pytest.approx(moved)
    assert numbers["convergence/shop/published/step_20"].value > 1e-4, "it never meets its own threshold"
    assert len([name for name in numbers if "published/step" in name]) == 40
    best = graphmax(logits, folds[0].graph, 1.0, tol=1e-9).probs_BV
    far = float((graphmax(logits, folds[0].graph, 1.0, solver=published).probs_BV - best).abs().sum(-1).mean()) / 2
    assert numbers["distance/shop/published/step_20"].value == pytest.approx(far, abs=1e-3)
    assert numbers["gap/shop/certified/iterate_2"].value <= 1e-6 < numbers["gap/shop/certified/iterate_1"].value + 1e-6
    assert 1 <= numbers["products/shop/certified"].value <= 5


def test_convergence_needs_algorithm_one(folds, module):
    fold = replace(folds[0], published=None)
    with pytest.raises(UserError, match="Algorithm 1"):
        Convergence(contexts=2, length=5, strength=1.0).measure(fold, module)


def test_top_words_are_the_best_of_each_method(folds, module, vocabulary):
    methods = {
        "softmax": {"variant": "softmax"},
        "same": {"variant": "graphmax", "strength": 0.0},
        "copy": {"variant": "interpolation", "strength": 1e9},
    }
    numbers, samples = TopWords(methods=methods, contexts=["the food", "nice"], words=3).measure(folds[0], module)
    assert numbers["top_shared/shop/softmax"].value == numbers["top_shared/shop/same"].value == 1.0
    assert 0 <= numbers["top_shared/shop/copy"].value < 1
    best = module.table[vocabulary.id("food")].softmax(-1).topk(3)
    first = ", ".join(
        f"{vocabulary.tokens[token]} {prob:.3f}"
        for token, prob in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
    shown = [s for s in samples if s["method"] == "top/softmax"]
    assert [s["prompt"] for s in shown] == ["the food", "nice"] and shown[0]["text"] == first
    row = folds[0].graph.matrix[[vocabulary.id("food")]].toarray()[0]
    copied = next(s for s in samples if s["method"] == "top/copy")["text"].split()[0]
    assert row[vocabulary.id(copied)] == torch.tensor(row).max()
