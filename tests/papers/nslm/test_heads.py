"""The output layer against Eq. 2 to 4, written out in float64."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.construction import class_table
from lit_ctg.papers.nslm.heads import OutputHeads
from lit_ctg.papers.nslm.recogniser import PatternRecogniser

TOKENS = ("<unk>", "the", "in", "May", "1914", "1918", "12", "5", ".", "war")


def recognisers(*, month: bool = True) -> list[PatternRecogniser]:
    years = PatternRecogniser(name="year", pattern=r"1\d{3}", metrics=["difference"], densities=["gaussian"])
    other = PatternRecogniser(name="other", pattern=r"\d+", metrics=["frequency"], densities=["unigram"])
    day = PatternRecogniser(
        name="day", pattern=r"\d\d?", metrics=["frequency"], densities=["unigram"], context="after_month"
    )
    return [day, years, other] if month else [years, other]


def make(samples: int | None = None) -> OutputHeads:
    torch.manual_seed(2)
    return OutputHeads(dim=6, table=class_table(TOKENS, recognisers()), init_range=0.8, samples=samples)


def positions(seed: int = 0, count: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, 6, generator=generator)
    return hidden, torch.arange(count) % len(TOKENS), torch.arange(count) // len(TOKENS) % 2


def slow(heads: OutputHeads, hidden: torch.Tensor, target: int, state: int) -> dict[str, float]:
    """One position, one target: softmax over dictionaries of named rows."""
    hidden = hidden.double()
    words = {v: float(heads.word_VD[v].double() @ hidden + heads.word_bias_V1[v, 0]) for v in range(len(TOKENS))}
    classes = heads.class_of_SV[state].tolist()
    there = sorted({c for c in classes if c >= 0})
    tags = {c: float(heads.tag_CD[c].double() @ hidden + heads.tag_bias_C1[c, 0]) for c in there}

    def log_of(own: float, scores: list[float]) -> float:
        return own - float(torch.tensor(scores, dtype=torch.float64).logsumexp(0))

    c = classes[target]
    tagged = [z for v, z in words.items() if classes[v] < 0] + list(tags.values())
    result = {"nnlm": log_of(words[target], list(words.values()))}
    result["tag"] = log_of(words[target] if c < 0 else tags[c], tagged)
    result["within"], result["mass"] = 0.0, result["nnlm"]
    if c >= 0:
        start = sum(heads.sizes[:c])
        rows = heads.within_RD[start : start + heads.sizes[c]].double() @ hidden
        rows = rows + heads.within_bias_R1[start : start + heads.sizes[c], 0]
        result["within"] = float(rows.log_softmax(0)[heads.index_CV[c, target]])
        members = [v for v in range(len(TOKENS)) if classes[v] == c]
        result["mass"] = sum(float(torch.tensor(log_of(words[v], list(words.values()))).exp()) for v in members)
        result["mass"] = float(torch.tensor(result["mass"]).log())
    return result


def test_scores_are_the_equations() -> None:
    heads = make().requires_grad_(False)
    hidden, target, state = positions()
    scores = heads.score(hidden, target, state)
    for n in range(len(target)):
        expected = slow(heads, hidden[n], int(target[n]), int(state[n]))
        for name, value in expected.items():
            assert float(getattr(scores, f"{name}_N")[n]) == pytest.approx(value, abs=2e-5), (name, n)


def test_full_losses_are_the_negative_scores() -> None:
    heads = make()
    hidden, target, state = positions()
    losses, scores = heads.losses(hidden, target, state), heads.score(hidden, target, state)
    for name in ("nnlm", "tag", "within"):
        torch.testing.assert_close(losses[name], -getattr(scores, f"{name}_N").sum())


def test_every_vocabulary_sums_to_one_in_every_state() -> None:
    heads = make()
    hidden, _, state = positions()
    words, outside, tags = heads.log_probs(hidden, state)
    torch.testing.assert_close(words.exp().sum(1), torch.ones(len(hidden)))
    torch.testing.assert_close(outside.exp().sum(1) + tags.exp().sum(1), torch.ones(len(hidden)))
    for number in range(len(heads.sizes)):
        for part in (heads.within_class(hidden, number), heads.conditional(hidden, number)):
            torch.testing.assert_close(part.exp().sum(1), torch.ones(len(hidden)))


def test_a_class_of_one_state_is_absent_in_the_others() -> None:
    heads = make()
    hidden, _, _ = positions(count=2)
    _, outside, tags = heads.log_probs(hidden, torch.tensor([0, 1]))
    assert tags[0].isinf().tolist() == [True, False, False]
    assert tags[1].isinf().tolist() == [False, False, True]
    # years are a class in both, so they never stand for themselves
    assert outside[:, TOKENS.index("1914")].isinf().all()
    assert outside[:, TOKENS.index("war")].isfinite().all()


def test_members_of_an_absent_class_stand_for_themselves() -> None:
    day = recognisers()[0]
    heads = OutputHeads(dim=6, table=class_table(TOKENS, [day]), init_range=0.5)
    hidden, target, _ = positions()
    plain = torch.zeros(len(target), dtype=torch.long)
    scores = heads.score(hidden, target, plain)
    torch.testing.assert_close(scores.tag_N, scores.nnlm_N)
    losses = heads.losses(hidden.requires_grad_(), target, plain)
    losses["tag"].backward()
    assert hidden.grad is not None and hidden.grad.isfinite().all()


def test_the_sampled_softmax_estimates_the_full_one() -> None:
    torch.manual_seed(1)
    tokens = ("<unk>", *(f"w{i}" for i in range(300)), *map(str, range(1900, 1960)))
    table = class_table(tokens, recognisers(month=False))
    full = OutputHeads(dim=8, table=table, init_range=0.5)
    sampled = OutputHeads(dim=8, table=table, init_range=0.5, samples=150)
    sampled.load_state_dict(full.state_dict())
    hidden, target = torch.randn(64, 8), torch.randint(len(tokens), (64,))
    state = torch.zeros(64, dtype=torch.long)
    with torch.no_grad():
        exact = full.losses(hidden, target, state)
        draws = [sampled.losses(hidden, target, state) for _ in range(200)]
    for name in ("nnlm", "tag"):
        mean = torch.stack([draw[name] for draw in draws]).mean()
        assert float(mean / exact[name]) == pytest.approx(1.0, abs=0.02)
    assert float(torch.stack([draw["nnlm"] for draw in draws]).std()) > 0


def test_sparse_gradients_equal_dense_ones() -> None:
    tokens = ("<unk>", *(f"w{i}" for i in range(50)), "1914")
    table = class_table(tokens, recognisers(month=False))
    hidden, target, state = torch.randn(9, 6), torch.arange(9), torch.zeros(9, dtype=torch.long)
    grads = []
    for sparse in (False, True):
        torch.manual_seed(4)
        heads = OutputHeads(dim=6, table=table, init_range=0.5, samples=20, sparse=sparse)
        heads.losses(hidden, target, state)["nnlm"].backward()
        grad = heads.word_VD.grad
        assert grad is not None and grad.is_sparse == sparse
        grads.append(grad.to_dense() if sparse else grad)
    torch.testing.assert_close(*grads)


def test_bad_input() -> None:
    with pytest.raises(UserError, match="no word of the vocabulary"):
        OutputHeads(dim=2, table=class_table(("a", "b"), recognisers(month=False)), init_range=0.1)
    with pytest.raises(UserError, match="samples=0"):
        make(samples=0)
