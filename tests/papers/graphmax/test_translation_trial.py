"""lit_ctg.papers.graphmax.translation: references, alignment, the rule in the decoder, and the likelihood."""

from __future__ import annotations

import math
from types import SimpleNamespace

import lightning
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lit_ctg.core.model import LMOutput
from lit_ctg.data.document import Document
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import CooccurrenceGraph, VariantRule, variants
from lit_ctg.papers.graphmax.translation import GraphmaxTranslation, GraphmaxTranslationModule, per_token
from lit_ctg.statistics import paired_t_interval, t_quantile

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
    half = t_quantile(2, 0.95) * math.sqrt(3 / 2 * sum(value**2 for value in rest)) / 7
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
