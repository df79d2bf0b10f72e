"""The module on real contexts of the sample corpus: sums, causality, streams, what micro-models move, saving."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from lit_ctg.config import compose
from lit_ctg.core.causality_probe import probe
from lit_ctg.core.model import evaluating
from lit_ctg.errors import UserError
from lit_ctg.network.huggingface import HuggingFaceBackbone
from lit_ctg.papers.nslm.distribution import MODELS, distributions
from lit_ctg.papers.nslm.micro_model import Blend, MicroModel
from lit_ctg.papers.nslm.module import NSLMModule
from lit_ctg.papers.nslm.occurrence import Evidence
from lit_ctg.papers.nslm.stream import Stream
from lit_ctg.papers.nslm.token_scores import distance
from lit_ctg.run.build import build as experiment_of
from lit_ctg.run.build import build_datamodule, build_model

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
            log_probs = distributions(module, hidden, contexts, (model,))[model]
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
                module.token_scores(before | {"reset_B": torch.ones(size, dtype=torch.bool)}, characters=False)
                resumed = after | {"reset_B": torch.zeros(size, dtype=torch.bool)}
                scores = module.token_scores(resumed, characters=True)
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
        for name, log_probs in distributions(module, hidden, contexts).items():
            total = log_probs.double().exp().sum(2)
            torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0, msg=name)


def test_deviation_2_without_renormalisation_the_character_model_loses_mass(build: Any) -> None:
    module, datamodule = build("regime=as_published")
    batch = next(iter(datamodule.val_dataloader()))
    with torch.no_grad():
        hidden, contexts = module._run(batch, Stream())
        total = distributions(module, hidden, contexts, ("crnn",))["crnn"].exp().sum(2)
    assert float(total.max()) < 1.0


def test_changing_the_micro_model_moves_class_tokens_only(numbers: Any) -> None:
    module, datamodule = numbers
    batch = next(iter(datamodule.val_dataloader()))
    with torch.no_grad():
        hidden, contexts = module._run(batch, Stream())
        before = distributions(module, hidden, contexts, ("nslm_alone",))["nslm_alone"]
        kept = module.micro_models
        year = module.table.names.index("year")

        class Uniform:
            def log_prob(self, evidence: Evidence) -> np.ndarray:
                size = len(module.table.classes[year])
                return np.full((len(evidence), size), -np.log(size))

        module.micro_models = [*kept[:year], Uniform(), *kept[year + 1 :]]
        after = distributions(module, hidden, contexts, ("nslm_alone",))["nslm_alone"]
        module.micro_models = kept
    moved = (before != after).any(0).any(0).numpy()
    assert moved.any()
    assert set(np.flatnonzero(moved)) <= set(module.table.classes[year].ids_K)


def test_scores_of_targets_are_entries_of_the_distributions(numbers: Any) -> None:
    module, datamodule = numbers
    module.streams["evaluation"] = Stream()
    batch = next(iter(datamodule.val_dataloader()))
    with torch.no_grad():
        scores = module.token_scores(batch, characters=True)
        hidden, contexts = module._run(batch, Stream())
        full = distributions(module, hidden, contexts)
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
            found = distributions(module, hidden, contexts, ("nslm", other))
            assert torch.equal(found["nslm"], found[other])
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
        parts = [module.token_scores(batch, characters=False) for batch in batches[:3]]
        module.streams["evaluation"] = Stream()
        whole = module.token_scores(joined, characters=False)
        alone = module.token_scores(batches[2] | {"reset_B": torch.ones(4, dtype=torch.bool)}, characters=False)
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
        gradients.append([p.grad.clone() for p in module.parameters() if id(p) not in own and p.grad is not None])
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
    assert "characters" in history[-1] or "characters" in history[-2]
    other, _ = build("model.samples=64", "+model.character_every=2", "seed=3")
    other.load_state_dict(module.state_dict())
    with torch.no_grad(), evaluating(module):
        torch.testing.assert_close(other(batches[0]).scores_BTV, module(batches[0]).scores_BTV)


def test_classes_of_ones_own_go_before_the_others(build: Any, tmp_path: Path) -> None:
    path = tmp_path / "classes.yaml"
    # the example of docs/papers/nslm.md
    page = (Path(__file__).resolve().parents[3] / "docs" / "papers" / "nslm.md").read_text(encoding="utf-8")
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    (plain, _), (module, _) = build(), build(f"model.class_file={path}")
    assert module.table.names == ("ordinal", *plain.table.names)
    assert set(module.table.classes[0].tokens) <= {"first", "second", "third"} and len(module.table.classes[0])
    assert plain.table.classes[-1].unit is None and module.table.classes[-1].unit == "points"
    with pytest.raises(UserError, match="cannot read classes"):
        build(f"model.class_file={tmp_path / 'none.yaml'}")


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


def test_bad_input(build: Any) -> None:
    with pytest.raises(UserError, match="did you mean 'adamw'"):
        build("model.optimizer=adam")
    with pytest.raises(UserError, match=r"mixture_weight=2.0 is outside"):
        build("model.mixture_weight=2.0")
    options = inspect.signature(NSLMModule).parameters.items()
    required: dict[str, Any] = {name: None for name, option in options if option.default is option.empty}
    with pytest.raises(UserError, match=r"backbone=huggingface.*MicroModelRule"):
        pretrained = HuggingFaceBackbone.__new__(HuggingFaceBackbone)
        NSLMModule(**required | {"optimizer": "sgd", "backbone": pretrained})
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
