"""The adaptive softmax against sums over named rows, torch's own module, and Eq. 2 to 4 in a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.adaptive import AdaptiveHeads
from lit_ctg.papers.nslm.construction import class_table
from lit_ctg.papers.nslm.heads import OutputHeads, make_heads
from lit_ctg.papers.nslm.recogniser import PatternRecogniser

# clusters from "1914" and from "12": the second is all numbers, so the tagged vocabulary has it in no state
TOKENS = ("<unk>", "the", "in", "May", "1914", "war", ".", "1918", "12", "5")
CUTOFFS = (4, 8)


def recogniser(name: str, pattern: str, context: str | None = None) -> PatternRecogniser:
    return PatternRecogniser(name=name, pattern=pattern, metrics=["frequency"], densities=["unigram"], context=context)


def make() -> AdaptiveHeads:
    torch.manual_seed(2)
    classes = [recogniser("day", r"\d\d?", "after_month"), recogniser("year", r"1\d{3}"), recogniser("other", r"\d+")]
    heads = AdaptiveHeads(dim=16, table=class_table(TOKENS, classes), init_range=0.8, cutoffs=CUTOFFS)
    with torch.no_grad():
        for parameter in heads.words.parameters():
            parameter.mul_(3)
    return heads


def positions() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
    return hidden, torch.arange(40) % len(TOKENS), torch.arange(40) // len(TOKENS) % 2


def slow(heads: AdaptiveHeads, hidden: torch.Tensor, state: int) -> tuple[dict[int, float], dict[Any, float]]:
    """Return P of words, and P of words and tags in the tagged vocabulary, one position, from sums of exponentials."""
    edges, classes = [*CUTOFFS, len(TOKENS)], heads.class_of_SV[state].tolist()
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
    heads = make()
    hidden, target, state = positions()
    with torch.no_grad():
        scores = heads.score(hidden, target, state)
        words_NV, outside_NV, tags_NC = (part.double().exp() for part in heads.log_probs(hidden, state))
        for n in range(len(target)):
            words, tagged = slow(heads, hidden[n], int(state[n]))
            assert sum(words.values()) == pytest.approx(1) and sum(tagged.values()) == pytest.approx(1)
            assert words_NV[n].tolist() == pytest.approx([words[v] for v in range(len(TOKENS))], rel=1e-4)
            assert outside_NV[n].tolist() == pytest.approx([tagged.get(v, 0) for v in range(len(TOKENS))], rel=1e-4)
            assert tags_NC[n].tolist() == pytest.approx([tagged.get(f"tag {c}", 0) for c in range(3)], rel=1e-4)
            v, c = int(target[n]), int(heads.class_of_SV[state[n], target[n]])
            assert float(scores.nnlm_N[n].exp()) == pytest.approx(words[v], rel=1e-4)
            assert float(scores.tag_N[n].exp()) == pytest.approx(tagged[v if c < 0 else f"tag {c}"], rel=1e-4)
            same = [u for u in words if int(heads.class_of_SV[state[n], u]) == c]
            mass = words[v] if c < 0 else sum(words[u] for u in same)
            assert float(scores.mass_N[n].exp()) == pytest.approx(mass, rel=1e-4)


def test_words_are_those_of_torch() -> None:
    heads = make()
    hidden, target, state = positions()
    torch.testing.assert_close(heads.log_probs(hidden, state)[0], heads.words.log_prob(hidden))
    torch.testing.assert_close(heads.score(hidden, target, state).nnlm_N, heads.words(hidden, target).output)
    for number in range(len(heads.sizes)):
        expected = heads.words.log_prob(hidden)[:, heads.members(number)].log_softmax(1)
        torch.testing.assert_close(heads.conditional(hidden, number), expected)


def test_half_precision_is_of_products_only() -> None:
    heads = make()
    hidden, target, state = positions()
    exact = heads.score(hidden, target, state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = heads.score(hidden.bfloat16(), target, state)
        words, inside = heads.log_probs(hidden.bfloat16(), state)[0], heads.conditional(hidden.bfloat16(), 1)
    assert {part.dtype for part in (scores.nnlm_N, scores.tag_N, scores.mass_N, words, inside)} == {torch.float32}
    torch.testing.assert_close(inside, words[:, heads.members(1)].log_softmax(1))
    torch.testing.assert_close(inside.exp().sum(1), torch.ones(len(hidden)), atol=1e-6, rtol=0)
    torch.testing.assert_close(scores.mass_N, exact.mass_N, atol=0.2, rtol=0.05)


def test_losses_are_the_negative_scores_and_reach_every_parameter() -> None:
    heads = make()
    hidden, target, state = positions()
    losses, scores = heads.losses(hidden.requires_grad_(), target, state), heads.score(hidden, target, state)
    for name in ("nnlm", "tag", "within"):
        torch.testing.assert_close(losses[name], -getattr(scores, f"{name}_N").sum())
    losses["tag"].backward()
    assert hidden.grad is not None and hidden.grad.isfinite().all()
    grads = {name: parameter.grad for name, parameter in heads.words.named_parameters()}
    assert all(grad is not None and grad.isfinite().all() for grad in grads.values())
    # the cluster of nothing but numbers is no part of the tagged vocabulary
    assert float(grads["tail.0.1.weight"].abs().sum()) > 0 and float(grads["tail.1.1.weight"].abs().sum()) == 0


def test_a_run_with_an_adaptive_softmax(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    words = ("experiment=nslm/places", "size=smoke", "logger=none", "+data.cache_root=cache", "model.samples=null")
    code, _, err = run_cli("train", *words, "model.cutoffs=[200,600]")
    assert code == 0, err
    (path,) = tmp_path.rglob("run.json")
    metrics = json.loads(path.read_text(encoding="utf-8"))["metrics"]
    values = [metrics[f"test/{model}/global"]["value"] for model in ("nnlm", "hnlm", "crnn", "nslm")]
    assert all(math.isfinite(value) and value > 1 for value in values)


def test_bad_input() -> None:
    table = class_table(TOKENS, [recogniser("other", r"\d+")])
    options = {"dim": 16, "table": table, "init_range": 0.1}
    for cutoffs in ((), (0, 4), (6, 4), (4, 10)):
        with pytest.raises(UserError, match=r"ascending ids above 0 and below 10"):
            AdaptiveHeads(cutoffs=cutoffs, **options)
    with pytest.raises(UserError, match="dim=16 is too little"):
        AdaptiveHeads(cutoffs=(2, 4, 6), **options)
    with pytest.raises(UserError, match="two softmaxes"):
        make_heads(samples=5, cutoffs=CUTOFFS, sparse=False, **options)
    assert isinstance(make_heads(samples=5, cutoffs=None, sparse=False, **options), OutputHeads)
