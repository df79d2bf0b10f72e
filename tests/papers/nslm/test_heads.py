"""The output layer against Eq. 2 to 4, written out in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.classes import PatternRecogniser, class_table
from lit_ctg.papers.nslm.heads import AdaptiveHeads, OutputHeads, SingleTaskHeads, Words, make_heads

TOKENS = ("<unk>", "the", "in", "May", "1914", "1918", "12", "5", ".", "war")


def recogniser(name: str, pattern: str, context: str | None = None) -> PatternRecogniser:
    return PatternRecogniser(name=name, pattern=pattern, metrics=["frequency"], densities=["unigram"], context=context)


def recognisers(*, month: bool = True) -> list[PatternRecogniser]:
    plain = [recogniser("year", r"1\d{3}"), recogniser("other", r"\d+")]
    return [recogniser("day", r"\d\d?", "after_month"), *plain] if month else plain


def make(samples: int | None = None) -> OutputHeads:
    torch.manual_seed(2)
    return OutputHeads(dim=6, table=class_table(TOKENS, recognisers()), init_range=0.8, samples=samples)


def positions(count: int = 40, dim: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = torch.randn(count, dim, generator=torch.Generator().manual_seed(0))
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
    heads = make()
    hidden, target, state = positions()
    losses, scores = heads.losses(hidden, target, state), heads.score(hidden, target, state)
    for name in ("nnlm", "tag", "within"):
        torch.testing.assert_close(losses[name], -getattr(scores, f"{name}_N").sum())
    torch.testing.assert_close(losses["all"], losses["nnlm"] + losses["tag"] + losses["within"])
    for n in range(len(target)):
        expected = slow(heads, hidden[n], int(target[n]), int(state[n]))
        for name, value in expected.items():
            assert float(getattr(scores, f"{name}_N")[n]) == pytest.approx(value, abs=2e-5), (name, n)


Step = tuple[dict[str, torch.Tensor], list[torch.Tensor]]


def step(heads: OutputHeads, *, scale: float = 1.0) -> Step:
    """Return the costs of 300 positions in all states, and the gradients of their sum for states and parameters."""
    hidden, target, state = positions(count=300)
    hidden = (scale * hidden).requires_grad_()
    heads.zero_grad()
    names = ("all", "nnlm", "tag")
    losses = dict(zip(names, heads.costs(hidden, target, state), strict=True))
    (losses["all"] / 7).backward()
    return losses, [hidden.grad, *(getattr(heads, name).grad.clone() for name in WORDS)]


WORDS = ("word_VD", "word_bias_V1", "tag_CD", "tag_bias_C1")


def exact_step(heads: OutputHeads, *, scale: float = 1.0) -> Step:
    """The same in float64, by two softmaxes that are written out."""
    hidden, target, state = positions(count=300)
    hidden = (scale * hidden).double().requires_grad_()
    word, bias, tag, tag_bias = (getattr(heads, name).detach().double().requires_grad_() for name in WORDS)
    words, tags = hidden @ word.T + bias.T, hidden @ tag.T + tag_bias.T
    each = torch.arange(len(target))
    nnlm = -words.log_softmax(1)[each, target].sum()
    classes = heads.class_of_SV[state]
    tagged = torch.cat(
        (words.masked_fill(classes >= 0, -torch.inf), tags.masked_fill(~heads.available_SC[state], -torch.inf)), 1
    ).log_softmax(1)
    of_target = classes[each, target]
    place = torch.where(of_target >= 0, words.shape[1] + of_target, target)
    cost = -tagged[each, place].sum()
    ((nnlm + cost) / 7).backward()
    return {"all": nnlm + cost, "nnlm": nnlm, "tag": cost}, [p.grad for p in (hidden, word, bias, tag, tag_bias)]


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_one_pass_has_the_costs_and_gradients_of_the_plain_form(scale: float) -> None:
    heads = make()
    expected, gradients = exact_step(heads, scale=scale)
    for fast in ("off", "auto"):
        heads.fast = fast
        found, own = step(heads, scale=scale)
        for name, value in expected.items():
            torch.testing.assert_close(found[name].double(), value, rtol=2e-6, atol=0)
        for exact, gradient in zip(gradients, own, strict=True):
            assert float((gradient - exact).abs().max() / exact.abs().max()) < 2e-6


def test_one_pass_in_half_precision_is_as_near_as_the_plain_form() -> None:
    heads = make()
    exact, gradients = exact_step(heads)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, half = step(heads)
        heads.fast = "off"
        plain, plain_half = step(heads)
    for name, value in exact.items():
        torch.testing.assert_close(found[name], plain[name], rtol=1e-5, atol=0)
        torch.testing.assert_close(found[name].double(), value, rtol=2e-2, atol=0)
    for full, one, other in zip(gradients, half, plain_half, strict=True):
        error, own = (float((part - full).norm() / full.norm()) for part in (one, other))
        assert error < max(0.01, 1.5 * own)


def test_one_pass_where_a_class_has_nearly_all_mass() -> None:
    """What is left for the other words is summed up, not a difference from one."""
    heads = make()
    with torch.no_grad():
        heads.word_bias_V1[heads.member_M] = 18.0
    for fast in ("off", "auto"):
        heads.fast = fast
        losses, gradients = step(heads)
        if fast == "off":
            expected = losses, gradients
    torch.testing.assert_close(losses["tag"], expected[0]["tag"], rtol=1e-5, atol=0)
    for found, other in zip(gradients, expected[1], strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)


def test_every_vocabulary_sums_to_one_in_every_state() -> None:
    heads = make()
    hidden, _, state = positions()
    words, outside, tags = heads.log_probs(hidden, state)
    torch.testing.assert_close(words.exp().sum(1), torch.ones(len(hidden)))
    torch.testing.assert_close(outside.exp().sum(1) + tags.exp().sum(1), torch.ones(len(hidden)))
    for number in range(len(heads.sizes)):
        for part in (heads.within_class(hidden, number), heads.conditional(hidden, number)):
            torch.testing.assert_close(part.exp().sum(1), torch.ones(len(hidden)))
    # a class of one state is absent in the others; years are a class in both, so they never count as plain words
    _, outside, tags = heads.log_probs(hidden[:2], torch.tensor([0, 1]))
    assert tags.isinf().tolist() == [[True, False, False], [False, False, True]]
    assert outside[:, TOKENS.index("1914")].isinf().all() and outside[:, TOKENS.index("war")].isfinite().all()


def test_members_of_an_absent_class_stand_for_themselves() -> None:
    day = recognisers()[0]
    heads = OutputHeads(dim=6, table=class_table(TOKENS, [day]), init_range=0.5)
    hidden, target, _ = positions()
    plain = torch.zeros(len(target), dtype=torch.long)
    scores = heads.score(hidden, target, plain)
    torch.testing.assert_close(scores.tag_N, scores.nnlm_N)
    losses = heads.losses(hidden.requires_grad_(), target, plain)
    losses["all"].backward()
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


def test_the_sampled_softmax_of_known_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Denominators: each drawn word over its expected count, but the target once and whole; tags are always there."""
    heads = make(samples=4)
    hidden, target, state = positions()
    drawn, log_count = torch.tensor([1, 3, 4, 7]), torch.linspace(-2.0, -0.5, len(TOKENS))
    monkeypatch.setattr(heads, "_draw", lambda: (drawn, log_count))
    with torch.no_grad():
        losses = heads.losses(hidden, target, state)
        words = (hidden @ heads.word_VD.T + heads.word_bias_V1.T).double()
        tags = (hidden @ heads.tag_CD.T + heads.tag_bias_C1.T).double()
    expected = {"nnlm": 0.0, "tag": 0.0}
    for n, (v, s) in enumerate(zip(target.tolist(), state.tolist(), strict=True)):
        classes, own = heads.class_of_SV[s].tolist(), float(words[n, v])
        others = {w: math.exp(float(words[n, w] - log_count[w])) for w in drawn.tolist() if w != v}
        expected["nnlm"] += math.log(sum(others.values()) + math.exp(own)) - own
        there = {c: math.exp(float(tags[n, c])) for c in {c for c in classes if c >= 0}}
        total = sum(z for w, z in others.items() if classes[w] < 0) + sum(there.values())
        total += math.exp(own) if classes[v] < 0 else 0.0
        expected["tag"] += math.log(total) - (own if classes[v] < 0 else math.log(there[classes[v]]))
    for name, value in expected.items():
        assert float(losses[name]) == pytest.approx(value, rel=1e-5), name


def test_draws_are_log_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(TOKENS)
    heads, uniform = make(samples=size - 1), torch.tensor([0.0, 0.2, 0.5, 0.5, 0.7, 0.9, 0.95, 0.98, 0.9999])
    monkeypatch.setattr(torch, "rand", lambda count, device: uniform)
    drawn, log_count = heads._draw()
    assert drawn.tolist() == sorted({int((size + 1) ** u - 1) for u in uniform.tolist()}) and drawn[-1] == size - 1
    for rank in range(size):
        chance = math.log((rank + 2) / (rank + 1)) / math.log(size + 1)
        assert float(log_count[rank].exp()) == pytest.approx(1 - (1 - chance) ** (size - 1), rel=1e-5)
    # as many samples as words are the full softmax
    costs = [make(samples=samples).costs(*positions())[0] for samples in (size, None)]
    assert torch.equal(*costs)


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


def made(*, dim: int, table: Any, sparse: bool = False, **words: Any) -> Any:
    return make_heads(Words(**words), dim=dim, table=table, sparse=sparse)


def test_the_heads_are_made_as_asked() -> None:
    options = {"dim": 16, "table": class_table(TOKENS, recognisers()), "init_range": 0.25}
    plain = made(**options)
    assert isinstance(plain, OutputHeads) and (plain.samples, plain.sparse, plain.fast) == (None, False, "auto")
    sampled = made(sparse=True, samples=5, fast="off", **options)
    assert isinstance(sampled, OutputHeads) and (sampled.samples, sampled.sparse, sampled.fast) == (5, True, "off")
    clusters = made(cutoffs=[4, 8], **options)
    assert isinstance(clusters, AdaptiveHeads)
    # a quarter of the width in each cluster (Grave et al. 2017)
    assert [network[0].out_features for network in clusters.words.tail] == [4, 1]
    for heads in (plain, sampled, clusters):
        assert 0.2 < float(heads.within_RD.detach().abs().max()) <= 0.25
        assert not heads.within_bias_R1.any() and not heads.tag_bias_C1.any()
    assert 0.2 < float(plain.word_VD.detach().abs().max()) <= 0.25 and not plain.word_bias_V1.any()


# clusters from "1914" and from "12": the second is all numbers, so the tagged vocabulary has it in no state
ADAPTIVE_TOKENS = ("<unk>", "the", "in", "May", "1914", "war", ".", "1918", "12", "5")
CUTOFFS = (4, 8)


def adaptive_make() -> AdaptiveHeads:
    torch.manual_seed(2)
    heads = AdaptiveHeads(dim=16, table=class_table(ADAPTIVE_TOKENS, recognisers()), init_range=0.8, cutoffs=CUTOFFS)
    with torch.no_grad():
        for parameter in heads.words.parameters():
            parameter.mul_(3)
    return heads


def adaptive_slow(heads: AdaptiveHeads, hidden: torch.Tensor, state: int) -> tuple[dict[int, float], dict[Any, float]]:
    """Return P of words, and P of words and tags in the tagged vocabulary, one position, from sums of exponentials."""
    edges, classes = [*CUTOFFS, len(ADAPTIVE_TOKENS)], heads.class_of_SV[state].tolist()
    head = heads.words.head(hidden).double().exp().tolist()
    tags = (heads.tag_CD @ hidden + heads.tag_bias_C1[:, 0]).double().exp().tolist()
    there = sorted({c for c in classes if c >= 0})
    words, tagged = {}, {}
    short = {v: head[v] for v in range(CUTOFFS[0])}
    inside = []
    for number, network in enumerate(heads.words.tail):
        ids = range(edges[number], edges[number + 1])
        inside.append(dict(zip(ids, network(hidden).double().exp().tolist(), strict=True)))
    total = sum(head)
    open_clusters = [any(classes[v] < 0 for v in part) for part in inside]
    open_total = sum(z for v, z in short.items() if classes[v] < 0) + sum(tags[c] for c in there)
    open_total += sum(head[CUTOFFS[0] + g] for g, is_open in enumerate(open_clusters) if is_open)
    words |= {v: z / total for v, z in short.items()}
    tagged |= {v: z / open_total for v, z in short.items() if classes[v] < 0}
    tagged |= {f"tag {c}": tags[c] / open_total for c in there}
    for g, part in enumerate(inside):
        share, left = head[CUTOFFS[0] + g], {v: z for v, z in part.items() if classes[v] < 0}
        words |= {v: share / total * z / sum(part.values()) for v, z in part.items()}
        tagged |= {v: share / open_total * z / sum(left.values()) for v, z in left.items()}
    return words, tagged


def test_scores_and_distributions_are_the_sums() -> None:
    heads = adaptive_make()
    hidden, target, state = positions(dim=16)
    # words are those of torch
    torch.testing.assert_close(heads.log_probs(hidden, state)[0], heads.words.log_prob(hidden))
    torch.testing.assert_close(heads.score(hidden, target, state).nnlm_N, heads.words(hidden, target).output)
    for number in range(len(heads.sizes)):
        expected = heads.words.log_prob(hidden)[:, heads.members(number)].log_softmax(1)
        torch.testing.assert_close(heads.conditional(hidden, number), expected)
    with torch.no_grad():
        scores = heads.score(hidden, target, state)
        words_NV, outside_NV, tags_NC = (part.double().exp() for part in heads.log_probs(hidden, state))
        for n in range(len(target)):
            words, tagged = adaptive_slow(heads, hidden[n], int(state[n]))
            assert sum(words.values()) == pytest.approx(1) and sum(tagged.values()) == pytest.approx(1)
            assert words_NV[n].tolist() == pytest.approx([words[v] for v in range(len(ADAPTIVE_TOKENS))], rel=1e-4)
            assert outside_NV[n].tolist() == pytest.approx(
                [tagged.get(v, 0) for v in range(len(ADAPTIVE_TOKENS))], rel=1e-4
            )
            assert tags_NC[n].tolist() == pytest.approx([tagged.get(f"tag {c}", 0) for c in range(3)], rel=1e-4)
            v, c = int(target[n]), int(heads.class_of_SV[state[n], target[n]])
            assert float(scores.nnlm_N[n].exp()) == pytest.approx(words[v], rel=1e-4)
            assert float(scores.tag_N[n].exp()) == pytest.approx(tagged[v if c < 0 else f"tag {c}"], rel=1e-4)
            same = [u for u in words if int(heads.class_of_SV[state[n], u]) == c]
            mass = words[v] if c < 0 else sum(words[u] for u in same)
            assert float(scores.mass_N[n].exp()) == pytest.approx(mass, rel=1e-4)


def test_half_precision_is_of_products_only() -> None:
    heads = adaptive_make()
    hidden, target, state = positions(dim=16)
    exact = heads.score(hidden, target, state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = heads.score(hidden.bfloat16(), target, state)
        words, inside = heads.log_probs(hidden.bfloat16(), state)[0], heads.conditional(hidden.bfloat16(), 1)
    assert {part.dtype for part in (scores.nnlm_N, scores.tag_N, scores.mass_N, words, inside)} == {torch.float32}
    torch.testing.assert_close(inside, words[:, heads.members(1)].log_softmax(1))
    torch.testing.assert_close(inside.exp().sum(1), torch.ones(len(hidden)), atol=1e-6, rtol=0)
    torch.testing.assert_close(scores.mass_N, exact.mass_N, atol=0.2, rtol=0.05)


def test_losses_are_the_negative_scores_and_reach_every_parameter() -> None:
    heads = adaptive_make()
    hidden, target, state = positions(dim=16)
    losses, scores = heads.losses(hidden.requires_grad_(), target, state), heads.score(hidden, target, state)
    for name in ("nnlm", "tag", "within"):
        torch.testing.assert_close(losses[name], -getattr(scores, f"{name}_N").sum())
    losses["tag"].backward()
    assert hidden.grad is not None and hidden.grad.isfinite().all()
    grads = {name: parameter.grad for name, parameter in heads.words.named_parameters()}
    assert all(grad is not None and grad.isfinite().all() for grad in grads.values())
    # the cluster of nothing but numbers is not in the tagged vocabulary
    assert float(grads["tail.0.1.weight"].abs().sum()) > 0 and float(grads["tail.1.1.weight"].abs().sum()) == 0


def test_bad_input() -> None:
    with pytest.raises(UserError, match="no word of the vocabulary"):
        OutputHeads(dim=2, table=class_table(("a", "b"), recognisers(month=False)), init_range=0.1)
    options = {"dim": 16, "table": class_table(ADAPTIVE_TOKENS, recognisers(month=False)), "init_range": 0.1}
    for cutoffs in ((), (0, 4), (6, 4), (4, 10), (2, 4, 6)):
        with pytest.raises(UserError, match=r"ascending ids above 0 and below 10.*backbone\.dim=16"):
            AdaptiveHeads(cutoffs=cutoffs, **options)
    for others in ({"samples": 5}, {"single_task": True}, {"tied": True}):
        with pytest.raises(UserError, match=r"model\.cutoffs"):
            Words(init_range=0.1, cutoffs=CUTOFFS, **others)


def single(samples: int | None = None) -> SingleTaskHeads:
    torch.manual_seed(2)
    table = class_table(TOKENS, recognisers())
    options = {"dim": 6, "table": table, "init_range": 0.8, "samples": samples}
    heads = made(**options, single_task=True)
    assert isinstance(heads, SingleTaskHeads)
    with torch.no_grad():
        heads.word_bias_V1.uniform_(-1, 1)
    return heads


def test_a_single_task_sums_the_words_of_a_class() -> None:
    heads = single().requires_grad_(False)
    assert {name for name, _ in heads.named_parameters()} == {"word_VD", "word_bias_V1"}
    hidden, target, state = positions()
    scores, (words, outside, tags) = heads.score(hidden, target, state), heads.log_probs(hidden, state)
    for n in range(len(target)):
        z = heads.word_VD.double() @ hidden[n].double() + heads.word_bias_V1[:, 0].double()
        p, classes, t = z.softmax(0).tolist(), heads.class_of_SV[int(state[n])].tolist(), int(target[n])
        c = classes[t]
        mass = sum(p[v] for v in range(len(TOKENS)) if classes[v] == c) if c >= 0 else p[t]
        expected = {"nnlm": p[t], "tag": mass, "mass": mass, "within": p[t] / mass}
        for name, value in expected.items():
            assert float(getattr(scores, f"{name}_N")[n].exp()) == pytest.approx(value, rel=1e-4), (name, n)
        assert words[n].exp().tolist() == pytest.approx(p, rel=1e-4)
        assert outside[n].exp().tolist() == pytest.approx([0 if c >= 0 else q for c, q in zip(classes, p, strict=True)])
        sums = [sum(q for k, q in zip(classes, p, strict=True) if k == number) for number in range(len(heads.sizes))]
        assert tags[n].exp().tolist() == pytest.approx(sums, rel=1e-4)


def test_a_single_task_costs_the_words_and_has_their_gradient() -> None:
    heads = single()
    # more than a chunk
    hidden, target, state = positions(count=300)
    hidden.requires_grad_()
    losses = heads.losses(hidden, target, state)
    assert set(losses) == {"nnlm", "all"}
    losses["all"].backward()
    exact = hidden.detach().double().requires_grad_()
    weight = heads.word_VD.detach().double().requires_grad_()
    logits = exact @ weight.T + heads.word_bias_V1.detach().double().T
    cost = -logits.log_softmax(1)[torch.arange(300), target].sum()
    cost.backward()
    torch.testing.assert_close(losses["nnlm"].double(), cost, rtol=1e-6, atol=0)
    for found, expected in ((hidden.grad, exact.grad), (heads.word_VD.grad, weight.grad)):
        assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = heads.losses(hidden.bfloat16(), target, state)["all"]
    assert half.dtype == torch.float32 and float(half.detach()) == pytest.approx(float(cost), rel=1e-2)
