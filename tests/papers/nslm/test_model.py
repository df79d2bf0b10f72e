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
from torch import Tensor, nn

from lit_ctg.config import compose
from lit_ctg.core.causality_probe import probe
from lit_ctg.core.checkpoint import FORMAT, KEY
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
    _host,
    clip_by_norm,
    grounded_dimensions,
    likeliest_weight,
    mix,
    parameters_apart,
    read_vectors,
    scale_to_norm,
    sgd_with_decay,
    with_cache,
)
from lit_ctg.papers.nslm.occurrences import ContextTracker, Evidence
from lit_ctg.papers.nslm.selection import REFERENCES
from lit_ctg.results.record import load_records
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


@pytest.fixture(scope="module")
def places(build: Any) -> tuple[NSLMModule, Any]:
    return build("data.sample_size=6000", experiment="places")


@pytest.fixture(scope="module")
def first(numbers: Any) -> tuple[NSLMModule, Any, Tensor, Any]:
    """The module, a batch of validation text, its hidden states and contexts."""
    module, datamodule = numbers
    batch = next(iter(datamodule.val_dataloader()))
    with torch.no_grad():
        return module, batch, *module._run(batch, Stream())


def assert_distributions(log_probs: Tensor) -> None:
    total = log_probs.double().exp().sum(2)
    torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0)


def rows_with_class_tokens(module: NSLMModule, datamodule: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the rows of validation batches that have a class token at place 8 to 18, [1, T]."""
    for batch in datamodule.val_dataloader():
        for row, ids in enumerate(batch["input_ids_BT"]):
            if module.table.any_class_V[ids[8:19].numpy()].any():
                yield {name: batch[name][row : row + 1] for name in batch if name.endswith("_BT")}


@pytest.mark.parametrize("corpus", ["numbers", "places"])
def test_every_model_sums_to_one_on_real_contexts(request: pytest.FixtureRequest, corpus: str) -> None:
    """As a distribution, and as it is scored: a text in as many streams as there are words, each with another end."""
    module, datamodule = request.getfixturevalue(corpus)
    size, expected = len(module.vocabulary), {f"{n}{c}" for n in (*MODELS, "summed") for c in ("", "_cache")}
    with torch.no_grad():
        for batch in list(datamodule.val_dataloader())[:3]:
            for log_probs in module.log_probs(*module._run(batch, Stream())).values():
                assert_distributions(log_probs)
        for row in itertools.islice(rows_with_class_tokens(module, datamodule), 2):
            text = {name: value[:, :20].expand(size, -1) for name, value in row.items()}
            before = {name: value[:, :16] for name, value in text.items()}
            after = {name: value[:, 16:].clone() for name, value in text.items()}
            after["target_ids_BT"][:, -1] = torch.arange(size)
            module.streams["evaluation"] = Stream()
            module.score(before | {"reset_B": torch.ones(size, dtype=torch.bool)}, characters=False)
            scores = module.score(after | {"reset_B": torch.zeros(size, dtype=torch.bool)}, characters=True)
            models = scores.models(float(module.mixture_weight))
            models |= scores.cached(models, module.cache.weight)
            assert models.keys() == expected
            for name, log_prob_N in models.items():
                assert np.exp(log_prob_N.reshape(size, -1)[:, -1]).sum() == pytest.approx(1, abs=1e-5), name


def test_deviation_2_without_renormalisation_the_character_model_loses_mass(build: Any) -> None:
    module, datamodule = build("regime=as_published")
    with torch.no_grad():
        hidden, contexts = module._run(next(iter(datamodule.val_dataloader())), Stream())
        total = module.log_probs(hidden, contexts, ("crnn",))["crnn"].exp().sum(2)
    assert float(total.max()) < 1.0


def test_changing_the_micro_model_moves_class_tokens_only(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, hidden, contexts = first
    year = module.table.names.index("year")
    size, models = len(module.table.classes[year]), module.micro_models
    uniform = SimpleNamespace(log_prob=lambda evidence: np.full((len(evidence), size), -np.log(size)))
    found = []
    for model in (models[year], uniform):
        monkeypatch.setattr(module, "micro_models", [*models[:year], model, *models[year + 1 :]])
        with torch.no_grad():
            found.append(module.log_probs(hidden, contexts, ("nslm_alone",))["nslm_alone"])
    moved = (found[0] != found[1]).any(0).any(0).numpy()
    assert moved.any() and set(np.flatnonzero(moved)) <= set(module.table.classes[year].ids_K)


def test_scores_of_targets_are_entries_of_the_distributions(first: Any) -> None:
    module, batch, hidden, contexts = first
    module.streams["evaluation"], mask = Stream(), batch["mask_target_BT"]
    with torch.no_grad():
        scores, full = module.score(batch, characters=True), module.log_probs(hidden, contexts)
        alone = module({name: value[1:2] for name, value in batch.items()}).scores_BTV
    found = scores.models(float(module.mixture_weight))
    assert (scores.class_N >= 0).any()
    for name in MODELS:
        expected = full[name][mask].gather(1, batch["target_ids_BT"][mask].unsqueeze(1)).squeeze(1)
        np.testing.assert_allclose(found[name], expected.numpy(), atol=2e-4)
    # a row is the same alone and in a batch
    torch.testing.assert_close(full["nslm"][1:2], alone, atol=1e-5, rtol=1e-4)


def test_limits_of_the_mixture(first: Any) -> None:
    module, _, hidden, contexts = first
    tuned = module.mixture_weight.clone()
    with torch.no_grad():
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
    batches = list(datamodule.val_dataloader())[:3]
    joined = {name: torch.cat([batch[name] for batch in batches], 1) for name in batches[0] if name.endswith("_BT")}
    afresh = batches[2] | {"reset_B": torch.ones(4, dtype=torch.bool)}
    found = []
    with torch.no_grad():
        for parts in (batches, [joined | {"reset_B": batches[0]["reset_B"]}], [afresh]):
            module.streams["evaluation"] = Stream()
            found.append([module.score(batch, characters=False) for batch in parts])
    split, (whole,), (alone,) = found
    length = batches[0]["input_ids_BT"].shape[1]
    for name in ("nnlm_N", "micro_N", "cache_N"):
        expected = np.split(getattr(whole, name).reshape(4, -1), [length, 2 * length], 1)
        for part, columns in zip(split, expected, strict=True):
            np.testing.assert_allclose(getattr(part, name), columns.reshape(-1), atol=1e-4)
        assert not np.array_equal(np.nan_to_num(getattr(alone, name)), np.nan_to_num(expected[2].reshape(-1)))


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
    # every number is in a class everywhere; summed over time, mean over streams
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
    for module.character_rate in (0.0, 1000.0):
        module.on_train_epoch_start()
        module.zero_grad()
        torch.manual_seed(0)
        module.losses(batch)["loss"].backward()
        own = {id(parameter) for parameter in module.characters.parameters()}
        rest = [p.grad for p in module.parameters() if id(p) not in own and p.grad is not None]
        gradients.append([grad.clone().to_dense() for grad in rest])
    module.configure_gradient_clipping(None, 1e-3)
    parts = [[p.grad for p in network.parameters() if p.grad is not None] for network in module.characters]
    norms = [float(torch.stack([grad.norm() for grad in grads]).norm()) for grads in parts if grads]
    assert norms and norms == pytest.approx([1e-3] * len(norms), rel=1e-3)
    # the language model learns nothing from the characters
    for with_characters, without in zip(*gradients, strict=True):
        assert torch.equal(with_characters, without)


def test_grounded_dimensions_are_not_trained(build: Any) -> None:
    module, _ = build("data.chunk_places=true", experiment="places_grounded")
    ids = torch.from_numpy(module.table.classes[0].ids_K[:1])
    assert module.embed(ids)[0, -2:].abs().max() > 0
    assert module.embedding.embedding_dim == module.backbone.dim - 2
    assert "grounded_VG" not in dict(module.named_parameters())


@pytest.mark.long
def test_user_classes_take_precedence(build: Any, tmp_path: Path) -> None:
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
def test_bad_input(build: Any) -> None:
    for words in ("model.optimizer=adam", "model.mixture_weight=2.0", "model.cache.window=0"):
        with pytest.raises(UserError, match=words):
            build(words)
    options = inspect.signature(NSLMModule).parameters.items()
    required: dict[str, Any] = {name: None for name, option in options if option.default is option.empty}
    with pytest.raises(UserError, match="backbone=huggingface"):
        pretrained = HuggingFaceBackbone.__new__(HuggingFaceBackbone)
        unchecked = inspect.unwrap(NSLMModule.__init__)
        unchecked(NSLMModule.__new__(NSLMModule), **required | {"backbone": pretrained})
    module, datamodule = build("data.documents=false")
    with pytest.raises(UserError, match=r"data\.documents=true"):
        module(next(iter(datamodule.val_dataloader())))


RNG = np.random.default_rng(0)


def test_mix_is_the_logarithm_of_the_mixture() -> None:
    a, b = np.log(RNG.dirichlet(np.ones(6), 20)), np.log(RNG.dirichlet(np.ones(6), 20))
    for weight in (0.0, 0.3, 1.0):
        expected = (1 - weight) * np.exp(a) + weight * np.exp(b)
        np.testing.assert_allclose(np.exp(mix(a, b, weight)), expected, rtol=1e-12)
        np.testing.assert_allclose(np.exp(mix(a, b, weight)).sum(1), 1.0, rtol=1e-12)
    # exact at the ends, even where the other is -inf
    a, b = np.array([-1.0, -2.0]), np.array([-np.inf, -3.0])
    np.testing.assert_array_equal(mix(a, b, 0.0), a)
    np.testing.assert_array_equal(mix(a, b, 1.0), b)
    np.testing.assert_allclose(mix(a, b, 0.5)[0], -1.0 + np.log(0.5))


def test_tune_finds_the_weight_that_made_the_text() -> None:
    a, b = np.array([0.9, 0.05, 0.05]), np.array([0.1, 0.1, 0.8])
    words = RNG.choice(3, size=200_000, p=0.65 * a + 0.35 * b)
    assert likeliest_weight(np.log(a)[words], np.log(b)[words]) == pytest.approx(0.35, abs=0.01)
    better, worse = np.full(50, -1.0), np.full(50, -2.0)
    assert (likeliest_weight(better, worse), likeliest_weight(worse, better)) == (0.0, 1.0)


def test_an_empty_cache_gets_no_weight() -> None:
    model, cache = np.log([0.5, 0.5, 0.5]), np.array([np.nan, np.log(0.1), -np.inf])
    np.testing.assert_allclose(np.exp(with_cache(model, cache, 0.25)), [0.5, 0.4, 0.375])


TOKENS = ("<eos>", "in", "1990", "1991", "1995")
NAMED = {"metrics": ["frequency"], "densities": ["unigram"]}
INPUT = [0, 1, 2, 1, 4, 1]
TARGET = [1, 2, 1, 4, 1, 2]
# the last year is in another document; the first target is not counted
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
    np.testing.assert_allclose(np.exp(scores.reference_NR[0]), [0.3, 0.4, 0.5, 0.6, 0.7])
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


def test_members_without_numbers_have_no_distance(module: Any, scores: TokenScores) -> None:
    names = ListRecogniser(name="year", members=dict.fromkeys(("1990", "1991", "1995"), ()), **NAMED)
    module.table = class_table(TOKENS, [names])
    assert module.table.classes[0].attributes_KD.shape == (3, 0)
    found = scored(module)
    assert np.isnan(found.error_NG).all()
    np.testing.assert_array_equal(found.micro_N, scores.micro_N)


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


def test_grounded_dimensions_grow_with_the_number_or_are_coordinates() -> None:
    table = class_table(GROUNDING_TOKENS, [PatternRecogniser(name="n", pattern=r"[\d,]+", **NAMED)])
    grounded = grounded_dimensions(table, len(GROUNDING_TOKENS))
    assert grounded.shape == (6, 1)
    assert grounded[:4].abs().max() == 0
    assert float(grounded[5]) == 1.0
    assert float(grounded[4]) == pytest.approx(np.log(11) / np.log(1001))
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
    for text, message in (
        ("the 1 2\n", "line 1: 2 numbers"),
        ("the 1 2 3 4\n", "line 1: 4 numbers"),
        ("the 1 x 3\n", "line 1: could not convert"),
        ("other 1 2 3\n", "no word of the vocabulary"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=message):
            read_vectors(path, GROUNDING_TOKENS, 3)
    with pytest.raises(UserError, match="No such file"):
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
    scaled = [parameter.grad.clone() for parameter in theirs if parameter.grad is not None]
    clip_by_norm(ours, largest)
    scale_to_norm(scaled, largest)
    nn.utils.clip_grad_norm_(theirs, largest)
    for a, b, c in zip(ours, theirs, scaled, strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(c, b.grad)
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
    module: Any = build_model(cfg, build_datamodule(cfg))
    mine, theirs = module.state_dict(), trained.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs if name != "mixture_weight")
    assert float(mine["mixture_weight"]) == 0.5 and list(module.choice.bases) == ["uniform"]
    again = build_model(cfg, build_datamodule(cfg))
    assert given_weights(module) == given_weights(again) != {}

    cfg = compose([*words, "backbone.layers=1"])
    with pytest.raises(UserError, match=r"model\.start_from=.* has other networks \(backbone\.lstm\.\w+_l1\): give"):
        build_model(cfg, build_datamodule(cfg))
    save(trained, path, {**data.fingerprint(), "vocabulary": "0" * 64})
    cfg = compose(words)
    datamodule: Any = build_datamodule(cfg)
    module = build_model(cfg, datamodule)
    module._trainer = SimpleNamespace(datamodule=datamodule)
    with pytest.raises(UserError, match=r"model\.start_from=.*last\.ckpt has other words"):
        module.setup("fit")


@pytest.mark.long
def test_one_training_serves_both_regimes(run_cli: Any, tmp_path: Path) -> None:
    """as_published on the networks of a corrected run has the numbers of a separate training."""
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


def test_what_was_kept_before_a_batch_was_moved_is_read() -> None:
    """The kept part differs on purpose: it shows which one is read."""
    moved, kept = torch.tensor([[1, 2]]), np.array([[3, 4]])
    assert _host({"input_ids_BT": moved}, "input_ids_BT").tolist() == [[1, 2]]
    assert _host({"input_ids_BT": moved, HOST + "input_ids_BT": kept}, "input_ids_BT").tolist() == [[3, 4]]
