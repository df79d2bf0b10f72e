"""Words of token texts, counted as ``str.split`` counts them in the whole text."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from lit_ctg.data.byte_pair import TrainedBPETokenizer
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.papers.idea_gate.gated_perplexity import GatedPerplexity
from lit_ctg.papers.idea_gate.word_perplexity import WordPerplexity, token_texts

TEXT = (
    "The acid's reaction, it is said,  began in 1905.\n\n Naïve café owners — unlike the king — re-opened; the end.\n"
    * 3
)


def trained(tokenizer):
    tokenizer.train([TEXT])
    return tokenizer


def bound(vocabulary, scores="gated"):
    return WordPerplexity(scores=scores).bind(SimpleNamespace(vocabulary=vocabulary))


def batch_of(ids, length):
    """Cut a text into rows, as packed batches are."""
    starts = range(0, len(ids) - length - 1, length)
    rows = torch.tensor([ids[start : start + length + 1] for start in starts])
    mask = torch.ones_like(rows[:, 1:], dtype=torch.bool)
    return {"input_ids_BT": rows[:, :-1], "target_ids_BT": rows[:, 1:], "mask_input_BT": mask, "mask_target_BT": mask}


@pytest.mark.parametrize("size", [257, 300, 400])
def test_byte_level_words_are_those_of_the_text(size) -> None:
    vocabulary = trained(TrainedBPETokenizer(size=size))
    ids = vocabulary.encode(TEXT)
    batch = batch_of(ids, 7)
    metric = bound(vocabulary)
    rows, length = batch["target_ids_BT"].shape
    text = vocabulary.decode(ids[: rows * length + 1])
    # every word of the text begins in one target, but for the one that the first input token begins
    assert int(metric.words(batch["input_ids_BT"], batch["target_ids_BT"]).sum()) == len(text.split()) - 1


def test_word_tokens_are_words_and_line_ends_are_not() -> None:
    vocabulary = trained(WordTokenizer())
    batch = batch_of(vocabulary.encode(TEXT), 5)
    targets = batch["target_ids_BT"]
    counted = bound(vocabulary).words(batch["input_ids_BT"], targets)
    assert torch.equal(counted, (targets != vocabulary.id("<eos>")).long())


def test_the_end_of_text_is_no_word_and_ends_one() -> None:
    vocabulary = trained(TrainedBPETokenizer(size=300))
    end, letter = vocabulary.eos_id, vocabulary.id("a")
    assert token_texts(vocabulary)[end] == ""
    words = bound(vocabulary).words(torch.tensor([[letter, end, letter]]), torch.tensor([[end, letter, letter]]))
    assert words.tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("scores", ["gated", "ungated"])
def test_same_cost_divided_by_words(scores) -> None:
    vocabulary = trained(TrainedBPETokenizer(size=300))
    batch = batch_of(vocabulary.encode(TEXT), 7)
    batch["mask_target_BT"] = batch["mask_target_BT"].clone()
    batch["mask_target_BT"][-1, 3:] = False
    shape = (*batch["target_ids_BT"].shape, len(vocabulary))
    token = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    output = SimpleNamespace(scores_BTV=token * 0.5, extras={"token_logits": token, "idea_logits": token})
    words, tokens = bound(vocabulary, scores), GatedPerplexity(scores=scores)
    words.update_from(output, batch)
    tokens.update_from(output, batch)
    result, loss = words.result(), tokens.result()["loss"]
    counted = words.words(batch["input_ids_BT"], batch["target_ids_BT"])[batch["mask_target_BT"]].sum()
    assert result.n == int(counted) < loss.n
    assert math.log(result.value) * result.n == pytest.approx(loss.value * loss.n, rel=1e-12)
