"""Every metric against a reference or by hand."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from lit_ctg.data.byte_pair import TrainedBPETokenizer
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.papers.idea_gate.metrics import (
    Density,
    GatedPerplexity,
    IdeaHead,
    Stickiness,
    TopicDrift,
    WordPerplexity,
    average_precision,
    cost,
    distinct_share,
    grouped_bootstrap,
    token_texts,
    words,
)
from lit_ctg.papers.idea_gate.model import IdeaGateOutput, distinct
from lit_ctg.results.spec import read_printed
from lit_ctg.statistics import ratio_interval
from tests.llama import llama_tokenizer

# gated_perplexity: Cost with the gate and without it, against a slow loop


@pytest.fixture
def gated_batch(make_batch):
    """(output, batch) whose scores are token logits plus a gate."""

    def make(seed=0, with_gate=True):
        output, batch = make_batch(seed)
        token_BTV = output.scores_BTV
        gate_BTV = -torch.rand(token_BTV.shape, generator=torch.Generator().manual_seed(seed)) * 2
        if not with_gate:
            return IdeaGateOutput(token_BTV, token_BTV, token_BTV, None), batch
        scores_BTV = token_BTV + gate_BTV
        return IdeaGateOutput(scores_BTV, scores_BTV, token_BTV, torch.zeros_like(token_BTV)), batch

    return make


@pytest.mark.parametrize("scores", ["gated", "ungated"])
def test_equals_a_loop_over_positions(gated_batch, counted_nlls, scores) -> None:
    metric = GatedPerplexity(scores=scores)
    pairs = []
    for seed in range(3):
        output, batch = gated_batch(seed)
        metric.update_from(output, batch)
        raw = output.scores_BTV if scores == "gated" else output.token_BTV
        pairs += counted_nlls(SimpleNamespace(scores_BTV=raw), batch, "target")
    mean = math.fsum(nll for _, nll in pairs) / len(pairs)
    result = metric.result()
    assert result["loss"].value == pytest.approx(mean, rel=1e-12) and result["loss"].n == len(pairs)
    assert result["perplexity"].value == pytest.approx(math.exp(mean), rel=1e-12)
    low, high = result["loss"].ci95
    assert low < mean < high and result["perplexity"].ci95[0] == pytest.approx(math.exp(low))
    assert {entry.direction for entry in result.values()} == {"lower"}


def test_without_a_gate_both_are_the_ordinary_perplexity(gated_batch) -> None:
    ordinary = Perplexity()
    metrics = [GatedPerplexity(scores="gated"), GatedPerplexity(scores="ungated")]
    for metric in (ordinary, *metrics):
        metric.update_from(*gated_batch(1, with_gate=False))
    values = {metric.result()["perplexity"].value for metric in metrics}
    assert values == {ordinary.result().value}
    output, batch = gated_batch(1, with_gate=False)
    assert cost(output, batch, "ungated") is cost(output, batch, "gated"), "computed once for both"
    output, batch = gated_batch(0)
    assert cost(output, batch, "gated") is cost(output, batch, "gated") is not cost(output, batch, "ungated")


# word_perplexity: Words of token texts, counted as ``str.split`` counts them in the whole text


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


@pytest.mark.parametrize("normalised", [True, False])
def test_words_of_the_family_of_llama_are_those_of_the_text(normalised: bool) -> None:
    """Decoded alone, no token has its space: every piece counted as a word."""
    text = " ".join(TEXT.split())
    vocabulary = HuggingFaceTokenizer.of(llama_tokenizer([text], normalised, 80))
    ids = vocabulary.encode(text)
    assert len(ids) > 1.5 * len(text.split())
    batch = batch_of(ids, len(ids) - 2)
    counted = bound(vocabulary).words(batch["input_ids_BT"], batch["target_ids_BT"])
    begun = bool(vocabulary.decode(ids[:1]).strip())  # the first token may be the space alone
    assert int(counted.sum()) == len(vocabulary.decode(ids[:-1]).split()) - begun


def test_special_tokens_and_line_ends_are_not_words() -> None:
    vocabulary = trained(WordTokenizer())
    batch = batch_of(vocabulary.encode(TEXT), 5)
    targets = batch["target_ids_BT"]
    counted = bound(vocabulary).words(batch["input_ids_BT"], targets)
    assert torch.equal(counted, (targets != vocabulary.id("<eos>")).long())
    vocabulary = trained(TrainedBPETokenizer(size=300))
    end, letter = vocabulary.eos_id, vocabulary.id("a")
    assert token_texts(vocabulary)[end] == ""
    words = bound(vocabulary).words(torch.tensor([[letter, end, letter]]), torch.tensor([[end, letter, letter]]))
    assert words.tolist() == [[0, 1, 0]]
    texts = ["\n", "<begin>", "<pad>", "\ufffd", "\ufffd", "a", "b"]

    class Vocabulary:
        eos_id, bos_id, pad_id = 0, 1, 2

        def __len__(self) -> int:
            return len(texts)

        def decode(self, ids):
            return "".join(texts[number] for number in ids).replace("\ufffd\ufffd", "\u00e9")

    # a line end keeps its text: it parts words
    assert token_texts(Vocabulary()) == ["\n", "", "", "\ufffd", "\ufffd", "a", "b"]


@pytest.mark.parametrize("scores", ["gated", "ungated"])
def test_same_cost_divided_by_words(scores) -> None:
    vocabulary = trained(TrainedBPETokenizer(size=300))
    batch = batch_of(vocabulary.encode(TEXT), 7)
    batch["mask_target_BT"] = batch["mask_target_BT"].clone()
    batch["mask_target_BT"][-1, 3:] = False
    shape = (*batch["target_ids_BT"].shape, len(vocabulary))
    token = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    output = IdeaGateOutput(token * 0.5, token, token, token)
    words, tokens = bound(vocabulary, scores), GatedPerplexity(scores=scores)
    words.update_from(output, batch)
    tokens.update_from(output, batch)
    result, loss = words.result(), tokens.result()["loss"]
    counted = words.words(batch["input_ids_BT"], batch["target_ids_BT"])[batch["mask_target_BT"]].sum()
    assert result.n == int(counted) < loss.n
    assert math.log(result.value) * result.n == pytest.approx(loss.value * loss.n, rel=1e-12)


# idea_head: The idea head's scores against scikit-learn and against what a head without context gets


V, K, T = 23, 6, 40


def dense(window_PK, stopword_V):
    """Multi-hot targets by a loop."""
    relevant = torch.zeros(len(window_PK), V, dtype=torch.bool)
    for row, window in enumerate(window_PK.tolist()):
        for token in window:
            if token >= 0 and not stopword_V[token]:
                relevant[row, token] = True
    return relevant


def case(seed=0, positions=50, ties=False):
    generator = torch.Generator().manual_seed(seed)
    window_PK = torch.randint(-1, V, (positions, K), generator=generator)
    logits_PV = torch.randn(positions, V, generator=generator)
    if ties:
        logits_PV = logits_PV.round()
    stopword_V = torch.zeros(V, dtype=torch.bool)
    stopword_V[:3] = True
    return logits_PV, window_PK, stopword_V


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_is_scikit_learns(ties) -> None:
    logits_PV, window_PK, stopword_V = case(ties=ties)
    relevant_PV = dense(window_PK, stopword_V)
    ours = average_precision(logits_PV.masked_fill(stopword_V, -torch.inf), distinct(window_PK, stopword_V))
    checked = 0
    for row, (truth, scores) in enumerate(zip(relevant_PV, logits_PV, strict=True)):
        if truth.any():
            kept = ~stopword_V
            expected = sklearn_metrics.average_precision_score(truth[kept].numpy(), scores[kept].numpy())
            assert float(ours[row]) == pytest.approx(expected, rel=1e-9)
            checked += 1
        else:
            assert np.isnan(float(ours[row]))
    assert checked > 30


def make(threshold=0.5, stride=1, tokens=V):
    module = SimpleNamespace(window=lambda ids, mask: module.windows, stopword_mask_V=case()[2], vocabulary_size=V)
    packed = SimpleNamespace(ids=lambda split: np.arange(tokens).repeat(np.arange(tokens)))
    datamodule = SimpleNamespace(packed=packed, vocabulary=range(tokens))
    return IdeaHead(threshold=threshold, stride=stride).bind(datamodule, module), module


def test_precision_and_recall_count_pairs() -> None:
    logits_PV, window_PK, stopword_V = case(1)
    metric, _ = make()
    metric.update(logits_PV, window_PK, stopword_V)
    relevant_PV = dense(window_PK, stopword_V)
    said = (logits_PV > 0)[:, ~stopword_V].flatten().numpy()
    truth = relevant_PV[:, ~stopword_V].flatten().numpy()
    result = metric.result()
    assert result["precision"].value == pytest.approx(sklearn_metrics.precision_score(truth, said))
    assert result["recall"].value == pytest.approx(sklearn_metrics.recall_score(truth, said))
    assert result["precision"].n == said.sum() and result["recall"].n == truth.sum()
    # -1 is looked up as token 0: a head that predicts 0 has not found it where the window is padded.
    logits_1V = torch.full((1, V), -5.0)
    logits_1V[0, [0, 7]] = 5.0
    metric, _ = make()
    metric.update(logits_1V, torch.tensor([[7, -1, -1, -1, -1, -1]]), torch.zeros(V, dtype=torch.bool))
    result = metric.result()
    assert result["precision"].value == 0.5 and result["recall"].value == 1.0


def test_rows_are_the_units_of_the_intervals() -> None:
    """A row that predicts nothing is no unit of precision's."""
    logits_PV, window_PK, stopword_V = case(6, positions=40)
    logits_PV[30:] = -1.0
    metric, _ = make()
    rows = {"precision": [], "recall": []}
    for places in (slice(0, 4), slice(4, 15), slice(15, 30), slice(30, 40)):
        metric.update(logits_PV[places], window_PK[places], stopword_V)
        said = (logits_PV[places] > 0) & ~stopword_V
        there = dense(window_PK[places], stopword_V)
        right = float((said & there).sum())
        rows["precision"].append((right, float(said.sum())))
        rows["recall"].append((right, float(there.sum())))
    result = metric.result()
    for name, pairs in rows.items():
        total, count = np.array(pairs).T
        expected = ratio_interval(
            total=total.sum(), count=count.sum(), total_sq=(total**2).sum(), cross=(total * count).sum(),
            count_sq=(count**2).sum(), rows=int((count > 0).sum()),
        )  # fmt: skip
        assert result[name].ci95 == pytest.approx(expected)
    assert metric.rows[:2].tolist() == [3, 4]


def test_a_perfect_head_and_the_unigram_ranking() -> None:
    _, window_PK, stopword_V = case(2)
    relevant_PV = dense(window_PK, stopword_V)
    metric, _ = make()
    metric.update(torch.where(relevant_PV, 5.0, -5.0), window_PK, stopword_V)
    result = metric.result()
    assert [result[name].value for name in ("precision", "recall", "average_precision")] == [1.0, 1.0, 1.0]
    # frequency rises with the id: the ranking is V-1, V-2, ..., the same at every position
    ranks = [
        np.mean([(i + 1) / (V - v) for i, v in enumerate(sorted(row.nonzero().flatten().tolist(), reverse=True))])
        for row in relevant_PV
        if row.any()
    ]
    assert result["unigram_average_precision"].value == pytest.approx(np.mean(ranks))


def batch_and_output(metric_module, rows=3):
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(rows, T, V, generator=generator)
    metric_module.windows = torch.randint(-1, V, (rows, T, K), generator=generator)
    mask = torch.ones(rows, T, dtype=torch.bool)
    mask[0, 30:] = False
    batch = {"target_ids_BT": torch.zeros(rows, T, dtype=torch.long), "mask_target_BT": mask}
    return IdeaGateOutput(logits, logits, logits, logits), batch


def test_rankings_leave_out_stopwords_and_rows_without_tokens() -> None:
    # Stopwords of the highest idea score and the highest frequency change nothing: the best of the rest is first.
    stopword_V = torch.zeros(V, dtype=torch.bool)
    stopword_V[[V - 1, V - 2]] = True  # the commonest tokens
    logits_1V = torch.full((1, V), -5.0)
    logits_1V[0, [V - 1, V - 2]] = 9.0
    logits_1V[0, V - 3] = 1.0
    metric, _ = make()
    metric.update(logits_1V, torch.tensor([[V - 3, V - 1, -1, -1, -1, -1]]), stopword_V)
    result = metric.result()
    assert result["average_precision"].value == 1.0 and result["unigram_average_precision"].value == 1.0
    assert result["precision"].n == 1 and result["recall"].n == 1
    # A pretrained model's vocabulary is often padded; rows that no text has change nothing of the unigram ranking.
    logits_PV, window_PK, stopword_V = case(3)
    window_PK = window_PK.masked_fill(window_PK >= V - 5, -1)
    padded, whole = make(tokens=V - 5)[0], make()[0]
    padded.update(logits_PV, window_PK, stopword_V)
    whole.counts_V[V - 5 :] = 0
    whole.update(logits_PV, window_PK, stopword_V)
    assert padded.result() == whole.result() != {}


def test_every_stride_th_counted_position_is_measured() -> None:
    metric, module = make(stride=8)
    output, batch = batch_and_output(module)
    metric.update_from(output, batch)
    by_hand, _ = make()
    for row in range(3):
        places = [t for t in range(7, T, 8) if batch["mask_target_BT"][row, t]]
        by_hand.update(output.scores_BTV[row, places], module.windows[row, places], module.stopword_mask_V)
    assert metric.result() == by_hand.result()
    assert int(metric.count[2]) <= 3 + 5 + 5
    metric, module = make()
    output, batch = batch_and_output(module)
    output.idea_BTV = None
    metric.update_from(output, batch)
    assert metric.result() == {}


# words: Words of generated texts: where they begin decides where they count


def test_words_are_lower_case_and_belong_to_where_they_begin() -> None:
    assert words('The "Nitric-acid", (and) H2O — … 3.5%') == ["the", "nitric-acid", "and", "h2o", "3.5"]
    text = "an acidic one"
    # the cut lies inside "acidic": it counts before the cut, and what is behind the cut is no word
    assert words(text, 0, 5) == ["an", "acidic"]
    assert words(text, 5) == ["one"]
    assert words(text, 0, 3) + words(text, 3, 10) + words(text, 10) == words(text)


# sample_mean: The bootstrap over prompts and samples, against exact distributions and a plain loop


def loop(values, groups, resamples, seed):
    """The same resampling one draw at a time."""
    rng = np.random.default_rng(seed)
    by_group = {}
    for value, group in zip(values, groups, strict=True):
        by_group.setdefault(group, []).append(value)
    names = list(by_group)
    means = []
    for _ in range(resamples):
        drawn = []
        for group in rng.choice(len(names), len(names)):
            members = by_group[names[group]]
            drawn += [members[i] for i in rng.integers(0, len(members), len(members))]
        means.append(np.mean(drawn))
    return np.quantile(means, [0.025, 0.975])


def test_agrees_with_a_plain_loop_for_unequal_groups() -> None:
    rng = np.random.default_rng(3)
    groups = [0] * 4 + [1] * 9 + [7] * 6
    values = [float(group) + rng.normal() for group in groups]
    assert grouped_bootstrap(values, groups, resamples=20_000) == pytest.approx(loop(values, groups, 6000, 1), abs=0.15)
    assert grouped_bootstrap([1.0], [0]) is None
    assert grouped_bootstrap([1.0, math.nan], [0, 1]) is None
    assert grouped_bootstrap([2.0, 2.0, math.nan], [0, 1, 1]) == (2.0, 2.0)
    rng = np.random.default_rng(0)
    values, groups = rng.normal(size=30).tolist(), [0] * 10 + [1] * 20
    assert grouped_bootstrap(values, groups) == grouped_bootstrap(values, groups)
    assert grouped_bootstrap(values, groups, seed=1) != grouped_bootstrap(values, groups, seed=2)


# stickiness: Stickiness (Eq. 8) by hand


def stickiness_make() -> Stickiness:
    return Stickiness(terms={"acid", "ion"}, function_words={"the", "of"})


def test_share_of_content_words() -> None:
    metric = stickiness_make()
    assert math.isnan(metric.result().value) and metric.result().ci95 is None
    metric.update([["the", "acid", "of", "rome"], ["ion", "acid"], ["the", "of"]])
    # 1 of 2, 2 of 2; a sample of function words has no share
    assert float(metric.compute()) == pytest.approx(0.75)
    assert metric.result().n == 2
    # The authors' score counts them (deviation 4).
    prompt, written = ["the", "acid", "ion"], ["rome", "fell"]
    honest, published = stickiness_make(), stickiness_make()
    honest.update([written])
    published.update([prompt + written])
    assert float(honest.compute()) == 0.0 and float(published.compute()) == 0.5


# density: Density by hand, and what the printed densities say about the number of samples behind them


ROOT = Path(__file__).resolve().parents[3]


def test_density_and_distinct_n_by_hand() -> None:
    metric = Density(terms={"acid", "salt"})
    metric.update([["acid", "acid", "salt", "x"], ["x"], []], [50, 100, 0])
    # 2 terms in 50 tokens, none in 100; a sample without tokens is left out
    assert (metric.result().value, metric.result().n) == (pytest.approx((4.0 + 0.0) / 2), 2)
    found = ["to", "be", "or", "not", "to", "be"]
    assert distinct_share(found, 1) == pytest.approx(4 / 6)
    assert distinct_share(found, 2) == pytest.approx(4 / 5)
    assert distinct_share(found, 6) == 1.0
    assert math.isnan(distinct_share(found, 7))


def means_of_counts(samples: int) -> set[str]:
    """Every mean of whole numbers over so many samples, below 10, as printed with two decimals."""
    return {f"{total / samples:.2f}" for total in range(10 * samples)}


def test_the_printed_densities_are_means_of_20_counts_rather_than_of_60() -> None:
    # Audit 2: with 100 tokens a sample, density is a mean of whole numbers, and all eight are multiples of 1/20.
    # Means of 60 counts would all happen to be so with probability (1/3)^8.
    printed = read_printed(ROOT / "experiments" / "idea_gate" / "numbers.csv")
    densities = {f"{number.value:.2f}" for (_, _, column), number in printed.items() if column.endswith("_density")}
    assert len(densities) == 8
    assert densities <= means_of_counts(20)
    by_60 = sorted(means_of_counts(60))
    share = sum(value in means_of_counts(20) for value in by_60) / len(by_60)
    assert share == pytest.approx(1 / 3, abs=0.01) and share**8 < 2e-4
    printed = read_printed(ROOT / "experiments" / "idea_gate" / "numbers.csv")
    for domain in ("finance", "war", "chemistry", "hardware"):
        base, gated, relative = (
            printed["1", domain, column].value
            for column in ("baseline_stickiness", "gated_stickiness", "relative_stickiness")
        )
        assert 100 * (gated / base - 1) == pytest.approx(relative, abs=0.6)
    # what the rounding of 0.8% and 1.2% leaves open: from a third to two thirds more
    lowest, highest = 0.0115 / 0.0085, 0.0125 / 0.0075
    assert lowest == pytest.approx(1.353, abs=0.001) and highest == pytest.approx(1.667, abs=0.001)


# topic_drift: Stickiness by distance


def topic_drift_make() -> TopicDrift:
    return TopicDrift(spans=[(1, 50), (51, 75), (76, 100)], terms={"acid"}, function_words={"the"})


def test_each_span_by_itself_and_the_fall_between_first_and_last() -> None:
    metric = topic_drift_make()
    metric.update([[["acid", "the"], ["acid", "x"]], [["acid"], ["acid"]], [["x", "x"], []]])
    result = metric.result()
    assert result["1-50"].value == pytest.approx(0.75) and result["1-50"].n == 2
    # the second sample ended before the span
    assert result["76-100"].value == 0.0 and result["76-100"].n == 1
    assert result["fall"].value == 1.0 and result["fall"].n == 1
    assert result["fall"].direction == "lower"
    one, other = topic_drift_make(), topic_drift_make()
    one.update([[["acid"]], [["x"]], [["x"]]], 0)
    other.update([[["x"]], [["x"]], [["x"]]], 1)
    one.merge_state(other)
    assert one.result()["1-50"].value == 0.5
    assert one.compute().tolist() == [0.5, 0.0, 0.0]
    assert one.result()["fall"].value == 0.5 and one.result()["fall"].n == 2
    one.reset()
    assert all(math.isnan(entry.value) and entry.n == 0 for entry in one.result().values())
