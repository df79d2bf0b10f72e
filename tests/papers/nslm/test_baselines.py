"""The LSTM against its equations, and its carried state."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lit_ctg.papers.nslm.baselines import END, CharacterRNN, CharacterRNNs, NeuralCache, RecurrentBackbone, forget
from lit_ctg.papers.nslm.model import CharacterSettings, clip_by_norm, parameters_apart
from tests.papers.nslm.conftest import lstm_layer


def make(layers: int = 2, dropout: float = 0.0) -> RecurrentBackbone:
    torch.manual_seed(3)
    return RecurrentBackbone(dim=5, layers=layers, dropout=dropout, init_range=0.3).eval()


def slow(backbone: RecurrentBackbone, x_TD: torch.Tensor) -> torch.Tensor:
    """All layers for one text, without dropout, in float64."""
    for layer in range(backbone.lstm.num_layers):
        x_TD = lstm_layer(backbone.lstm, layer, x_TD)
    return x_TD


def test_equals_the_equations() -> None:
    backbone, x = make(), torch.randn(3, 7, 5)
    expected = torch.stack([slow(backbone, row) for row in x])
    torch.testing.assert_close(backbone(x).double(), expected, atol=1e-6, rtol=0)


def test_state_is_carried_and_forgotten() -> None:
    backbone, x = make(), torch.randn(2, 9, 5)
    whole = backbone(x)
    first, state = backbone.run(x[:, :4], None)
    rest, _ = backbone.run(x[:, 4:], state)
    torch.testing.assert_close(torch.cat((first, rest), 1), whole)
    mixed, _ = backbone.run(x[:, 4:], forget(state, torch.tensor([True, False])))
    torch.testing.assert_close(mixed[1], whole[1, 4:])
    torch.testing.assert_close(mixed[0], backbone(x[:1, 4:])[0])
    assert not torch.allclose(mixed[0], whole[0, 4:])
    cache = None
    for t in range(9):
        hidden, cache = backbone.step(x[:, t], cache)
    torch.testing.assert_close(hidden, whole[:, -1])
    assert 0.25 < max(float(p.abs().max()) for p in backbone.parameters()) <= 0.3


def test_dropout_reaches_input_and_output_but_not_the_state() -> None:
    backbone = make(layers=1, dropout=0.5).train()
    hidden, (last, _) = backbone.run(torch.ones(1, 50, 5), None)
    assert (hidden == 0).float().mean() > 0.2
    assert (last != 0).all()


TOKENS = ("1914", "1918", "19", "7", "1,000")


def character_make() -> tuple[CharacterRNN, torch.Tensor]:
    torch.manual_seed(0)
    return CharacterRNN(TOKENS, context_dim=5, dim=7), torch.randn(3, 5)


def character_slow(model: CharacterRNN, context: torch.Tensor, token: str) -> float:
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
    model, context = character_make()
    expected = torch.tensor([[character_slow(model, row, token) for token in TOKENS] for row in context])
    torch.testing.assert_close(model.log_probs(context), expected)
    for member in range(len(TOKENS)):
        torch.testing.assert_close(model(context, np.full(3, member)), expected[:, member])
    # mixed lengths in a batch
    torch.testing.assert_close(model(context, np.array([3, 4, 2])), expected[torch.arange(3), [3, 4, 2]])


def test_deviation_2_strings_outside_the_class_take_a_share() -> None:
    model, context = character_make()
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
        context_ND, drawn_N = torch.randn(200, 8), share_K.multinomial(200, replacement=True).numpy()
        with torch.no_grad():
            raw_N = networks[0](context_ND, drawn_N)
            return [-float(log_N.mean()) for log_N in (raw_N, networks.log_prob_of(context_ND, drawn_N, 0))]

    before = cost()
    for _ in range(steps):
        networks.gather(torch.randn(20, 8), np.zeros(20, int), share_K.multinomial(20, replacement=True).numpy())
        optimizer.zero_grad()
        (rate * networks.cost(*networks.collected())).backward()
        for parameters in parameters_apart(networks, networks):
            clip_by_norm(parameters, 5.0)
        optimizer.step()
    return [*before, *cost()]


def test_trained_it_spells_better_than_untrained_and_than_a_uniform_guess() -> None:
    rate = CharacterSettings.character_rate
    raw, renormalised, raw_after, renormalised_after = trained(rate)
    assert raw_after < math.log(len(NAMES)) < 20 < raw
    assert renormalised_after < math.log(len(NAMES)) < renormalised


B, T, D, V = 2, 17, 4, 5


def text(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, T, D, generator=generator), torch.randint(V, (B, T), generator=generator)


def everything(log: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return p_cache of all words [B, T, V]; zeros where the cache is empty."""
    one_hot = torch.nn.functional.one_hot(words.clamp(min=0), V).float() * (words >= 0).unsqueeze(2)
    return log.exp() @ one_hot


def cache_slow(hidden: torch.Tensor, word: torch.Tensor, cache: NeuralCache, b: int, t: int) -> list[float] | None:
    """p_cache of all words at one position, or None when nothing is cached."""
    earlier = [i for i in range(max(0, t - cache.window), t) if int(word[b, i]) >= 0]
    weight = {i: math.exp(cache.temperature * float(hidden[b, t].double() @ hidden[b, i].double())) for i in earlier}
    if not weight:
        return None
    return [sum(w for i, w in weight.items() if int(word[b, i]) == v) / sum(weight.values()) for v in range(V)]


@pytest.mark.parametrize("window", [3, 100])
@pytest.mark.parametrize("stretch", [1, 5, T])
def test_equals_the_definition_however_the_text_is_cut(window: int, stretch: int) -> None:
    hidden, word = text()
    word[0, 4] = -1
    cache = NeuralCache(window, 0.25, 0.75)
    state = cache.start(hidden)
    for start in range(0, T, stretch):
        part = slice(start, start + stretch)
        before = state
        log_target, state = cache.target(hidden[:, part], word[:, part], before)
        log_all, words, _ = cache.attend(hidden[:, part], word[:, part], before)
        p_all = everything(log_all, words)
        for b in range(B):
            for offset, t in enumerate(range(T)[part]):
                expected = cache_slow(hidden, word, cache, b, t)
                if expected is None:
                    assert log_target[b, offset].isnan() and p_all[b, offset].sum() == 0
                    continue
                assert p_all[b, offset].tolist() == pytest.approx(expected, abs=1e-5)
                if word[b, t] >= 0:
                    found = float(log_target[b, offset].exp())
                    assert found == pytest.approx(expected[int(word[b, t])], abs=1e-5)
