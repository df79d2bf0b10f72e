from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.papers.control_code.bertscore import BertScore

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A BERT of random weights in a folder, as a downloaded one would lie there."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("encoder")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(tokens), max_position_embeddings=64, **sizes)).save_pretrained(folder)
    return folder


def slow_f1(folder, text: str, reference: str) -> float:
    """Greedy matching of last-layer states by cosine, special tokens left out (Zhang et al. 2020, sec. 3)."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    states = []
    for words in (text, reference):
        with torch.no_grad():
            hidden_TD = model(**tokenizer(words, return_tensors="pt")).last_hidden_state[0, 1:-1].double()
        states.append(hidden_TD / hidden_TD.norm(dim=1, keepdim=True))
    cosine = states[0] @ states[1].T
    precision, recall = cosine.amax(1).mean(), cosine.amax(0).mean()
    return float(2 * precision * recall / (precision + recall))


def test_it_is_greedy_matching_of_the_encoders_states(encoder):
    metric = BertScore(path=encoder)
    assert metric.missing is None
    texts, references = ["the cat sat", "a dog ran", ""], ["the cat sat", "the cat sat on a mat", "the dog"]
    metric.update(texts, references)
    expected = [1.0, slow_f1(encoder, texts[1], references[1])]
    result = metric.result()
    assert result.n == 2  # the empty text has no states
    assert result.value == pytest.approx(sum(expected) / 2, abs=1e-5) and expected[1] < 0.999


def test_rescaling_takes_the_baseline_off(encoder, tmp_path):
    table = tmp_path / "baseline.tsv"
    table.write_text("LAYER,P,R,F\n" + "".join(f"{layer},0.5,0.5,0.5\n" for layer in range(3)), encoding="utf-8")
    plain, scaled = BertScore(path=encoder), BertScore(path=encoder, baseline=table)
    for metric in (plain, scaled):
        metric.update(["a dog ran"], ["the cat sat on a mat"])
    assert scaled.result().value == pytest.approx((plain.result().value - 0.5) / 0.5, abs=1e-5)


def test_what_is_missing_is_said(tmp_path):
    assert "no folder of an encoder" in BertScore(path=None).missing
    assert "config.json" in BertScore(path=tmp_path).missing
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert "no baseline table" in BertScore(path=tmp_path, baseline=tmp_path / "none.tsv").missing
    assert math.isnan(BertScore(path=None).result().value)
