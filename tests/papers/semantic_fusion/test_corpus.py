"""The clause corpora as data modules, plain and coupled."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lightning import Callback
from omegaconf import OmegaConf

from lit_ctg import config
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.corpus import ClauseCoupledDataModule, ClauseDataModule
from lit_ctg.papers.semantic_fusion.floor import EntropyFloor, Floor
from lit_ctg.run.build import instantiate

FOLDER = Path(__file__).resolve().parents[3] / "conf" / "data"


def make(
    name: str = "clause", *, regime: str = "corrected", size: str = "paper", seed: int = 111, **changes: Any
) -> Any:
    """The data module of conf/data/<name>.yaml with some values changed."""
    config.register()
    root = {
        "regime": regime,
        "size": size,
        "seed": seed,
        "training_seed": None,
        "data": OmegaConf.load(FOLDER / f"{name}.yaml"),
    }
    values = OmegaConf.to_container(OmegaConf.create(root), resolve=True)["data"] | changes
    return instantiate(OmegaConf.create(values), "data")


def batches(loader: Any) -> list[dict[str, torch.Tensor]]:
    return list(loader)


def rows(datamodule: ClauseDataModule, split: str) -> np.ndarray:
    return datamodule.corpus(split)[0]


def test_held_out_words_by_regime() -> None:
    paper = {"wonderful", "excellent", "great", "terrible", "awful", "unpleasant"}
    assert set(make().held_out_words) == set(make(seed=7).held_out_words) == paper
    published = make(regime="as_published")
    assert set(published.held_out_words) == paper
    assert set(make(regime="as_published", seed=112).held_out_words) != paper
    assert published.held_out_ids == tuple(sorted(published.vocabulary.id(word) for word in paper))


def test_training_has_trained_adjectives_only_and_validation_all_ten() -> None:
    data = make()
    adjectives = {*data.vocabulary.ids("adjective_positive"), *data.vocabulary.ids("adjective_negative")}
    for split, expected in (("train", adjectives - set(data.held_out_ids)), ("val", adjectives), ("test", adjectives)):
        assert set(np.unique(rows(data, split))) & adjectives == expected


def test_corpora_depend_on_the_seed_only_and_are_separate_streams() -> None:
    one, same, other = make(size="small"), make(size="small"), make(size="small", seed=112)
    for split in ("test", "val", "train"):  # in another order than the first time
        rows(same, split)
    for split in ("train", "val", "test"):
        assert np.array_equal(rows(one, split), rows(same, split))
        assert not np.array_equal(rows(one, split), rows(other, split))
    assert not np.array_equal(rows(one, "val"), rows(one, "test"))
    # with all words in every split
    same_words = make(size="smoke", held_out={"positive": [], "negative": []}, train_size=200, val_size=200)
    for left, right in itertools.combinations(("train", "val", "test"), 2):
        assert (rows(same_words, left) == rows(same_words, right)).all(1).mean() < 0.1, (left, right)
    data, changes = make(size="smoke"), {"val_size": 65, "train_size": 255, "seed": 112}
    assert make(size="smoke").fingerprint() == data.fingerprint()
    for name, value in changes.items():
        found = make(**{"size": "smoke", name: value}).fingerprint()
        assert found["text"] != data.fingerprint()["text"] and found["vocabulary"] == data.fingerprint()["vocabulary"]
    for word in ("superb", "lovely"):
        other = make(size="smoke", words={"positive": [word]}).fingerprint()
        assert other["vocabulary"] not in (data.fingerprint()["vocabulary"], changes.get("seen"))
        changes["seen"] = other["vocabulary"]
    data = make(size="smoke")
    for split in ("train", "val", "test"):
        ids_NT, lengths_N = data.corpus(split)
        counted = sum(int((row > 1).sum()) for row in ids_NT)  # words, marks and <eos>
        assert data.facts()[split] == f"{len(lengths_N)} sentences, {counted:,} predicted tokens"
        assert data.texts(3, split) == [data.vocabulary.decode(row) for row in ids_NT[:3]]


def numbered(ids_NT: torch.Tensor, lengths_N: torch.Tensor) -> dict[str, torch.Tensor]:
    """A corpus_transform that says which sentence of the split a row is."""
    return {"index_B": torch.arange(len(ids_NT))}


def test_batches_of_a_split() -> None:
    data = make(size="small")
    data.corpus_transform = numbered
    data.setup("fit")
    train, val = batches(data.train_dataloader()), batches(data.val_dataloader())
    assert [len(batch["input_ids_BT"]) for batch in train] == [64] * 31 + [16]
    assert torch.equal(torch.cat([batch["index_B"] for batch in val]), torch.arange(600))
    batch = train[0]
    assert batch["input_ids_BT"].shape == (64, 18)
    expected = rows(data, "train")[batch["index_B"].numpy()]
    assert np.array_equal(batch["input_ids_BT"], expected[:, :18])
    assert np.array_equal(batch["target_ids_BT"], expected[:, 1:19])
    # a cap of the longest sentence takes nothing from a batch: its input ends with <eos>, its target with padding
    for tight, loose in zip(
        *(batches(make(size="smoke", max_length=cap).val_dataloader()) for cap in (18, 28)), strict=True
    ):
        assert all(torch.equal(tight[name], loose[name]) for name in loose) and tight["input_ids_BT"].shape[1] == 18
    wide = make(size="smoke", crop=False)
    assert batches(wide.val_dataloader())[0]["input_ids_BT"].shape == (64, 27)


def test_corpus_transform_is_called_once_a_split_on_all_sentences() -> None:
    data, calls = make(size="smoke"), []

    def transform(ids_NT: torch.Tensor, lengths_N: torch.Tensor) -> dict[str, torch.Tensor]:
        calls.append(tuple(ids_NT.shape))
        assert torch.equal((ids_NT != 0).sum(1), lengths_N)
        return {"double_BT": 2 * ids_NT, "length_B": lengths_N}

    data.corpus_transform = transform
    for _ in range(2):
        data.setup("fit")
        data.setup("validate")
        found = batches(data.train_dataloader()) + batches(data.val_dataloader())
    assert calls == [(256, 28), (64, 28)]
    for batch in found:
        assert torch.equal(batch["double_BT"], 2 * batch["input_ids_BT"])
        assert torch.equal(batch["length_B"], batch["mask_input_BT"].sum(1))
    data.corpus_transform = None
    assert "length_B" not in batches(data.val_dataloader())[0]


def test_the_order_of_training_is_the_samplers(tiny: Any, trainer_of: Any) -> None:
    class Watch(Callback):
        def __init__(self) -> None:
            self.epochs: dict[int, list[int]] = {}

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            self.epochs.setdefault(trainer.current_epoch, []).extend(batch["index_B"].tolist())

    module, _ = tiny()
    module.embedding = torch.nn.Embedding(41, 4)
    watch = Watch()
    data = make(size="smoke")
    data.corpus_transform = numbered
    trainer_of(watch, max_epochs=3).fit(module, data)
    for epoch in range(3):
        stream = np.random.SeedSequence(111, spawn_key=(100, epoch))
        assert watch.epochs[epoch] == np.random.default_rng(stream).permutation(256).tolist()
    plain, own = make(size="smoke"), make(size="smoke", order_seed=3)
    assert np.array_equal(rows(plain, "train"), rows(own, "train"))
    for data in (plain, own):
        data.corpus_transform = numbered
    orders = [[batch["index_B"].tolist() for batch in data.train_dataloader()] for data in (plain, own)]
    assert orders[0] != orders[1]
    assert sorted(itertools.chain(*orders[0])) == sorted(itertools.chain(*orders[1]))
    with pytest.raises(UserError, match="order_seed"):
        make(size="smoke", order_seed=-1)


def floor_of_the_sample(data: Any) -> EntropyFloor:
    """The generator's own cost on the sentences of the validation split."""
    ids_NT, lengths_N = data.corpus("val")
    seen_NT = ~np.isin(ids_NT, data.held_out_ids)
    tokens = float(lengths_N.mean() - 1)
    seen_tokens = tokens - float((~seen_NT).sum(1).mean())
    floors = {}
    for name in ("exact", "trained_only"):
        nats_NT = data.sentence_nats(ids_NT, trained_only=name == "trained_only")
        seen_nats = np.where(seen_NT, nats_NT, 0.0).sum(1).mean()
        floors[name] = Floor(float(nats_NT.sum(1).mean()), float(seen_nats), tokens, seen_tokens)
    return EntropyFloor(split="val", **floors)


def test_floors_of_the_paper_and_of_its_sample() -> None:
    data = make()
    floor, of_sample = data.entropy_floor(), floor_of_the_sample(data)
    assert floor.exact.perplexity(mask="input") == pytest.approx(2.672, abs=5e-4)
    assert floor.exact == data.entropy_floor("test").exact != data.entropy_floor("train").exact
    for name, value in floor.metrics().items():
        assert of_sample.metrics()[name] == pytest.approx(value, rel=0.01) and of_sample.metrics()[name] != value
    nats = data.sentence_nats(torch.from_numpy(rows(data, "val")))
    assert nats.sum() / (rows(data, "val") != 0)[:, 1:].sum() == pytest.approx(
        np.log(of_sample.metrics()["perplexity"])
    )
    assert data.floor_given_polarity_unknown().metrics() == pytest.approx(floor.metrics())


def test_counts_of_the_training_sentences_by_a_loop_over_the_validation_tokens() -> None:
    corpus = make(train_size=100, val_size=12)
    train = [row[:n].tolist() for row, n in zip(*corpus.corpus("train"), strict=True)]
    flat = [token for row in train for token in row]
    after = Counter(itertools.pairwise(flat))
    nats: dict[str, list[float]] = {"": [], "_seen_only": [], "_after_held_out": []}
    unigram: list[float] = []
    for row, n in zip(*corpus.corpus("val"), strict=True):
        for place in range(1, n):
            first, second = int(row[place - 1]), int(row[place])
            followers = [pair for pair in after if pair[0] == first]
            total = sum(after[pair] for pair in followers)
            before = len([pair for pair in after if pair[1] == second]) + 1
            back = before / (len(after) + len(corpus.vocabulary))
            rest = 0.75 * len(followers) / total if total else 1.0
            cost = -math.log(max(after[first, second] - 0.75, 0) / max(total, 1) + rest * back)
            nats[""].append(cost)
            unigram.append(-math.log((flat.count(second) + 1) / (len(flat) + len(corpus.vocabulary))))
            if second not in corpus.held_out_ids:
                nats["_seen_only"].append(cost)
                if set(row[:place].tolist()) & set(corpus.held_out_ids):
                    nats["_after_held_out"].append(cost)
    found = corpus.count_references()
    for suffix, costs in nats.items():
        result = found[f"reference/val/bigram_perplexity{suffix}"]
        assert (result.value, result.n) == (pytest.approx(math.exp(sum(costs) / len(costs))), len(costs))
    assert found["reference/val/unigram_perplexity"].value == pytest.approx(math.exp(sum(unigram) / len(unigram)))
    generator = floor_of_the_sample(corpus).exact
    assert found["reference/val/generator_perplexity"].value == pytest.approx(generator.perplexity())
    assert found["reference/val/generator_perplexity_seen_only"].value == pytest.approx(
        generator.perplexity(seen_only=True)
    )
    assert len(found) == 9


def test_about_a_hundred_validation_sentences_occur_in_training() -> None:
    count, size = make().overlap()  # 106 of 1,200 in the authors' corpus
    assert 70 < count < 145 and size == 1200
    data = make(size="smoke")
    data._corpora["val"] = data.corpus("train")
    count, size = data.overlap()
    assert count == size


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("clause", {"max_length": 17}, "max_length=17"),
        ("clause", {"second_clause_probability": 0, "max_length": 9}, "max_length=9"),
        ("clause", {"punctuation_weights": {}}, "punctuation_weights"),
        ("clause", {"punctuation_weights": {".": 8, "!": True, "?": 1}}, r"punctuation_weights\.!=true"),
        ("clause", {"held_out": {"positive": ["task"], "negative": []}}, "positive: 'task'"),
        ("clause_coupled", {"verb_weights": {"Alice": {}}}, "verb_weights has no 'Bob'"),
        ("clause_coupled", {"verb_weights": None}, "verb_weights=null"),
        ("clause_coupled", {"intensifier_next_weights": {"verry": {}}}, "did you mean 'very'"),
        ("clause_coupled", {"polarity_keep_probability": {"and": 1.2, "but": 0}}, "probability.and=1.2"),
        ("clause_coupled", {"punctuation_weights": {"very": {"negative": {"?": -1}}}}, r"very\.negative\.\?=-1"),
    ],
)
def test_bad_values_end_in_one_line(name: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named) as caught:
        make(name, **changes)
    assert "\n" not in str(caught.value)
    assert batches(make(size="smoke", second_clause_probability=0, max_length=10).val_dataloader())


@functools.cache
def coupled_conf() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "clause_coupled.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def coupled() -> ClauseCoupledDataModule:
    return make("clause_coupled", train_size=500, val_size=20000)


def probability(words: list[str]) -> float:
    """A sentence's probability, read off the configuration word by word."""
    n = coupled_conf()

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


def test_sentence_probabilities_are_those_of_the_configuration(coupled: ClauseCoupledDataModule) -> None:
    ids_NT, lengths_N = (array[:400] for array in coupled.corpus("val"))
    for row, length, nats in zip(ids_NT, lengths_N, coupled.sentence_nats(ids_NT).sum(1), strict=True):
        words = [coupled.vocabulary.tokens[i] for i in row[1 : length - 1]]
        assert nats == pytest.approx(-math.log(probability(words)), abs=1e-9)


def test_knowing_an_unseen_words_polarity_is_worth_a_stated_amount(coupled: ClauseCoupledDataModule) -> None:
    known, unknown = coupled.entropy_floor(), coupled.floor_given_polarity_unknown()
    gain = unknown.exact.nats_per_sentence - known.exact.nats_per_sentence
    seen = unknown.trained_only.seen_nats_per_sentence - known.trained_only.seen_nats_per_sentence
    assert gain == pytest.approx(0.391, abs=1e-3) and seen == pytest.approx(0.271, abs=1e-3)
    # in training nothing is unseen
    assert coupled.floor_given_polarity_unknown("train").metrics() == pytest.approx(
        coupled.entropy_floor("train").metrics()
    )


def test_the_predictor_that_does_not_know_pays_what_marginalising_costs(coupled: ClauseCoupledDataModule) -> None:
    """One mark after "very <held out>": known it costs H(.06 .91 .03), unknown the entropy of the 50/50 mixture."""
    very = {"slightly": 0, "moderately": 0, "very": 1, "extremely": 0}
    one = make("clause_coupled", second_clause_probability=0, intensifier_weights=very)
    known, unknown = one.entropy_floor(), one.floor_given_polarity_unknown()

    def entropy(*p: float) -> float:
        return -sum(x * math.log(x) for x in p)

    expected = 0.6 * (entropy(0.06, 0.47, 0.47) - entropy(0.06, 0.91, 0.03))
    assert unknown.exact.nats_per_sentence - known.exact.nats_per_sentence == pytest.approx(expected, rel=1e-9)


def test_batches_are_those_of_the_plain_module(coupled: ClauseCoupledDataModule) -> None:
    batch = next(iter(coupled.train_dataloader()))
    assert set(batch) == {"input_ids_BT", "target_ids_BT", "mask_input_BT", "mask_target_BT"}
    assert not np.isin(coupled.corpus("train")[0], coupled.held_out_ids).any()
    assert np.isin(coupled.corpus("val")[0], coupled.held_out_ids).any()
