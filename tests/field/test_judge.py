"""Judges know what can be known of texts, and say how well."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.field.bench import Bench
from lit_ctg.field.judge import WEIGHTS, BagJudge, EncoderJudge, balanced, prove, snippets, text_cost
from lit_ctg.field.task import Example


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


@pytest.fixture(scope="module")
def encoder(field_words: list[str]) -> str:
    (word,) = (word for word in field_words if word.startswith("judges.encoder="))
    return word.partition("=")[2]


def test_tf_idf_learns_what_tells_the_classes() -> None:
    judge = BagJudge(reviews(200, 0), 0)
    proof = prove(judge, reviews(60, 1))
    assert proof.balanced > 0.95 and proof.right > 0.95 * proof.of == 0.95 * 60
    assert proof.interval is not None and proof.interval[0] < proof.right / proof.of
    good, bad = judge.log_odds(["a lovely word3", "a dreadful word3"], "good")
    assert good > 0 > bad and judge.log_odds(["a lovely word3"], "bad") == [pytest.approx(-good)]


def test_an_encoder_learns_and_is_kept(encoder: str, tmp_path: Path) -> None:
    known, texts = reviews(200, 0), [example.text for example in reviews(20, 2)]
    torch.manual_seed(0)
    judge = EncoderJudge(encoder, ["bad", "good"])
    judge.fit(known, steps=60, batch=16, learning_rate=1e-2, seed=0)
    assert prove(judge, reviews(60, 1)).balanced > 0.9
    judge.save(tmp_path)
    again = EncoderJudge(encoder, ["bad", "good"]).load(tmp_path)
    assert again.judge(texts) == judge.judge(texts) == [found for text in texts for found in judge.judge([text])]
    assert judge.judge([]) == [] and len(judge.judge(["", "unknown words only"])) == 2


@pytest.mark.parametrize("damage", ["", "code", torch.nan])
def test_a_kept_judge_that_is_damaged_is_named(damage: object, encoder: str, tmp_path: Path) -> None:
    judge, path = EncoderJudge(encoder, ["bad", "good"]), tmp_path / WEIGHTS
    if isinstance(damage, str):
        path.write_text(damage)
    else:
        torch.nn.init.constant_(judge.head.bias, float(damage))  # type: ignore[arg-type]
        judge.save(tmp_path)
    with pytest.raises(UserError, match=re.escape(str(path))):
        EncoderJudge(encoder, ["bad", "good"]).load(tmp_path)


def test_an_encoder_that_is_missing_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"judges\.encoder="):
        EncoderJudge(str(tmp_path), ["bad", "good"])


def test_balanced_accuracy_is_a_mean_over_classes() -> None:
    class Always:
        name = "always"

        def judge(self, texts: Sequence[str]) -> list[str]:
            return ["good" for _ in texts]

    proof = prove(Always(), [Example("x", "good")] * 9 + [Example("x", "bad")])
    assert proof.balanced == 0.5 and (proof.right, proof.of) == (9, 10) and proof.recall == {"good": 1.0, "bad": 0.0}
    with pytest.raises(UserError, match="no held-out human text"):
        prove(Always(), [])


def test_snippets_are_pieces_and_classes_are_balanced() -> None:
    text = " ".join(map(str, range(50)))
    pieces = [piece.text.split() for piece in snippets([Example(text, "a")], 4, 9, 600, 0)]
    assert {len(piece) for piece in pieces} == set(range(4, 10)) and all(" ".join(piece) in text for piece in pieces)
    assert {piece[0] for piece in pieces} >= {"0", "25", "41"} and any(piece[-1] == "49" for piece in pieces)
    # a passage shorter than a piece is one
    assert [piece.text for piece in snippets([Example("1 2", "a")], 4, 9, 2, 0)] == ["1 2", "1 2"]
    found = balanced([Example("x", "a")] * 9 + [Example("y", "b")] * 3, 0)
    assert sorted(example.label for example in found) == ["a"] * 3 + ["b"] * 3
    mixed = [example.label for example in balanced([Example("x", "a")] * 30 + [Example("y", "b")] * 30, 0)]
    assert mixed != sorted(mixed), "in random order"


def test_cost_of_a_text_is_the_sum_of_its_tokens_alone(bench: Bench) -> None:
    prompts, texts = ["We had", "The food was very"], [" a lovely time", ""]
    found = text_cost(bench.model, bench.tokenizer, prompts, texts)
    assert found[1] == (0.0, 0)
    before = [bench.tokenizer.eos_token_id, *bench.tokenizer(prompts[0]).input_ids]
    new = bench.tokenizer(texts[0]).input_ids
    with torch.no_grad():
        log_p = bench.model(input_ids=torch.tensor([before + new])).logits[0].double().log_softmax(-1)
    slow = -sum(float(log_p[len(before) - 1 + place, token]) for place, token in enumerate(new))
    assert found[0] == (pytest.approx(slow, rel=1e-5), len(new))
    # nor does padding count: beside a longer text as alone
    short, beside = (text_cost(bench.model, bench.tokenizer, [prompts[0]] * len(some), some)
                     for some in ([" food"], [" food", texts[0]]))  # fmt: skip
    assert beside == [(pytest.approx(short[0][0], rel=1e-5), short[0][1]), found[0]] and short[0][0] > 0


def test_the_table_of_judges_also_has_a_task_below_its_limit(
    field_words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    words = " ".join([*(word for word in field_words if "least" not in word), "task=sentiment"])
    with torch.random.fork_rng(devices=[]):
        threads = torch.get_num_threads()
        assert importlib.import_module("judges_table").main([words, "task=none"]) == 0
        torch.set_num_threads(threads)
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows[:2]] == [["sentiment: negative, positive", words] for words in ("60", "30")]
    assert all(re.fullmatch(r"\d\.\d\d \[.*\]", cell) for row in rows[:2] for cell in row[2:4]) and len(rows) == 3
