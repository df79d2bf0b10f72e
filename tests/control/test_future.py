"""FUDGE: its equation against a slow restatement, its candidates, its classifier."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.control.base import NO_TOKEN, Prefix
from lit_ctg.control.future import Future
from tests.controls import V, classifier

TEXT = [8, 7, 3, 11, 2]


def rule_of(candidates: int, strength: float = 2.0, rows: int = 1) -> object:
    control = Future(classifier(), ["good", "bad"], candidates=candidates)
    return control.rule(control.values({"strength": strength, "to_bad": 1}, rows), Prefix())


def test_the_future_weighs_every_candidate() -> None:
    scores_V = torch.randn(V)
    found = rule_of(V)(torch.tensor([TEXT]), scores_V[None])[0]
    slow = torch.zeros(V)
    for token in range(V):
        with torch.no_grad():
            log_class = classifier()(torch.tensor([[*TEXT, token]]))[0, -1]
        slow[token] = scores_V.softmax(-1)[token] * log_class[1].exp() ** 2
    assert torch.allclose(found.softmax(-1), slow / slow.sum(), atol=1e-5)


def test_what_is_no_candidate_is_left_out_and_what_is_forbidden_stays_so() -> None:
    scores_V = torch.arange(V).float()
    scores_V[V - 1] = -torch.inf
    found = rule_of(4)(torch.tensor([TEXT]), scores_V[None])[0]
    assert found.isfinite().nonzero().flatten().tolist() == [V - 5, V - 4, V - 3, V - 2]


def test_prefixes_that_grow_and_padding_give_what_whole_ones_give() -> None:
    growing, scores = rule_of(V, rows=2), torch.randn(2, V)
    for length in (3, 4, 5):
        ids = torch.tensor([TEXT[:length], [NO_TOKEN, *TEXT[: length - 1]]])
        made = growing(ids, scores)
        for row, text in enumerate((TEXT[:length], TEXT[: length - 1])):
            assert torch.allclose(made[row], rule_of(V)(torch.tensor([text]), scores[row : row + 1])[0], atol=1e-5)


@pytest.mark.parametrize("before", [0, 1])
def test_all_steps_in_one_call_are_the_steps_one_by_one(before: int) -> None:
    """Values and gradients; texts of different lengths, one of none, with padding before them the slow way too."""
    pad = [NO_TOKEN]
    ids = torch.tensor([pad * before + row for row in (TEXT, TEXT[:3] + pad * 2, pad * 5)])
    made, slow = classifier(), classifier()
    found, states = made(ids), slow._states(ids)
    expected = slow.head(states).log_softmax(-1)
    torch.testing.assert_close(found, expected)
    weight = torch.rand(found.shape, generator=torch.Generator().manual_seed(0))
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    for own, other in zip(made.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)
