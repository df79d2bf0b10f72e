from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.papers.semantic_fusion.seen_only_perplexity import SeenOnlyPerplexity

HELD_OUT = (2, 5, 11)


@pytest.mark.parametrize("mask", ["target", "input"])
def test_against_the_formula_of_appendix_b(mask, make_batch, counted_nlls):
    output, batch = make_batch(sentences=15)
    metric = SeenOnlyPerplexity(held_out_ids=HELD_OUT, mask=mask)
    metric.update_from(output, batch)
    kept = [value for target, value in counted_nlls(output, batch, mask) if target not in HELD_OUT]
    everything = counted_nlls(output, batch, mask)
    assert 0 < len(kept) < len(everything)
    result = metric.result()
    assert result.value == pytest.approx(math.exp(math.fsum(kept) / len(kept)), rel=1e-12)
    assert result.n == len(kept)


def test_only_held_out_targets_gives_nan():
    metric = SeenOnlyPerplexity(held_out_ids=[1])
    metric.update(torch.zeros(1, 3, 4), torch.ones(1, 3, dtype=torch.long), torch.ones(1, 3, dtype=torch.bool))
    assert math.isnan(float(metric.compute())) and metric.result().n == 0


def test_a_held_out_word_in_the_context_is_kept(make_batch):
    # note (iii): the filter looks at targets alone, so the position after a held-out word counts
    output, batch = make_batch()
    metric = SeenOnlyPerplexity(held_out_ids=HELD_OUT)
    metric.update_from(output, batch)
    held = torch.isin(batch["target_ids_BT"], torch.tensor(HELD_OUT)) & batch["mask_target_BT"]
    assert metric.result().n == int(batch["mask_target_BT"].sum() - held.sum())


def test_nothing_held_out_is_the_plain_perplexity(make_batch):
    plain, seen = Perplexity(), SeenOnlyPerplexity(held_out_ids=[])
    for metric in (plain, seen):
        metric.update_from(*make_batch())
    assert seen.result() == plain.result()


def test_bind_takes_the_ids_of_the_data_module_but_not_over_given_ones():
    data = SimpleNamespace(held_out_ids=(3, 4))
    assert SeenOnlyPerplexity().bind(data).held_out_ids == (3, 4)
    assert SeenOnlyPerplexity(held_out_ids=[9]).bind(data).held_out_ids == (9,)


def test_without_ids_it_refuses_to_count(make_batch):
    with pytest.raises(UserError, match="held_out_ids unknown"):
        SeenOnlyPerplexity().update_from(*make_batch())
    with pytest.raises(UserError, match="SimpleNamespace holds no tokens out"):
        SeenOnlyPerplexity().bind(SimpleNamespace())
