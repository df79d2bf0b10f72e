"""lit_ctg.papers.graphmax.trial: what the folds give together."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import graphmax
from lit_ctg.papers.graphmax.model import GraphmaxOutput
from lit_ctg.papers.graphmax.trial import GraphmaxTrial, Measure, logits_of, summarize_folds
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
