"""lit_ctg.papers.graphmax.translation: training, decoding with graphmax in an encoder-decoder, beams too."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch.nn import functional as F
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from lit_ctg.config import compose
from lit_ctg.core.causality_probe import probe
from lit_ctg.core.model import LMOutput
from lit_ctg.data.document import Document
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import CooccurrenceGraph, VariantRule, variants
from lit_ctg.papers.graphmax.translation import (
    GraphmaxTranslation,
    GraphmaxTranslationModule,
    PretrainedTranslationModule,
    _first,
    per_token,
)
from lit_ctg.papers.graphmax.translation_corpus import TranslationDataModule
from lit_ctg.run.build import build_datamodule, build_model
from lit_ctg.run.train import train
from lit_ctg.statistics import paired_t_interval, t_quantile

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


# --- lit_ctg.papers.graphmax.translation: references, alignment, the rule in the decoder, and the likelihood --------


PAIRS = (
    ("una casa muy grande aqui", "a Very big house here"),
    ("el perro come la carne", "the dog eats the meat"),
    ("la mesa es de madera", "the table is of wood"),
)


class Batches(list):
    """As ``PairBatches``: asked for by epoch and number, and all there, also where processes share a loader."""

    def __getitem__(self, key):
        epoch, index = key
        assert epoch == 0
        return super().__getitem__(index)


class Corpus:
    """Two batches of two pairs and one."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def pairs(self, split):
        assert split == "val"
        return iter(Document(source + "\n", "es", {"target": target + "\n"}) for source, target in PAIRS)

    def pair_batches(self, split, shuffle):
        assert (split, shuffle) == ("val", False)
        return Batches(self.batches())

    def batches(self):
        for numbers in ([0, 1], [2]):
            ids = torch.tensor([[number] for number in numbers])
            here = torch.ones_like(ids, dtype=torch.bool)
            yield {"source_ids_BS": ids, "mask_source_BS": here, "input_ids_BT": ids, "target_ids_BT": ids,
                   "mask_input_BT": here, "mask_target_BT": here}  # fmt: skip


class Oracle(lightning.LightningModule):
    """Knows every translation, but through a rule it translates with the first one only."""

    def __init__(self, targets):
        super().__init__()
        self.targets, self.rules, self.asked = targets, [], []
        self.variants = variants(CooccurrenceGraph.from_token_ids([[0, 1]], 4))

    def translate(self, source_ids_BS, mask_source_BS, rule=None, *, beams, max_new_tokens):
        self.rules.append(rule)
        self.asked.append((beams, max_new_tokens))
        return [self.targets[0 if rule else number] for number in source_ids_BS[:, 0].tolist()]

    def decoder_ids(self, input_ids_BT):
        return input_ids_BT

    def forward(self, batch):
        scores = torch.zeros(*batch["input_ids_BT"].shape, 4)
        return LMOutput(scores, scores)


@pytest.fixture
def setting(vocabulary):
    words = type(vocabulary)(lower=True, eol=None)
    words.train(target for _, target in PAIRS)
    return Oracle([words.encode(target) for _, target in PAIRS]), Corpus(words)


def trial(**changes) -> GraphmaxTranslation:
    methods = {"softmax": {"variant": "softmax"}, "graphmax": {"variant": "graphmax", "strength": 1.0},
               "none": {"variant": None}}  # fmt: skip
    settings = {"methods": methods, "sentences": None, "beams": 1, "max_new_tokens": 9, "lower": True, "resamples": 50}
    return GraphmaxTranslation(**{**settings, **changes})


def test_each_translation_meets_its_own_reference(setting):
    module, corpus = setting
    found = trial()
    found.run(module, corpus)
    names = {f"{what}/{method}" for what in ("bleu", "nll", "zero") for method in ("softmax", "graphmax")}
    assert set(found.results) == {*names, "nll/graphmax_change"}
    right, wrong = found.results["bleu/softmax"], found.results["bleu/graphmax"]
    assert right["value"] == pytest.approx(1.0) and right["n"] == 3
    assert wrong["value"] < 0.7
    low, high = wrong["ci95"]
    assert 0 <= low <= high <= 1
    assert [type(rule) for rule in module.rules] == [type(None)] * 2 + [VariantRule] * 2
    assert found.samples[0] == {"method": "softmax", "prompt": PAIRS[0][0], "text": PAIRS[0][1].lower()}


def test_translations_are_as_asked_and_samples_are_of_the_last_run(setting):
    module, corpus = setting
    methods = {"softmax": {"variant": "softmax"}, "graphmax": {"variant": "graphmax"}}
    found = trial(methods=methods, beams=4, max_new_tokens=7, samples_kept=2, resamples=1)
    for _ in range(2):
        found.run(module, corpus)
    assert set(module.asked) == {(4, 7)} and module.rules[-1].strength == 1.0
    assert [(one["method"], one["prompt"]) for one in found.samples] == [
        (name, PAIRS[number][0]) for name in methods for number in (0, 1)
    ]
    assert found.results["bleu/graphmax"]["ci95"] is None, "of one resample"
    assert (found.results["zero/softmax"]["unit"], found.results["bleu/softmax"]["unit"]) == ("rate", "BLEU, 0 to 1")
    # case counts where the tokenizer keeps it; only so many sentences
    cased, one = trial(lower=False), trial(sentences=1)
    for made in (cased, one):
        made.run(module, corpus)
    assert cased.results["bleu/softmax"]["value"] < 1.0
    assert (one.results["bleu/graphmax"]["n"], one.results["bleu/graphmax"]["value"]) == (1, pytest.approx(1.0))


def test_it_runs_in_validate_only_and_on_translation_models_only(setting, module):
    found = trial()
    trainer = SimpleNamespace(state=SimpleNamespace(fn="fit"), datamodule=setting[1])
    found.on_validation_end(trainer, setting[0])
    trainer.state.fn = "test"
    found.on_validation_end(trainer, setting[0])
    assert not found.results
    trainer.state.fn = "validate"
    found.on_validation_end(trainer, setting[0])
    assert found.results
    # before any training
    found.setup(trainer, setting[0], "fit")
    with pytest.raises(UserError, match="model=graphmax/translation"):
        found.setup(trainer, module, "fit")
    for methods in ({"none": {"variant": None}}, {"graphmax": {"variant": "graphmax"}}):
        with pytest.raises(UserError, match=r"^callback\.graphmax_translation\.methods[^\n]*$"):
            trial(methods=methods)


WORDS = WordTokenizer(lower=True, eol=None, specials=("<unk>", "<pad>", "<bos>", "<eos>"))
WORDS.train([*(source for source, _ in PAIRS), *(target for _, target in PAIRS[1:])])  # "a", "very" ... are unknown


class Pairs:
    """The pairs in batches of any size and in any order."""

    vocabulary = WORDS

    def __init__(self, size=2, order=(0, 1, 2)):
        self.size, self.order = size, order

    def pairs(self, split):
        return iter(Document(PAIRS[n][0], "es", {"target": PAIRS[n][1]}) for n in self.order)

    def pair_batches(self, split, shuffle):
        return Batches(self.batches())

    def batches(self):
        for start in range(0, len(self.order), self.size):
            chosen = [PAIRS[n] for n in self.order[start : start + self.size]]
            source, target = ([WORDS.encode(pair[side]) for pair in chosen] for side in (0, 1))
            yield {
                **pad("source_ids_BS", "mask_source_BS", [[*ids, WORDS.eos_id] for ids in source]),
                **pad("input_ids_BT", "mask_input_BT", [[WORDS.bos_id, *ids] for ids in target]),
                **pad("target_ids_BT", "mask_target_BT", [[*ids, WORDS.eos_id] for ids in target]),
            }


def pad(name, mask, rows):
    ids = torch.full((len(rows), max(map(len, rows))), WORDS.pad_id)
    for row, numbers in enumerate(rows):
        ids[row, : len(numbers)] = torch.tensor(numbers)
    length_B = torch.tensor([len(row) for row in rows])
    return {name: ids, mask: torch.arange(ids.shape[1]) < length_B[:, None]}


@pytest.fixture(scope="module")
def translator() -> GraphmaxTranslationModule:
    """Random weights with opinions: sparsemax drops words, and the scores depend on the prefix."""
    torch.manual_seed(3)
    module = GraphmaxTranslationModule(
        vocabulary=WORDS, dim=16, layers=1, heads=2, feedforward_dim=32, dropout=0.1, max_length=16, learning_rate=1e-3
    )
    with torch.no_grad():
        module.network.get_output_embeddings().weight.normal_()
    module.__dict__["graph"] = CooccurrenceGraph.from_token_ids(
        [WORDS.encode(target) for _, target in PAIRS], module.rows
    )
    return module


def likelihood(module, corpus, methods, **changes):
    found = trial(methods={"softmax": {"variant": "softmax"}, **methods}, max_new_tokens=1, resamples=1, **changes)
    found.run(module, corpus)
    return found.results


def scores_of(module, pair, ids):
    """Scores of the next token after some target ids, of one sentence alone."""
    source = torch.tensor([[*WORDS.encode(PAIRS[pair][0]), WORDS.eos_id]])
    ids_1T = torch.tensor([[WORDS.bos_id, *ids]])
    batch = {
        "source_ids_BS": source,
        "mask_source_BS": source >= 0,
        "input_ids_BT": ids_1T,
        "mask_input_BT": ids_1T >= 0,
    }
    with torch.no_grad():
        return module.eval()(batch).scores_BTV[0, -1]


def slow_nll(module, pair, variant=None, strength=1.0):
    """NLL of a reference's tokens, one place at a time."""
    target, found = [*WORDS.encode(PAIRS[pair][1]), WORDS.eos_id], []
    for place, wanted in enumerate(target):
        scores_V = scores_of(module, pair, target[:place])
        last = target[place - 1] if place else module.decoder_start[-1]
        if variant is not None:
            scores_V = module.variants[variant](scores_V[None], torch.tensor([last]), strength)[0]
        found.append(-scores_V.double().log_softmax(0)[wanted].item())
    return found


def test_nll_of_softmax_is_the_models_own_cross_entropy(translator):
    translator.train()
    found = likelihood(translator, Pairs(), {}, sentences=2)["nll/softmax"]
    assert translator.training
    (batch,) = Pairs(order=(0, 1)).batches()
    assert WORDS.unknown_id in batch["target_ids_BT"][0]
    counted_BT = batch["mask_target_BT"]
    with torch.no_grad():
        scores_NV = translator.eval()(batch).scores_BTV[counted_BT].double()
        own = translator.losses(batch)["nll"].item()
    expected = F.cross_entropy(scores_NV, batch["target_ids_BT"][counted_BT]).item()
    assert found["value"] == pytest.approx(expected, rel=1e-12) and found["value"] == pytest.approx(own, rel=1e-6)
    assert (found["n"], found["unit"], found["direction"]) == (int(counted_BT.sum()), "nats", "lower")
    assert found["n"] == 12 and "nll/softmax_change" not in found


def test_a_translation_ends_where_the_decoders_positions_do(translator, monkeypatch):
    """Asked for more than the network has positions; <eos> never comes."""
    (batch,) = Pairs(order=(0, 1)).batches()

    class Never(ScoreRule):
        def __call__(self, input_ids, scores):
            return scores.index_fill(1, torch.tensor(sorted(translator.silent)), -math.inf)

    given = batch["source_ids_BS"], batch["mask_source_BS"], Never()
    assert [len(row) for row in translator.translate(*given, max_new_tokens=99)] == [15, 15]
    assert [len(row) for row in translator.translate(*given, max_new_tokens=4)] == [4, 4]
    # without dropout, and the module trains on
    monkeypatch.setattr(translator.network.config, "dropout", 0.9)
    expected = translator.eval().translate(*given[:2])
    assert translator.train().translate(*given[:2]) == expected and translator.training
    # positions that a network does not state are no limit, as of T5
    for config in (SimpleNamespace(), SimpleNamespace(max_position_embeddings=None)):
        monkeypatch.setattr(translator.network, "config", config)
        assert translator.positions >= 1_000_000


def test_the_interval_is_over_sentences_of_any_length():
    total, count = torch.tensor([3.0, 8.0, 1.0, 0.0]), torch.tensor([2, 4, 1, 0])
    found = per_token(total, count, "nats")
    rest = [t - 12 / 7 * c for t, c in zip(total.tolist(), count.tolist(), strict=True)]
    half = t_quantile(2) * math.sqrt(3 / 2 * sum(value**2 for value in rest)) / 7
    assert found.value == pytest.approx(12 / 7) and found.n == 7
    assert found.ci95 == pytest.approx((12 / 7 - half, 12 / 7 + half)), "a sentence without a token is none"


@pytest.mark.parametrize("name", ["successor_divergence", "interpolation", "graphmax"])
@pytest.mark.parametrize("start", ["<bos>", "<eos> house"])
def test_the_rule_sees_the_last_id_of_the_decoder(translator, monkeypatch, name, start):
    """Also where the decoder starts with other ids than <bos>, as pretrained models do."""
    ids = (WORDS.bos_id,) if start == "<bos>" else (WORDS.eos_id, WORDS.id("the"))
    monkeypatch.setattr(translator, "decoder_start", ids)
    found = likelihood(translator, Pairs(), {"m": {"variant": name, "strength": 0.7}})
    slow, plain = ([slow_nll(translator, pair, *given) for pair in range(3)] for given in ((name, 0.7), ()))
    assert found["nll/m"]["value"] == pytest.approx(
        np.mean(np.concatenate(slow)), abs=2e-3 if name == "graphmax" else 1e-5
    )
    change = np.mean(np.concatenate(slow)) - np.mean(np.concatenate(plain))
    assert found["nll/m_change"]["value"] == pytest.approx(change, abs=2e-3 if name == "graphmax" else 1e-5)
    assert abs(change) > 1e-2


def test_the_change_is_paired_by_sentence(translator):
    """Two sentences of six tokens each: there the interval is Student's of the sentences' means."""
    found = likelihood(translator, Pairs(), {"m": {"variant": "interpolation"}}, sentences=2)
    ours, base = (
        [np.mean(slow_nll(translator, pair, *given)) for pair in (0, 1)] for given in (("interpolation",), ())
    )
    assert found["nll/m_change"]["ci95"] == pytest.approx(paired_t_interval(ours, base), abs=1e-4)
    assert found["nll/m_change"]["n"] == 12


def test_neither_batch_size_nor_order_matters_and_strength_zero_is_softmax(translator):
    methods = {name: {"variant": name} for name in ("graphmax", "successor_divergence", "sparsemax")}
    methods |= {f"{name}_0": {"variant": name, "strength": 0.0} for name in ("graphmax", "successor_divergence")}
    first = likelihood(translator, Pairs(2), methods)
    for name in ("graphmax_0", "successor_divergence_0"):
        assert first[f"nll/{name}"] == first["nll/softmax"]
        assert first[f"nll/{name}_change"]["value"] == 0.0 and first[f"nll/{name}_change"]["ci95"] == [0.0, 0.0]
    for other in (Pairs(1), Pairs(3, (2, 0, 1))):
        again = likelihood(translator, other, methods)
        for name in (name for name in first if not name.startswith("bleu")):
            assert again[name]["value"] == pytest.approx(first[name]["value"], abs=1e-3 if "graphmax" in name else 1e-5)
            assert again[name]["ci95"] == pytest.approx(first[name]["ci95"], abs=1e-2 if "graphmax" in name else 1e-4)
            assert again[name]["n"] == first[name]["n"]


# --- lit_ctg.papers.graphmax.translation: BART, T5 and mBART in miniature, against their own way of use -------------


QUICK = ("experiment=graphmax/pretrained_translation", "size=smoke", "logger=none", "trainer.accelerator=cpu",
         "data.source_language=es", "data.length=250")  # fmt: skip
TASK = "translate: "
SHAPE = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16,
    "decoder_attention_heads": 2, "decoder_ffn_dim": 16, "max_position_embeddings": 300,
}  # fmt: skip


def letters(specials: list[str], template: str, **names: str) -> PreTrainedTokenizerFast:
    """Byte by byte, with special tokens around as the template says."""
    pieces = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    table = {piece: number for number, piece in enumerate(pieces)}
    engine = Tokenizer(models.BPE(vocab=table, merges=[]))
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    ends = [(token, table[token]) for token in specials if token in template]
    engine.post_processor = processors.TemplateProcessing(single=template, special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=engine, **names)


def make_pretrained(kind: str) -> tuple[Any, Any]:
    """Return (tokenizer, network)."""
    if kind == "bart":
        names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
        words = letters(list(names.values()), "<s> $A </s>", **names)
        # its embedding has rows to spare
        return words, BartForConditionalGeneration(BartConfig(vocab_size=len(words) + 4, **SHAPE))
    if kind == "t5":
        names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
        words = letters(list(names.values()), "$A </s>", **names)
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
        return words, T5ForConditionalGeneration(T5Config(vocab_size=len(words), **sizes))
    text = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ,.?!áéíóúñ0123456789'▁"
    first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    words = MBart50Tokenizer(vocab=[*first, *((letter, -1.0) for letter in text)])
    return words, MBartForConditionalGeneration(MBartConfig(vocab_size=len(words), decoder_start_token_id=2, **SHAPE))


def save(kind: str, folder: Path) -> str:
    torch.manual_seed(0)
    words, network = make_pretrained(kind)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    # never the best next token
    network.get_input_embeddings().weight.data[words.all_special_ids] = 0
    words.save_pretrained(folder)
    network.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", params=["bart", "t5", "mbart"])
def saved(request, tmp_path_factory) -> tuple[str, list[str]]:
    words = {"bart": [], "t5": [f"model.task='{TASK}'"],
             "mbart": ["model.source_language=es_XX", "model.target_language=en_XX"]}[request.param]  # fmt: skip
    path = save(request.param, tmp_path_factory.mktemp(request.param))
    return path, [*QUICK, f"model.path={path}", *words]


@pytest.mark.long
def test_scores_and_translations_are_the_models_own(saved) -> None:
    """With text and labels prepared by the tokenizer as its model's page says."""
    path, words = saved
    data = build_datamodule(compose(words))
    module = build_model(compose(words), data).eval()
    module.trainer = type("Trainer", (), {"datamodule": data})()
    module.setup("fit")
    engine, network = module.vocabulary.engine, module.network
    pairs = list(data.pairs("val"))[:3]
    batch = {key: value[:3] for key, value in next(iter(data.val_dataloader())).items()}
    given = batch["source_ids_BS"], batch["mask_source_BS"]
    task = TASK if "t5" in path else ""
    for b, pair in enumerate(pairs):
        source = engine(task + pair.text.strip(), return_tensors="pt")
        ids_BS, mask_BS = module.source(*given)
        assert ids_BS[b][mask_BS[b]].tolist() == source["input_ids"][0].tolist()
        forced = {"forced_bos_token_id": engine.get_vocab()["en_XX"]} if "mbart" in path else {}
        forced = {"forced_bos_token_id": engine.bos_token_id} if "/bart" in path else forced
        theirs_T = network.generate(**source, **forced, max_new_tokens=9, num_beams=1, do_sample=False)[0]
        expected = [number for number in theirs_T.tolist() if number not in module.silent]
        for rule in (None, VariantRule(module.variants["graphmax"], 0.0)):
            found = module.translate(*given, rule, max_new_tokens=10 - len(module.decoder_start))[b]
            assert found == expected and found
        target = batch["target_ids_BT"][b][batch["mask_target_BT"][b]].tolist()
        labels = torch.tensor([[*module.decoder_start[1:], *target]])
        with torch.no_grad():
            loss = network(**source, labels=labels, use_cache=False).logits.log_softmax(-1)
            nll = -loss[0, -len(target) :].gather(1, torch.tensor(target)[:, None])
            scores_TV = module(batch).scores_BTV[b].log_softmax(-1)
        ours = -scores_TV[: len(target)].gather(1, torch.tensor(target)[:, None])
        torch.testing.assert_close(ours, nll, atol=1e-4, rtol=1e-4)


def test_languages_stand_where_the_model_has_them(tmp_path: Path) -> None:
    """The source's before a sentence, the target's after the token that every translation starts with."""
    path = save("mbart", tmp_path)
    codes = {"source_language": "es_XX", "target_language": "en_XX"}
    words = HuggingFaceTokenizer(path=path)
    words.train([])
    module = PretrainedTranslationModule(vocabulary=words, path=path, **codes)
    spanish, english = (words.engine.get_vocab()[code] for code in codes.values())
    assert (module.before, module.after) == ([spanish], [words.engine.eos_token_id])
    assert module.decoder_start == (2, english) and set(module.decoder_start) <= module.silent
    module.network.generation_config.decoder_start_token_id = 5
    assert _first(module.network, words.engine, None) == [5], "as the network's own generate"
    module.network.generation_config.decoder_start_token_id = None
    module.network.config.decoder_start_token_id = None
    assert _first(module.network, words.engine, "en_XX") == [english], "where the model names none"
    with pytest.raises(UserError, match=r"names no decoder_start_token_id: give model\.target_language"):
        _first(module.network, words.engine, None)
    with pytest.raises(UserError, match=r"has no language 'es': .*its own codes"):
        PretrainedTranslationModule(vocabulary=words, path=path, source_language="es")
    with pytest.raises(UserError, match="its own tokenizer"):
        PretrainedTranslationModule(vocabulary=WordTokenizer(), path=path)
    with pytest.raises(UserError, match="no encoder-decoder"):
        PretrainedTranslationModule(vocabulary=words, path=str(tmp_path / "none"))
    module.network.resize_token_embeddings(len(words) - 1)
    module.network.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"has {len(words) - 1} tokens"):
        PretrainedTranslationModule(vocabulary=words, path=path)


@pytest.mark.long
@pytest.mark.parametrize("regime", ["corrected", "as_published"])
def test_translation_without_training(saved, regime, tmp_path: Path) -> None:
    words = saved[1]
    changes = ["callback.graphmax_translation.sentences=3", f"regime={regime}", f"output_root={tmp_path}"]
    outcome = train(compose([*words, *changes, "name=pretrained_tiny"]))
    record = json.loads((outcome.folder / "run.json").read_text(encoding="utf-8"))
    assert record["status"] == "DONE" and record["tokens_per_s"] == 0
    for name in ("val/perplexity", "bleu/softmax", "bleu/graphmax"):
        assert math.isfinite(record["metrics"][name]["value"]), name
    assert not list(tmp_path.rglob("*.ckpt"))
