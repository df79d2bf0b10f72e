from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.metric.perplexity import Perplexity


@pytest.mark.parametrize("mask", ["target", "input"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_against_the_loop(mask, dtype, make_batch, counted_nlls):
    output, batch = make_batch(dtype=dtype)
    metric = Perplexity(mask=mask)
    metric.update_from(output, batch)
    nlls = [value for _, value in counted_nlls(output, batch, mask)]
    assert float(metric.compute()) == pytest.approx(math.exp(math.fsum(nlls) / len(nlls)), rel=1e-12)
    assert metric.result().n == len(nlls)


def test_the_input_mask_counts_the_pad_target_after_eos(make_batch):
    output, batch = make_batch()
    counts = {}
    for mask in ("target", "input"):
        metric = Perplexity(mask=mask)
        metric.update_from(output, batch)
        counts[mask] = metric.result().n
    shorter = int((batch["target_ids_BT"][:, -1] == 0).sum())  # sentences that fill the batch have no pad target
    assert counts["input"] == counts["target"] + shorter and shorter > 0


def test_uniform_scores_give_the_vocabulary_size():
    metric = Perplexity()
    mask = torch.ones(3, 4, dtype=torch.bool)
    metric.update(torch.full((3, 4, 41), 7.0), torch.zeros(3, 4, dtype=torch.long), mask)
    assert float(metric.compute()) == pytest.approx(41, rel=1e-12)


def test_one_division_for_the_corpus_not_a_mean_of_batch_means():
    # one sentence of 1 position at nll ln 8, one of 3 at nll 0: (ln 8) / 4, where a mean of means gives (ln 8) / 2
    scores = torch.zeros(2, 3, 8)
    scores[1, :, 0] = 1e4
    targets = torch.zeros(2, 3, dtype=torch.long)
    mask = torch.tensor([[True, False, False], [True, True, True]])
    metric = Perplexity()
    metric.update(scores[:1], targets[:1], mask[:1])
    metric.update(scores[1:], targets[1:], mask[1:])
    assert float(metric.compute()) == pytest.approx(8**0.25, rel=1e-12)


def test_huge_logits_stay_exact_where_the_answer_is_finite():
    scores = torch.full((1, 2, 5), -1e4)
    scores[0, 0, 3] = scores[0, 1, 3] = scores[0, 1, 4] = 1e4
    metric = Perplexity()
    metric.update(scores, torch.tensor([[3, 4]]), torch.ones(1, 2, dtype=torch.bool))
    assert float(metric.compute()) == pytest.approx(math.sqrt(2), rel=1e-12)


def test_hopeless_targets_give_infinity_and_no_interval():
    scores = torch.zeros(4, 2, 5)
    scores[..., 0] = 1e4
    metric = Perplexity()
    metric.update(scores, torch.ones(4, 2, dtype=torch.long), torch.ones(4, 2, dtype=torch.bool))
    result = metric.result()
    assert result.value == math.inf and result.n == 8 and result.ci95 is None
    # one such sentence among others: the value and the low end are finite, the high end is not
    scores[0, :, 0], scores[1:] = 1200.0, 0.0
    metric.reset()
    metric.update(scores, torch.ones(4, 2, dtype=torch.long), torch.ones(4, 2, dtype=torch.bool))
    result = metric.result()
    assert result.value == pytest.approx(math.exp(300) * 5**0.75, rel=1e-6) and result.ci95 is None


def test_many_positions_do_not_drift():
    # a float32 running sum of 0.1 over 2e6 positions is off in the fourth digit
    scores = torch.tensor([math.log(math.exp(0.1) - 1), 0.0], dtype=torch.float64).expand(2000, 1000, 2)
    metric = Perplexity()
    targets, mask = torch.ones(2000, 1000, dtype=torch.long), torch.ones(2000, 1000, dtype=torch.bool)
    metric.update(scores, targets, mask)
    assert float(metric.compute()) == pytest.approx(math.exp(0.1), rel=1e-10)


def test_interval_is_the_delta_method_over_sentences(make_batch, nll):
    from scipy import stats

    output, batch = make_batch(sentences=20)
    # a sentence of one position, and one of none, which is no unit
    batch["mask_target_BT"][0, 1:] = batch["mask_target_BT"][1] = False
    metric = Perplexity()
    metric.update_from(output, batch)
    totals, counts = [], []
    for b in range(20):
        row = [
            nll(output.scores_BTV[b, t], int(batch["target_ids_BT"][b, t]))
            for t in range(9)
            if batch["mask_target_BT"][b, t]
        ]
        totals.append(math.fsum(row))
        counts.append(len(row))
    ratio = sum(totals) / sum(counts)
    spread = sum((t - ratio * c) ** 2 for t, c in zip(totals, counts, strict=True))
    half = stats.t.ppf(0.975, 18) * math.sqrt(19 / 18 * spread) / sum(counts)
    expected = (math.exp(ratio - half), math.exp(ratio + half))
    assert metric.result().ci95 == pytest.approx(expected, rel=1e-9)
