from __future__ import annotations

import math

import pytest

from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.after_held_out_perplexity import AfterHeldOutPerplexity

HELD_OUT = (2, 5)


def test_only_positions_after_a_held_out_word_count(make_batch):
    output, batch = make_batch(sentences=12)
    metric = AfterHeldOutPerplexity(held_out_ids=HELD_OUT)
    metric.update_from(output, batch)
    nats = []
    for row, ids in enumerate(batch["input_ids_BT"].tolist()):
        for t, target in enumerate(batch["target_ids_BT"][row].tolist()):
            if batch["mask_target_BT"][row, t] and target not in HELD_OUT and set(ids[: t + 1]) & set(HELD_OUT):
                nats.append(-float(output.scores_BTV[row, t].double().log_softmax(-1)[target]))
    assert 0 < len(nats) < int(batch["mask_target_BT"].sum())
    result = metric.result()
    assert result.n == len(nats)
    assert result.value == pytest.approx(math.exp(math.fsum(nats) / len(nats)), rel=1e-12)


def test_no_held_out_word_gives_nan(make_batch):
    metric = AfterHeldOutPerplexity(held_out_ids=[])
    metric.update_from(*make_batch())
    assert math.isnan(metric.result().value) and metric.result().n == 0


def test_without_ids_it_refuses(make_batch):
    with pytest.raises(UserError, match="held_out_ids unknown"):
        AfterHeldOutPerplexity().update_from(*make_batch())
