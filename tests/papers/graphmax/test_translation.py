"""lit_ctg.papers.graphmax.translation: training, decoding with graphmax in an encoder-decoder, beams too."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lit_ctg.core.causality_probe import probe
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import CooccurrenceGraph, VariantRule
from lit_ctg.papers.graphmax.translation import GraphmaxTranslationModule
from lit_ctg.papers.graphmax.translation_corpus import TranslationDataModule

SPECIALS = ("<unk>", "<pad>", "<bos>", "<eos>")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> TranslationDataModule:
    return TranslationDataModule(
        source="sample", tokenizer=WordTokenizer(eol=None, specials=SPECIALS), source_language="es",
        target_language="en", val_fraction=0.1, test_fraction=0.1, length=24, batch_size=16, seed=0, shuffle=True,
        cache_root=tmp_path_factory.mktemp("cache"), sample_size=3000,
    )  # fmt: skip


def make(corpus: TranslationDataModule, **changes: Any) -> GraphmaxTranslationModule:
    torch.manual_seed(0)
    shape = {"dim": 32, "layers": 1, "heads": 2, "feedforward_dim": 64, "dropout": 0.0, "max_length": 24}
    return GraphmaxTranslationModule(vocabulary=corpus.vocabulary, **{**shape, "learning_rate": 5e-3, **changes})


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory) -> GraphmaxTranslationModule:
    module = make(corpus)
    lightning.Trainer(
        max_epochs=8, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path_factory.mktemp("run"), num_sanity_val_steps=0, enable_checkpointing=False,
    ).fit(module, corpus)  # fmt: skip
    return module


@pytest.mark.long
def test_it_learns_and_its_graph_is_the_target_language(trained, corpus, tmp_path: Path) -> None:
    batch = corpus.train_dataloader().dataset[0, 0]
    before, after = make(corpus).losses(batch), trained.losses(batch)
    assert after["nll"] < before["nll"] - 1.0
    packed = corpus.prepare()
    targets = [packed.document("train.target", n) for n in range(packed.meta["splits"]["train.target"]["documents"])]
    expected = CooccurrenceGraph.from_token_ids(targets, len(corpus.vocabulary))
    assert (trained.graph.matrix != expected.matrix).nnz == 0
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    again = make(corpus)
    again.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    trained.eval(), again.eval()
    assert torch.equal(again(batch).scores_BTV, trained(batch).scores_BTV)


def test_the_network_and_its_training_are_as_asked(corpus) -> None:
    module = make(corpus, layers=2, dim=16, heads=4, feedforward_dim=24, dropout=0.3, max_length=20,
                  weight_decay=0.25, warmup_fraction=0.2)  # fmt: skip
    config = module.network.config
    for side in ("encoder", "decoder"):
        sizes = (getattr(config, f"{side}_{name}") for name in ("layers", "attention_heads", "ffn_dim"))
        assert tuple(sizes) == (2, 4, 24)
    assert (config.d_model, config.dropout, config.attention_dropout, config.scale_embedding) == (16, 0.3, 0.3, True)
    assert module.positions == 20 and module.label_smoothing == 0.1
    module.trainer = SimpleNamespace(estimated_stepping_batches=10)
    made = module.configure_optimizers()
    groups = made["optimizer"].param_groups
    assert {(group["weight_decay"], one.ndim > 1) for group in groups for one in group["params"]} == {
        (0.25, True), (0.0, False)}  # fmt: skip
    assert made["lr_scheduler"]["scheduler"].get_last_lr() == [0.0025] * 2, "the first of two steps of warm-up"
    bare = WordTokenizer(specials=["<unk>"])
    bare.train(["a b"])
    with pytest.raises(UserError, match="<pad>, <bos> and <eos>"):
        GraphmaxTranslationModule(vocabulary=bare, learning_rate=1e-3)


def test_scores_padding_and_causality(trained, corpus) -> None:
    trained.eval()
    batch = corpus.train_dataloader().dataset[0, 0]
    with torch.no_grad():
        scores_BTV = trained(batch).scores_BTV
        assert not scores_BTV[~batch["mask_input_BT"]].any()
        hidden_BTD = trained(batch).hidden_BTD
        assert not hidden_BTD[~batch["mask_input_BT"]].any()
        scored_BTV = trained.network.lm_head(hidden_BTD) + trained.network.final_logits_bias
        np.testing.assert_allclose(scored_BTV * batch["mask_input_BT"][..., None], scores_BTV, atol=1e-5)
        row = {key: value[:1] for key, value in batch.items()}
        real = int(row["mask_source_BS"].sum())
        row |= {key: row[key][:, :real] for key in ("source_ids_BS", "mask_source_BS")}
        np.testing.assert_allclose(trained(row).scores_BTV, scores_BTV[:1], atol=1e-4)
    assert probe(trained, row, trials=2).is_causal
    loss = F.cross_entropy(
        trained(batch).scores_BTV[batch["mask_target_BT"]],
        batch["target_ids_BT"][batch["mask_target_BT"]],
        label_smoothing=0.1,
    )
    assert trained.losses(batch)["loss"].item() == pytest.approx(loss.item(), rel=1e-5)


def test_greedy_translation_restated(trained, corpus) -> None:
    """Without rule, with graphmax of strength 0 and with graphmax: step by step from the forward pass."""
    batch = corpus.train_dataloader().dataset[0, 0]
    source, mask = batch["source_ids_BS"][:3], batch["mask_source_BS"][:3]
    vocabulary = corpus.vocabulary
    rule = VariantRule(trained.variants["graphmax"], 2.0)
    for given in (None, VariantRule(trained.variants["graphmax"], 0.0), rule):
        found = trained.translate(source, mask, given, max_new_tokens=10)
        for b, row in enumerate(found):
            ids = [vocabulary.bos_id]
            while len(ids) <= 10:
                ids_1T = torch.tensor([ids])
                one = {"source_ids_BS": source[b : b + 1], "mask_source_BS": mask[b : b + 1], "input_ids_BT": ids_1T,
                       "mask_input_BT": torch.ones_like(ids_1T, dtype=torch.bool)}  # fmt: skip
                with torch.no_grad():
                    scores = trained.eval()(one).scores_BTV[:, -1]
                ids.append(int((scores if given is None else given(ids_1T, scores)).argmax()))
                if ids[-1] == vocabulary.eos_id:
                    break
            assert row == [i for i in ids if i not in (vocabulary.bos_id, vocabulary.eos_id)]


def test_rules_work_in_beam_search(trained, corpus) -> None:
    batch = corpus.train_dataloader().dataset[0, 0]
    source, mask = batch["source_ids_BS"][:4], batch["mask_source_BS"][:4]
    plain = trained.translate(source, mask, beams=3, max_new_tokens=8)
    start = torch.tensor([[corpus.vocabulary.bos_id]]).expand(4, -1)
    own = {"attention_mask": mask.long(), "decoder_input_ids": start, "num_beams": 3, "max_new_tokens": 8}
    theirs = trained.eval().network.generate(source, **own, do_sample=False).tolist()
    assert plain == [[number for number in row if number not in trained.silent] for row in theirs]
    assert plain != trained.translate(source, mask, max_new_tokens=8), "more than greedy"
    none = VariantRule(trained.variants["graphmax"], 0.0)
    assert plain == trained.translate(source, mask, none, beams=3, max_new_tokens=8)
    strong = VariantRule(trained.variants["successor_divergence"], 1e5)
    bigrams = trained.graph.matrix.toarray() > 0
    for row in trained.translate(source, mask, strong, beams=3, max_new_tokens=8):
        # the decoder's prefix is what the rule sees: every pair is one of the target language
        assert all(bigrams[a, b] for a, b in itertools.pairwise(row) if bigrams[a].any())
