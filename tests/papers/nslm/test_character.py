"""The character RNN: chain rule, shared prefixes, renormalisation."""

from __future__ import annotations

import inspect
import math

import numpy as np
import torch

from lit_ctg.papers.nslm.character import END, CharacterRNN, CharacterRNNs
from lit_ctg.papers.nslm.module import NSLMModule
from lit_ctg.papers.nslm.optimisation import clip_apart

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


NAMES = [
    "Addis_Ababa",
    "Amsterdam",
    "Baltimore",
    "Bangkok",
    "Buenos_Aires",
    "Cape_Town",
    "Cologne",
    "Copenhagen",
    "Dar_es_Salaam",
    "Edinburgh",
]


def trained(rate: float, steps: int = 150) -> list[float]:
    """Return -log P in nats a name, raw and renormalised, before and after training as the module trains."""
    torch.manual_seed(0)
    networks = CharacterRNNs([NAMES], context_dim=8, dim=24, every=1, renormalise=True)
    share_K = 1 / torch.arange(1, len(NAMES) + 1)
    optimizer = torch.optim.SGD(networks.parameters(), lr=1.0)

    def cost() -> list[float]:
        context_ND, drawn_N = torch.randn(200, 8), share_K.multinomial(200, replacement=True)
        with torch.no_grad():
            raw_N = networks[0](context_ND, drawn_N)
            return [-float(log_N.mean()) for log_N in (raw_N, networks.log_prob_of(context_ND, drawn_N, 0))]

    before = cost()
    for _ in range(steps):
        networks.gather(torch.randn(20, 8), np.zeros(20, int), share_K.multinomial(20, replacement=True).numpy())
        optimizer.zero_grad()
        (rate * networks.cost()).backward()
        clip_apart(networks, networks, 5.0)
        optimizer.step()
    return [*before, *cost()]


def test_trained_it_spells_better_than_untrained_and_than_a_uniform_guess() -> None:
    rate = inspect.signature(NSLMModule).parameters["character_rate"].default
    raw, renormalised, raw_after, renormalised_after = trained(rate)
    assert raw_after < math.log(len(NAMES)) < 20 < raw
    assert renormalised_after < math.log(len(NAMES)) < renormalised
