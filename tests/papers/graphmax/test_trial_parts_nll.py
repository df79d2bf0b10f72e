"""lit_ctg.papers.graphmax.trial_parts against a loop over contexts."""

from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import graphmax
from lit_ctg.papers.graphmax.trial import contexts_of
from lit_ctg.papers.graphmax.trial_parts import NextWordNll

VARIANTS = {
    "softmax": {"variant": "softmax"},
    "sparsemax": {"variant": "sparsemax"},
    "graphmax": {"variant": "graphmax", "strengths": [0.0, 1.0]},
    "interpolation": {"variant": "interpolation", "strengths": [0.1, 5.0]},
    "algorithm_one": {"variant": "algorithm_one", "strengths": [0.0, 1.0]},
}


@pytest.fixture
def measured(folds, module):
    part = NextWordNll(variants=VARIANTS, contexts=20, length=6)
    return folds[0], part, part.measure(folds[0], module)[0], contexts_of(folds[0], module, contexts=40, length=6)


def test_nll_is_that_of_a_loop_over_the_second_half(measured, module):
    fold, _, numbers, found = measured
    counted = list(range(1, 40, 2))
    softmax = [-float(found.logits_NV[i].double().log_softmax(0)[found.target_N[i]]) for i in counted]
    assert numbers["nll/shop/softmax"].value == pytest.approx(sum(softmax) / 20, abs=1e-6)
    probs = [graphmax(found.logits_NV[i].double(), fold.graph, 1.0, tol=1e-10).probs_BV for i in counted]
    expected = sum(-math.log(float(x[found.target_N[i]])) for x, i in zip(probs, counted, strict=True)) / 20
    assert numbers["nll/shop/graphmax/1"].value == pytest.approx(expected, abs=2e-3)
    plain = [found.logits_NV[i].double().softmax(0) for i in counted]
    shift = sum(float((x - p).abs().sum()) / 2 for x, p in zip(probs, plain, strict=True)) / 20
    assert numbers["shift/shop/graphmax/1"].value == pytest.approx(shift, abs=2e-3)
    changed = sum(int(x.argmax() != p.argmax()) for x, p in zip(probs, plain, strict=True)) / 20
    assert numbers["top/shop/graphmax/1"].value == pytest.approx(changed)
    rows = fold.graph.matrix.toarray()[found.last_N.numpy()[counted]] > 0
    mass = sum(float(x[torch.from_numpy(row)].sum()) for x, row in zip(probs, rows, strict=True)) / 20
    assert numbers["attested/shop/graphmax/1"].value == pytest.approx(mass, abs=2e-3)
    # strength 0 is softmax exactly
    assert numbers["nll/shop/graphmax/0"].value == pytest.approx(numbers["nll/shop/softmax"].value, abs=1e-6)
    assert numbers["shift/shop/graphmax/0"].value < 1e-6 and numbers["zero/shop/graphmax/1"].value == 0.0
    # zeros are counted and not infinite: a target without probability costs log(V / floor) and no less
    zero, nll = numbers["zero/shop/sparsemax"].value, numbers["nll/shop/sparsemax"].value
    assert zero > 0 and math.isfinite(nll) and nll > zero * math.log(1 / 1e-3)


def test_ngrams_alone_stand_beside_the_output_layers(measured):
    """Witten-Bell by hand on the other folds' reviews, over the contexts that measure; no language model in it."""
    fold, part, numbers, found = measured
    alone = part.references(fold)
    assert set(alone) == {f"nll/shop/{name}" for name in ("unigram", "bigram", "trigram")}
    for name, measure in alone.items():
        assert (measure.value, measure.n, measure.base) == (numbers[name].value, 20, None)
    others = [ids.tolist() for ids in fold.others]

    def prob(token, history):
        lower = prob(token, history[1:]) if history else 1 / len(fold.vocabulary)
        n = len(history)
        after = [t[i] for t in others for i in range(n, len(t)) if t[i - n : i] == history]
        kinds = len(set(after))
        return (after.count(token) + kinds * lower) / (len(after) + kinds) if after else lower

    assert found.before_NK[:, -1].tolist() == found.last_N.tolist()
    assert (found.before_NK[:, 0] < 0).any() and (found.before_NK[:, 0] >= 0).any(), "with and without a second token"
    for order, name in enumerate(("unigram", "bigram", "trigram"), start=1):
        nats = 0.0
        for i in range(1, 40, 2):
            history = found.before_NK[i].tolist()[3 - order :] if order > 1 else []
            nats -= math.log(prob(int(found.target_N[i]), [token for token in history if token >= 0]))
        measure = numbers[f"nll/shop/{name}"]
        assert measure.value == pytest.approx(nats / 20, abs=1e-9)
        assert measure.n == 20 and measure.base == "nll/shop/softmax"


def test_the_strength_is_chosen_where_it_is_not_measured(folds, module, monkeypatch):
    found = contexts_of(folds[0], module, contexts=40, length=6)
    even_N = torch.arange(40) % 2 == 0

    def layer(logits_NV, last_N, strength):
        """Foretell the even contexts at 0.1, which choose, and the odd ones, which measure, at any other strength."""
        right_N = even_N if strength == 0.1 else ~even_N
        hit_N1 = torch.where(right_N, 0.5, 0.01)[:, None].to(logits_NV)
        rest_NV = ((1 - hit_N1) / (logits_NV.shape[1] - 1)).expand_as(logits_NV)
        return rest_NV.scatter(1, found.target_N[:, None], hit_N1).log()

    monkeypatch.setattr(type(folds[0]), "variant", lambda fold, name: layer)
    strengths = {"variant": "interpolation", "strengths": [5.0, 0.1, 7.0]}
    part = NextWordNll(variants={"softmax": {"variant": "softmax"}, "i": strengths}, contexts=20, length=6)
    numbers = part.measure(folds[0], module)[0]
    # the best of the measured half would have been -log 0.5
    assert numbers["nll/shop/i/chosen"].value == pytest.approx(-math.log(0.01), abs=1e-6)
    assert numbers["nll/shop/i/5"].value == pytest.approx(-math.log(0.5), abs=1e-6)
    assert numbers["nll/shop/i/chosen"].base == "nll/shop/softmax" and numbers["nll/shop/i/chosen"].n == 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": {"g": {"variant": "graphmax", "strength": 1}}}, "did you mean 'strengths'"),
        ({"variants": {"g": {"strengths": [1.0]}}}, "give {variant: <name>, strengths: ...}"),
        ({"variants": {"graphmax": {"variant": "graphmax"}}}, "add softmax"),
    ],
)
def test_a_mistake_is_named_when_the_part_is_built(changes, message):
    with pytest.raises(UserError, match=message) as raised:
        NextWordNll(**{"variants": VARIANTS, "contexts": 4, "length": 4, **changes})
    assert str(raised.value).startswith("callback.graphmax_trial.parts.likelihood") and "\n" not in str(raised.value)
