"""The feature channel as a method: it learns to say the words asked for, knows no held-out one, and is guided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_ctg.control import Steered
from lit_ctg.errors import UserError
from lit_ctg.field.command import compose
from lit_ctg.field.methods.channel import FeatureChannel
from lit_ctg.field.run import build_bench, build_method, measured, summary
from lit_ctg.field.tune import Stream
from tests.field.conftest import MakeBench

GRADES = {"positive": {"good": 1.0, "great": 0.5}, "negative": {"bad": 1.0}}
OPTIONS = ["size=smoke", "method=feature_channel", "method.frozen=false", "method.learning_rate=0.01"]


def opinions(bench: Any, monkeypatch: pytest.MonkeyPatch, steps: int, held_out: frozenset[str] = frozenset()) -> None:
    """Let a bench read texts of three words of opinion in random order."""
    generator = np.random.default_rng(0)
    words = [word for grades in GRADES.values() for word in grades]
    texts = [" ".join(f"it was {generator.choice(words)} ." for _ in range(8)) for _ in range(60)]
    monkeypatch.setattr(bench, "stream", lambda: Stream(bench.tokenizer, texts, 24))
    monkeypatch.setattr(bench, "graded_words", GRADES)
    monkeypatch.setattr(bench, "held_out_words", {label: held_out & set(own) for label, own in GRADES.items()})
    monkeypatch.setattr(bench, "tune_options", {"steps": steps, "batch": 16, "learning_rate": 0.01})


def likely(method: FeatureChannel, bench: Any, word: str, target: str | None, **guidance: float) -> float:
    """Return how likely a word is behind "it was" where a class is asked for."""
    arm = method.arm(bench, "positive")
    ids = torch.tensor([bench.tokenizer(" it was good . it was").input_ids])
    settings = {"feature_channel.strength": 0} if target is None else {f"feature_channel.to_{target}": 1}
    steered = Steered(arm.model, arm.controls, tokenizer=bench.tokenizer)
    total = 1.0
    with torch.no_grad(), steered.attached({**settings, **{f"guidance.{k}": v for k, v in guidance.items()}}, 1) as on:
        for token in bench.tokenizer(f" {word}").input_ids:
            scores = arm.model(input_ids=ids).logits[:, -1]
            for rule in on:
                scores = rule(ids, scores)
            total *= float(scores.softmax(-1)[0, token])
            ids = torch.cat([ids, torch.tensor([[token]])], dim=1)
    return total


@pytest.mark.long
def test_the_channel_learns_the_words_asked_for(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench()
    opinions(bench, monkeypatch, steps=100)
    method = build_method(compose(OPTIONS))
    method.fit(bench)
    for word, own, other in (("good", "positive", "negative"), ("bad", "negative", "positive")):
        asked, against = likely(method, bench, word, own), likely(method, bench, word, other)
        assert asked > likely(method, bench, word, None) > against and asked > 3 * against, word
    guided = build_method(compose([*OPTIONS[:1], "method=channel_guidance", *OPTIONS[2:]]))
    guided.fit(bench)
    once, thrice = (likely(guided, bench, "bad", "positive", strength=strength) for strength in (0, 2))
    assert once == pytest.approx(likely(method, bench, "bad", "positive"), rel=1e-4), "the same channel"
    assert thrice < once / 2


def test_nothing_is_learned_from_what_follows_a_held_out_word(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    opinions(bench, monkeypatch, steps=2, held_out=frozenset({"good", "great", "bad"}))
    method = build_method(compose(OPTIONS))
    counted: list[int] = []

    def counting(**given: Any) -> Any:
        module = module_of(**given)
        inner = module.trained_mask
        module.trained_mask = lambda batch: counted.append(int(inner(batch).sum())) or inner(batch)
        return module

    module_of, method.module = method.module, counting
    method.fit(bench)
    assert len(counted) == 2 * 2 and all(0 < each < 16 * 24 / 3 for each in counted), counted


def test_a_frozen_model_stays_as_it_is_and_the_adapter_alone_is_counted(make_bench: MakeBench) -> None:
    bench = make_bench()
    method = build_method(compose(["size=smoke", "method=feature_channel"]))
    method.fit(bench)
    assert method.model is bench.model
    dim, features = bench.model.config.n_embd, 2 * len(bench.task.targets)
    assert method.parameters() == dim * features + dim + dim * (dim + features) + dim
    whole = build_method(compose(OPTIONS))
    whole.fit(bench)
    assert whole.model is not bench.model
    assert whole.parameters() == method.parameters() + sum(v.numel() for v in bench.model.parameters())


def test_the_graded_lexicon_of_a_task(make_bench: MakeBench) -> None:
    """Signs give classes, a fifth is held out, every text is measured for held-out words."""
    bench = make_bench("task=reviews")
    assert bench.graded_words["positive"]["superb"] == pytest.approx(3.1 / 4)
    assert bench.graded_words["negative"]["dreadful"] == pytest.approx(1.9 / 4)
    held_out = bench.held_out_words
    shares = [len(held_out[label]) / len(bench.graded_words[label]) for label in bench.task.targets]
    assert all(0.17 < share < 0.23 for share in shares)
    word = sorted(held_out["positive"])[0]
    rows = [{"text": text, "prompt": "it", "target": target} for text in (f"so {word} !", "so !")
            for target in ("positive", "negative")]  # fmt: skip
    assert [row["held_out_words"] for row in measured(bench, rows)] == [1, 0, 0, 0]
    found = summary([{**row, "strength": 1} for row in rows], [judge.name for judge in bench.judges[0]])
    assert found["held_out_words"].value == 0.25 and found["held_out_words"].direction == "none"
    plain = make_bench()
    assert set(plain.graded_words["positive"]) == set(plain.word_lists["positive"])
    assert set(plain.graded_words["positive"].values()) <= {1.0} and not any(plain.held_out_words.values())
    assert "held_out_words" not in measured(plain, [{"text": "so", "prompt": "it", "target": "positive"}])[0]


def test_a_lexicon_has_a_sign_and_words_of_every_class(tmp_path: Path) -> None:
    path, words = tmp_path / "mine.yaml", ["size=smoke", "task=reviews"]
    for text, sign in (("good: 1.0\nso: 0\n", "negative"), ("bad: -1.0\n", "positive")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=rf"{path}.* class {sign}"):
            build_bench(compose([*words, f"task.lexicon.path={path}"]))
    path.write_text("bad: -1.0\ngood: 1.0\n", encoding="utf-8")
    assert build_bench(compose([*words, f"task.lexicon.path={path}"])).task.lexicon.words == ("bad", "good")
    for word in ("task.lexicon_signs.positive=2", "task.lexicon=vader"):
        with pytest.raises(UserError, match=word.partition("=")[0].replace(".positive", "")):
            build_bench(compose([*words, word]))
    with pytest.raises(UserError, match=r"method\.strengths"):
        build_method(compose(["method=feature_channel", "method.strengths=[1,2]"]))
