"""The character RNN: chain rule, shared prefixes, renormalisation."""

from __future__ import annotations

import torch

from lit_ctg.model.nslm.character import END, CharacterRNN

TOKENS = ("1914", "1918", "19", "7", "1,000")


def make() -> tuple[CharacterRNN, torch.Tensor]:
    torch.manual_seed(0)
    return CharacterRNN(TOKENS, context_dim=5, dim=7), torch.randn(3, 5)


def slow(model: CharacterRNN, context: torch.Tensor, token: str) -> float:
    """Chain rule, character by character; the token ends with the end symbol."""
    alphabet = {c: 1 + i for i, c in enumerate(sorted(set("".join(TOKENS))))}
    state = model.first(context).tanh().view(1, 1, -1)
    total, symbol = 0.0, END
    for following in [*(alphabet[c] for c in token), END]:
        output, state = model.rnn(model.embedding(torch.tensor([[symbol]])), state)
        total += float(model.output(output[0, 0]).log_softmax(0)[following].detach())
        symbol = following
    return total


def test_chain_rule_one_by_one_and_by_shared_prefixes() -> None:
    model, context = make()
    expected = torch.tensor([[slow(model, row, token) for token in TOKENS] for row in context])
    torch.testing.assert_close(model.log_probs(context), expected)
    for member in range(len(TOKENS)):
        torch.testing.assert_close(model(context, torch.full((3,), member)), expected[:, member])


def test_mixed_lengths_in_a_batch() -> None:
    model, context = make()
    members = torch.tensor([3, 4, 2])
    torch.testing.assert_close(model(context, members), model.log_probs(context)[torch.arange(3), members])


def test_deviation_2_strings_outside_the_class_take_a_share() -> None:
    model, context = make()
    mass = model.log_probs(context).exp().sum(1)
    assert (mass < 0.99).all()
    torch.testing.assert_close(model.log_probs(context).log_softmax(1).exp().sum(1), torch.ones(3))
