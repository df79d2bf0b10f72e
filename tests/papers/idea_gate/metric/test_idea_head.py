"""The idea head's scores against scikit-learn and against what a head without context gets."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from lit_ctg.papers.idea_gate.idea_head import IdeaHead, average_precision, coming_tokens

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
    ours = average_precision(logits_PV.masked_fill(stopword_V, -torch.inf), coming_tokens(window_PK, stopword_V))
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
    return SimpleNamespace(scores_BTV=logits, extras={"token_logits": logits, "idea_logits": logits}), batch


def test_stopwords_are_left_out_of_both_rankings() -> None:
    """Stopwords of the highest idea score and the highest frequency change nothing: the best of the rest is first."""
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


def test_more_output_rows_than_tokens() -> None:
    """A pretrained model's vocabulary is often padded; rows that no text has change nothing of the unigram ranking."""
    logits_PV, window_PK, stopword_V = case(3)
    window_PK = window_PK.masked_fill(window_PK >= V - 5, -1)
    padded, whole = make(tokens=V - 5)[0], make()[0]
    padded.update(logits_PV, window_PK, stopword_V)
    whole.frequency_V[V - 5 :] = 0
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
    assert int(metric.average_precision_count) <= 3 + 5 + 5


def test_parts_add_up() -> None:
    whole, _ = make()
    parts, _ = make()
    logits_PV, window_PK, stopword_V = case(5)
    whole.update(logits_PV[:30], window_PK[:30], stopword_V)
    whole.update(logits_PV[30:], window_PK[30:], stopword_V)
    parts.update(logits_PV[:30], window_PK[:30], stopword_V)
    other, _ = make()
    other.update(logits_PV[30:], window_PK[30:], stopword_V)
    parts.merge_state(other)
    assert whole.result() == parts.result()


def test_a_model_without_the_head_gives_nothing() -> None:
    metric, module = make()
    output, batch = batch_and_output(module)
    output.extras["idea_logits"] = None
    metric.update_from(output, batch)
    assert metric.result() == {}
