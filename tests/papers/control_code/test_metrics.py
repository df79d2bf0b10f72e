"""The measures of the control-code paper and ours against sums written out."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.papers.control_code.metrics import (
    BertScore,
    CodeSwapGap,
    CrossEntropy,
    Degeneracy,
    GenerationMean,
    SourceClassifier,
    SourcePerplexity,
    Variation,
)
from lit_ctg.statistics import ratio_interval, t_interval


def test_it_is_the_mean_cost_in_nats_and_the_log_of_the_perplexity(make_scored_batch, counted_nlls):
    output, batch = make_scored_batch()
    loss, perplexity = CrossEntropy(mask="target"), Perplexity(mask="target")
    for metric in (loss, perplexity):
        metric.update_from(output, batch)
    costs = [cost for _, cost in counted_nlls(output, batch, "target")]
    result = loss.result()
    assert result.value == pytest.approx(math.fsum(costs) / len(costs), rel=1e-9)
    assert result.value == pytest.approx(math.log(perplexity.result().value), rel=1e-9)
    assert result.ci95 == pytest.approx([math.log(bound) for bound in perplexity.result().ci95], rel=1e-9)
    assert (result.unit, result.direction, result.n) == ("nats", "lower", len(costs))


SOURCES = ("alice", "iliad", "unread")


def coded(make_scored_batch, seed=0):
    output, batch = make_scored_batch(seed=seed)
    return output, {**batch, "control_code_B": torch.arange(10) % 2}


def test_each_source_has_the_perplexity_of_its_own_rows(make_scored_batch, nll):
    metric = SourcePerplexity().bind(SimpleNamespace(sources=SOURCES))
    assert SourcePerplexity(sources=SOURCES).bind(SimpleNamespace(sources=("a", "b"))).sources == SOURCES
    costs: dict[int, list[float]] = {0: [], 1: []}
    for seed in (0, 1):
        output, batch = coded(make_scored_batch, seed)
        metric.update_from(output, batch)
        for b, t in batch["mask_target_BT"].nonzero().tolist():
            cost = nll(output.scores_BTV[b, t], int(batch["target_ids_BT"][b, t]))
            costs[int(batch["control_code_B"][b])].append(cost)
    result = metric.result()
    for number, source in enumerate(SOURCES[:2]):
        expected = math.exp(math.fsum(costs[number]) / len(costs[number]))
        assert result[source].value == pytest.approx(expected, rel=1e-9) and result[source].n == len(costs[number])
        assert result[source].ci95[0] < expected < result[source].ci95[1]
    assert math.isnan(result["unread"].value) and result["unread"].n == 0
    output, batch = make_scored_batch()
    metric, plain = SourcePerplexity(sources=["all"]), Perplexity()
    metric.update_from(output, {**batch, "control_code_B": torch.zeros(10, dtype=torch.long)})
    plain.update_from(output, batch)
    assert metric.result()["all"].value == pytest.approx(plain.result().value, rel=1e-12)
    assert metric.result()["all"].ci95 == pytest.approx(plain.result().ci95)
    output, batch = coded(make_scored_batch)
    output.scores_BTV[0, 0, batch["target_ids_BT"][0, 0]] = -math.inf
    metric = SourcePerplexity(sources=SOURCES)
    metric.update_from(output, batch)
    result = metric.result()
    assert math.isinf(result["alice"].value) and math.isfinite(result["iliad"].value)


SWAPPED = ("a", "b")


def draw_costs(rows=40, seed=0):
    rng = np.random.default_rng(seed)
    count = rng.integers(3, 9, rows).astype(float)
    right = count * rng.uniform(2, 4, rows)
    wrong = right + count * rng.uniform(0, 1, rows)
    return wrong, right, count, rng.integers(0, 2, rows)


def filled(wrong, right, count, source) -> CodeSwapGap:
    metric = CodeSwapGap(sources=SWAPPED)
    for half in (slice(0, 11), slice(11, None)):  # in two batches
        metric.update(*(torch.tensor(column[half]) for column in (wrong, right, count, source)))
    return metric


def test_gap_in_nats_is_a_paired_ratio_with_its_interval():
    wrong, right, count, source = draw_costs()
    result = filled(wrong, right, count, source).result()
    for name, chosen in (("nats", source >= 0), ("nats/a", source == 0), ("nats/b", source == 1)):
        difference, tokens = (wrong - right)[chosen], count[chosen]
        assert result[name].value == pytest.approx(difference.sum() / tokens.sum())
        expected = ratio_interval(
            total=difference.sum(),
            count=tokens.sum(),
            total_sq=(difference**2).sum(),
            cross=(difference * tokens).sum(),
            count_sq=(tokens**2).sum(),
            rows=len(tokens),
        )
        assert result[name].ci95 == pytest.approx(expected) and result[name].n == tokens.sum()
    metric = filled(wrong, right, count, source)
    assert float(metric.compute()) == metric.result()["nats"].value > 0


def test_gap_of_rows_that_say_nothing():
    wrong, right, count, source = draw_costs(12)
    count[0], wrong[0], right[0] = 1.0, 3.0, 2.5  # a row of one token is
    metric, padded = filled(wrong, right, count, source), filled(wrong, right, count, source)
    padded.update(torch.zeros(3), torch.zeros(3), torch.zeros(3), torch.tensor([0, 1, 1]))
    assert padded.result() == metric.result() and padded.rows.sum() == 12
    wrong, _, count, source = draw_costs()
    result = filled(wrong, wrong, count, source).result()
    assert all(entry.value == 0 and entry.ci95 == (0, 0) for entry in result.values())
    assert math.isnan(CodeSwapGap(sources=SWAPPED).result()["nats"].value)
    metric = CodeSwapGap(sources=SWAPPED)
    metric.update(torch.tensor([3.0]), torch.tensor([2.0]), torch.tensor([2]), torch.tensor([1]))
    result = metric.result()
    assert result["nats/b"].value == 0.5 and result["nats/b"].ci95 is None and math.isnan(result["nats/a"].value)
    metric.update(torch.tensor([5.0]), torch.tensor([3.0]), torch.tensor([2]), torch.tensor([1]))
    assert metric.result()["nats/b"].ci95 is not None, "two rows have one"
    wrong, right, count, source = draw_costs()
    wrong[0] = math.inf
    result = filled(wrong, right, count, source).result()
    for name in ("nats", "perplexity", f"nats/{SWAPPED[source[0]]}"):
        assert result[name].value == math.inf and result[name].ci95 is None
    assert result[f"nats/{SWAPPED[1 - source[0]]}"].ci95 is not None


def test_gap_in_perplexity_and_its_interval_against_resampled_rows():
    wrong, right, count, source = draw_costs(400)
    metric = filled(wrong, right, count, source)
    value = math.exp(wrong.sum() / count.sum()) - math.exp(right.sum() / count.sum())
    result = metric.result()["perplexity"]
    assert result.value == pytest.approx(value) and result.unit == "perplexity"
    assert metric.perplexity() == pytest.approx(math.exp(right.sum() / count.sum()))
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, 400, (3000, 400))
    means = [column[drawn].sum(1) / count[drawn].sum(1) for column in (wrong, right)]
    low, high = np.quantile(np.exp(means[0]) - np.exp(means[1]), [0.025, 0.975])
    assert result.ci95[0] == pytest.approx(low, rel=0.1) and result.ci95[1] == pytest.approx(high, rel=0.1)


class Length(GenerationMean):
    unit, direction = "letters", "none"

    def update(self, texts):
        self.add_values([len(text) for text in texts])


def test_share_of_unique_tokens_averaged_over_generations():
    generations = [[1, 1, 1, 1], [1, 2, 3, 4], [5, 5, 6], []]
    metric = Variation()
    metric.update(generations[:1])
    metric.update(generations[1:])
    shares = [1 / 4, 1.0, 2 / 3]
    result = metric.result()
    assert result.value == pytest.approx(statistics.fmean(shares))
    assert result.ci95 == pytest.approx(t_interval(shares)) and result.n == 3
    assert (result.unit, result.direction) == ("unique share", "higher")
    metric = Degeneracy()
    metric.update([list("aabbb"), list("abc"), [], list("zzzzzz")])
    result = metric.result()
    assert result.value == pytest.approx((3 + 1 + 6) / 3) and result.n == 3
    assert result.ci95 == pytest.approx(t_interval([3.0, 1.0, 6.0]))
    assert (result.unit, result.direction) == ("count", "lower")
    metric, texts = Length(), ["a", "bcd", "ef", "ghijk"]
    metric.update([])
    assert math.isnan(metric.result().value) and metric.result().n == 0
    metric.update(texts[:1])
    assert metric.result().value == 1 and metric.result().ci95 is None
    metric.update(texts[1:])
    lengths = [float(len(text)) for text in texts]
    result = metric.result()
    assert result.value == pytest.approx(statistics.fmean(lengths)) == float(metric.compute())
    assert result.ci95 == pytest.approx(t_interval(lengths)) and (result.n, result.unit) == (4, "letters")


# Table 4 (a), default model, first line


def expected_of_draws(length: int, tokens: int = 10) -> tuple[float, float]:
    """Expected degeneracy and variation of ``length`` uniform draws from ``tokens`` tokens, exactly.

    P(no token more than m times) = length! / tokens^length times the coefficient of x^length in
    (sum over i <= m of x^i / i!)^tokens.
    """

    def at_most(m: int) -> Fraction:
        one = [Fraction(1, math.factorial(i)) for i in range(m + 1)]
        power = [Fraction(1)]
        for _ in range(tokens):
            longer = [Fraction(0)] * min(length + 1, len(power) + m)
            for i, a in enumerate(power):
                for j, b in enumerate(one[: length + 1 - i]):
                    longer[i + j] += a * b
            power = longer
        return power[length] * math.factorial(length) / tokens**length if len(power) > length else Fraction(0)

    degeneracy = sum(1 - at_most(m) for m in range(length))
    return float(degeneracy), tokens * (1 - (1 - 1 / tokens) ** length) / length


def test_the_printed_default_models_say_ten_tokens_at_random():
    """Table 3 prints 4.08 to 4.10 at every epoch, sec. 5.2 a variation around .5: 18 draws from a fixed top ten."""
    degeneracy, variation = expected_of_draws(18)
    assert 4.08 <= degeneracy <= 4.10 and variation == pytest.approx(0.47, abs=0.005)
    assert expected_of_draws(17)[0] < 4.0 and expected_of_draws(19)[0] > 4.2  # no other length does
    rng = np.random.default_rng(0)
    metric = Degeneracy()
    metric.update(rng.integers(0, 10, (20000, 18)).tolist())
    assert metric.result().value == pytest.approx(degeneracy, abs=0.02)


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


def slow_f1(folder, text: str, reference: str, layer: int = -1) -> float:
    """Greedy matching of a layer's states by cosine, special tokens left out (Zhang et al. 2020, sec. 3)."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    states = []
    for words in (text, reference):
        with torch.no_grad():
            states_L = model(**tokenizer(words, return_tensors="pt"), output_hidden_states=True).hidden_states
        hidden_TD = states_L[layer][0, 1:-1].double()
        states.append(hidden_TD / hidden_TD.norm(dim=1, keepdim=True))
    cosine = states[0] @ states[1].T
    precision, recall = cosine.amax(1).mean(), cosine.amax(0).mean()
    return float(2 * precision * recall / (precision + recall))


def test_it_is_greedy_matching_of_the_encoders_states(encoder, tmp_path):
    metric = BertScore(path=encoder)
    assert metric.missing is None
    texts = ["the cat sat", "a dog ran", "", "the dog"]
    references = ["the cat sat", "the cat sat on a mat", "the dog", " "]
    metric.update(texts, references)
    expected = [1.0, slow_f1(encoder, texts[1], references[1])]
    result = metric.result()
    assert result.n == 2  # an empty text or reference has no states
    assert result.value == pytest.approx(sum(expected) / 2, abs=1e-5) and expected[1] < 0.999
    first = BertScore(path=encoder, layers=1)
    first.update(texts[1:2], references[1:2])
    assert first.result().value == pytest.approx(slow_f1(encoder, texts[1], references[1], layer=1), abs=1e-5)
    assert abs(first.result().value - expected[1]) > 1e-3
    table = tmp_path / "baseline.tsv"
    table.write_text("LAYER,P,R,F\n" + "".join(f"{layer},0.5,0.5,0.5\n" for layer in range(3)), encoding="utf-8")
    plain, scaled = BertScore(path=encoder), BertScore(path=encoder, baseline=table)
    for metric in (plain, scaled):
        metric.update(["a dog ran"], ["the cat sat on a mat"])
    assert scaled.result().value == pytest.approx((plain.result().value - 0.5) / 0.5, abs=1e-5)


def draw_chunks(n, seed):
    """Source 0 prefers ids 1..5, source 1 ids 4..8; id 0 tells them apart in training only."""
    rng = np.random.default_rng(seed)
    source_N = rng.integers(0, 2, n)
    return [rng.integers(1 + 3 * s, 6 + 3 * s, 20).tolist() for s in source_N], source_N


def test_the_classifier_learns_which_tokens_a_source_prefers():
    chunks, source_N = draw_chunks(200, 0)
    unseen, unseen_source_N = draw_chunks(200, 1)
    judge = SourceClassifier(9).fit(chunks, source_N)
    assert (judge.predict(unseen) == unseen_source_N).mean() > 0.97
    assert (judge.predict(unseen) == judge.predict([chunk[::-1] for chunk in unseen])).all()  # a bag of tokens
    judge = SourceClassifier(9, ignored=[0])
    counts = judge.counts([[1, 1, 0, 8], [], [0, 0]])
    assert counts.toarray().tolist() == [[0, 2, 0, 0, 0, 0, 0, 0, 1], [0] * 9, [0] * 9]
    chunks, source_N = draw_chunks(200, 0)
    marked = [[0] * 50 + chunk if source == 0 else chunk for chunk, source in zip(chunks, source_N, strict=True)]
    judge.fit(marked, source_N)
    # a token that occurs n times weighs 1 + ln n
    weight = judge.pipeline[0].transform(counts).toarray()[0] / judge.pipeline[0].idf_
    assert weight[1] / weight[8] == pytest.approx(1 + math.log(2))
    plain = SourceClassifier(9).fit(chunks, source_N)
    unseen, _ = draw_chunks(200, 1)
    assert (judge.predict([[0, *chunk] for chunk in unseen]) == plain.predict(unseen)).all()
    rng = np.random.default_rng(0)
    chunks = [rng.integers(1, 9, 20).tolist() for _ in range(400)]  # nothing to tell them apart by
    source_N = np.array([0] * 380 + [1] * 20)
    predicted = SourceClassifier(9).fit(chunks, source_N).predict([rng.integers(1, 9, 20).tolist() for _ in range(400)])
    assert 0.25 < (predicted == 1).mean() < 0.75
