"""Judges know what can be known of texts, and say how well; words are judged by rule."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.field.judge import (
    BagJudge,
    Judge,
    NeuralJudge,
    RuleJudge,
    WordJudge,
    balanced,
    judging_texts,
    prove,
    proving_texts,
    snippets,
    successes,
)
from lit_ctg.field.task import Example
from tests.field.conftest import MakeBench


def reviews(count: int, seed: int) -> list[Example]:
    generator = np.random.default_rng(seed)
    rest = [f"word{number}" for number in range(20)]
    found = []
    for number in range(count):
        telling = ("awful", "dreadful") if number % 2 else ("lovely", "superb")
        words = [*generator.choice(rest, 6), generator.choice(telling)]
        generator.shuffle(words)
        found.append(Example(" ".join(map(str, words)), "bad" if number % 2 else "good"))
    return found


@pytest.mark.parametrize("kind", ["bag", "neural"])
def test_a_judge_learns_what_tells_the_classes(kind: str, tmp_path: Path) -> None:
    known = reviews(200, 0)
    judge: Judge = BagJudge(known, 0) if kind == "bag" else NeuralJudge(known, 0, steps=120, dim=16)
    proof = prove(judge, reviews(60, 1))
    assert proof.balanced > 0.95 and proof.right > 0.95 * proof.of == 0.95 * 60
    assert proof.interval is not None and proof.interval[0] < proof.right / proof.of
    assert successes(judge, ["a lovely word3", "a dreadful word3"], ["good", "good"]) == [True, False]
    if isinstance(judge, NeuralJudge):
        judge.save(tmp_path)
        texts = [example.text for example in reviews(20, 2)]
        assert NeuralJudge.load(tmp_path).judge(texts) == judge.judge(texts)
        assert judge.judge([]) == [] and len(judge.judge(["", "unknown words only"])) == 2


def _not_finite(path: Path) -> None:
    state = torch.load(path, weights_only=True)
    state["head.bias"][0] = torch.nan
    torch.save(state, path)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("judge.json", text) for text in ("", "[]", "{}", '{"ids": {"a": 0}, "labels": ["x"], "longest": 3}')),
        *(("weights.pt", damage) for damage in ("", "code", _not_finite)),
    ],
)
def test_a_kept_judge_that_is_damaged_is_named(name: str, damage: object, tmp_path: Path) -> None:
    NeuralJudge(reviews(20, 0), 0, steps=1, batch=2, dim=4).save(tmp_path)
    if callable(damage):
        damage(tmp_path / name)
    else:
        (tmp_path / name).write_text(str(damage))
    with pytest.raises(UserError, match=re.escape(str(tmp_path / name))):
        NeuralJudge.load(tmp_path)


def test_a_text_is_judged_alike_alone_and_beside_longer_ones() -> None:
    torch.manual_seed(0)
    words = [f"w{number}" for number in range(40)]
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words, size=length)) for length in range(1, 31)]
    known = [Example(text, "ab"[number % 2]) for number, text in enumerate(texts)]
    judge = NeuralJudge(known, 0, steps=1, batch=2, dim=16)
    with torch.no_grad():
        for parameter in judge.network.parameters():
            parameter.normal_()
        together = judge.network(judge._ids(texts))
        alone = torch.cat([judge.network(judge._ids([text])) for text in texts])
    torch.testing.assert_close(together, alone)
    assert len(set(judge.judge(texts))) == 2


def test_a_judge_of_labels_that_mean_nothing_is_found_out() -> None:
    labels = np.random.default_rng(3).integers(0, 2, 400)
    known = [Example(e.text, ("bad", "good")[label]) for e, label in zip(reviews(400, 0), labels, strict=True)]
    assert prove(BagJudge(known[:300], 0), known[300:]).balanced < 0.65


def test_balanced_accuracy_is_a_mean_over_classes() -> None:
    class Always(Judge):
        name = "always"

        def judge(self, texts: object) -> list[str | None]:
            return ["good" for _ in texts]  # type: ignore[attr-defined]

    proof = prove(Always(), [Example("x", "good")] * 9 + [Example("x", "bad")])
    assert proof.balanced == 0.5 and (proof.right, proof.of) == (9, 10)
    with pytest.raises(UserError, match="no held-out human text"):
        prove(Always(), [])


def test_snippets_are_pieces_and_classes_are_balanced() -> None:
    text = " ".join(map(str, range(50)))
    for piece in snippets([Example(text, "a")], 4, 9, 20, 0):
        assert piece.text in text and 4 <= len(piece.text.split()) <= 9 and piece.label == "a"
    pieces = [piece.text.split() for piece in snippets([Example(text, "a")], 4, 9, 600, 0)]
    assert {len(piece) for piece in pieces} == set(range(4, 10))
    assert {piece[0] for piece in pieces} >= {"0", "25", "41"} and any(piece[-1] == "49" for piece in pieces)
    # a passage shorter than a piece is one
    assert [piece.text for piece in snippets([Example("1 2", "a")], 4, 9, 2, 0)] == ["1 2", "1 2"]
    found = balanced([Example("x", "a")] * 9 + [Example("y", "b")] * 3, 0)
    assert sorted(example.label for example in found) == ["a"] * 3 + ["b"] * 3
    mixed = [example.label for example in balanced([Example("x", "a")] * 30 + [Example("y", "b")] * 30, 0)]
    assert mixed != sorted(mixed), "in random order"


def test_a_word_occurs_whole_or_inflected() -> None:
    exact, inflected = (WordJudge({"wait": ["wait"], "staff": ["staff"]}, each) for each in (False, True))
    texts = ["We wait.", "we waited, staff", "an awaited staffer", ""]
    assert successes(exact, texts, ["wait"] * 4) == [True, False, False, False]
    assert successes(inflected, texts, ["wait"] * 4) == [True, True, False, False]
    assert exact.judge(texts) == ["wait", "staff", None, None]


def test_a_rule_is_obeyed_by_what_obeys_it() -> None:
    judge = RuleJudge("strict", {"long": lambda text: len(text) > 3, "loud": str.isupper})
    assert successes(judge, ["quiet", "HO", "HELLO", "ho"], ["long", "loud", "loud", "long"]) == [True] * 3 + [False]
    assert judge.judge(["quiet", "HO", "HELLO", "ho"]) == ["long", "loud", None, None], "two are none"


def test_numbers_and_places_are_judged_by_rules_of_two_strengths(make_bench: MakeBench) -> None:
    bench = make_bench("task=numbers_and_places")
    (strict, loose), (own, other) = bench.judges
    assert own.balanced == 1.0 and other.balanced < 1, "the first judge's rules are the truth"
    texts = ["In 1914 it", "In Paris it", "twelve of Ulm", "it was so"]
    assert [strict.has(text, "number") for text in texts] == [True, False, False, False]
    assert [loose.has(text, "number") for text in texts] == [True, False, True, False]
    assert [strict.has(text, "place") for text in texts] == [False, True, False, False]
    assert [loose.has(text, "place") for text in texts] == [False, True, True, False]
    assert all(len(words) for words in bench.word_lists.values())


def test_judges_learn_and_prove_themselves_on_texts_of_others(make_bench: MakeBench) -> None:
    task = make_bench().task
    learned, proven = judging_texts(task, 4, 8, 2, 0), proving_texts(task, 4, 8)
    own = {split: " \n ".join(task.texts(split)) for split in ("judge", "held_out")}
    assert all(example.text in own["judge"] for example in learned)
    assert all(example.text in own["held_out"] for example in proven)
    words = make_bench("task=keywords").task
    assert {example.label for example in proving_texts(words, 6, 12)} <= set(words.targets)
    # every held-out passage proves them once, of an exact task as it is
    assert len(proven) == len(task.examples("held_out")) and not task.exact
    assert words.exact and proving_texts(words, 6, 12) == words.examples("held_out")
    again, other = judging_texts(task, 4, 8, 2, 0), judging_texts(task, 4, 8, 2, 1)
    assert again == learned and {example.text for example in other} != {example.text for example in learned}
    # both draws, which pieces and which of them are kept, are of the seed
    pieces = snippets(task.examples("judge"), 4, 8, 2, 1)
    assert other == balanced(pieces, 1) != balanced(pieces, 0)
