"""lit_ctg.papers.graphmax.trial: what the folds give together."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import graphmax
from lit_ctg.papers.graphmax.model import GraphmaxOutput
from lit_ctg.papers.graphmax.trial import (
    GraphmaxTrial,
    Measure,
    contexts_of,
    logits_of,
    pretty,
    read_scene,
    split_folds,
    summarize_folds,
    tokens_of,
    windows_of,
)
from lit_ctg.run.build import instantiate
from lit_ctg.statistics import paired_t_interval, t_interval
from tests.papers.graphmax.conftest import REVIEWS


class Count:
    """A part that counts the reviews it may see."""

    def __init__(self, first_fold_only=False):
        self.first_fold_only = first_fold_only

    def positions(self, vocabulary):
        return 9

    def measure(self, fold, module):
        assert not module.training
        kind = "first" if self.first_fold_only else "all"
        held = Measure(float(len(fold.ids) + fold.number), "reviews", "none", len(fold.ids), f"others/{kind}")
        others = Measure(float(len(fold.others)), "reviews", "none", len(fold.others))
        return {f"held/{kind}": held, f"others/{kind}": others}, [{"text": f"{fold.scene} {fold.number}"}]


def trial(scene, published, **changes) -> GraphmaxTrial:
    settings = {"scenes": {"shop": scene(), "none": None}, "parts": {"a": Count(), "b": None}, "folds": 3, "seed": 0}
    return GraphmaxTrial(published=published, **{**settings, **changes})


def test_a_number_is_the_mean_over_folds_with_its_interval(scene, published, module, vocabulary):
    found = trial(scene, published)
    module.train()
    found.run(module, vocabulary)
    assert module.training
    values, others = [4.0, 4.0, 5.0], [6.0, 7.0, 7.0]
    held = found.results["held/all"]
    assert held["value"] == pytest.approx(13 / 3) and held["n"] == 10
    assert held["ci95"] == pytest.approx(t_interval(values))
    assert held["folds"] == values and "folds" not in found.results["held/all_change"]
    change = found.results["held/all_change"]
    assert change["value"] == pytest.approx(-7 / 3)
    assert change["ci95"] == pytest.approx(paired_t_interval(values, others))
    assert "others/all_change" not in found.results
    assert [sample["text"] for sample in found.samples] == ["shop 0", "shop 1", "shop 2"]
    json.dumps(found.results)
    # a picture is made of the first fold
    found = trial(scene, published, parts={"picture": Count(first_fold_only=True)})
    found.run(module, vocabulary)
    assert (found.results["held/first"]["value"], found.results["held/first"]["ci95"]) == (4.0, None)
    assert len(found.samples) == 1
    # an infinite number has no interval
    numbers = [Measure(value, "nats", "lower", 1, "b") for value in (1.0, math.inf)]
    results = summarize_folds({"a": numbers, "b": [Measure(value, "nats", "lower", 1) for value in (1.0, 2.0)]})
    assert results["a"].value == math.inf and results["a"].ci95 is None and results["a_change"].ci95 is None


class Keep(Count):
    """Keeps what each fold held out, and what its graph may read."""

    def measure(self, fold, module):
        read = [fold.vocabulary.decode(ids) for ids in fold.others]
        return {}, [{"held": list(fold.texts), "others": read}]


def test_of_the_test_split_a_model_trained_on_the_rest_is_tried(scene, published, module, vocabulary):
    train, test = REVIEWS[:6], (*REVIEWS[6:10], REVIEWS[0])
    shop = scene(train, test)
    found = trial(scene, published, scenes={"shop": shop}, parts={"a": Keep()}, folds=2, held_out="test")
    found.run(module, vocabulary)
    # a review of both splits was seen in training: it is never held out
    assert sorted(text for fold in found.samples for text in fold["held"]) == sorted(REVIEWS[6:10])
    for fold in found.samples:
        assert sorted(fold["others"]) == sorted({*train, *REVIEWS[6:10]} - set(fold["held"]))
    data = SimpleNamespace(vocabulary=vocabulary, documents=lambda split: shop.documents("train"))
    trainer = SimpleNamespace(datamodule=data)
    found.setup(trainer, module, "fit")
    data.documents = lambda split: [*shop.documents("train"), SimpleNamespace(text=REVIEWS[7])]
    with pytest.raises(UserError, match=r"scenes.shop: the language model is trained on 1 of its 4 held-out reviews"):
        found.setup(trainer, module, "fit")
    with pytest.raises(UserError, match="published"):
        trial(scene, None)


class Scale(Count):
    """A part with a number that needs no model."""

    def references(self, fold):
        return {f"reference/{fold.scene}/held": Measure(float(len(fold.ids)), "reviews", "none", 1)}


def test_references_need_no_model(scene, published, vocabulary):
    found = trial(scene, published, parts={"a": Count(), "b": Scale()})
    results = found.text_references(SimpleNamespace(vocabulary=vocabulary))
    assert set(results) == {"reference/shop/held"}, "parts without references are left out"
    assert results["reference/shop/held"]["folds"] == [4.0, 3.0, 3.0]
    assert results["reference/shop/held"]["ci95"] == pytest.approx(t_interval([4.0, 3.0, 3.0]))


@pytest.mark.long
@pytest.mark.parametrize("regime", ["as_published", "corrected"])
def test_the_configured_trial_measures_all_it_names(regime, module, vocabulary, scene):
    words = ["callback=[graphmax_trial]", "paper=graphmax", "name=trial", "size=smoke", f"regime={regime}"]
    node = compose(words, experiment=False).callback.graphmax_trial
    found = instantiate(node, "callback.graphmax_trial")
    # deviation 1: as published, graphmax is what Algorithm 1 gives
    expected = {"as_published": "algorithm_one", "corrected": "graphmax"}[regime]
    likelihood, generation = found.parts_by_name["likelihood"], found.parts_by_name["generation"]
    assert likelihood.variants["graphmax"]["variant"] == expected
    assert generation.sampler.methods["graphmax"]["variant"] == expected
    found.scenes = {"amazon": scene(), "yelp": scene()}
    found.run(module, vocabulary)
    names = ["nll/amazon/graphmax/1", "bleu/amazon/graphmax/bleu_5", "perplexity_judge/yelp/softmax",
             "time_ratio/amazon/graphmax", "distance/yelp/published/step_20", "top_shared/amazon/graphmax"]  # fmt: skip
    # the tables' check of the language model, which is the same in both regimes
    names += [f"nll/{corpus}/interpolation/chosen_change" for corpus in ("amazon", "yelp")]
    ours = ["nll/amazon/algorithm_one/1", "bleu/yelp/second_order/bleu_2"]
    for name in names + (ours if regime == "corrected" else []):
        assert math.isfinite(found.results[name]["value"]), name
    if regime == "as_published":
        assert not set(ours) & set(found.results), "the paper has none of these"
    assert {sample["scene"] for sample in found.samples} == {"amazon", "yelp"}


class Asking(Count):
    """A part that asks the certified solver for four rows."""

    def measure(self, fold, module):
        logits = torch.zeros(4, len(fold.vocabulary))
        fold.variant("graphmax")(logits, torch.zeros(4, dtype=torch.long), 1.0)
        return {}, []


def test_rows_that_are_not_certified_are_counted_and_reported(scene, published, module, vocabulary, monkeypatch):
    found = trial(scene, published, parts={"a": Asking()})
    found.run(module, vocabulary)
    sure = found.results["certified/shop/graphmax"]
    assert (sure["value"], sure["n"], sure["unit"]) == (1.0, 12, "rate")

    def poor(*given, **settings):
        result = graphmax(*given, **settings)
        return result._replace(
            converged_B=torch.tensor([True, False, True, True]), gap_B=torch.tensor([0.0, 0.25, 0.0, 0.0])
        )

    monkeypatch.setattr("lit_ctg.papers.graphmax.variant.graphmax", poor)
    with pytest.warns(RuntimeWarning, match="graphmax certified 3 of 4 rows, the largest gap is 0.25 nats"):
        found.run(module, vocabulary)
    assert found.results["certified/shop/graphmax"]["value"] == 0.75


def test_settings_that_do_not_fit_are_refused_before_training(scene, published, module, vocabulary):
    found = trial(scene, published)
    trainer = SimpleNamespace(datamodule=SimpleNamespace(vocabulary=vocabulary))
    model = SimpleNamespace(backbone=SimpleNamespace(context=9))
    found.setup(trainer, model, "fit")
    model.backbone.context = 8
    with pytest.raises(UserError, match=r"parts\.a needs 9 positions, the model has 8"):
        found.setup(trainer, model, "fit")
    model.backbone.context = None
    found.setup(trainer, model, "fit")
    found.scenes = {"shop": scene(("one review", "another review"))}
    with pytest.raises(UserError, match=r"scenes\.shop: 2 reviews are too few for 3 folds"):
        found.setup(trainer, model, "fit")
    found.scenes = {"shop": scene(("one review", "another review") * 5)}
    with pytest.raises(UserError, match=r"scenes\.shop: 2 reviews are too few for 3 folds"):
        found.setup(trainer, model, "fit")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("parts.generation.sampler.top_p=2", "top_p=2"),
        ("parts.likelihood.variants.graphmax.strengths=[-1]", "strengths.0.=-1: pass"),
        ("parts.likelihood.variants.graphmax.variant=grafmax", "did you mean 'graphmax'"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_line(override, message):
    words = ["callback=[graphmax_trial]", "paper=graphmax", "name=trial", "size=smoke"]
    node = compose([*words, f"callback.graphmax_trial.{override}"], experiment=False).callback.graphmax_trial
    with pytest.raises(UserError, match=message) as raised:
        instantiate(node, "callback.graphmax_trial")
    assert "\n" not in str(raised.value)


def test_the_trial_reads_what_comes_before_the_models_output_layer() -> None:
    """It puts the layers on itself: those of ``scores`` would be applied twice."""

    class Module:
        device = torch.device("cpu")

        def __call__(self, batch):
            logits_BTV = torch.arange(5.0).expand(*batch["input_ids_BT"].shape, 5)
            return GraphmaxOutput(logits_BTV.softmax(-1).log(), logits_BTV, logits_BTV)

    assert torch.equal(logits_of(Module(), [[1, 2]], 3), torch.arange(5.0).expand(1, 3, 5))


# --- lit_ctg.papers.graphmax.trial: folds share nothing, contexts are places of held-out reviews --------------------


def test_a_scene_is_its_distinct_reviews_of_two_tokens_or_more(scene, vocabulary):
    texts, ids = read_scene(scene(), vocabulary)
    assert len(texts) == 10 == len(set(texts))
    assert [vocabulary.decode(row) for row in ids] == texts
    for none in (("ok", ""), ()):
        assert read_scene(scene(none), vocabulary) == ([], [])


def test_every_review_is_held_out_once_and_never_in_its_own_graph(scene, vocabulary):
    texts, ids = read_scene(scene(), vocabulary)
    made = list(split_folds("shop", texts, ids, folds=3, vocabulary=vocabulary, seed=0))
    assert sorted(text for fold in made for text in fold.texts) == sorted(texts)
    for fold in made:
        assert len(fold.ids) + len(fold.others) == len(texts)
        held = {tuple(row) for row in fold.ids}
        assert not held & {tuple(row) for row in fold.others}
        pairs = {(a, b) for row in fold.others for a, b in zip(row[:-1].tolist(), row[1:].tolist(), strict=True)}
        found = fold.graph.matrix.tocoo()
        assert {(int(a), int(b)) for a, b in zip(found.row, found.col, strict=True)} == pairs
    again = list(split_folds("shop", texts, ids, folds=3, vocabulary=vocabulary, seed=0))
    assert [fold.texts for fold in again] == [fold.texts for fold in made]
    other = list(split_folds("shop", texts, ids, folds=3, vocabulary=vocabulary, seed=1))
    assert [fold.texts for fold in other] != [fold.texts for fold in made], "the seed parts the reviews"
    each = split_folds("shop", texts, ids, folds=10, vocabulary=vocabulary, seed=0)
    assert [len(fold.ids) for fold in each] == [1] * 10
    with pytest.raises(UserError, match="too few for 11 folds"):
        list(split_folds("shop", texts, ids, folds=11, vocabulary=vocabulary, seed=0))


def test_windows_reach_both_ends_of_a_review_and_ask_for_a_few_places_each(folds):
    """A review of ten tokens, four of context: windows of five from each of its six places."""
    fold = replace(folds[0], ids=[np.arange(10), np.array([20, 21, 22])])
    windows, picks = windows_of(fold, contexts=600, length=4, places=2)
    long, short = ([row for row in windows if row[0] // 20 == kind] for kind in (0, 1))
    assert {tuple(row) for row in long} == {tuple(range(start, start + 5)) for start in range(6)}
    assert {tuple(row) for row in short} == {(20, 21, 22)} and abs(len(long) - len(short)) <= 1, "in turns"
    assert all(len(row) == 2 and row == sorted(set(row)) for row in picks) and sum(map(len, picks)) == 600
    assert {place for row in picks for place in row} == {0, 1, 2, 3}
    last, target, before = tokens_of(windows, picks)
    assert set(target.tolist()) == {*range(1, 10), 21, 22} and torch.equal(target, last + 1)
    assert all(own in ([-1, end], [end - 1, end]) for own, end in zip(before.tolist(), last.tolist(), strict=True))
    assert sum(map(len, windows_of(fold, contexts=5, length=4, places=2)[1])) == 5


def test_contexts_are_places_of_held_out_reviews_with_their_logits(folds, module):
    fold = folds[0]
    found = contexts_of(fold, module, contexts=30, length=5, places=3, rows=2)
    assert found.logits_NV.shape == (30, len(fold.vocabulary)) and len(found.last_N) == len(found.target_N) == 30
    # the table's logits depend on the last token alone, so they tell which it was
    torch.testing.assert_close(found.logits_NV, module.table[found.last_N])
    pairs = {(a, b) for row in fold.ids for a, b in zip(row[:-1].tolist(), row[1:].tolist(), strict=True)}
    assert set(zip(found.last_N.tolist(), found.target_N.tolist(), strict=True)) <= pairs
    again = contexts_of(fold, module, contexts=30, length=5, places=3, rows=2)
    torch.testing.assert_close(again.target_N, found.target_N)
    # padding is masked
    seen = []
    module.register_forward_pre_hook(lambda _, given: seen.append(given[0]["mask_input_BT"]))
    scores = logits_of(module, [[1, 2, 3], [4]], 3)
    assert seen[0].tolist() == [[True, True, True], [True, False, False]]
    torch.testing.assert_close(scores[0], module.table[[1, 2, 3]])


def test_draws_leave_the_global_random_state_alone(folds, module):
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    contexts_of(folds[1], module, contexts=5, length=4)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert [pretty(value) for value in (0.1, 1.0, 10.0)] == ["0.1", "1", "10"]
    # draws differ by seed, fold and purpose
    fold = folds[0]
    generators = (fold.rng(1), fold.rng(2), replace(fold, number=1).rng(1), replace(fold, seed=4).rng(1))
    assert len({float(one.random()) for one in generators}) == 4 and fold.rng(1).random() == fold.rng(1).random()
    assert len({one.text_seed for one in folds}) == len(folds) and fold.text_seed == fold.text_seed
