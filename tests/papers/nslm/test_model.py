"""The module on real contexts of the sample corpus: sums, causality, streams, what micro-models move, saving."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from lit_ctg.callback.checkpoint import FORMAT, KEY
from lit_ctg.config import compose
from lit_ctg.core.causality_probe import probe
from lit_ctg.core.model import evaluating
from lit_ctg.errors import UserError
from lit_ctg.network.huggingface import HuggingFaceBackbone
from lit_ctg.papers.nslm.classes import ListRecogniser, PatternRecogniser, class_table, make_recogniser
from lit_ctg.papers.nslm.corpus import HOST
from lit_ctg.papers.nslm.evaluation import NSLMEvaluation
from lit_ctg.papers.nslm.heads import HeadScores
from lit_ctg.papers.nslm.micro_model import Blend, MicroModel
from lit_ctg.papers.nslm.model import (
    MODELS,
    NSLMModule,
    Stream,
    TokenScores,
    _counted,
    _host,
    clip_by_norm,
    distance,
    grounded_dimensions,
    likeliest_weight,
    mix,
    parameters_apart,
    read_vectors,
    scale_to_norm,
    sgd_with_decay,
    with_cache,
)
from lit_ctg.papers.nslm.occurrences import Carry, ContextTracker, Evidence
from lit_ctg.papers.nslm.selection import REFERENCES
from lit_ctg.results.record import load_records
from lit_ctg.run.build import build as experiment_of
from lit_ctg.run.build import build_datamodule, build_model
from lit_ctg.run.corpus import given_weights

SMALL = ("size=smoke", "data.sample_size=3000", "data.batch_size=4", "model.samples=null", "model.cache.window=30")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def build(cache: Path) -> Any:
    """Return a maker of (module, datamodule) with fitted micro-models and weights that are not all alike."""

    def make(*words: str, experiment: str = "numbers") -> tuple[NSLMModule, Any]:
        cfg = compose([f"experiment=nslm/{experiment}", *SMALL, f"+data.cache_root={cache}", *words])
        datamodule = build_datamodule(cfg)
        datamodule.setup("fit")
        module = build_model(cfg, datamodule)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(6)
        module.choose_micro_models(datamodule)
        return module.eval(), datamodule

    return make


@pytest.fixture(scope="module")
def numbers(build: Any) -> tuple[NSLMModule, Any]:
    return build()


@pytest.mark.parametrize("model", MODELS)
def test_every_model_sums_to_one_on_real_contexts(numbers: Any, model: str) -> None:
    module, datamodule = numbers
    with torch.no_grad():
        for batch in list(datamodule.val_dataloader())[:3]:
            hidden, contexts = module._run(batch, Stream())
            log_probs = module.log_probs(hidden, contexts, (model,))[model]
            total = log_probs.double().exp().sum(2)
            torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0)


ALL_MODELS = [f"{name}{cache}" for name in (*MODELS, "summed") for cache in ("", "_cache")]


@pytest.fixture(scope="module")
def places(build: Any) -> tuple[NSLMModule, Any]:
    return build("data.sample_size=6000", experiment="places")


def rows_with_class_tokens(module: NSLMModule, datamodule: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the rows of validation batches that have a class token at place 8 to 18, [1, T]."""
    for batch in datamodule.val_dataloader():
        for row, ids in enumerate(batch["input_ids_BT"]):
            if module.table.any_class_V[ids[8:19].numpy()].any():
                yield {name: batch[name][row : row + 1] for name in batch if name.endswith("_BT")}


@pytest.fixture(scope="module")
def whole_vocabulary(numbers: Any, places: Any) -> dict[tuple[str, str], np.ndarray]:
    """Return what the evaluation says of every word of the vocabulary after some texts, [2, V], by corpus and model.

    Each text stands in as many streams as there are words, and ends with another word in each.
    """
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    for corpus, (module, datamodule) in (("numbers", numbers), ("places", places)):
        size = len(module.vocabulary)
        for row in itertools.islice(rows_with_class_tokens(module, datamodule), 2):
            text = {name: value[:, :20].expand(size, -1) for name, value in row.items()}
            before = {name: value[:, :16] for name, value in text.items()}
            after = {name: value[:, 16:].clone() for name, value in text.items()}
            after["target_ids_BT"][:, -1] = torch.arange(size)
            module.streams["evaluation"] = Stream()
            with torch.no_grad():
                module.score(before | {"reset_B": torch.ones(size, dtype=torch.bool)}, characters=False)
                resumed = after | {"reset_B": torch.zeros(size, dtype=torch.bool)}
                scores = module.score(resumed, characters=True)
            models = scores.models(float(module.mixture_weight))
            models |= scores.cached(models, module.cache.weight)
            for name, log_prob_N in models.items():
                found.setdefault((corpus, name), []).append(log_prob_N.reshape(size, -1)[:, -1])
    return {key: np.stack(rows) for key, rows in found.items()}


@pytest.mark.parametrize("model", ALL_MODELS)
@pytest.mark.parametrize("corpus", ["numbers", "places"])
def test_every_model_sums_to_one_as_it_is_scored(whole_vocabulary: Any, corpus: str, model: str) -> None:
    assert {name for _, name in whole_vocabulary} == set(ALL_MODELS)
    np.testing.assert_allclose(np.exp(whole_vocabulary[corpus, model]).sum(1), 1, atol=1e-5)


REAL = Path(__file__).resolve().parents[3] / "local" / "wikitext2"


@pytest.mark.skipif(not REAL.is_dir(), reason="no WikiText-2 in local/wikitext2")
@pytest.mark.parametrize("corpus", ["numbers", "places"])
def test_every_model_sums_to_one_on_wikitext(build: Any, corpus: str) -> None:
    real = ("data.source=local", f"data.root={REAL}", "data.max_documents=12", "data.length=70")
    module, datamodule = build(*real, experiment=corpus)
    assert len(module.vocabulary) > 3000
    batch = next(rows_with_class_tokens(module, datamodule)) | {"reset_B": torch.ones(1, dtype=torch.bool)}
    with torch.no_grad():
        hidden, contexts = module._run(batch, Stream())
        for name, log_probs in module.log_probs(hidden, contexts).items():
            total = log_probs.double().exp().sum(2)
            torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0, msg=name)


def test_deviation_2_without_renormalisation_the_character_model_loses_mass(build: Any) -> None:
    module, datamodule = build("regime=as_published")
    batch = next(iter(datamodule.val_dataloader()))
    with torch.no_grad():
        hidden, contexts = module._run(batch, Stream())
        total = module.log_probs(hidden, contexts, ("crnn",))["crnn"].exp().sum(2)
    assert float(total.max()) < 1.0


def test_changing_the_micro_model_moves_class_tokens_only(numbers: Any) -> None:
    module, datamodule = numbers
    batch = next(iter(datamodule.val_dataloader()))
    with torch.no_grad():
        hidden, contexts = module._run(batch, Stream())
        before = module.log_probs(hidden, contexts, ("nslm_alone",))["nslm_alone"]
        kept = module.micro_models
        year = module.table.names.index("year")

        class Uniform:
            def log_prob(self, evidence: Evidence) -> np.ndarray:
                size = len(module.table.classes[year])
                return np.full((len(evidence), size), -np.log(size))

        module.micro_models = [*kept[:year], Uniform(), *kept[year + 1 :]]
        after = module.log_probs(hidden, contexts, ("nslm_alone",))["nslm_alone"]
        module.micro_models = kept
    moved = (before != after).any(0).any(0).numpy()
    assert moved.any()
    assert set(np.flatnonzero(moved)) <= set(module.table.classes[year].ids_K)


def test_scores_of_targets_are_entries_of_the_distributions(numbers: Any) -> None:
    module, datamodule = numbers
    module.streams["evaluation"] = Stream()
    batch = next(iter(datamodule.val_dataloader()))
    with torch.no_grad():
        scores = module.score(batch, characters=True)
        hidden, contexts = module._run(batch, Stream())
        full = module.log_probs(hidden, contexts)
    mask = batch["mask_target_BT"]
    found = scores.models(float(module.mixture_weight))
    assert (scores.class_N >= 0).any()
    for name in MODELS:
        expected = full[name][mask].gather(1, batch["target_ids_BT"][mask].unsqueeze(1)).squeeze(1)
        np.testing.assert_allclose(found[name], expected.numpy(), atol=2e-4)


def test_limits_of_the_mixture(numbers: Any) -> None:
    module, datamodule = numbers
    batch = next(iter(datamodule.val_dataloader()))
    tuned = module.mixture_weight.clone()
    with torch.no_grad():
        hidden, contexts = module._run(batch, Stream())
        for weight, other in ((0.0, "nnlm"), (1.0, "nslm_alone")):
            module.mixture_weight.fill_(weight)
            found = module.log_probs(hidden, contexts, ("nslm", other))
            assert torch.equal(found["nslm"], found[other])
        # a weight for each row, as in generation
        rows = torch.arange(len(hidden)) % 2 == 0
        found = module.log_probs(hidden, contexts, ("nslm", "nnlm", "nslm_alone"), rows.double())
        assert torch.equal(found["nslm"][rows], found["nslm_alone"][rows])
        assert torch.equal(found["nslm"][~rows], found["nnlm"][~rows])
    module.mixture_weight.copy_(tuned)


@pytest.mark.parametrize("experiment", ["numbers", "numbers_transformer"])
def test_causal(build: Any, experiment: str) -> None:
    module, datamodule = build("data.length=35", experiment=experiment)
    result = probe(module, next(iter(datamodule.val_dataloader())))
    assert result.is_causal and result.n > 0


def test_streams_carry_state_and_previous_members(numbers: Any) -> None:
    module, datamodule = numbers
    batches = list(datamodule.val_dataloader())
    joined = {name: torch.cat([batch[name] for batch in batches[:3]], 1) for name in batches[0] if name.endswith("_BT")}
    joined["reset_B"] = batches[0]["reset_B"]
    with torch.no_grad():
        module.streams["evaluation"] = Stream()
        parts = [module.score(batch, characters=False) for batch in batches[:3]]
        module.streams["evaluation"] = Stream()
        whole = module.score(joined, characters=False)
        alone = module.score(batches[2] | {"reset_B": torch.ones(4, dtype=torch.bool)}, characters=False)
    length = batches[0]["input_ids_BT"].shape[1]
    order = [whole.nnlm_N.reshape(4, -1)[:, i * length : (i + 1) * length].reshape(-1) for i in range(3)]
    for found, expected in zip(parts, order, strict=True):
        np.testing.assert_allclose(found.nnlm_N, expected, atol=1e-4)
    for name in ("micro_N", "cache_N"):
        expected = getattr(whole, name).reshape(4, -1)[:, 2 * length :].reshape(-1)
        np.testing.assert_allclose(getattr(parts[2], name), expected, atol=1e-4)
        assert not np.array_equal(np.nan_to_num(getattr(alone, name)), np.nan_to_num(expected))


def test_a_row_is_the_same_alone_and_in_a_batch(numbers: Any) -> None:
    module, datamodule = numbers
    batch = next(iter(datamodule.val_dataloader()))
    with torch.no_grad():
        together = module(batch).scores_BTV
        alone = module({name: value[1:2] for name, value in batch.items()}).scores_BTV
    torch.testing.assert_close(together[1:2], alone, atol=1e-5, rtol=1e-4)


def test_deviation_1_previous_members_of_the_article_before(build: Any) -> None:
    corrected, datamodule = build()
    published, _ = build("regime=as_published")
    counts = [
        int((module.occurrences(datamodule, "train").evidence.previous_N < 0).sum())
        for module in (corrected, published)
    ]
    assert counts[1] <= len(published.table) < counts[0]


def test_deviations_3_to_5_by_regime(build: Any) -> None:
    corrected, _ = build()
    published, _ = build("regime=as_published")
    assert corrected.tuned and not published.tuned and float(published.mixture_weight) == 0.5
    assert corrected.bases == ("uniform", "unigram") and published.bases == ("uniform",)
    assert corrected.blend and not published.blend
    # and what they do: pairs over the unigram among those tried, all mixed, against the best pair alone
    assert {trial.base for trial in corrected.selection.trials} == {"uniform", "unigram"}
    assert {trial.base for trial in published.selection.trials} == {"uniform"}
    for module, kind in ((corrected, Blend), (published, MicroModel)):
        for name, model in module.selection.models.items():
            best = module.selection.best(name)
            assert isinstance(model, kind) or len(best) == 1 or not best[0].n, name
            if kind is MicroModel:
                assert model is best[0].model
    assert any(isinstance(model, Blend) and len(model.models) > 1 for model in corrected.micro_models)


def test_the_cost_of_a_step_has_all_heads(build: Any) -> None:
    module, datamodule = build("+model.character_every=1")
    batch = next(iter(datamodule.train_dataloader()))
    module.on_train_epoch_start()
    losses = module.losses(batch)
    tokens = int(batch["mask_target_BT"].sum())
    classes = torch.from_numpy(module.table.any_class_V)[batch["target_ids_BT"]]
    inside = int((classes & batch["mask_target_BT"]).sum())
    assert inside > 0 and float(losses["within"]) > 0
    # every number is in a class wherever it stands; summed over time, mean over streams
    expected = (losses["nnlm"] + losses["tag"]) * tokens + losses["within"] * inside
    expected = expected / len(batch["input_ids_BT"]) + module.character_rate * losses["characters"]
    torch.testing.assert_close(losses["loss"], expected)
    losses["loss"].backward()
    for parameter in (module.heads.within_RD, module.heads.tag_CD, module.heads.word_VD, module.embedding.weight):
        assert float(parameter.grad.abs().sum()) > 0


@pytest.mark.long
def test_character_networks_are_clipped_by_themselves_and_share_no_gradient(build: Any) -> None:
    module, datamodule = build("+model.character_every=1")
    batch = next(iter(datamodule.train_dataloader()))
    gradients = []
    for rate in (1000.0, 0.0):
        module.character_rate = rate
        module.on_train_epoch_start()
        module.zero_grad()
        torch.manual_seed(0)
        module.losses(batch)["loss"].backward()
        own = {id(parameter) for parameter in module.characters.parameters()}
        gradients.append(
            [p.grad.clone().to_dense() for p in module.parameters() if id(p) not in own and p.grad is not None]
        )
        if rate:
            module.configure_gradient_clipping(None, 1e-3)
            norms = [
                float(torch.stack([p.grad.norm() for p in network.parameters() if p.grad is not None]).norm())
                for network in module.characters
                if any(p.grad is not None for p in network.parameters())
            ]
            assert norms and norms == pytest.approx([1e-3] * len(norms), rel=1e-3)
    # the language model learns nothing from the characters
    for with_characters, without in zip(*gradients, strict=True):
        assert torch.equal(with_characters, without)


PRINTED = {  # sec. 5.2 and the medium LSTM of Zaremba et al. (2014)
    "backbone.dim": 650,
    "backbone.layers": 2,
    "backbone.dropout": 0.5,
    "model.init_range": 0.05,
    "model.samples": None,
    "model.cutoffs": None,
    "model.sum_over_time": True,
    "model.optimizer": "sgd",
    "model.learning_rate": 1.0,
    "model.rate_decay": 1 / 1.2,
    "model.constant_epochs": 6,
    "model.cache.window": 500,
    "model.cache.weight": 0.25,
    "model.cache.temperature": 0.75,
    "data.length": 35,
    "data.batch_size": 20,
    "data.batching": "streams",
    "data.minimum_population": 500_000,
    "trainer.max_epochs": 20,
    "trainer.gradient_clip_val": 5.0,
}


@pytest.mark.parametrize("regime", ["as_published", "corrected"])
@pytest.mark.parametrize("corpus", ["numbers", "places"])
def test_what_the_paper_prints_is_what_size_paper_has(corpus: str, regime: str) -> None:
    cfg = compose([f"experiment=nslm/{corpus}", "size=paper", f"regime={regime}"])
    assert {name: OmegaConf.select(cfg, name) for name in PRINTED} == pytest.approx(PRINTED)
    prepared = cfg.data.join_numbers, cfg.data.chunk_places
    assert prepared == ((True, False) if corpus == "numbers" else (False, True))


@pytest.mark.parametrize("regime", ["as_published", "corrected"])
def test_deviation_6_great_circle_distances_only_in_corrected(regime: str) -> None:
    classes = compose(["experiment=nslm/places", f"regime={regime}"]).model.classes
    for name in ("city", "state", "country"):
        metrics = list(classes[name].metrics)
        assert "euclidean" in metrics and ("great_circle" in metrics) == (regime == "corrected")


def test_grounded_dimensions_are_not_trained(build: Any) -> None:
    module, _ = build("data.chunk_places=true", experiment="places_grounded")
    ids = torch.from_numpy(module.table.classes[0].ids_K[:1])
    assert module.embed(ids)[0, -2:].abs().max() > 0
    assert module.embedding.embedding_dim == module.backbone.dim - 2
    assert "grounded_VG" not in dict(module.named_parameters())


@pytest.mark.long
def test_training_lowers_the_loss_and_saves(build: Any) -> None:
    module, datamodule = build("model.samples=64", "+model.character_every=2")
    batches = list(datamodule.train_dataloader())[:5]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    history = []
    for _ in range(8):
        module.on_train_epoch_start()
        for batch in batches:
            losses = module.losses(batch)
            optimizer.zero_grad()
            losses["loss"].backward()
            module.configure_gradient_clipping(optimizer, 5.0)
            optimizer.step()
            history.append({name: float(value) for name, value in losses.items()})
    assert history[-1]["nnlm"] < 0.9 * history[0]["nnlm"]
    assert ["characters" in losses for losses in history[-4:]] in ([True, False] * 2, [False, True] * 2)
    other, _ = build("model.samples=64", "+model.character_every=2", "seed=3")
    other.load_state_dict(module.state_dict())
    with torch.no_grad(), evaluating(module):
        torch.testing.assert_close(other(batches[0]).scores_BTV, module(batches[0]).scores_BTV)


@pytest.mark.long
def test_classes_of_ones_own_go_before_the_others(build: Any, tmp_path: Path) -> None:
    path = tmp_path / "classes.yaml"
    # the example of docs/papers/nslm.md
    page = (Path(__file__).resolve().parents[3] / "docs" / "papers" / "nslm.md").read_text(encoding="utf-8")
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    (plain, _), (module, _) = build(), build(f"model.class_file={path}")
    assert module.table.names == ("ordinal", *plain.table.names)
    assert set(module.table.classes[0].tokens) <= {"first", "second", "third"} and len(module.table.classes[0])
    assert plain.table.classes[-1].unit is None and module.table.classes[-1].unit == "points"
    with pytest.raises(UserError, match="cannot be read as YAML"):
        build(f"model.class_file={tmp_path / 'none.yaml'}")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_a_resumed_run_equals_an_uninterrupted_one(cache: Path, tmp_path: Path) -> None:
    words = ["experiment=nslm/places", *SMALL[:-2], "model.samples=64", f"+data.cache_root={cache}", "logger=none"]
    callbacks = "callback=[checkpoint,epoch_seed,nslm_evaluation]"
    # 6 steps: the character RNNs have gathered two when the epoch ends
    cfg = compose([*words, callbacks, "trainer.max_epochs=2", "trainer.limit_train_batches=6"])

    def run(folder: Path, *, stop: bool = False, checkpoint: Path | None = None) -> Any:
        experiment = experiment_of(cfg, folder, loggers=False)
        if stop:
            experiment.module.on_train_epoch_end = lambda: setattr(experiment.trainer, "should_stop", True)
        experiment.trainer.fit(experiment.module, experiment.datamodule, ckpt_path=checkpoint, weights_only=True)
        return experiment

    whole, begun = run(tmp_path / "whole"), run(tmp_path / "halves", stop=True)
    assert begun.trainer.current_epoch == 1
    resumed = run(tmp_path / "halves", checkpoint=tmp_path / "halves" / "checkpoints" / "last.ckpt")
    assert resumed.trainer.global_step == whole.trainer.global_step == 12
    for name, tensor in whole.module.state_dict().items():
        assert torch.equal(tensor, resumed.module.state_dict()[name]), name
    evaluation = [next(c for c in run.trainer.callbacks if hasattr(c, "rarity")) for run in (whole, resumed)]
    assert evaluation[0].history == evaluation[1].history
    assert [epoch for epoch, _ in evaluation[1].history["val/perplexity"]] == [1, 2]


@pytest.mark.long
def test_bad_input(build: Any) -> None:
    with pytest.raises(UserError, match="did you mean 'adamw'"):
        build("model.optimizer=adam")
    with pytest.raises(UserError, match=r"mixture_weight=2.0: pass a number from 0 to 1"):
        build("model.mixture_weight=2.0")
    for words, message in (
        ("model.cache.weight=2", r"model\.cache\.weight=2: pass a number from 0 to 1"),
        ("model.cache.window=0", r"model\.cache\.window=0: pass a whole number from 1"),
        ("model.cache.temperature=warm", r"model\.cache\.temperature=warm: pass a finite number"),
    ):
        with pytest.raises(UserError, match=message):
            build(words)
    options = inspect.signature(NSLMModule).parameters.items()
    required: dict[str, Any] = {name: None for name, option in options if option.default is option.empty}
    with pytest.raises(UserError, match=r"backbone=huggingface.*MicroModelRule"):
        pretrained = HuggingFaceBackbone.__new__(HuggingFaceBackbone)
        unchecked = inspect.unwrap(NSLMModule.__init__)
        unchecked(NSLMModule.__new__(NSLMModule), **required | {"optimizer": "sgd", "backbone": pretrained})
    module, datamodule = build("data.documents=false")
    with pytest.raises(UserError, match=r"data\.documents=true"):
        module(next(iter(datamodule.val_dataloader())))
    module.micro_models, module.within_documents = None, False
    with pytest.raises(UserError, match="not fitted yet"):
        module(next(iter(datamodule.val_dataloader())))


def test_distance() -> None:
    years = np.array([[1914.0], [1918.0]])
    assert distance(years, years[::-1]).tolist() == [4.0, 4.0]
    paris, london = np.array([[48.8566, 2.3522]]), np.array([[51.5074, -0.1278]])
    assert distance(paris, london)[0] == pytest.approx(343.6, abs=1.0)


RNG = np.random.default_rng(0)


def test_mix_is_the_logarithm_of_the_mixture() -> None:
    a, b = np.log(RNG.dirichlet(np.ones(6), 20)), np.log(RNG.dirichlet(np.ones(6), 20))
    for weight in (0.0, 0.3, 1.0):
        expected = (1 - weight) * np.exp(a) + weight * np.exp(b)
        np.testing.assert_allclose(np.exp(mix(a, b, weight)), expected, rtol=1e-12)
        np.testing.assert_allclose(np.exp(mix(a, b, weight)).sum(1), 1.0, rtol=1e-12)


def test_the_ends_are_exact_even_where_the_other_says_never() -> None:
    a, b = np.array([-1.0, -2.0]), np.array([-np.inf, -3.0])
    np.testing.assert_array_equal(mix(a, b, 0.0), a)
    np.testing.assert_array_equal(mix(a, b, 1.0), b)
    np.testing.assert_allclose(mix(a, b, 0.5)[0], -1.0 + np.log(0.5))


def test_tune_finds_the_weight_that_made_the_text() -> None:
    a, b = np.array([0.9, 0.05, 0.05]), np.array([0.1, 0.1, 0.8])
    words = RNG.choice(3, size=200_000, p=0.65 * a + 0.35 * b)
    assert likeliest_weight(np.log(a)[words], np.log(b)[words]) == pytest.approx(0.35, abs=0.01)


def test_tune_may_choose_one_model_alone() -> None:
    better, worse = np.full(50, -1.0), np.full(50, -2.0)
    assert likeliest_weight(better, worse) == 0.0
    assert likeliest_weight(worse, better) == 1.0


def test_an_empty_cache_gets_no_weight() -> None:
    model, cache = np.log([0.5, 0.5, 0.5]), np.array([np.nan, np.log(0.1), -np.inf])
    np.testing.assert_allclose(np.exp(with_cache(model, cache, 0.25)), [0.5, 0.4, 0.375])


TOKENS = ("<eos>", "in", "1990", "1991", "1995")
NAMED = {"metrics": ["frequency"], "densities": ["unigram"]}
INPUT = [0, 1, 2, 1, 4, 1]
TARGET = [1, 2, 1, 4, 1, 2]
# the last year stands in another document; the first target is not counted
DOCUMENT = [0, 0, 0, 0, 1, 1]
COUNTED = [False, True, True, True, True, True]
NNLM, TAG, MASS = [0.1, 0.2, 0.3, 0.4, 0.5], [0.6, 0.2, 0.7, 0.4, 0.8], [0.3, 0.2, 0.5, 0.4, 0.2]
WITHIN = {1: [0.7, 0.2, 0.1], 3: [0.2, 0.3, 0.5], 5: [0.1, 0.8, 0.1]}
NEURAL = {1: [0.1, 0.6, 0.3], 3: [0.5, 0.3, 0.2], 5: [0.1, 0.1, 0.8]}
MICRO = {-1: [0.2, 0.5, 0.3], 0: [0.1, 0.2, 0.7]}


class Heads:
    """Says what the tables above say: a hidden state is its distributions, one behind the other."""

    def score(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> HeadScores:
        assert target_N.tolist() == TARGET[1:]
        return HeadScores(*(torch.tensor(part, dtype=torch.float64).log() for part in (NNLM, TAG, NNLM, MASS)))

    def within_class(self, hidden_XD: Tensor, number: int) -> Tensor:
        return hidden_XD[:, :3].log()

    def conditional(self, hidden_XD: Tensor, number: int) -> Tensor:
        return hidden_XD[:, 3:].log()


class Micro:
    def log_prob(self, evidence: Evidence) -> np.ndarray:
        return np.log([MICRO[previous] for previous in evidence.previous_N.tolist()])


class Reference:
    """Gives one probability to every member."""

    def __init__(self, probability: float) -> None:
        self.probability = probability

    def log_prob_of(self, index_N: np.ndarray, evidence: Evidence) -> np.ndarray:
        return np.full(len(index_N), np.log(self.probability))


class Characters:
    def log_prob_of(self, hidden_XD: Tensor, index_X: np.ndarray, number: int) -> Tensor:
        return torch.from_numpy(0.05 * (1.0 + index_X)).log()


@pytest.fixture
def module() -> Any:
    grid = {"metrics": ["difference"], "densities": ["gaussian"], "unit": "years"}
    table = class_table(TOKENS, [make_recogniser("year", {"pattern": r"19\d\d", **grid})])
    found = SimpleNamespace(
        table=table,
        heads=Heads(),
        micro_models=[Micro()],
        characters=Characters(),
        mixture_weight=torch.tensor(0.5, dtype=torch.float64),
        cache=SimpleNamespace(weight=0.25),
        vocabulary=TOKENS,
        selection=SimpleNamespace(
            references={name: {"year": Reference((3 + n) / 10)} for n, name in enumerate(REFERENCES)}
        ),
        reference_weights=dict.fromkeys(REFERENCES, 0.5),
    )
    found._score_class = partial(NSLMModule._score_class, found)
    return found


@pytest.fixture
def scores(module: Any) -> TokenScores:
    return scored(module)


def scored(module: Any) -> TokenScores:
    contexts, _ = ContextTracker(module.table).read(np.array([INPUT]), np.array([DOCUMENT]))
    hidden = [WITHIN.get(place, [1.0] * 3) + NEURAL.get(place, [1.0] * 3) for place in range(6)]
    batch = {
        "target_ids_BT": torch.tensor([TARGET]),
        "mask_target_BT": torch.tensor([COUNTED]),
        "document_BT": torch.tensor([DOCUMENT]),
    }
    cached_N = np.log([0.1, 0.2, 0.3, 0.4, np.nan])
    hidden_BTD = torch.tensor([hidden], dtype=torch.float64)
    return NSLMModule.score_states(module, batch, hidden_BTD, contexts, cached_N, characters=True)


def test_what_is_said_of_every_token(scores: TokenScores) -> None:
    assert scores.target_N.tolist() == TARGET[1:]
    assert scores.class_N.tolist() == [0, -1, 0, -1, 0]
    assert scores.first_N.tolist() == [True, False, False, False, True]
    assert scores.repeat_N.tolist() == [False] * 5 and scores.document_N.tolist() == DOCUMENT[1:]
    np.testing.assert_allclose(np.exp(scores.reference_NR[0]), [0.3, 0.4, 0.5, 0.6])
    for found_N, expected in (
        (scores.within_N, [0.7, 1, 0.5, 1, 0.1]),
        (scores.micro_N, [0.2, 1, 0.7, 1, 0.2]),
        (scores.characters_N, [0.05, 1, 0.15, 1, 0.05]),
        (scores.cache_N, [0.1, 0.2, 0.3, 0.4, np.nan]),
    ):
        np.testing.assert_allclose(np.exp(found_N), expected, rtol=1e-12)
    # likeliest members: NNLM 1991, 1990, 1995; HNLM 1990, 1995, 1991; Eq. 4 and mixture 1991, 1995, 1991
    nan = [np.nan] * 4
    np.testing.assert_array_equal(scores.error_NG, [[1, 0, 1, 1], nan, [5, 0, 0, 0], nan, [5, 1, 1, 1]])


def test_weights_are_tuned_on_the_text_unless_given(module: Any, scores: TokenScores) -> None:
    for module.tuned in (False, True):
        NSLMModule.tune(module, scores)
        if not module.tuned:
            assert float(module.mixture_weight) == 0.5 and set(module.reference_weights.values()) == {0.5}
    assert 0 < float(module.mixture_weight) < 1
    assert float(module.mixture_weight) == likeliest_weight(scores.nnlm_N, scores.tag_N + scores.micro_N)
    for name, inside_N in zip(REFERENCES, scores.reference_NR.T, strict=True):
        assert module.reference_weights[name] == likeliest_weight(scores.nnlm_N, scores.tag_N + inside_N), name
    assert len(set(module.reference_weights.values())) > 1


def test_members_without_numbers_have_no_distance(module: Any, scores: TokenScores) -> None:
    names = ListRecogniser(name="year", members=dict.fromkeys(("1990", "1991", "1995"), ()), **NAMED)
    module.table = class_table(TOKENS, [names])
    assert module.table.classes[0].attributes_KD.shape == (3, 0)
    found = scored(module)
    assert np.isnan(found.error_NG).all()
    np.testing.assert_array_equal(found.micro_N, scores.micro_N)


def test_an_epoch_restarts_the_text_and_tunes_at_its_end(module: Any, scores: TokenScores) -> None:
    logged: dict[str, float] = {}
    module.tuned, module.tune, module.log_dict = True, partial(NSLMModule.tune, module), logged.update
    module.streams = {"train": Stream(state=1), "evaluation": Stream(state=1)}
    module.characters = SimpleNamespace(forget=lambda: logged.update(forgotten=1.0))
    NSLMModule.on_train_epoch_start(module)
    NSLMModule.on_validation_epoch_start(module)
    assert logged == {"forgotten": 1.0} and module.validation == []
    assert module.streams == {"train": Stream(), "evaluation": Stream()}
    module.validation = [scores, scores]
    NSLMModule.on_validation_epoch_end(module)
    weight = likeliest_weight(scores.nnlm_N, scores.tag_N + scores.micro_N)
    assert logged["val/mixture_weight"] == float(module.mixture_weight) == pytest.approx(weight)
    final = -mix(scores.nnlm_N, scores.tag_N + scores.micro_N, weight).mean()
    assert logged["val/perplexity"] == pytest.approx(np.exp(final))


def test_the_optimiser_is_the_chosen_one() -> None:
    rates = {"learning_rate": 0.5, "rate_decay": 0.5, "constant_epochs": 2, "warmup_fraction": 0.1, "weight_decay": 0.1}
    for name, kind in (("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)):
        part = nn.Linear(2, 1)
        trainer = SimpleNamespace(estimated_stepping_batches=10)
        own = SimpleNamespace(optimizer_name=name, parameters=part.parameters, trainer=trainer, **rates)
        assert type(NSLMModule.configure_optimizers(own)["optimizer"]) is kind


def test_a_stream_forgets_what_is_no_stream_or_another() -> None:
    def stream() -> Stream:
        return Stream(state=1, cache=2, contexts=Carry(np.zeros((3, 1)), np.zeros((3, 1)), np.zeros(3)))

    for batch, kept in (({}, False), ({"reset_B": torch.zeros(2)}, False), ({"reset_B": torch.zeros(3)}, True)):
        entered = stream()
        entered.enter(batch)
        assert [part is not None for part in (entered.state, entered.cache, entered.contexts)] == [kept] * 3, batch


def test_the_numbers_of_the_record(module: Any, scores: TokenScores) -> None:
    evaluation = NSLMEvaluation(total="numbers", rarity=[1, 3])
    # 1995 once in training text, 1990 three times; validation text has other counts
    texts = {"train": np.array([4, 2, 2, 2]), "val": np.array([2, 4, 4, 4, 4])}
    trainer: Any = SimpleNamespace(datamodule=SimpleNamespace(prepare=lambda: SimpleNamespace(ids=texts.get)))
    evaluation.evaluate(trainer, module, scores, "val")
    found = {name.removeprefix("val/"): entry["value"] for name, entry in evaluation.results.items()}
    expected = {
        "nnlm/numbers": (0.1, 0.3, 0.5),
        "nnlm/global": NNLM,
        "hnlm/year": (0.42, 0.35, 0.08),
        "crnn/year": (0.03, 0.105, 0.04),
        "nslm_alone/numbers": (0.12, 0.49, 0.16),
        "summed/numbers": (0.06, 0.35, 0.04),
        "nslm/numbers": (0.11, 0.395, 0.33),
        "nslm/global": (0.11, 0.2, 0.395, 0.4, 0.33),
        "nslm/first": (0.11, 0.33),
        "nslm/later": (0.395,),
        "nslm/rarity_1_2": (0.395,),
        "nslm/rarity_3_more": (0.11, 0.33),
        "nslm_unigram/numbers": (0.14, 0.255, 0.37),
        "nslm_repeat/global": ((0.1 + 0.24) / 2, 0.2, (0.3 + 0.28) / 2, 0.4, (0.5 + 0.32) / 2),
        "nslm/changed": (0.395,),
        "nnlm_cache/numbers": (0.75 * 0.1 + 0.25 * 0.1, 0.75 * 0.3 + 0.25 * 0.3, 0.5),
        "nslm_cache/later": (0.75 * 0.395 + 0.25 * 0.3,),
    }
    for name, probabilities in expected.items():
        assert found[name] == pytest.approx(np.prod(probabilities) ** (-1 / len(probabilities)), rel=1e-12), name
    assert "nslm/repeated" not in found
    inside = {name: e["value"] for name, e in evaluation.results.items() if name.startswith("inside/val/")}
    for name, probabilities in {
        "micro/year": (0.2, 0.7, 0.2),
        "micro/year/first": (0.2, 0.2),
        "hnlm/numbers/changed": (0.5,),
        "gaussian/numbers": (0.5,) * 3,
    }.items():
        expected_value = np.prod(probabilities) ** (-1 / len(probabilities))
        assert inside[f"inside/val/{name}"] == pytest.approx(expected_value, rel=1e-12), name
    errors = {"nnlm": (5, 11 / 3), "hnlm": (0, 1 / 3), "nslm_alone": (1, 2 / 3), "nslm": (1, 2 / 3)}
    for name, (median, mean) in errors.items():
        assert found[f"{name}/year/median_error"] == median and found[f"{name}/year/mean_error"] == pytest.approx(mean)
    assert evaluation.results["val/nslm/year/mean_error"]["unit"] == "years"


GROUNDING_TOKENS = ("<unk>", "the", "Paris", "Lima", "10", "1,000")


def test_values_grow_with_the_number_and_other_words_have_none() -> None:
    table = class_table(GROUNDING_TOKENS, [PatternRecogniser(name="n", pattern=r"[\d,]+", **NAMED)])
    grounded = grounded_dimensions(table, len(GROUNDING_TOKENS))
    assert grounded.shape == (6, 1)
    assert grounded[:4].abs().max() == 0
    assert float(grounded[5]) == 1.0
    assert float(grounded[4]) == pytest.approx(np.log(11) / np.log(1001))


def test_coordinates_have_two_dimensions() -> None:
    places = {"Paris": (48.9, 2.3), "Lima": (-12.0, -77.0)}
    table = class_table(GROUNDING_TOKENS, [ListRecogniser(name="city", members=places, **NAMED)])
    grounded = grounded_dimensions(table, len(GROUNDING_TOKENS))
    torch.testing.assert_close(grounded[2], torch.tensor([1.0, 2.3 / 77.0]))
    torch.testing.assert_close(grounded[3], torch.tensor([-12.0 / 48.9, -1.0]))


def test_vectors_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2 3\nparis 4 5 6\nunused 7 8 9\n", encoding="utf-8")
    vectors, found = read_vectors(path, GROUNDING_TOKENS, 3)
    assert found.tolist() == [False, True, True, False, False, False]
    assert vectors[1].tolist() == [1, 2, 3] and vectors[2].tolist() == [4, 5, 6]
    path.write_text("the best 7 8 9\nthe 1 2 3\nparis at home 0 0 0\n", encoding="utf-8")
    vectors, found = read_vectors(path, GROUNDING_TOKENS, 3)
    assert found.tolist() == [False, True] + [False] * 4, "words with spaces are other words"
    assert vectors[1].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2\n", "has 2 numbers"),
        ("the 1 2 3 4\n", "has 4 numbers"),
        ("the 1 x 3\n", "line 1 holds"),
        ("other 1 2 3\n", "no word of the vocabulary"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "glove.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_vectors(path, GROUNDING_TOKENS, 3)
    with pytest.raises(UserError, match="cannot be read"):
        read_vectors(tmp_path / "none.txt", GROUNDING_TOKENS, 3)


def test_the_rate_is_constant_and_then_falls() -> None:
    weight = nn.Parameter(torch.zeros(1))
    made = sgd_with_decay([weight], learning_rate=1.0, rate_decay=1 / 1.2, constant_epochs=6)
    (group,) = made["optimizer"].param_groups
    assert type(made["optimizer"]) is torch.optim.SGD and group["momentum"] == group["weight_decay"] == 0
    rates = []
    for _ in range(9):
        rates.append(made["optimizer"].param_groups[0]["lr"])
        made["optimizer"].step()
        made["lr_scheduler"].step()
    assert rates == pytest.approx([1.0] * 6 + [1.2**-1, 1.2**-2, 1.2**-3])


def gradients(sparse: bool) -> list[nn.Parameter]:
    torch.manual_seed(0)
    embedding, linear = nn.Embedding(6, 3, sparse=sparse), nn.Linear(3, 2)
    linear(embedding(torch.tensor([1, 4, 1]))).square().sum().backward()
    return [*embedding.parameters(), *linear.parameters()]


@pytest.mark.parametrize("largest", [0.1, 1e6])
def test_equals_torch_on_dense_gradients(largest: float) -> None:
    ours, theirs = gradients(sparse=True), gradients(sparse=False)
    clip_by_norm(ours, largest)
    nn.utils.clip_grad_norm_(theirs, largest)
    for a, b in zip(ours, theirs, strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad.to_dense() if a.grad.is_sparse else a.grad, b.grad, rtol=1e-4, atol=1e-6)


def test_parts_are_clipped_apart() -> None:
    sizes = {"rest": 30.0, "wild": 4000.0, "calm": 0.3, "loud": 7.0}
    whole = nn.ModuleDict({name: nn.Linear(2, 1, bias=False) for name in sizes})
    for name, size in sizes.items():
        whole[name].weight.grad = torch.tensor([[0.6, 0.8]]) * size
    for parameters in parameters_apart(whole, [whole[name] for name in sizes if name != "rest"]):
        clip_by_norm(parameters, 5.0)
    norms = {name: float(part.weight.grad.norm()) for name, part in whole.items()}
    assert norms == pytest.approx({"rest": 5.0, "wild": 5.0, "calm": 0.3, "loud": 5.0}, rel=1e-5)


def test_nothing_to_clip() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    clip_by_norm([parameter], 1.0)
    assert parameter.grad is None


def save(module: NSLMModule, path: Path, corpus: dict[str, str]) -> Path:
    """Write a checkpoint of a run with these networks."""
    ours = {"format": FORMAT, "config": {}, "corpus": corpus}
    torch.save({"state_dict": module.state_dict(), KEY: ours}, path)
    return path


def test_networks_of_another_run_are_taken_over(build: Any, cache: Path, tmp_path: Path) -> None:
    """Only the micro-models and their mixture are this run's own."""
    trained, data = build()
    trained.mixture_weight.fill_(0.25)
    path = save(trained, tmp_path / "last.ckpt", data.fingerprint())
    words = ["experiment=nslm/numbers", *SMALL, f"+data.cache_root={cache}", f"+model.start_from={path}"]
    cfg = compose([*words, "regime=as_published", "seed=1"])
    module = build_model(cfg, build_datamodule(cfg))
    mine, theirs = module.state_dict(), trained.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs if name != "mixture_weight")
    assert float(mine["mixture_weight"]) == 0.5 and module.bases == ("uniform",)
    again = build_model(cfg, build_datamodule(cfg))
    assert given_weights(module) == given_weights(again) != {}

    cfg = compose([*words, "backbone.layers=1"])
    with pytest.raises(UserError, match=r"model\.start_from=.* has other networks \(backbone\.lstm\.\w+_l1\): give"):
        build_model(cfg, build_datamodule(cfg))


def test_networks_of_other_words_are_refused(build: Any, cache: Path, tmp_path: Path) -> None:
    trained, data = build()
    path = save(trained, tmp_path / "last.ckpt", {**data.fingerprint(), "vocabulary": "0" * 64})
    cfg = compose(["experiment=nslm/numbers", *SMALL, f"+data.cache_root={cache}", f"+model.start_from={path}"])
    datamodule: Any = build_datamodule(cfg)
    module: Any = build_model(cfg, datamodule)
    module._trainer = SimpleNamespace(datamodule=datamodule)
    with pytest.raises(UserError, match=r"model\.start_from=.*last\.ckpt has other words: give the corpus"):
        module.setup("fit")


@pytest.mark.long
def test_one_training_serves_both_regimes(run_cli: Any, tmp_path: Path) -> None:
    """as_published on the networks of a corrected run has the numbers of a training of its own."""
    words = ("experiment=nslm/numbers", "size=smoke", "logger=none", "+data.cache_root=cache", "model.samples=null")
    assert run_cli("train", *words, "regime=corrected")[0] == 0
    assert run_cli("train", *words, "regime=as_published")[0] == 0
    (path,) = tmp_path.rglob("corrected*/checkpoints/last.ckpt")
    given = (f"+model.start_from={path}", "trainer.limit_train_batches=0")
    code, _, err = run_cli("train", *words, "regime=as_published", *given)
    assert code == 0, err
    own, taken = sorted(
        (load_records([folder])[0] for folder in tmp_path.rglob("as_published*") if folder.is_dir()),
        key=lambda record: len(record.corpus),
    )
    assert "weights" in taken.corpus and "weights" not in own.corpus
    tested = {name: entry["value"] for name, entry in own.metrics.items() if name.startswith(("test/", "val/"))}
    assert len(tested) > 50 and tested == {name: taken.metrics[name]["value"] for name in tested}


@pytest.mark.parametrize("whole", [True, False])
def test_counted_positions_row_by_row(whole) -> None:
    values_BT = torch.arange(12.0).view(3, 4)
    mask_BT = torch.ones(3, 4, dtype=torch.bool)
    mask_BT[1, 2:] = whole
    assert torch.equal(_counted(values_BT, mask_BT.numpy()), values_BT[mask_BT])


def test_what_was_kept_before_a_batch_was_moved_is_read() -> None:
    """The kept part differs on purpose: it shows which one is read."""
    moved, kept = torch.tensor([[1, 2]]), np.array([[3, 4]])
    assert _host({"input_ids_BT": moved}, "input_ids_BT").tolist() == [[1, 2]]
    assert _host({"input_ids_BT": moved, HOST + "input_ids_BT": kept}, "input_ids_BT").tolist() == [[3, 4]]


@pytest.mark.parametrize("largest", [0.5, 1e6])
def test_both_ways_to_clip_agree(largest) -> None:
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (5,))]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    copies = [parameter.grad.clone() for parameter in parameters]
    clip_by_norm(parameters, largest)
    scale_to_norm(copies, largest)
    for parameter, copy in zip(parameters, copies, strict=True):
        torch.testing.assert_close(parameter.grad, copy)
    assert float(torch.cat([copy.flatten() for copy in copies]).norm()) <= largest * 1.0001
