"""The coupled corpus: its tables as configured, its exact floor, the worth of knowing an unseen word's polarity."""

from __future__ import annotations

import copy
import functools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion import clause_coupled
from lit_ctg.papers.semantic_fusion.clause_coupled import ClauseCoupledDataModule, coupled_tables

CONF = Path(__file__).resolve().parents[4] / "conf" / "data" / "clause_coupled.yaml"
TABLES = (
    "second_clause_probability", "intensifier_weights", "verb_weights", "intensifier_next_weights",
    "polarity_keep_probability", "punctuation_weights",
)  # fmt: skip
HELD_OUT = {"positive": ["wonderful", "excellent", "great"], "negative": ["terrible", "awful", "unpleasant"]}


@functools.cache
def conf() -> dict[str, Any]:
    return yaml.safe_load(CONF.read_text(encoding="utf-8"))


def numbers() -> dict[str, Any]:
    """The tables as the configuration states them."""
    return copy.deepcopy({name: conf()[name] for name in TABLES})


def make(**changes: Any) -> ClauseCoupledDataModule:
    options = {
        "train_size": 500,
        "val_size": 20000,
        "max_length": 28,
        "batch_size": 64,
        "held_out": HELD_OUT,
        "seed": 0,
    }
    return ClauseCoupledDataModule(**numbers() | options | changes)


@pytest.fixture(scope="module")
def data() -> ClauseCoupledDataModule:
    return make()


def probability(words: list[str]) -> float:
    """A sentence's probability, read off the configuration word by word."""
    n = conf()

    def share(weights: dict[str, float], word: str) -> float:
        return weights[word] / sum(weights.values())

    sign = dict.fromkeys(("good", "great", "excellent", "pleasant", "wonderful"), "positive")
    sign |= dict.fromkeys(("bad", "poor", "terrible", "unpleasant", "awful"), "negative")
    subject, verb, _, _, _, intensifier, adjective = words[:7]
    p = 1 / 5 * share(n["verb_weights"][subject], verb) * 1 / 5 * share(n["intensifier_weights"], intensifier) * 1 / 10
    two = n["second_clause_probability"]
    if len(words) == 8:
        p *= 1 - two
    else:
        conjunction, _, verb, _, _, _, then, other = words[7:15]
        p *= (
            two
            / 2
            * share(n["verb_weights"][subject], verb)
            / 5
            * share(n["intensifier_next_weights"][intensifier], then)
        )
        keep = n["polarity_keep_probability"][conjunction]
        p *= (keep if sign[other] == sign[adjective] else 1 - keep) / 5
        intensifier, adjective = then, other
    return p * share(n["punctuation_weights"][intensifier][sign[adjective]], words[-1])


def test_sentence_probabilities_are_those_of_the_configuration(data: ClauseCoupledDataModule) -> None:
    ids_NT, lengths_N = (array[:400] for array in data.corpus("val"))
    for row, length, nats in zip(ids_NT, lengths_N, data.sentence_nats(ids_NT).sum(1), strict=True):
        words = [data.vocabulary.tokens[i] for i in row[1 : length - 1]]
        assert nats == pytest.approx(-math.log(probability(words)), abs=1e-9)


def test_every_conditional_sums_to_one_and_every_slot_is_coupled(data: ClauseCoupledDataModule) -> None:
    t = data.tables
    for table in (t.verb_SV, t.intensifier_next_II, t.polarity_next_CPP, t.punctuation_IPQ):
        np.testing.assert_allclose(table.sum(-1), 1.0, atol=1e-12)
        rows = table.reshape(-1, table.shape[-1])
        assert len(np.unique(rows.round(6), axis=0)) > 1
    assert (t.verb_SV.argmax(1) == [0, 1, 2, 3, 4]).all()  # five subjects, five favourites


def test_module_docstring_states_the_configured_numbers() -> None:
    text, n = clause_coupled.__doc__ or "", conf()

    def short(p: float) -> str:
        return f"{p:.2f}".removeprefix("0")

    for word, by_sign in n["punctuation_weights"].items():
        cells = [" ".join(short(w / 100) for w in by_sign[sign].values()) for sign in ("positive", "negative")]
        assert re.search(rf"{word} +\+ {cells[0]} +- {cells[1]}\n", text)
    for word, keep in n["polarity_keep_probability"].items():
        assert f'with {short(keep)} after "{word}"' in text
    for weights in n["verb_weights"].values():
        assert sorted(w / sum(weights.values()) for w in weights.values()) == pytest.approx([0.1, 0.1, 0.1, 0.25, 0.45])
    for word, weights in n["intensifier_next_weights"].items():
        assert all(w / sum(weights.values()) == pytest.approx(0.7 if w2 == word else 0.1) for w2, w in weights.items())


def test_sampled_mean_lies_around_the_exact_floor(data: ClauseCoupledDataModule) -> None:
    for split, size in (("val", 20000), ("train", 500)):
        nats_N = data.sentence_nats(data.corpus(split)[0], split).sum(1)
        floor = data.entropy_floor(split).exact
        assert len(nats_N) == size
        assert abs(nats_N.mean() - floor.nats_per_sentence) < 4 * nats_N.std() / math.sqrt(size)


def test_couplings_lower_the_floor_below_the_plain_corpus(data: ClauseCoupledDataModule) -> None:
    assert data.entropy_floor().exact.nats_per_sentence < 10.8628 + 1.6 * math.log(10) - 1
    assert data.entropy_floor().exact.tokens() == pytest.approx(13.8)


def test_knowing_an_unseen_words_polarity_is_worth_a_stated_amount(data: ClauseCoupledDataModule) -> None:
    known, unknown = data.entropy_floor(), data.floor_given_polarity_unknown()
    gain = unknown.exact.nats_per_sentence - known.exact.nats_per_sentence
    seen = unknown.trained_only.seen_nats_per_sentence - known.trained_only.seen_nats_per_sentence
    assert gain == pytest.approx(0.391, abs=1e-3) and seen == pytest.approx(0.271, abs=1e-3)
    # in training nothing is unseen
    assert data.floor_given_polarity_unknown("train").metrics() == pytest.approx(data.entropy_floor("train").metrics())


def test_the_predictor_that_does_not_know_pays_what_marginalising_costs(data: ClauseCoupledDataModule) -> None:
    """One mark after "very <held out>": known it costs H(.06 .91 .03), unknown the entropy of the 50/50 mixture."""
    one = make(
        second_clause_probability=0, intensifier_weights={"slightly": 0, "moderately": 0, "very": 1, "extremely": 0}
    )
    known, unknown = one.entropy_floor(), one.floor_given_polarity_unknown()

    def entropy(*p: float) -> float:
        return -sum(x * math.log(x) for x in p)

    expected = 0.6 * (entropy(0.06, 0.47, 0.47) - entropy(0.06, 0.91, 0.03))
    assert unknown.exact.nats_per_sentence - known.exact.nats_per_sentence == pytest.approx(expected, rel=1e-9)


def test_batches_are_those_of_the_plain_module(data: ClauseCoupledDataModule) -> None:
    batch = next(iter(data.train_dataloader()))
    assert set(batch) == {"input_ids_BT", "target_ids_BT", "mask_input_BT", "mask_target_BT", "sentence_index_B"}
    assert not np.isin(data.corpus("train")[0], data.held_out_ids).any()
    assert np.isin(data.corpus("val")[0], data.held_out_ids).any()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("verb_weights", {"Alice": {}}, "verb_weights has no entry for 'Bob'"),
        ("verb_weights", None, "verb_weights=None"),
        ("intensifier_next_weights", {"verry": {}}, "intensifier_next_weights: unknown 'verry'; did you mean 'very'"),
        ("polarity_keep_probability", {"and": 1.2, "but": 0}, "polarity_keep_probability.and=1.2"),
        ("polarity_keep_probability", {"and": 0.9}, "no entry for 'but'"),
        ("punctuation_weights", {".": 8, "!": 3, "?": 1}, "punctuation_weights: unknown '.'"),
    ],
)
def test_bad_tables_end_in_one_line(name: str, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        coupled_tables(**numbers() | {name: value})
    assert "\n" not in str(caught.value)


def test_a_bad_weight_deep_in_a_table_is_named() -> None:
    changed = numbers()
    changed["punctuation_weights"]["very"]["negative"]["?"] = -1
    with pytest.raises(UserError, match=r"punctuation_weights.very.negative: weight -1 of '\?'"):
        coupled_tables(**changed)
