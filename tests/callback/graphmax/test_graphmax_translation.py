"""lit_ctg.callback.graphmax_translation: references, alignment, and the rule that reaches the decoder."""

from __future__ import annotations

from types import SimpleNamespace

import lightning
import pytest
import torch

from lit_ctg.callback.graphmax_translation import GraphmaxTranslation
from lit_ctg.data.document import Document
from lit_ctg.errors import UserError
from lit_ctg.model.graphmax import CooccurrenceGraph, VariantRule, variants

PAIRS = (
    ("una casa muy grande aqui", "a Very big house here"),
    ("el perro come la carne", "the dog eats the meat"),
    ("la mesa es de madera", "the table is of wood"),
)


class Corpus:
    """Two batches of two pairs and one."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def pairs(self, split):
        assert split == "val"
        return iter(Document(source + "\n", "es", {"target": target + "\n"}) for source, target in PAIRS)

    def val_dataloader(self):
        for numbers in ([0, 1], [2]):
            ids = torch.tensor([[number] for number in numbers])
            yield {"source_ids_BS": ids, "mask_source_BS": torch.ones_like(ids, dtype=torch.bool)}


class Oracle(lightning.LightningModule):
    """Knows every translation, but through a rule it says the first one only."""

    def __init__(self, targets):
        super().__init__()
        self.targets, self.rules = targets, []
        self.variants = variants(CooccurrenceGraph.from_token_ids([[0, 1]], 2))

    def translate(self, source_ids_BS, mask_source_BS, rule=None, *, beams, max_new_tokens):
        self.rules.append(rule)
        return [self.targets[0 if rule else number] for number in source_ids_BS[:, 0].tolist()]


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
    assert set(found.results) == {"bleu/softmax", "bleu/graphmax"}
    right, wrong = found.results["bleu/softmax"], found.results["bleu/graphmax"]
    assert right["value"] == pytest.approx(1.0) and right["n"] == 3
    assert wrong["value"] < 0.7
    low, high = wrong["ci95"]
    assert 0 <= low <= high <= 1
    assert [type(rule) for rule in module.rules] == [type(None)] * 2 + [VariantRule] * 2
    assert found.samples[0] == {"method": "softmax", "prompt": PAIRS[0][0], "text": PAIRS[0][1].lower()}


def test_case_counts_where_the_tokenizer_keeps_it(setting):
    found = trial(lower=False)
    found.run(*setting)
    assert found.results["bleu/softmax"]["value"] < 1.0


def test_only_so_many_sentences(setting):
    found = trial(sentences=1)
    found.run(*setting)
    assert found.results["bleu/graphmax"]["n"] == 1
    assert found.results["bleu/graphmax"]["value"] == pytest.approx(1.0)


def test_it_runs_in_validate_only_and_on_translation_models_only(setting, module):
    found = trial()
    trainer = SimpleNamespace(state=SimpleNamespace(fn="fit"), datamodule=setting[1])
    found.on_validation_end(trainer, setting[0])
    assert not found.results
    trainer.state.fn = "validate"
    found.on_validation_end(trainer, setting[0])
    assert found.results
    # before any training
    found.setup(trainer, setting[0], "fit")
    with pytest.raises(UserError, match="model=graphmax/translation"):
        found.setup(trainer, module, "fit")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": {"g": {"variant": "grafmax"}}}, "methods.g.variant=grafmax; did you mean 'graphmax'"),
        ({"methods": {"none": {"variant": None}}}, "methods has no method"),
        ({"sentences": 0}, "sentences=0: give a whole number of at least 1"),
        ({"beams": "two"}, "beams=two: give a whole number"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"resamples": 0}, "resamples=0"),
        ({"samples_kept": -1}, "samples_kept=-1: give a whole number of at least 0"),
    ],
)
def test_a_mistake_is_told_when_the_callback_is_built(changes, message):
    with pytest.raises(UserError, match=message) as raised:
        trial(**changes)
    assert str(raised.value).startswith("callback.graphmax_translation") and "\n" not in str(raised.value)
