"""The bias of every token: its equation, and what classes it takes."""

from __future__ import annotations

import math

import torch

from lit_ctg.control import Steered
from lit_ctg.control.base import Prefix
from lit_ctg.control.token_bias import TokenBias, class_shares, log_odds


def test_log_odds_are_those_of_the_counts() -> None:
    counts = [[3, 0, 1], [1, 1, 0], [0, 2, 0]]
    found = log_odds(torch.tensor(counts), prior=0.5)
    for c in range(3):
        own_sum = sum(counts[c]) + 3 * 0.5
        rest = [sum(counts[k][v] for k in range(3) if k != c) for v in range(3)]
        for v in range(3):
            slow = math.log((counts[c][v] + 0.5) / own_sum) - math.log((rest[v] + 0.5) / (sum(rest) + 1.5))
            assert math.isclose(float(found[c, v]), slow, rel_tol=1e-12)


def test_the_share_of_classes_is_a_mean_and_none_is_off(model: torch.nn.Module, tokenizer: object) -> None:
    given = {"strength": [1.0, 1.0], "to_a": [3.0, math.nan], "to_b": [1.0, math.nan]}
    values = {name: torch.tensor(column, dtype=torch.float64) for name, column in given.items()}
    assert class_shares(["a", "b"], values).tolist() == [[0.75, 0.25], [0, 0]]
    bias = TokenBias({"a": torch.eye(14)[3] * 1000, "b": torch.eye(14)[4] * 1000})
    assert bias.off(values).tolist() == [False, True]
    added = TokenBias({"a": torch.tensor([1.0, 0]), "b": torch.tensor([0.0, 4])})
    twice = values | {"strength": torch.tensor([2.0, 0.5], dtype=torch.float64)}
    scores = added.rule(twice, Prefix())(torch.zeros(2, 1, dtype=torch.long), torch.zeros(2, 2))
    assert scores.tolist() == [[1.5, 2.0], [0, 0]]
    steered = Steered(model, [bias], tokenizer=tokenizer)
    acid, metal, plain = steered.write(
        ["the war"] * 3, {"token_bias.to_a": [1, None, None], "token_bias.to_b": [None, 1, None]}, max_new_tokens=2
    )
    assert (acid, metal) == (" acid acid", " metal metal")
    assert plain == Steered(model, [], tokenizer=tokenizer).write("the war", max_new_tokens=2)[0]
