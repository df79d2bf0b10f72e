"""Stopwords: the authors' list and the commonest tokens (deviation 2)."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.idea_gate.stopword import AUTHORS, authors_mask, check_rule, frequent_mask


def test_the_authors_have_seventeen_strings():
    assert len(AUTHORS) == len(set(AUTHORS)) == 17


def test_authors_mask_takes_whole_tokens_with_and_without_a_blank(vocabulary):
    mask = authors_mask(vocabulary, len(vocabulary) + 3)
    assert mask.shape == (len(vocabulary) + 3,)
    masked = {vocabulary.decode([i]) for i in mask.nonzero().flatten().tolist()}
    assert {" the", ",", "\n", " a"} <= masked
    assert {word.strip(" ") for word in masked} <= set(AUTHORS)


def test_frequent_mask_is_the_commonest_tokens():
    mask = frequent_mask([4, 4, 4, 2, 2, 9, 1, 1], 12, 2)
    assert mask.nonzero().flatten().tolist() == [1, 4]
    assert torch.equal(frequent_mask([4], 12, 0), torch.zeros(12, dtype=torch.bool))


def test_unknown_rule():
    with pytest.raises(UserError, match="did you mean 'frequent'"):
        check_rule("freqent")
