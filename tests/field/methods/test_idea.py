"""The idea gate as a method: a head of its own for each class, and the paper's gate or the lift gate of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_ctg.control import Steered
from lit_ctg.field.bench import Parts
from lit_ctg.field.command import compose
from lit_ctg.field.method import Method
from lit_ctg.field.run import build_method
from lit_ctg.field.tune import Stream
from tests.field.conftest import MakeBench

GATES = ["idea_gate", "idea_gate_lift", "idea_gate_static"]


def opinions(bench: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str | None, Stream]:
    """Let each class have a word of its own among words that both have."""
    own = {"negative": ["bad"], "positive": ["great"], None: ["bad", "great"]}
    streams = {
        label: Stream(bench.tokenizer, [f"the food was {word} and the place was {word} ." for word in words] * 40, 24)
        for label, words in own.items()
    }
    monkeypatch.setattr(bench, "stream", lambda label=None: streams[label])
    return streams


def fitted(bench: Any, gate: str, steps: int, *words: str) -> Method:
    method = build_method(compose(["size=smoke", f"method={gate}", *words]))
    bench.tune_options = {"steps": steps, "batch": 8, "learning_rate": 0.01}
    method.fit(bench)
    return method


def scores(bench: Any, method: Method, target: str, strength: float, ids: Tensor) -> Tensor:
    """Return the scores [V] behind ``ids`` [1, T] under the arm of a class."""
    arm = method.arm(bench, target)
    steered = Steered(arm.model, arm.controls, tokenizer=bench.tokenizer)
    with torch.no_grad(), steered.attached(arm.settings(strength), 1) as rules:
        found = arm.model(input_ids=ids).logits[:, -1]
        for rule in rules:
            found = rule(ids, found)
    return found[0]


def rates(stream: Stream, size: int, window: int = 20, weight: float = 5.0) -> np.ndarray:
    """Return, window by window, how probable each token is to a head without context, in logarithms [V]."""
    ids, seen = stream.ids, np.zeros(size)
    for place in range(len(ids)):
        # the windows of up to 20 tokens that begin here, those at the end of the text cut short
        seen[np.unique(ids[place : place + window])] += 1
    rate = np.clip(seen / len(ids), 0.5 / len(ids), 1)
    odds = weight * rate / np.maximum(1 - np.clip(seen / len(ids), 0, 1), 1e-6)
    return np.log(odds / (1 + odds))


@pytest.mark.parametrize("strength", [1.0, 3.0])
@pytest.mark.parametrize("gate", GATES)
def test_the_gate_is_that_of_the_class_s_head(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, gate: str, strength: float
) -> None:
    """Slowly, in float64: alpha 0.5 and beta -2 times the strength, over the state that the bare model is in."""
    bench = make_bench()
    monkeypatch.setattr(bench, "tune_options", None)  # put back after the test
    streams = opinions(bench, monkeypatch)
    method = fitted(bench, gate, 3, "method.module.stopword_count=3")
    ids = torch.tensor([bench.tokenizer("the food was").input_ids])
    with torch.no_grad():
        output = bench.model(input_ids=ids, output_hidden_states=True)
        state, logits = output.hidden_states[-1][0, -1].double(), output.logits[0, -1].double()
    frequent = np.argsort(-np.bincount(streams[None].ids, minlength=len(logits)), kind="stable")[:3]
    for target in bench.task.targets:
        head = method.arm(bench, target).controls[0].head  # type: ignore[attr-defined]
        if gate == "idea_gate_static":
            own = torch.from_numpy(rates(streams[target], len(logits)))
            torch.testing.assert_close(head.outer.bias.double(), own - (-own.expm1()).log(), rtol=1e-4, atol=1e-4)
        inner = torch.relu(head.inner.weight.double() @ state + head.inner.bias.double())
        idea = head.outer.weight.double() @ inner + head.outer.bias.double()
        log_p = (1 / (1 + (-idea).exp()) + 1e-8).log()
        if gate == "idea_gate":
            expected = logits + (0.5 * strength * log_p).clamp(min=-2 * strength)
        else:
            lift = log_p - torch.from_numpy(rates(streams[None], len(logits)))
            expected = logits + (0.5 * strength * lift).clamp(-2 * strength, 2 * strength)
            others = torch.ones(len(logits), dtype=torch.bool)
            others[frequent] = False
            moved = expected[others].logsumexp(0) - logits[others].logsumexp(0)
            expected[frequent] = logits[frequent] + moved
        torch.testing.assert_close(
            scores(bench, method, target, strength, ids).double(), expected, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("gate", GATES)
def test_the_head_of_a_class_expects_its_words(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, gate: str
) -> None:
    bench = make_bench()
    monkeypatch.setattr(bench, "tune_options", None)
    opinions(bench, monkeypatch)
    method = fitted(bench, gate, 20, "method.module.stopword_count=3")
    ids = torch.tensor([bench.tokenizer("the food was").input_ids])
    first = {word: bench.tokenizer(f" {word}").input_ids[0] for word in ("bad", "great")}
    assert first["bad"] != first["great"]
    for target, own, other in (("negative", "bad", "great"), ("positive", "great", "bad")):
        found = scores(bench, method, target, 2.0, ids) - scores(bench, method, target, 0.0, ids)
        assert found[first[own]] > found[first[other]] + 0.5, target


def test_parameters_are_those_of_all_heads(make_bench: MakeBench) -> None:
    bench = make_bench()
    method = build_method(compose(["size=smoke", "method=idea_gate"]))
    assert method.parameters() == 0
    method.fit(bench)
    rows, dim = bench.model.get_output_embeddings().weight.shape
    assert method.parameters() == len(bench.task.targets) * (dim * dim + dim + rows * dim + rows)


def test_a_head_that_says_token_rates_alone_is_not_trained(make_bench: MakeBench) -> None:
    bench = make_bench()
    method = build_method(compose(["size=smoke", "method=idea_gate_static"]))
    before = bench.training_seconds
    method.fit(bench)
    assert method.parameters() == 0 and bench.training_seconds == before


def test_the_training_seed_sets_first_values_and_draws(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Heads of all classes begin alike, those of another seed otherwise: training seeds are independent runs."""
    told = []

    def recorded(parameters: Any, *_: Any, seed: int, **__: Any) -> dict[str, float]:
        told.append((seed, next(iter(parameters)).detach().clone()))
        return {"loss": 0.0}

    monkeypatch.setattr("lit_ctg.field.bench.optimise", recorded)
    for seed in (1, 2):
        bench = make_bench(f"seed={seed}")
        assert bench.weights  # its base lies among the shared parts, these heads do not
        monkeypatch.setattr(bench, "parts", Parts(tmp_path))
        build_method(compose(["size=smoke", "method=idea_gate"])).fit(bench)
    assert [seed for seed, _ in told] == [1, 1, 2, 2]
    first = [value for _, value in told]
    assert torch.equal(first[0], first[1]) and torch.equal(first[2], first[3]) and not torch.equal(first[0], first[2])
