from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.metric.bits_per_token import BitsPerToken
from lit_ctg.metric.perplexity import Perplexity


def test_uniform_scores_over_sixteen_tokens_are_four_bits():
    metric = BitsPerToken()
    metric.update(torch.zeros(2, 3, 16), torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool))
    result = metric.result()
    assert result.value == pytest.approx(4.0, abs=1e-12) and result.unit == "bits/token"


@pytest.mark.parametrize("mask", ["target", "input"])
def test_it_is_the_logarithm_of_the_perplexity(mask, make_batch):
    bits, perplexity = BitsPerToken(mask=mask), Perplexity(mask=mask)
    for metric in (bits, perplexity):
        metric.update_from(*make_batch())
    assert 2 ** bits.result().value == pytest.approx(perplexity.result().value, rel=1e-12)
    assert bits.result().ci95 == pytest.approx([math.log2(x) for x in perplexity.result().ci95], rel=1e-12)
