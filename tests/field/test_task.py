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
    }  # fmt: skip
    return Task(**(given | changed))


def test_no_split_sees_a_text_of_another() -> None:
    texts = [set(task().texts(split)) for split in SPLITS]
    assert all(len(own) == 10 for own in texts)
    assert len(set.union(*texts)) == 40
    assert task().texts("train") == task().texts("train"), "the shuffle hangs on nothing"
    assert task(split_seed=1).texts("train") != task().texts("train")
    assert len({task().checksum(split) for split in SPLITS}) == 4


def test_the_identity_changes_with_whatever_the_texts_hang_on() -> None:
    class Limited(Reviews):
        max_documents = 7

    class Optioned(Reviews):
        def options(self) -> dict[str, int]:
            return {"minimum": 3}

    shares = dict(zip(SPLITS, (0.4, 0.2, 0.2, 0.2), strict=True))
    changes: list[dict[str, object]] = [
        {}, {"labels": {"bad": [1], "good": [5]}}, {"shares": shares}, {"per_label": 9}, {"passage_words": 7},
        {"split_seed": 1}, {"unit_words": 9}, {"column": "words"}, {"data": Reviews(41)}, {"data": Limited()},
        {"data": Optioned()},
    ]  # fmt: skip
    found = [task(**changed).identity() for changed in changes]
    assert all(one != other for place, one in enumerate(found) for other in found[:place])
    assert task(name="other", prompt_words=2).identity() == found[0], "the same texts, whatever is asked of them"


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


def test_no_text_has_its_heading() -> None:
    shares = {"data": Pages([6] * 20, [6] * 20), "shares": dict.fromkeys(SPLITS, 0.25)}
    for paged in (task(**shares), task(**shares, unit_words=6)):
        texts = [text for split in SPLITS for text in paged.texts(split)]
        texts += [example.text for split in SPLITS for example in paged.examples(split)]
        assert len(texts) == 80 and all(len(text.split()) == 6 and "Heading" not in text for text in texts)


def held_out_of(good: list[int], bad: list[int], **changed: object) -> Task:
    """A task whose held-out documents are all that there are."""
    made = task(data=Pages(good, bad), passage_words=20, **changed)
    made._documents = dict.fromkeys(SPLITS, made.data.documents("train"))
    return made


def test_prompts_are_of_passages_twice_as_long_and_the_rarer_class_ends_first() -> None:
    made = held_out_of([6, 5, 6, 9, 7], [6, 5])
    prompts = made.prompts(5)
    assert [example.label for _, example in prompts] == ["bad", "good", "good", "good", "good"]
    assert {prompt for prompt, _ in prompts} == {
        " ".join([word] * 3) for word in ("s1n0", "s5n0", "s5n2", "s5n3", "s5n4")
    }
    with pytest.raises(UserError, match="5 held-out passages for 6 prompts"):
        made.prompts(6)
    orders = {tuple(held_out_of([6] * 9, [6] * 9, split_seed=seed).prompts(8)) for seed in range(3)}
    assert len(orders) == 3, "drawn by the seed, not the first ones"


def test_a_class_that_a_split_lacks_is_told() -> None:
    with pytest.raises(UserError, match=r"task stars: the split (fluency|judge|held_out|train) got no document of bad"):
        task(data=Pages([6] * 20, [6])).texts("train")


def test_stars_are_classes_and_three_stars_none() -> None:
    found = task().examples("train")
    assert {example.label for example in found} == {"bad", "good"}
    for example in found:
        assert "plain" not in example.text
    assert all(e.label == ("bad" if "dreadful" in e.text else "good") for e in found if "food" in e.text)
    assert [e.label for e in task().examples("train", "bad")] == [e.label for e in found if e.label == "bad"]


def test_books_are_dealt_by_units() -> None:
    whole = task(unit_words=4)
    units = [document.text for split in SPLITS for document in whole.documents(split)]
    assert all(len(text.split()) <= 4 for text in units) and len(units) > 40
    assert whole.identity()["unit_words"] == 4 and "unit_words" not in task().identity()


def test_a_word_is_a_class_of_passages() -> None:
    words = task(column="words", labels={"praise": ["lovely", "fine"], "blame": ["dreadful"]})
    assert words.exact
    found = words.examples("train")
    assert {example.label for example in found} == {"praise", "blame"}
    for example in found:
        assert {"praise": "lovely", "blame": "dreadful"}[str(example.label)] in example.text
    assert words.label_of_passage("dreadful but fine", None) == "praise", "the first of the task's order"


def test_a_rule_is_a_class_of_passages_and_two_are_none() -> None:
    def number(text: str) -> bool:
        return any(letter.isdigit() for letter in text)

    def praise(text: str) -> bool:
        return "lovely" in text or "plain" in text

    rules = {"strict": {"number": number, "praise": praise}, "loose": {"number": number, "praise": number}}
    labels: dict[str, list[str]] = {"number": [], "praise": []}
    ruled = task(column="rules", labels=labels, rules=rules, passage_words=2)
    assert ruled.exact and ruled.label_of_passage("3 words", None) == "number"
    assert ruled.label_of_passage("lovely", None) == "praise", "the first judge's rules tell the truth"
    assert ruled.label_of_passage("3 lovely words", None) is None and ruled.label_of_passage("words", None) is None
    found = ruled.examples("train")
    assert {example.label for example in found} == {"number", "praise"}
    assert all(number(e.text) == (e.label == "number") and praise(e.text) == (e.label == "praise") for e in found)
    assert "rules" in ruled.identity() and "rules" not in task().identity()
    for given in (
        {"column": "rules", "labels": labels},
        {"rules": rules},
        {"column": "rules", "labels": labels, "rules": {"strict": {"number": number}}},
    ):
        with pytest.raises(UserError, match=r"task\.rules: give each judge a rule of every class"):
            task(**given)


def test_prompts_begin_held_out_passages_and_classes_alternate() -> None:
    made = task().prompts(4)
    held_out = task().texts("held_out")
    assert [example.label for _, example in made] == ["bad", "good", "bad", "good"]
    for prompt, example in made:
        assert len(prompt.split()) == 3 and example.text.startswith(prompt)
        assert any(text.startswith(example.text) or example.text in text for text in held_out)
    with pytest.raises(UserError, match="held-out passages for 400 prompts: ask for fewer"):
        task().prompts(400)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"shares": {"train": 1.0}}, "shares"),
        ({"shares": dict(zip(SPLITS, (0.5, 0.5, 0.0, 0.0), strict=True))}, "shares"),
        ({"shares": dict.fromkeys(SPLITS, 0.2)}, "shares"),
        ({"labels": {"bad": [1]}}, "labels"),
        *(({key: value}, rf"Task\.{key}") for key in ("passage_words", "prompt_words") for value in (0, "x", None)),
        *(({key: value}, rf"Task\.{key}") for key in ("per_label", "unit_words") for value in (0, "x", 2.5)),
        ({"split_seed": -1}, r"Task\.split_seed"),
        ({"labels": {"bad": [1], "best": [6]}}, "task stars: no document of best: give another corpus"),
    ],
)
def test_what_cannot_be_is_one_line(changed: dict[str, object], line: str) -> None:
    with pytest.raises(UserError, match=line):
        task(**changed).texts("train")


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


def test_a_folder_of_ones_own_is_a_task_with_a_name_of_its_own(tmp_path: Path) -> None:
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
        assert {document.source for document in made.documents("train") if made.label_of(document) == target} == {label}


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
            return [Document(text[:9] * 4, "", {"stars": stars}) for stars in (1, 5) for _ in range(20)]

    made = task(data=Chinese())
    for prompt, example in made.prompts(8):
        assert len(prompt) == 3 and example.text.startswith(prompt)
    assert "unspaced" in made.identity() and "unspaced" not in task().identity()
    assert log_odds_words({"a": {"好": 9}, "b": {"坏": 9}}, "a", 5) == ["好"]


def test_letters_of_such_a_script_in_other_text_change_nothing() -> None:
    text = "the city of 北京 (Beijing)  has many 公园 , they say"
    assert words_of(text) == ["the", "city", "of", "北京", "beijing", "has", "many", "公园", "they", "say"]
    assert list(passages(text, 6)) == ["the city of 北京 (Beijing) has", "many 公园 , they say"]


def test_classes_must_be_named_where_the_corpus_names_none() -> None:
    with pytest.raises(UserError, match=r"task\.labels: give two classes"):
        task(labels=None)
