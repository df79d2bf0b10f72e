"""lit_ctg.papers.graphmax.model, .scene and .bayesian: the language model, its output layers and its graph."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lit_ctg.core.causality_probe import probe
from lit_ctg.data.byte_pair import TrainedBPETokenizer
from lit_ctg.data.reviews import ReviewsDataModule
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.data.wikipedia import WikipediaDataModule
from lit_ctg.errors import UserError
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.papers.graphmax import AlgorithmOne, CooccurrenceGraph, graphmax
from lit_ctg.papers.graphmax.graph import VOCABULARY, SceneGraph, token_ids, vocabulary_checksum
from lit_ctg.papers.graphmax.model import GraphmaxModule, KernelBayesianSoftmax

PUBLISHED = AlgorithmOne(step_size=1e-4, steps=20, threshold=1e-4, sort="descending", log_floor=1e-12)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def reviews(cache) -> ReviewsDataModule:
    """Reviews with a tokenizer of their own, which the scene graph must not use."""
    return ReviewsDataModule(
        corpus="yelp", val_fraction=0.1, test_fraction=0.1, hub={"yelp": {}}, source="sample", sample_size=1000,
        tokenizer=WordTokenizer(), batching="chunks", length=8, batch_size=2, seed=0, cache_root=cache,
    )  # fmt: skip


@pytest.fixture(scope="module")
def corpus(cache) -> WikipediaDataModule:
    return WikipediaDataModule(
        holdout=10, source="sample", tokenizer=TrainedBPETokenizer(size=300), batching="windows", steps_per_epoch=4,
        length=12, batch_size=4, seed=0, cache_root=cache, sample_size=3000,
    )  # fmt: skip


@pytest.fixture
def make(corpus, reviews):
    def build(**changes: Any) -> GraphmaxModule:
        torch.manual_seed(0)
        backbone = GPT2Backbone(dim=16, layers=1, heads=2, context=24, dropout=0.0)
        options = {"scene": SceneGraph(reviews), "published": PUBLISHED, "learning_rate": 1e-2, **changes}
        return GraphmaxModule(vocabulary=corpus.vocabulary, backbone=backbone, **options)

    return build


def batch_of(corpus: WikipediaDataModule) -> dict[str, torch.Tensor]:
    batch = corpus.batches("train")[0, 0]
    batch["mask_input_BT"][1, 8:] = batch["mask_target_BT"][1, 8:] = False
    return batch


def test_forward_is_the_output_layer_of_the_logits(make, corpus) -> None:
    batch = batch_of(corpus)
    real_BT = batch["mask_input_BT"]
    with torch.no_grad():
        plain = make()(batch)
        logits_NV = plain.scores_BTV[real_BT]
        assert torch.equal(plain.logits_BTV[real_BT], logits_NV)
        assert not plain.scores_BTV[~real_BT].any()
        for output in ("graphmax", "successor", "algorithm_one"):
            module = make(output=output, strength=0.5)
            scores_NV = module(batch).scores_BTV[real_BT]
            expected_NV = module.variants[output](logits_NV, batch["input_ids_BT"][real_BT], 0.5)
            np.testing.assert_allclose(scores_NV.exp(), expected_NV.exp(), atol=1e-5)
            np.testing.assert_allclose(scores_NV.exp().sum(-1), 1, atol=1e-4)
        zero = make(output="graphmax", strength=0.0)(batch).scores_BTV[real_BT]
    assert torch.equal(zero, logits_NV.log_softmax(-1))


def test_the_loss_is_that_of_its_output_layer(make, corpus, monkeypatch) -> None:
    batch = batch_of(corpus)
    counts, target_N = batch["mask_target_BT"], batch["target_ids_BT"][batch["mask_target_BT"]]
    module = make()
    logits_NV = module(batch).scores_BTV[counts].detach()
    assert module.losses(batch)["loss"].item() == pytest.approx(F.cross_entropy(logits_NV, target_N).item(), rel=1e-5)
    through = make(training_output="graphmax", training_positions=1000).losses(batch)
    expected = graphmax(logits_NV, module.graph).log_probs_BV
    assert through["loss"].item() == pytest.approx(F.nll_loss(expected, target_N).item(), rel=1e-3)
    assert 0 <= through["gap"] <= 1e-6 and through["certified"] == 1.0

    def poor(*given: Any, **settings: Any):
        found = graphmax(*given, **settings)
        return found._replace(converged_B=torch.arange(len(found.gap_B)) > 1)

    with monkeypatch.context() as patch, pytest.warns(RuntimeWarning, match="certified 6 of 8 rows"):
        patch.setattr("lit_ctg.papers.graphmax.model.graphmax", poor)
        losses = make(training_output="graphmax", training_positions=8).losses(batch)
    assert losses["certified"] == 0.75
    # sparsemax loss (Martins & Astudillo 2016, Eq. 23): -z_k + 1/2 sum over the support of (z^2 - tau^2) + 1/2
    z = logits_NV.double().numpy()
    total = 0.0
    for row, k in zip(z, target_N.tolist(), strict=True):
        descending = np.sort(row)[::-1]
        size = max(r for r in range(1, len(row) + 1) if 1 + r * descending[r - 1] > descending[:r].sum())
        tau = (descending[:size].sum() - 1) / size
        total += -row[k] + 0.5 * (descending[:size] ** 2 - tau**2).sum() + 0.5
    sparse = make(training_output="sparsemax").losses(batch)["loss"].item()
    assert sparse == pytest.approx(total / len(z), rel=1e-4)


def test_gradient_through_graphmax_reaches_every_weight(make, corpus) -> None:
    module = make(training_output="graphmax", training_positions=12)
    batch = batch_of(corpus)
    torch.manual_seed(1)
    module.losses(batch)["loss"].backward()
    weight = module.embedding.weight
    token = int(batch["target_ids_BT"][0, 0])
    analytic, step = weight.grad[token, 3].item(), 1e-2
    values = []
    for side in (1, -1):
        with torch.no_grad():
            weight[token, 3] += side * step
            torch.manual_seed(1)
            values.append(module.losses(batch)["loss"].item())
            weight[token, 3] -= side * step
    assert analytic == pytest.approx((values[0] - values[1]) / (2 * step), rel=0.05, abs=1e-3)
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_training_learns_and_fine_tuning_begins_at_its_share_of_the_steps(make, corpus, trainer_of) -> None:
    module = make()
    first = module.losses(batch_of(corpus))["loss"].item()
    trainer_of(max_epochs=6).fit(module, corpus)
    assert module.losses(batch_of(corpus))["loss"].item() < first - 0.3
    module, kinds = make(training_output="graphmax", fine_tuning=0.5, training_positions=4), []
    losses = module.losses
    module.losses = lambda batch: kinds.append("gap" in (found := losses(batch))) or found
    trainer_of(max_epochs=1).fit(module, corpus)
    assert kinds == [False, False, True, True]


def test_scores_are_causal_and_steps_are_the_forward_pass(make, corpus) -> None:
    batch = batch_of(corpus)
    for output in ("softmax", "graphmax", "successor"):
        assert probe(make(output=output).eval(), batch, trials=2).is_causal, output
    for kind in ("softmax", "bayesian"):
        module = make(training_output=kind).eval()
        with torch.no_grad():
            whole_BTV, state = module(batch).scores_BTV, module.start(4)
            for position in range(8):
                scores_BV, state = module.step(batch["input_ids_BT"][:, position : position + 1], state)
                np.testing.assert_allclose(scores_BV, whole_BTV[:, position], atol=1e-5)


def test_scene_graph_counts_in_the_models_vocabulary(make, corpus, reviews, tmp_path) -> None:
    module = make()
    texts = [document.text for document in reviews.documents("train")]
    expected = CooccurrenceGraph.from_token_ids(map(corpus.vocabulary.encode, texts), len(corpus.vocabulary))
    assert (module.graph.matrix != expected.matrix).nnz == 0
    assert module.graph is module.scene.graph(corpus.vocabulary)
    assert module.graph.information["corpus"] == "reviews"
    assert [ids.tolist() for ids in token_ids(reviews, "train", corpus.vocabulary)] == [
        corpus.vocabulary.encode(text) for text in texts
    ]
    module.graph.save(tmp_path / "g.safetensors")
    read = SceneGraph(path=tmp_path / "g.safetensors").graph(corpus.vocabulary)
    assert (read.matrix != expected.matrix).nnz == 0 and read.information == module.graph.information
    other = WordTokenizer()
    other.train(["a b c"])
    assert vocabulary_checksum(other.tokens) != read.information[VOCABULARY]
    with pytest.raises(UserError, match="has vocabulary="):
        SceneGraph(path=tmp_path / "g.safetensors").graph(other)


def test_bad_input(make) -> None:
    for fails, message in (
        (lambda: make(output="graphmx"), "did you mean 'graphmax'"),
        (lambda: make(scene=None, output="graphmax"), "model.scene"),
        (lambda: make(published=None, output="algorithm_one"), "model.published"),
        (lambda: make(scene=None).graph, "model.scene"),
        (SceneGraph, "needs a corpus"),
    ):
        with pytest.raises(UserError, match=message):
            fails()


def test_bayesian_softmax_is_its_formula_and_softmax_in_the_limit() -> None:
    torch.manual_seed(0)
    layer = KernelBayesianSoftmax(7, 5, senses=3, theta=0.7, std=1.0).double()
    with torch.no_grad():
        layer.log_theta_MV.add_(torch.randn(3, 7))
    hidden = torch.randn(4, 5, dtype=torch.float64)
    weight = np.zeros((4, 7))
    for n in range(4):
        for word in range(7):
            for m in range(3):
                h, e = hidden[n].numpy(), layer.sense_MVD[m, word].detach().numpy()
                theta = math.exp(layer.log_theta_MV[m, word].item())
                a = -theta / (2 * (math.exp(-theta) + theta - 1))
                cosine = h @ e / np.linalg.norm(h) / np.linalg.norm(e)
                kernel = np.linalg.norm(h) * np.linalg.norm(e) * (a * math.exp(-theta * cosine) - a)
                weight[n, word] += math.exp(kernel)
    np.testing.assert_allclose(layer(hidden).exp().detach(), weight / weight.sum(1, keepdims=True), rtol=1e-9)
    plain = KernelBayesianSoftmax(7, 5, senses=1, theta=1e-5, std=1.0)
    given = plain(hidden.float()).exp()
    np.testing.assert_allclose(given.detach(), (hidden.float() @ plain.sense_MVD[0].T).softmax(-1).detach(), atol=1e-4)
