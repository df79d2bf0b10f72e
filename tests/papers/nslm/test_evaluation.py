"""The evaluation against sums by hand, and a whole run of the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from lit_ctg.core.model import LitLanguageModel
from lit_ctg.errors import UserError
from lit_ctg.papers.nslm import evaluation
from lit_ctg.papers.nslm.classes import class_table, make_recogniser
from lit_ctg.papers.nslm.evaluation import Articles, ClassPerplexity, ClassReport, NSLMEvaluation, density_curve
from lit_ctg.papers.nslm.micro_model import Difference, MicroModel, Multinomial
from lit_ctg.papers.nslm.model import GUESSERS, NSLMModule, TokenScores
from lit_ctg.papers.nslm.occurrences import Evidence, Occurrences
from lit_ctg.papers.nslm.selection import REFERENCES, select
from lit_ctg.statistics import ratio_interval


def scores() -> TokenScores:
    rng = np.random.default_rng(0)
    log = [np.log(rng.uniform(0.01, 1, 8)) for _ in range(6)]
    in_class = np.array([0, -1, 1, 0, -1, 0, 1, -1])
    inside = in_class >= 0
    nnlm, tag, mass, within, characters, micro = log
    error = np.where(inside[:, None], rng.uniform(0, 9, (8, len(GUESSERS))), np.nan)
    return TokenScores(
        target_N=np.array([5, 1, 6, 5, 2, 7, 6, 3]),
        class_N=in_class,
        document_N=np.array([0, 0, 0, 0, 1, 1, 2, 2]),
        repeat_N=np.array([False, False, False, True, False, False, False, False]),
        reference_NR=np.where(inside[:, None], np.log(rng.uniform(0.01, 1, (8, len(REFERENCES)))), 0.0),
        first_N=np.array([True, False, True, False, False, False, False, False]),
        nnlm_N=nnlm,
        tag_N=tag,
        mass_N=mass,
        within_N=np.where(inside, within, 0),
        characters_N=np.where(inside, characters, 0),
        micro_N=np.where(inside, micro, 0),
        cache_N=np.array([np.nan, *np.log(rng.uniform(0.01, 1, 7))]),
        error_NG=error,
    )


def test_models_are_products_and_mixtures() -> None:
    found, models = scores(), scores().models(0.3)
    np.testing.assert_allclose(models["hnlm"], found.tag_N + found.within_N)
    np.testing.assert_allclose(models["crnn"], found.tag_N + found.characters_N)
    alone = np.exp(found.tag_N + found.micro_N)
    np.testing.assert_allclose(np.exp(models["nslm"]), 0.7 * np.exp(found.nnlm_N) + 0.3 * alone)
    np.testing.assert_allclose(np.exp(models["summed"]), np.exp(found.mass_N + found.micro_N))
    cached = found.cached(models, 0.25)["nnlm_cache"]
    assert cached[0] == found.nnlm_N[0]
    np.testing.assert_allclose(np.exp(cached[1:]), 0.75 * np.exp(found.nnlm_N[1:]) + 0.25 * np.exp(found.cache_N[1:]))
    found.characters_N[0] = np.nan
    assert "crnn" not in found.models(0.5), "not computed"


def places(groups: dict[str, np.ndarray]) -> dict[str, list[int]]:
    return {name: np.flatnonzero(inside).tolist() for name, inside in groups.items()}


def test_groups() -> None:
    evaluation, names = NSLMEvaluation(total="numbers", rarity=[1, 10]), ("a", "b")
    count_V = np.array([0, 99, 9, 9, 9, 3, 10, 40])
    assert places(evaluation.groups(scores(), names, count_V)) == {
        "a": [0, 3, 5],
        "b": [2, 6],
        "numbers": [0, 2, 3, 5, 6],
        "global": list(range(8)),
        "first": [0, 2],
        "later": [3, 5, 6],
        "repeated": [3],
        "changed": [5, 6],
        "rarity_1_9": [0, 3],
        "rarity_10_more": [2, 5, 6],
    }
    assert places(evaluation.inside_groups(scores(), names)) == {
        "a": [0, 3, 5], "a/first": [0], "a/repeated": [3], "a/changed": [5],
        "b": [2, 6], "b/first": [2], "b/repeated": [], "b/changed": [6],
        "numbers": [0, 2, 3, 5, 6], "numbers/first": [0, 2], "numbers/repeated": [3], "numbers/changed": [5, 6],
    }  # fmt: skip
    # several totals, one of them with a class that the run lacks
    evaluation = NSLMEvaluation(total={"numbers": ["a", "absent"], "places": ["b"]}, rarity=[1])
    groups = places(evaluation.groups(scores(), names, np.arange(99)))
    assert [groups[name] for name in ("numbers", "places", "later")] == [[0, 3, 5], [2, 6], [3, 5, 6]]
    inside = places(evaluation.inside_groups(scores(), names))
    assert inside["places/changed"] == [6] and "absent" not in inside


@pytest.mark.long
def test_a_run_leaves_its_numbers(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    words = ("experiment=nslm/places", "size=smoke", "logger=none", "+data.cache_root=cache")
    code, out, err = run_cli("train", *words)
    assert code == 0, err
    # the chosen pair of every class is printed, the whole grid is in the record
    assert [line.split()[0] for line in out.splitlines() if " *" in line] == ["city", "state", "country"]
    (path,) = tmp_path.rglob("run.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    metrics, history = record["metrics"], record["history"]
    for name in ("train/nnlm", "train/tag", "val/perplexity"):
        assert [epoch for epoch, _ in history[name]] == [1]
    for name in ("val/perplexity", "test/nnlm/places", "test/crnn/global", "test/nslm_cache/global", "test/nslm/later"):
        assert math.isfinite(metrics[name]["value"]), name
    assert metrics["val/perplexity"] == metrics["val/nslm/global"]
    # tuned on this very text, the mixture is no worse than either of its parts
    parts = [metrics[f"val/{name}/global"]["value"] for name in ("nnlm", "nslm_alone")]
    assert metrics["val/nslm/global"]["value"] <= min(parts) * (1 + 1e-9)
    assert any(name.startswith("grid/city/") for name in metrics)
    assert metrics["test/nnlm/city/median_error"]["unit"] == "km"
    assert metrics["test/nnlm/city/mean_error"]["unit"] == "km"
    assert metrics["share/test/city"]["value"] > 0 and "share/city" not in metrics
    assert metrics["count/test/all"]["value"] == metrics["test/nnlm/places"]["n"]
    parts = [metrics.get(f"test/nslm/{name}", {"n": 0})["n"] for name in ("first", "repeated", "changed")]
    assert sum(parts) == metrics["test/nslm/places"]["n"]
    assert metrics["change/test/nslm_cache/nnlm_cache/places"]["ci95"] is not None
    assert metrics["unknown/test/all"]["n"] == metrics["count/test/all"]["value"] + metrics["unknown/test/all"]["value"]
    assert math.isfinite(metrics["inside/test/repeat/places"]["value"])
    for name in ("city", "state", "country"):
        shares = [
            e["value"] for key, e in metrics.items() if key.startswith(f"micro_model/{name}/") and "/share" in key
        ]
        assert sum(shares) == pytest.approx(1.0)
    code, out, err = run_cli("generate", *words, "n=2", "prompt=The", "control.mixture_weight=1")
    assert code == 0, err
    assert len([line for line in out.splitlines() if line.startswith("The")]) == 2


def test_the_curve_of_training_is_the_mean_of_the_steps() -> None:
    callback = NSLMEvaluation(total="numbers", rarity=[1])
    for epoch, costs in enumerate(([6.0, 4.0], [3.0, 1.0, 2.0])):
        trainer: Any = SimpleNamespace(current_epoch=epoch)
        callback.on_train_epoch_start(trainer, trainer)
        for cost in costs:
            parts = {"loss": torch.tensor(9.0), "nnlm": torch.tensor(cost), "tag": torch.tensor(2 * cost)}
            callback.on_train_batch_end(trainer, trainer, parts, None, 0)
            # interrupted after every step
            state = json.loads(json.dumps(callback.state_dict()))
            callback = NSLMEvaluation(total="numbers", rarity=[1])
            callback.load_state_dict(state)
        callback.on_train_epoch_end(trainer, trainer)
    assert callback.history == {"train/nnlm": [[1, 5.0], [2, 2.0]], "train/tag": [[1, 10.0], [2, 4.0]]}


def test_another_model_and_several_processes_are_refused(tiny: Any, trainer_of: Any) -> None:
    """Each process would score its own streams, and the record would be of the first one's share."""
    module, datamodule = tiny()
    with pytest.raises(UserError, match="is not an NSLM"):
        trainer_of(NSLMEvaluation(total="numbers", rarity=[1])).validate(module, datamodule, verbose=False)
    callback = NSLMEvaluation(total="numbers", rarity=[1])
    callback.setup(cast(Any, SimpleNamespace(world_size=1)), Scored(tuned=True), "fit")
    with pytest.raises(UserError, match=r"trainer\.devices"):
        callback.setup(cast(Any, SimpleNamespace(world_size=2)), Scored(tuned=True), "fit")


def test_changes_have_intervals_over_articles() -> None:
    rng = np.random.default_rng(3)
    document_N = np.repeat(np.arange(30), rng.integers(5, 60, 30))
    # what the model gains is a matter of the article, not of the token
    gain_D = rng.normal(0.5, 0.4, 30)
    base_N = rng.normal(-5, 1, len(document_N))
    model_N, member_N = base_N + gain_D[document_N], rng.random(len(document_N)) < 0.5
    found = Articles(document_N).change(model_N, base_N, member_N)
    assert found.unit == "percent" and found.n == member_N.sum()
    assert found.value == pytest.approx(100 * (math.exp(-(model_N - base_N)[member_N].mean()) - 1))
    # against a bootstrap that puts articles together one by one
    means = []
    for _ in range(2000):
        tokens = np.concatenate([np.flatnonzero((document_N == d) & member_N) for d in rng.integers(0, 30, 30)])
        means.append(100 * (math.exp(-(model_N - base_N)[tokens].mean()) - 1))
    assert found.ci95 == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=1.0)
    # far wider than if tokens were drawn one by one
    spread = 1.96 * gain_D[document_N[member_N]].std() / math.sqrt(member_N.sum()) * (100 + found.value)
    assert found.ci95[1] - found.ci95[0] > 2 * 2 * spread
    assert Articles(np.full(len(document_N), -1)).change(model_N, base_N, member_N).ci95 is None
    some_unknown_N = np.where(document_N < 2, -1, document_N)
    assert Articles(some_unknown_N).change(model_N, base_N, member_N).ci95 is None
    one_N = member_N & (document_N == 3)
    assert Articles(document_N).change(model_N, base_N, one_N).ci95 is None
    # a draw without a token of the group does not count: two articles of thirty have one, with equal gains
    two_N = (document_N == 3) | (document_N == 7)
    low, high = Articles(document_N).change(base_N + 0.5, base_N, two_N).ci95
    assert low == pytest.approx(high) == 100 * (math.exp(-0.5) - 1)
    # a model that diverged is infinitely worse, and the command line prints no warning of a library about it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Articles(document_N).change(base_N - 1000, base_N, member_N).value == math.inf


class Scored(NSLMModule):
    """A module that has scored its validation text; its test text is dearer for the NNLM by one nat a token."""

    def __init__(self, *, tuned: bool) -> None:
        LitLanguageModel.__init__(self)
        self.tuned, self.mixture_weight = tuned, torch.tensor(0.5, dtype=torch.float64)
        self.cache, self.vocabulary = SimpleNamespace(weight=0.25), range(8)
        units = {"a": None, "b": "weeks"}
        classes = [SimpleNamespace(name=name, unit=units[name], attributes_KD=np.zeros((1, 1))) for name in "ab"]
        self.table = SimpleNamespace(names=("a", "b"), classes=classes)
        self.selection = SimpleNamespace(results=lambda: {"grid/a": {"n": 1}})
        self.streams, self.characters = {}, []
        self.reference_weights = dict.fromkeys(REFERENCES, 0.5)

    def on_test_epoch_start(self) -> None:
        self.testing = True

    def log_dict(self, values: dict[str, float]) -> None:
        self.logged = values

    def log(self, name: str, value: float) -> None:
        self.logged = {**self.logged, name: value}

    def score(self, batch: str, *, characters: bool) -> TokenScores:
        assert not characters
        if batch == "test text":
            assert not self.training and self.testing
            return dataclasses.replace(scores(), nnlm_N=scores().nnlm_N - 1)
        return scores()


def test_training_stops_when_it_has_converged() -> None:
    """Three validations in a row without a better perplexity, however the run came to know of them."""
    stopped = []
    evaluation = NSLMEvaluation(total="numbers", rarity=[1])
    for epoch, nats in enumerate([5.0, 4.0, 4.2, 3.9, 4.0, 3.9, 3.95, 3.8]):
        module: Any = Scored(tuned=False)
        flat_N = np.full(8, -nats)
        module.validation = [dataclasses.replace(scores(), nnlm_N=flat_N, tag_N=flat_N, micro_N=np.zeros(8))]
        trainer: Any = SimpleNamespace(
            state=SimpleNamespace(fn="fit"),
            sanity_checking=False,
            current_epoch=epoch,
            datamodule=SimpleNamespace(prepare=lambda: SimpleNamespace(ids=lambda split: np.arange(8))),
            should_stop=False,
        )
        # Lightning's check before the first epoch does not count
        checking: Any = SimpleNamespace(**(vars(trainer) | {"sanity_checking": True}))
        evaluation.on_validation_end(checking, module)
        evaluation.on_validation_end(trainer, module)
        stopped.append(trainer.should_stop)
        again = NSLMEvaluation(total="numbers", rarity=[1])
        again.load_state_dict(evaluation.state_dict())
        evaluation = again
    assert stopped == [False] * 6 + [True, False]
    # killed before the record was written: it does not train on
    trainer = SimpleNamespace(should_stop=False)
    evaluation.on_train_start(trainer, module)
    assert trainer.should_stop
    fresh: Any = SimpleNamespace(should_stop=False)
    NSLMEvaluation(total="numbers", rarity=[1]).on_train_start(fresh, module)
    assert not fresh.should_stop
    assert [epoch for epoch, _ in evaluation.history["val/perplexity"]] == list(range(1, 9))
    assert not any(name.startswith("grid/") for name in evaluation.results)


@pytest.mark.parametrize("tuned", [True, False])
def test_the_mixture_is_tuned_on_validation_text_and_test_text_is_scored_with_it(tuned: bool) -> None:
    module: Any = Scored(tuned=tuned)
    datamodule = SimpleNamespace(
        # tokens 5 and 6 are those of the classes that training text has, 5 twice
        prepare=lambda: SimpleNamespace(ids={"train": np.array([5, 5, 6, 1])}.get),
        test_dataloader=lambda: ["test text", "not read"],
    )
    trainer: Any = SimpleNamespace(
        state=SimpleNamespace(fn="validate"),
        sanity_checking=False,
        datamodule=datamodule,
        limit_test_batches=1,
        precision_plugin=SimpleNamespace(forward_context=contextlib.nullcontext),
        strategy=SimpleNamespace(batch_to_device=lambda batch: batch),
    )
    evaluation = NSLMEvaluation(total="numbers", rarity=[1, 2, 3])
    evaluation.on_validation_epoch_start(trainer, module)
    module.on_validation_epoch_start()
    module.validation_step("validation text", 0)
    module.on_validation_epoch_end()
    evaluation.on_validation_end(trainer, module)
    found, weight = evaluation.results, float(module.mixture_weight)
    weights = np.linspace(0, 1, 1001)
    costs = [-scores().models(tried)["nslm"].mean() for tried in weights]
    best = weights[int(np.argmin(costs))]
    assert abs(best - 0.5) > 0.05 and weight == (pytest.approx(best, abs=2e-3) if tuned else 0.5)
    assert found["mixture_weight"]["value"] == weight == module.logged["val/mixture_weight"]
    change = found["change/test/nslm/nnlm/global"]
    nnlm, nslm = (found[f"test/{name}/global"]["value"] for name in ("nnlm", "nslm"))
    assert change["value"] == pytest.approx(100 * (nslm / nnlm - 1)) and change["ci95"] is not None
    assert "change/val/nslm/nnlm/global" not in found
    for split, nats in (("val", 0), ("test", 1)):
        expected = math.exp(-np.mean(scores().nnlm_N) + nats)
        assert found[f"{split}/nnlm/global"]["value"] == pytest.approx(expected)
    # every simpler micro-model has its weight
    for column, name in enumerate(REFERENCES):
        simpler = dataclasses.replace(scores(), micro_N=scores().reference_NR[:, column])
        least = min(-simpler.models(tried)["nslm"].mean() for tried in weights)
        reached = -simpler.models(module.reference_weights[name])["nslm"].mean()
        assert reached == pytest.approx(least, abs=1e-5) if tuned else module.reference_weights[name] == 0.5
        assert found[f"val/nslm_{name}/global"]["value"] == pytest.approx(math.exp(reached))
    dearer = dataclasses.replace(scores(), nnlm_N=scores().nnlm_N - 1)
    moved = dearer.models(weight)["nslm"]
    assert found["test/nslm/global"]["value"] == pytest.approx(math.exp(-moved.mean()))
    for name, cached_N in dearer.cached(dearer.models(weight), 0.25).items():
        assert found[f"test/{name}/global"]["value"] == pytest.approx(math.exp(-cached_N.mean()))
    assert found["test/nslm_cache/global"]["n"] == 8 and "grid/a" in found
    assert found["val/perplexity"] == found["val/nslm/global"] != found["val/nnlm/global"]
    # in the classes: 5 three times in the text, 6 twice; no token that training text has thrice or oftener
    assert [found[f"test/nslm/rarity_{name}"]["n"] for name in ("1_1", "2_2")] == [2, 2]
    assert not [name for name in found if name.endswith("rarity_3_more")]
    assert found["inside/test/micro/a/first"]["n"] == 1
    errors = [found[f"test/nslm/{name}/mean_error"] for name in "ab"]
    assert [(entry["n"], entry["unit"]) for entry in errors] == [(3, "difference of values"), (2, "weeks")]


def make() -> tuple[ClassPerplexity, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    log_prob = -4 * torch.rand(1300, generator=generator, dtype=torch.float64)
    member = torch.stack((torch.arange(1300) % 3 == 0, torch.ones(1300).bool(), torch.zeros(1300).bool()), 1)
    return ClassPerplexity(groups=["third", "global", "none"]), log_prob, member


def interval(total: np.ndarray, count: np.ndarray) -> Any:
    """Perplexities at the ends of the interval over units with these sums and counts."""
    low, high = ratio_interval(
        total=total.sum(), count=count.sum(), total_sq=(total**2).sum(), cross=(total * count).sum(),
        count_sq=(count**2).sum(), rows=len(total),
    )  # fmt: skip
    return pytest.approx((math.exp(low), math.exp(high)))


def test_equals_the_definition_in_any_number_of_updates() -> None:
    metric, log_prob, member = make()
    metric.update(log_prob[:700], member[:700])
    metric.update(log_prob[700:], member[700:])
    results = metric.result()
    for column, name in enumerate(("third", "global")):
        chosen = log_prob[member[:, column]].tolist()
        assert results[name].value == pytest.approx(math.exp(-sum(chosen) / len(chosen)), rel=1e-12)
        assert results[name].n == len(chosen)
        # the units of the interval are stretches of 500 tokens
        stretches = [slice(0, 500), slice(500, 700), slice(700, 1200), slice(1200, 1300)]
        total = np.array([-float(log_prob[part][member[part, column]].sum()) for part in stretches])
        count = np.array([float(member[part, column].sum()) for part in stretches])
        assert results[name].ci95 == interval(total, count)
    empty = make()[0]
    empty.update(log_prob[:0], member[:0])
    assert math.isnan(empty.result()["global"].value)
    assert math.isnan(results["none"].value) and results["none"].n == 0
    # a token of no group may be impossible
    log_prob[1] = -torch.inf
    empty.update(log_prob, member[:, [0, 0, 2]])
    assert math.isfinite(empty.result()["third"].value)


def test_intervals_are_over_articles_and_do_not_depend_on_the_layout_of_the_streams() -> None:
    metric, log_prob, member = make()
    article = torch.repeat_interleave(torch.tensor([3, 0, 7, 5]), torch.tensor([600, 100, 350, 250]))
    # what a token costs is a matter of its article
    log_prob = log_prob - article
    place = torch.arange(1300).view(20, 65)
    layouts = {
        "text": torch.arange(1300),
        "20 streams of 35": torch.cat([place[:, start : start + 35].reshape(-1) for start in (0, 35)]),
        "shuffled": torch.randperm(1300, generator=torch.Generator().manual_seed(1)),
    }
    found = {}
    for name, order in layouts.items():
        one = ClassPerplexity(groups=["third", "global", "none"])
        one.update(log_prob[order], member[order], article[order])
        found[name] = one.result()
    for column, name in enumerate(("third", "global")):
        parts = [member[:, column] & (article == number) for number in (0, 3, 5, 7)]
        total, count = (np.array([float(part) for part in sums]) for sums in (
            [-log_prob[part].sum() for part in parts], [part.sum() for part in parts]
        ))  # fmt: skip
        for results in found.values():
            assert results[name].ci95 == interval(total, count)
            assert results[name].value == pytest.approx(found["text"][name].value, rel=1e-12)
        # pieces of all articles in every stretch hide what differs between them
        metric.reset()
        metric.update(log_prob[layouts["shuffled"]], member[layouts["shuffled"]])
        (low, high), (low_500, high_500) = found["text"][name].ci95, metric.result()[name].ci95
        assert math.log(high / low) > 3 * math.log(high_500 / low_500)
    # one token of an unknown article: stretches, as without articles
    unknown, plain = make()[0], make()[0]
    unknown.update(log_prob, member, article.masked_fill(torch.arange(1300) == 9, -1))
    plain.update(log_prob, member)
    assert [one.result()[name].ci95 for one in (unknown, plain)] == [plain.result()[name].ci95] * 2


def years() -> tuple[Occurrences, MicroModel]:
    from lit_ctg.papers.nslm.classes import ClassMembers

    tokens = tuple(map(str, range(1900, 2000)))
    members = ClassMembers("year", np.arange(100), tokens, np.arange(1900.0, 2000)[:, None], (), ())
    rng = np.random.default_rng(0)
    previous_N = rng.integers(-1, 90, 3000)
    index_N = np.clip(previous_N + rng.choice([0, 1, 2], 3000, p=[0.2, 0.5, 0.3]), 0, 99)
    found = Occurrences(np.arange(3000), np.zeros(3000, int), index_N, Evidence.of_previous(previous_N))
    return found, MicroModel(Difference(), Multinomial(0.01)).fit(found, members)


def test_a_curve_is_of_occurrences_from_all_over_the_text(monkeypatch) -> None:
    _, model = years()
    previous_N = np.array([10, 20, 30, 40, -1])
    found = Occurrences(
        np.arange(5), np.zeros(5, int), previous_N + np.array([0, 1, 2, 3, 50]), Evidence.of_previous(previous_N)
    )
    monkeypatch.setattr(evaluation, "MOST_KEYS", 2)
    edges = np.arange(-0.5, 5)
    (observed_E, observed), (expected_E, sampled) = density_curve(model, found, edges)
    assert observed_E.tolist() == [0.25, 0.25, 0.25, 0.25, 0.0] and observed == 4, "all that have a previous member"
    assert sum(expected_E) == pytest.approx(1.0, abs=0.05) and sampled == 2
    # the expectation is after the first and the last of them
    ends = found.where(np.array([0, 3]))
    rows_2K, years_K = np.exp(model.log_prob(ends.evidence)), np.arange(100)
    parts = [
        np.histogram(years_K - before, edges, weights=row_K)[0]
        for before, row_K in zip(ends.evidence.previous_N, rows_2K, strict=True)
    ]
    np.testing.assert_allclose(expected_E, np.mean(parts, axis=0))


GRID = {"metrics": ["difference", "frequency"], "densities": ["gaussian", "multinomial", "unigram"]}
TOKENS = ["in", *map(str, range(1900, 1960))]


def run(curves: dict) -> tuple[ClassReport, np.ndarray]:
    """Return the report on 2,000 tokens, every second one the year after the year before."""
    rng = np.random.default_rng(0)
    ids_T = np.zeros(2000, dtype=np.int64)
    ids_T[1::2] = (np.cumsum(rng.choice([0, 1, 1, 2], 1000)) % 60) + 1
    year = make_recogniser("year", {"pattern": r"19\d\d", **GRID})
    table = class_table(TOKENS, [year])
    found = Occurrences.from_documents(ids_T, np.zeros(1, dtype=int), table)
    texts = {"train": ids_T, "val": ids_T[:1000], "test": ids_T[:1600]}
    packed = SimpleNamespace(ids=texts.get)
    module = SimpleNamespace(
        table=table,
        selection=select(table, found, found),
        occurrences=lambda datamodule, split: Occurrences.from_documents(texts[split], np.zeros(1, dtype=int), table),
        recognisers=[year],
    )
    # two years that training text does not have, one of them twice; a number that is not a year
    unseen = {"train": "in 1901", "val": "in 1999", "test": "1998 in 1999 and 1999 , 1905 , 27 <unk>"}
    datamodule = SimpleNamespace(
        prepare=lambda: packed,
        vocabulary=SimpleNamespace(tokens=TOKENS),
        documents=lambda split: [SimpleNamespace(text=unseen[split])],
    )
    trainer = SimpleNamespace(state=SimpleNamespace(fn="validate"), datamodule=datamodule)
    report = ClassReport(curves=curves)
    # evaluated without training
    report.on_validation_end(trainer, module)
    trained = ClassReport(curves=curves)
    trained.on_fit_start(trainer, module)
    trained.on_validation_end(trainer, module)
    assert trained.results == report.results
    return report, ids_T


def test_counts_and_curves() -> None:
    curves = {"year": {"metric": "difference", "low": -2, "high": 3}, "city": {"metric": "x", "low": 0, "high": 1}}
    report, ids_T = run(curves)
    assert report.results["count/train/year"]["value"] == 1000
    assert report.results["share/val/all"]["value"] == pytest.approx(0.5)
    assert report.results["count/test/year"]["value"] == 800 and report.results["count/test/year"]["n"] == 1600
    unknown = {split: report.results[f"unknown/{split}/all"] for split in ("train", "val", "test")}
    assert [unknown[split]["value"] for split in unknown] == [0, 1, 3] and unknown["test"]["n"] == 803
    steps = np.diff(ids_T[1::2])
    for value in range(-2, 4):
        observed = report.results[f"density/year/observed/{value}"]["value"]
        assert observed == pytest.approx((steps == value).mean(), abs=1e-9)
        assert report.results[f"density/year/multinomial/{value}"]["value"] == pytest.approx(observed, abs=0.03)
    # a Gaussian spreads beyond the steps that there are
    mean, variance = steps.mean(), steps.var()
    x = np.arange(-59, 60)
    density = np.exp(-((x - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    assert report.results["density/year/observed/3"]["value"] == 0
    assert report.results["density/year/gaussian/3"]["value"] == pytest.approx(density[x == 3][0], rel=0.5)
    assert {name.split("/")[2] for name in report.results if name.startswith("density")} == {
        "observed", "gaussian", "multinomial"
    }  # fmt: skip


def test_bad_curves_are_named_before_the_run() -> None:
    """Also before a training, and of a checkpoint that is evaluated; a report is made at the end only."""
    for curve in ({"metric": "difference", "low": 5, "high": 1}, {"metric": "difference", "low": 5}):
        with pytest.raises(UserError, match=r"^callback\.class_report\.curves\.year: [^\n]*$"):
            ClassReport(curves={"year": curve})
    year = make_recogniser("year", {"pattern": r"19\d\d", **GRID})
    table = class_table(TOKENS, [year])
    found = Occurrences.from_documents(np.arange(60) + 1, np.zeros(1, dtype=int), table)
    module: Any = SimpleNamespace(table=table, selection=select(table, found, found))
    unknown = {"year": {"metric": "diference", "low": 0, "high": 1}}
    report = ClassReport(curves=unknown)
    for fails in (lambda: report.on_fit_start(cast(Any, None), module), lambda: run(unknown)):
        with pytest.raises(UserError, match=r"curves\.year\.metric=diference: .*'difference'"):
            fails()
    report.on_fit_start(cast(Any, None), cast(Any, SimpleNamespace(selection=None)))
    report.on_validation_end(cast(Any, SimpleNamespace(state=SimpleNamespace(fn="fit"))), module)
    assert report.results == {}
