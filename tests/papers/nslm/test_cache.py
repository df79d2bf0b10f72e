"""The neural cache against its definition (Grave et al. 2017, eq. 4 and 5)."""

from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.papers.nslm.cache import NeuralCache

B, T, D, V = 2, 17, 4, 5


def text(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, T, D, generator=generator), torch.randint(V, (B, T), generator=generator)


def everything(log: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return p_cache of all words [B, T, V]; zeros where the cache is empty."""
    one_hot = torch.nn.functional.one_hot(words.clamp(min=0), V).float() * (words >= 0).unsqueeze(2)
    return log.exp() @ one_hot


def slow(hidden: torch.Tensor, word: torch.Tensor, cache: NeuralCache, b: int, t: int) -> list[float] | None:
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
                expected = slow(hidden, word, cache, b, t)
                if expected is None:
                    assert log_target[b, offset].isnan() and p_all[b, offset].sum() == 0
                    continue
                assert p_all[b, offset].tolist() == pytest.approx(expected, abs=1e-5)
                if word[b, t] >= 0:
                    found = float(log_target[b, offset].exp())
                    assert found == pytest.approx(expected[int(word[b, t])], abs=1e-5)


def test_a_distribution_sums_to_one() -> None:
    hidden, word = text(1)
    cache = NeuralCache(6, 0.25, 0.75)
    log_all, words, _ = cache.attend(hidden, word, cache.start(hidden))
    torch.testing.assert_close(everything(log_all, words)[:, 1:].sum(2), torch.ones(B, T - 1))


def test_the_word_to_be_predicted_is_never_looked_at() -> None:
    hidden, word = text(2)
    cache = NeuralCache(50, 0.25, 0.75)
    first, _, _ = cache.attend(hidden, word, cache.start(hidden))
    changed, log = word.clone(), first
    changed[:, 9:] = (changed[:, 9:] + 1) % V
    second, words, _ = cache.attend(hidden, changed, cache.start(hidden))
    for columns, kept in ((second, changed), (log, word)):
        assert kept.shape == words.shape and columns.shape == log.shape
    p_one, p_two = everything(first, word), everything(second, changed)
    torch.testing.assert_close(p_one[:, :10], p_two[:, :10])
    assert not torch.allclose(p_one[:, 10:], p_two[:, 10:])
