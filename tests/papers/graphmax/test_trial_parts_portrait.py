"""lit_ctg.papers.graphmax.trial_parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import graphmax
from lit_ctg.papers.graphmax.trial import contexts_of
from lit_ctg.papers.graphmax.trial_parts import Convergence, TopWords


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


def test_a_row_that_stopped_stays_where_it_stopped(folds, module, published, monkeypatch) -> None:
    """Moves of 1, 0.1 and more than 1 again: with a threshold of 0.5 the solver ends at the second step."""
    x = torch.zeros(3, len(module.table))
    x[0, 0] = x[1, 0] = x[2, 1] = 1.0
    x[1, 2] = 0.1

    def scripted(logits_BV, graph, strength, **settings):
        found = graphmax(logits_BV, graph, strength, **settings)
        solver = settings.get("solver")
        return found if solver is None else found._replace(probs_BV=x[solver.steps - 1].expand_as(found.probs_BV))

    monkeypatch.setattr("lit_ctg.papers.graphmax.trial_parts.graphmax", scripted)
    fold = replace(folds[0], published=replace(published, steps=3, threshold=0.5))
    numbers, _ = Convergence(contexts=2, length=5, strength=1.0, iterates=1).measure(fold, module)
    assert numbers["stopped/shop/published"].value == 1.0
    moved = [numbers[f"convergence/shop/published/step_{step}"].value for step in (1, 2, 3)]
    assert moved == pytest.approx([1.0, 0.1, (2 + 0.01) ** 0.5])
    distance = [numbers[f"distance/shop/published/step_{step}"].value for step in (1, 2, 3)]
    assert distance[1] == distance[2] != distance[0]


def test_one_row_that_is_not_certified_does_not_end_the_run(folds, module, monkeypatch):
    fold = replace(folds[0], certificates=type(folds[0].certificates)())

    def poor(logits_BV, graph, strength, **settings):
        found = graphmax(logits_BV, graph, strength, **settings)
        return found._replace(converged_B=torch.arange(len(logits_BV)) > 0)

    monkeypatch.setattr("lit_ctg.papers.graphmax.trial_parts.graphmax", poor)
    with pytest.warns(RuntimeWarning, match="certified 3 of 4 rows"):
        Convergence(contexts=4, length=5, strength=1.0).measure(fold, module)
    assert fold.certificates.certified == {"graphmax": 3}


def test_top_words_are_the_best_of_each_method(folds, module, vocabulary):
    methods = {
        "softmax": {"variant": "softmax"},
        "same": {"variant": "graphmax", "strength": 0.0},
        "copy": {"variant": "interpolation", "strength": 1e9},
    }
    numbers, samples = TopWords(methods=methods, contexts=["the food", "nice"], words=3).measure(folds[0], module)
    assert numbers["top_shared/shop/softmax"].value == numbers["top_shared/shop/same"].value == 1.0
    assert 0 <= numbers["top_shared/shop/copy"].value < 1
    words = {(s["method"], s["prompt"]): {pair.split()[0] for pair in s["text"].split(", ")} for s in samples}
    lists = {name: [words[f"top/{name}", prompt] for prompt in ("the food", "nice")] for name in methods}
    shared = [len(one & other) for one, other in zip(lists["copy"], lists["softmax"], strict=True)]
    assert numbers["top_shared/shop/copy"].value == pytest.approx(sum(shared) / 6) and 0 < sum(shared) < 6
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
    assert TopWords(**WORDS).positions(vocabulary) == 2
    for changes, message in (
        ({"methods": {"g": {"variant": "softmx"}}}, "did you mean 'softmax'"),
        ({"contexts": ["the food", ""]}, "without a token"),
        ({"words": len(vocabulary) + 1}, r"top_words: words=\d+"),
    ):
        with pytest.raises(UserError, match=message):
            TopWords(**{**WORDS, **changes}).positions(vocabulary)


WORDS = {"methods": {"softmax": {"variant": "softmax"}}, "contexts": ["the food"], "words": 3}
