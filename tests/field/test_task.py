"""Tasks: who sees which text, what class a passage is of, prompts, telling words."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_ctg.control.bundle import kind_named
from lit_ctg.control.token_bias import TokenBias
from lit_ctg.data.document import Document
from lit_ctg.errors import UserError
from lit_ctg.field.command import compose
from lit_ctg.field.judge import snippets
from lit_ctg.field.run import build_bench
from lit_ctg.field.task import (
    SPLITS,
    Example,
    Task,
    class_counts,
    clean,
    log_odds_words,
    passages,
    pieces,
    words_of,
)


class Reviews:
    """Documents in the place of a corpus."""

    max_documents = None

    def __init__(self, count: int = 40) -> None:
        self.count = count

    def documents(self, split: str) -> list[Document]:
        words = {1: "dreadful food", 3: "plain food", 5: "lovely food"}
        return [
            Document(f"review {number} says {words[stars]} " + "and so on " * 4, "yelp", {"stars": stars})
            for number in range(self.count)
            for stars in ((1, 3, 5)[number % 3],)
        ]

    def checksum(self) -> str:
        return str(self.count)

    def options(self) -> dict[str, int]:
        return {}


def task(**changed: object) -> Task:
    given = {
        "name": "stars", "data": Reviews(), "labels": {"bad": [1, 2], "good": [4, 5]}, "column": "stars",
        "shares": dict.fromkeys(SPLITS, 0.25), "per_label": None, "passage_words": 8, "prompt_words": 3,
        "least_accuracy": 0.8,
    }  # fmt: skip
    return Task(**(given | changed))


def test_no_split_sees_a_text_of_another() -> None:
    texts = [{each.text for each in task(passage_words=30).examples(split)} for split in SPLITS]
    assert all(texts) and len(set.union(*texts)) == sum(map(len, texts))
    again, other = task().examples("train"), task(split_seed=1).examples("train")
    assert again == task().examples("train") != other, "the shuffle depends on its seed alone"
    changes: list[dict[str, object]] = [
        {}, {"labels": {"bad": [1], "good": [3]}}, {"per_label": 9}, {"passage_words": 7}, {"split_seed": 1},
        {"prompt_words": 2}, {"data": Reviews(42)}, {"shares": dict(zip(SPLITS, (0.4, 0.2, 0.2, 0.2), strict=True))},
    ]  # fmt: skip
    assert len({task(**changed).checksum for changed in changes}) == len(changes)


def test_exact_copies_are_removed_before_documents_are_dealt() -> None:
    class Twice(Reviews):
        def documents(self, split: str) -> list[Document]:
            return [Document(f" {each.text}\n", each.source, each.meta) for each in super().documents(split) * 2]

    assert [task(data=Twice()).examples(split) for split in SPLITS] == [task().examples(split) for split in SPLITS]


def test_words_are_in_lower_case_with_what_an_apostrophe_joins() -> None:
    assert words_of("Don't STOP, it's_3 o' 'em") == ["don't", "stop", "it's", "3", "o", "em"]


class Pages(Reviews):
    """Documents with a heading, of given lengths in words, good ones first."""

    def __init__(self, good: list[int], bad: list[int]) -> None:
        self.lengths = {5: good, 1: bad}

    def documents(self, split: str) -> list[Document]:
        return [
            Document(f" = Heading = \n{' '.join([f's{stars}n{number}'] * length)}", "yelp", {"stars": stars})
            for stars, lengths in self.lengths.items()
            for number, length in enumerate(lengths)
        ]


def test_stars_are_classes_and_three_stars_none() -> None:
    found = task().examples("train")
    assert {example.label for example in found} == {"bad", "good"}
    for example in found:
        assert "plain" not in example.text
    assert all(e.label == ("bad" if "dreadful" in e.text else "good") for e in found if "food" in e.text)
    assert [e.label for e in task().examples("train", "bad")] == [e.label for e in found if e.label == "bad"]


def test_no_passage_has_its_heading_and_a_class_without_a_split_is_named() -> None:
    paged = task(data=Pages([6] * 20, [6] * 20))
    texts = [example.text for split in SPLITS for example in paged.examples(split)]
    assert len(texts) == 40 and all(len(text.split()) == 6 and "Heading" not in text for text in texts)
    with pytest.raises(UserError, match=r"task stars: \w+ gets no document of bad"):
        task(data=Pages([6] * 20, [6])).examples("train")


def test_prompts_begin_passages_twice_as_long_and_classes_alternate() -> None:
    made = task(data=Pages([6, 5, 6, 9, 7] * 9, [6, 5] * 9), passage_words=20)
    passages = made.examples("report")
    usable = {label: sum(len(each.text.split()) >= 6 and each.label == label for each in passages)
              for label in made.labels}  # fmt: skip
    assert 0 < usable["bad"] < usable["good"]
    prompts = made.prompts("report", sum(usable.values()))
    rest = usable["good"] - usable["bad"]
    assert [example.label for _, example in prompts] == ["bad", "good"] * usable["bad"] + ["good"] * rest
    for prompt, example in prompts:
        assert len(prompt.split()) == 3 and example.text.startswith(prompt) and example in passages
        assert len(example.text.split()) >= 6
    with pytest.raises(UserError, match="passages of report for 400 prompts"):
        made.prompts("report", 400)


def test_some_passages_are_random_ones() -> None:
    made = task(data=Reviews(300), passage_words=20)  # a passage each
    every, some = made.texts("train", "good"), made.some("train", "good", 8)
    assert some == made.some("train", "good", 8) and len(set(some)) == 8 and set(some) < set(every)
    assert max(map(every.index, some)) > 16, "not those of the first documents"
    assert sorted(made.some("train", "good", 10**6)) == sorted(every)


def test_what_an_instruction_asks_for_names_every_class() -> None:
    assert task(labels={"sci_fi": [1], "good": [5]}).asks == {
        "neutral": "a text", "sci_fi": "a text about sci fi", "good": "a text about good",
    }  # fmt: skip
    assert task(asks={"bad": "a complaint"}).asks["bad"] == "a complaint"
    with pytest.raises(UserError, match=r"task\.asks: give neutral"):
        task(asks={"worse": "x"})


def test_a_folder_of_texts_is_a_task_with_another_name(tmp_path: Path) -> None:
    """Every file is a class, unless ``task.labels`` chooses some."""
    for name in ("cats", "dogs", "cows"):
        lines = "".join(f"these {name} are number {number}\n" for number in range(30))
        (tmp_path / f"{name}.txt").write_text(lines, encoding="utf-8")
    words = ["task=folder", "task.name=pets", "method=log_odds", "size=smoke", f"data.root={tmp_path}"]
    cfg = compose(words)
    task = build_bench(cfg).task
    assert (cfg.name, task.name, task.targets) == ("pets-log_odds", "pets", ("cats", "cows", "dogs"))
    assert all(f"these {e.label} are" in e.text for split in SPLITS for e in task.examples(split))
    assert build_bench(compose([*words, "task.labels={tame:[cats,dogs],farm:[cows]}"])).task.targets == ("tame", "farm")
    with pytest.raises(UserError, match=r"task\.name=my-pets: use letters"):
        build_bench(compose([*words, "task.name=my-pets"]))


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"shares": {"train": 1.0}}, "shares"),
        ({"shares": dict(zip(SPLITS, (0.5, 0.5, 0.0, 0.0), strict=True))}, "shares"),
        ({"shares": dict.fromkeys(SPLITS, 0.2)}, "shares"),
        ({"labels": {"bad": [1]}}, "labels"),
        *(({key: value}, rf"Task\.{key}") for key in ("passage_words", "prompt_words") for value in (0, "x", None)),
        *(({key: value}, rf"Task\.{key}") for key in ("per_label",) for value in (0, "x", 2.5)),
        ({"split_seed": -1}, r"Task\.split_seed"),
        ({"labels": {"bad": [1], "best": [6]}}, "task stars: no document of best: give another corpus"),
    ],
)
def test_what_cannot_be_is_one_line(changed: dict[str, object], line: str) -> None:
    with pytest.raises(UserError, match=line):
        task(**changed).examples("train")


def test_headings_go_and_passages_are_consecutive() -> None:
    assert clean(" = Acid = \n\nAn  acid\nburns.\n == Uses == \n Many.") == "An acid burns. Many."
    assert list(passages("a b c d e f g", 3)) == ["a b c", "d e f"]  # one word is less than half of three
    assert list(passages("a b c d e", 3)) == ["a b c", "d e"]
    assert list(passages("a b c d e f", 4)) == ["a b c d", "e f"] and list(passages("a", 4)) == ["a"]


def test_telling_words_are_ordered_by_the_slow_formula_and_rare_or_short_ones_left_out() -> None:
    generator = np.random.default_rng(0)
    words = [*(f"word{letter}" for letter in "abcdefghijkl"), "abc", "ab", "c3po"]
    counts = {label: dict(zip(words, generator.integers(1, 30, len(words)).tolist(), strict=True)) for label in "xyz"}
    counts["x"] |= {"five": 5, "four": 4, "ab": 40, "c3po": 40, "abc": 60}
    own, whole = Counter(counts["x"]), sum(map(Counter, counts.values()), Counter())
    rest = whole - own
    size = {name: sum(part.values()) for name, part in (("own", own), ("rest", rest), ("whole", whole))}

    def score(word: str) -> float:
        y, z = own[word] + whole[word], rest[word] + whole[word]
        odds = math.log(y / (size["own"] + size["whole"] - y)) - math.log(z / (size["rest"] + size["whole"] - z))
        return odds / math.sqrt(1 / y + 1 / z)

    expected = sorted((word for word in whole if word not in ("ab", "c3po", "four") and score(word) > 0),
                      key=score, reverse=True)  # fmt: skip
    assert len(expected) > 4 and {"five", "abc"} <= set(expected)
    assert log_odds_words(counts, "x", 99) == expected and log_odds_words(counts, "x", 3) == expected[:3]
    counts = class_counts(task().examples("train"))
    for label, word in (("bad", "dreadful"), ("good", "lovely")):
        assert log_odds_words(counts, label, 1, least=1) == [word]


class Labelled(Reviews):
    """Documents of a folder whose files have these names."""

    def __init__(self, *labels: str) -> None:
        self.labels = labels

    def documents(self, split: str) -> list[Document]:
        return [Document(f"text {number} of a label", label) for number in range(60) for label in self.labels]


def test_any_label_of_a_folder_names_settings() -> None:
    labels = ["sci-fi", "5 stars", "strength", "a'b;c", "<b>(q)", "²", "x" * 250, "新闻", "cafe\u0301"]
    made = task(data=Labelled(*labels), labels=None, column="source")
    assert made.targets[:3] == ("sci_fi", "5_stars", "strength_") and made.targets[-2:] == ("新闻", "café")
    assert all(f"to_{name}".isidentifier() for name in made.targets)
    texts = torch.zeros(3)
    assert TokenBias(dict.fromkeys(made.targets, texts)).classes == made.targets
    codes = {"codes": torch.zeros(9, 2), "weight.x": torch.zeros(3, 2)}
    kind_named("neuron_codes").restore({"sources": list(made.targets), "layers": ["x"]}, codes)
    for target, label in zip(made.targets, labels, strict=True):
        assert {each.source for each in made.data.documents("train") if made.label_of(each) == target} == {label}


@pytest.mark.parametrize(
    ("data", "labels", "quoted"),
    [
        (Labelled("a-b", "a b"), None, "a-b, a b"),
        (Labelled("a", "b"), {"sci-fi": ["a"], "b": ["b"]}, "sci_fi"),
        (Labelled("a", "b"), {"strength": ["a"], "b": ["b"]}, "strength_"),
    ],
)
def test_a_class_that_names_no_setting_is_refused(
    data: Labelled, labels: dict[str, list[str]] | None, quoted: str
) -> None:
    with pytest.raises(UserError, match=rf"task\.labels: .*{quoted}"):
        task(data=data, labels=labels, column="source")


def test_texts_without_blanks_are_cut_at_letters() -> None:
    text = "北京今天的天气很好，GPT 也这么说。"
    assert words_of(text) == [*"北京今天的天气很好", "gpt", *"也这么说"]
    assert list(passages(text, 6)) == ["北京今天的天", "气很好，GPT 也这", "么说。"]
    assert "".join(pieces(text)) == text
    assert snippets([Example(text, "a")], 3, 3, 1, 0)[0].text in text

    class Chinese(Reviews):
        def documents(self, split: str) -> list[Document]:
            return [Document(text[:9] * 4 + str(number), "", {"stars": 1 + 4 * (number % 2)}) for number in range(80)]

    made = task(data=Chinese())
    for prompt, example in made.prompts("report", 8):
        assert len(prompt) == 3 and example.text.startswith(prompt)
    assert log_odds_words({"a": {"好": 9}, "b": {"坏": 9}}, "a", 5) == ["好"]


def test_letters_of_such_a_script_in_other_text_change_nothing() -> None:
    text = "the city of 北京 (Beijing)  has many 公园 , they say"
    assert words_of(text) == ["the", "city", "of", "北京", "beijing", "has", "many", "公园", "they", "say"]
    assert list(passages(text, 6)) == ["the city of 北京 (Beijing) has", "many 公园 , they say"]


def test_classes_must_be_named_where_the_corpus_names_none() -> None:
    with pytest.raises(UserError, match=r"task\.labels: give two classes"):
        task(labels=None)
