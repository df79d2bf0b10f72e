"""lit_ctg.decoding.ngram against a slow restatement with dictionaries, and against nltk where it is installed."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from lit_ctg.decoding.ngram import NgramModel, histories
from lit_ctg.errors import UserError

V = 7  # the last one never stands in a text
BEGIN = "begin"


def corpus(seed: int = 0, texts: int = 30) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(V - 1) for _ in range(rng.randint(1, 9))] for _ in range(texts)]


def grams(texts: list[list[int]], n: int) -> Counter[tuple[int, ...]]:
    return Counter(tuple(text[i : i + n]) for text in texts for i in range(len(text) - n + 1))


def lefts(texts: list[list[int]], n: int) -> dict[tuple[int, ...], set[object]]:
    found = defaultdict(set)
    for text in texts:
        for i in range(len(text) - n + 1):
            found[tuple(text[i : i + n])].add(text[i - 1] if i else BEGIN)
    return found


def slow(texts, token, history, order, smoothing, discount=None) -> float:
    """The recursion, every count made anew from the texts; ``history`` has at most ``order - 1`` tokens."""
    lower = slow(texts, token, history[1:], order, smoothing, discount) if history else 1 / V
    counted = grams(texts, len(history) + 1)
    after = {gram[-1]: count for gram, count in counted.items() if gram[:-1] == history}
    if not after:
        return lower
    if smoothing == "witten_bell":
        return (after.get(token, 0) + len(after) * lower) / (sum(after.values()) + len(after))
    if len(history) < order - 1:
        counted = {gram: len(left) for gram, left in lefts(texts, len(history) + 1).items()}
        after = {gram[-1]: count for gram, count in counted.items() if gram[:-1] == history}
    if discount is None:
        once, twice = (sum(count == times for count in counted.values()) for times in (1, 2))
        discount = once / (once + 2 * twice) if once and twice else 0.75
    total = sum(after.values())
    return max(after.get(token, 0) - discount, 0) / total + discount * len(after) / total * lower


HISTORIES = [(), (0,), (3, 2), (6, 6), (1, 6), (6, 1), (2, 0, 4), (1, 2, 3, 4, 5), (0, 0, 0, 0)]


@pytest.mark.parametrize("smoothing", ["witten_bell", "kneser_ney"])
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_rows_are_the_recursion_and_sum_to_one(order: int, smoothing: str) -> None:
    texts = [*corpus(), [4, 5, 0, 1, 2, 3]]
    model = NgramModel.count(texts, V, order=order, smoothing=smoothing, dtype=torch.float64)
    for history in [*HISTORIES, (4, 5, 0, 1), (5, 0, 1, 2)]:
        probs_V = model.probs(torch.tensor([history], dtype=torch.long).reshape(1, -1))[0]
        used = history[max(0, len(history) - order + 1) :]
        expected = [slow(texts, token, used, order, smoothing) for token in range(V)]
        assert probs_V.tolist() == pytest.approx(expected, abs=1e-12)
        assert float(probs_V.sum()) == pytest.approx(1.0, abs=1e-12) and float(probs_V.min()) > 0
        each = model.prob_of(torch.tensor([history] * V, dtype=torch.long).reshape(V, -1), torch.arange(V))
        assert each.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("smoothing", ["witten_bell", "kneser_ney"])
def test_a_row_is_the_same_in_any_batch_and_behind_any_padding(smoothing: str) -> None:
    model = NgramModel.count(corpus(), V, order=4, smoothing=smoothing)
    ids_BT = torch.tensor(list(itertools.product(range(V), repeat=3)))
    together = model.probs(ids_BT)
    for row in (0, 17, 100, 342):
        assert torch.equal(model.probs(ids_BT[row : row + 1])[0], together[row])
    # padding is a token that is no context: an end, or one outside the vocabulary
    for pad in (V - 1, V + 3, -1):
        padded = torch.tensor([[pad, pad, 2, 3], [pad, 5, 1, 0]])
        assert torch.equal(model.probs(padded)[0], model.probs(torch.tensor([[2, 3]]))[0])
        assert torch.equal(model.probs(padded)[1], model.probs(torch.tensor([[5, 1, 0]]))[0])
    assert torch.equal(model.probs(torch.zeros(2, 0, dtype=torch.long))[0], model.base_V)


def test_ids_outside_the_vocabulary_are_no_context_of_other_tokens() -> None:
    """A context is one number, its suffix's place times V plus the token on the left: V more of one is one less of
    the other."""
    model = NgramModel.count([[3, 0, 2, 1, 2]], V, order=3)
    # the places of 0, 1 and 2 are those numbers: (3, 0) is 0 * V + 3, (0, 2) is 2 * V and (2, 1) is 1 * V + 2
    found = model.find(torch.tensor([[3, 0], [0, 2], [2, 1]]))
    assert found.length_B.tolist() == [2, 2, 2]
    # 1 * V + 3 - V is 0 * V + 3; 1 * V + V is 2 * V; 0 * V + V + 2 is 1 * V + 2; all ended in a row's own suffix
    found = model.find(torch.tensor([[3 - V, 1], [V, 1], [V + 2, 0]]))
    assert found.length_B.tolist() == [1, 1, 1] and (found.place_BK[:, 2] == -1).all()


def test_counts_of_contexts() -> None:
    model = NgramModel.count([[1, 2, 3], [1, 2], [2, 1]], V, order=3)
    found = model.find(torch.tensor([[0, 1], [1, 2], [2, 2], [3, 3]]))
    assert found.length_B.tolist() == [1, 2, 1, 0]
    assert found.count_B.tolist() == [2, 1, 2, 7], "1 goes on twice, (1, 2) once, 2 twice; 3 never: all seven tokens"


def test_texts_do_not_run_into_each_other() -> None:
    apart = NgramModel.count([[1, 2], [3, 4]], V, order=2, smoothing="witten_bell")
    joined = NgramModel.count([[1, 2, 3, 4]], V, order=2, smoothing="witten_bell")
    after = torch.tensor([[2]])
    assert float(joined.probs(after)[0, 3]) > float(apart.probs(after)[0, 3]) == float(apart.base_V[3])


def test_a_text_is_scored_token_by_token() -> None:
    texts = corpus(3)
    model = NgramModel.count(texts, V, order=3, dtype=torch.float64)
    ids = [3, 1, 4, 1, 5, 6, 2]
    expected = [-math.log(slow(texts, ids[t], tuple(ids[max(0, t - 2) : t]), 3, "kneser_ney")) for t in range(7)]
    assert model.nll(ids).tolist() == pytest.approx(expected)
    assert histories(torch.tensor([5, 6, 7]), 2).tolist() == [[-1, -1], [-1, 5], [5, 6]]
    assert histories(torch.tensor([5, 6, 7]), 0).shape == (3, 0)


def test_the_state_makes_the_same_model(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    model = NgramModel.count(corpus(1), V, order=3)
    save_file(model.state_dict(), tmp_path / "counts.safetensors")
    again = NgramModel.of_state(model.settings(), load_file(tmp_path / "counts.safetensors"))
    ids_BT = torch.randint(0, V, (20, 4), generator=torch.Generator().manual_seed(0))
    assert torch.equal(again.probs(ids_BT), model.probs(ids_BT)) and again.settings() == model.settings()


@pytest.mark.parametrize("name, spoil", [
    ("gram_1", lambda value: value + 10**6),
    ("context_2", lambda value: value.flip(0)),
    ("value_1", lambda value: value * 50),
    ("value_1", lambda value: value.new_full(value.shape, 1.001)),
    ("gram_1", lambda value: torch.cat([value[:1], value[:-1]])),
    ("context_1", lambda value: torch.cat([value[:-1], value.new_tensor([V])])),
    ("rest_2", lambda value: value[:-1]),
    ("count_2", lambda value: value[:-1]),
    ("gram_1", lambda value: torch.cat([value.new_tensor([-1]), value[1:]])),
    ("rest_1", lambda value: torch.cat([-value[:1], value[1:]])),
    ("gram_0", lambda value: value.float()),
])  # fmt: skip
def test_a_state_that_was_changed_is_refused(name: str, spoil) -> None:
    model = NgramModel.count(corpus(1), V, order=3)
    state = dict(model.state_dict())
    state[name] = spoil(state[name])
    with pytest.raises(UserError, match="no counts of an n-gram model"):
        NgramModel.of_state(model.settings(), state)
    del state[name]
    with pytest.raises(UserError, match="no counts of an n-gram model"):
        NgramModel.of_state(model.settings(), state)


def test_bad_input_is_one_line() -> None:
    with pytest.raises(UserError, match="no text to count"):
        NgramModel.count([[]], V, order=2)
    with pytest.raises(UserError, match="order=6"):
        NgramModel.count([[1]], V, order=6)
    with pytest.raises(UserError, match="did you mean 'kneser_ney'"):
        NgramModel.count([[1]], V, order=2, smoothing="kneser")
    with pytest.raises(UserError, match="token 7, the vocabulary 7 tokens"):
        NgramModel.count([[7]], V, order=2)
    with pytest.raises(UserError, match="token -1, the vocabulary 7 tokens"):
        NgramModel.count([[3, -1, 2]], V, order=2)


def test_short_texts_have_every_order() -> None:
    model = NgramModel.count([[2]], V, order=5)
    assert model.probs(torch.tensor([[1, 2, 3, 4, 5]])).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("smoothing", ["witten_bell", "kneser_ney"])
def test_nltk_says_the_same_above_the_single_tokens(smoothing: str) -> None:
    """nltk's single tokens have no uniform part, so what it says of them is put below our longer contexts.

    Its Kneser-Ney counts no begin of a text: here every text begins with the same tokens that stand nowhere else, and
    only n-grams without them are compared.
    """
    lm = pytest.importorskip("nltk.lm")
    from nltk.util import everygrams

    order, begin = 3, V - 1
    texts = [[begin] * (order - 1) + text for text in corpus(5)]
    kinds = {"witten_bell": lm.WittenBellInterpolated, "kneser_ney": lm.KneserNeyInterpolated}
    options = {"discount": 0.6} if smoothing == "kneser_ney" else {}
    theirs = kinds[smoothing](order, vocabulary=lm.Vocabulary(list(map(str, range(V)))), **options)
    theirs.fit([list(everygrams(list(map(str, text)), max_len=order)) for text in texts])
    model = NgramModel.count(
        texts, V, order=order, smoothing=smoothing, discount=options.get("discount"), dtype=torch.float64
    )
    compared = 0
    for history in itertools.product(range(V - 1), repeat=2):
        ids_1T = torch.tensor([history])
        found = model.find(ids_1T)
        if int(found.length_B) < 2:
            continue  # nltk has a rule of its own for contexts it does not know
        rest = math.prod(float(model._level("rest", k)[found.place_BK[0, k]]) for k in (1, 2))
        ours_V = model.probs(ids_1T)[0] - rest * model.base_V
        for token in range(V - 1):
            expected = theirs.score(str(token), list(map(str, history))) - rest * theirs.score(str(token))
            assert float(ours_V[token]) == pytest.approx(expected, abs=1e-9)
            compared += 1
    assert compared > 50


def test_a_large_text_is_counted_whole() -> None:
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.zipf(1.4, 40_000) - 1, 999)
    model = NgramModel.count(np.split(ids, 40), 1000, order=4)
    rows_BT = torch.from_numpy(ids[:400].reshape(100, 4))
    assert torch.allclose(model.probs(rows_BT).sum(1), torch.ones(100), atol=1e-5)
    assert len(model.gram_3) == len({tuple(row[i : i + 4]) for row in np.split(ids, 40) for i in range(len(row) - 3)})
