"""Lexicon files and the words that a tokenizer's ids hold, against plain string matching; what is refused."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_ctg.data.byte_pair import TrainedBPETokenizer
from lit_ctg.data.tokenizer import SpacyTokenizer, WordTokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon, Speller, WordFinder, table_of

CSV = "word,polarity,strength,class,warmth\nsuperb,1,,praise,0.5\nlousy,-0.8,,blame,\nvery,0,0.8,intensifier,0\n"
TEXTS = [
    "the food was very superb but VERY lousy",
    "Superb food, lousy music!",
    "unsuperb supers and very-very lousy? 2superb",
] * 8


def write(folder: Path, text: str, name: str = "words.csv") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def lexicon(tmp_path) -> Lexicon:
    return Lexicon(path=write(tmp_path, CSV), held_out=["superb"])


def test_csv_and_yaml_say_the_same(tmp_path, lexicon):
    text = "superb: {polarity: 1, class: praise, warmth: 0.5}\nlousy: {polarity: -0.8, class: blame}\n"
    other = Lexicon(path=write(tmp_path, text + "very: {strength: 0.8, class: intensifier}\n", "words.yaml"))
    for one in (lexicon, other):
        assert one.words == ("superb", "lousy", "very")
        assert one.column("polarity") == (1.0, -0.8, 0.0) and one.column("strength") == (0.0, 0.0, 0.8)
        assert one.column("warmth") == (0.5, 0.0, 0.0) and one.of_class("praise") == ("superb",)
    short = Lexicon(path=write(tmp_path, "good: 0.6\nbad: {polarity: -0.6, warmth: -1}\n", "short.yaml"))
    assert short.column("polarity") == (0.6, -0.6) and short.column("warmth") == (0.0, -1.0)
    marked = Lexicon(path=write(tmp_path, "\N{BYTE ORDER MARK}" + CSV, "marked.csv"), held_out=["Superb", "lousy"])
    assert marked.words == lexicon.words and marked.held_out == ("superb", "lousy")
    again = Lexicon.of(lexicon.words, lexicon.columns, lexicon.classes, lexicon.held_out)
    assert {**vars(again), "path": None} == {**vars(lexicon), "path": None}
    for columns, classes in (({"polarity": [1, 2]}, [""]), ({"polarity": [1]}, [])):
        with pytest.raises(UserError, match="1 words: give each its grades and a class"):
            Lexicon.of(["good"], columns, classes)


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("words.csv", "", "'word'"),
        ("words.csv", "wrod,polarity\ngood,1\n", "'word'"),
        ("words.csv", "word,polarity\n", "no word"),
        ("words.csv", "word,polarity\ngood,much\n", "line 2: 'good'.polarity=much"),
        ("words.csv", "word,polarity\ngood,1.2\n", "line 2: 'good'.polarity"),
        ("words.csv", "word,polarity\ngood,nan\n", "line 2: 'good'.polarity"),
        ("words.csv", "word,strength\ngood,-0.1\n", "from 0 to 1"),
        ("words.csv", "word,polarity\ngood,1\nGood,0\n", "line 3: 'good'"),
        ("words.csv", "word,polarity\n ,1\n", "line 2"),
        ("words.csv", "word,polarity\ngood,1,2\n", "line 2"),
        ("words.csv", "word,polarity\ngood\n", "line 2"),
        ("words.csv", "word,polarity,polarity\ngood,1,1\n", "twice"),
        ("words.csv", 'word,polarity\n"good,1\n', "CSV"),
        ("words.yaml", "- good", "mapping"),
        ("words.yaml", "good: [", "YAML"),
        ("words.yaml", "yes: 1", "True"),
        ("words.yaml", "good: {polarity: high}", "'good'.polarity=high"),
        ("words.yaml", "good: true", "'good'.polarity=true"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, name, text, named):
    with pytest.raises(UserError, match=named) as caught:
        Lexicon(path=write(tmp_path, text, name))
    assert "\n" not in str(caught.value) and name in str(caught.value)


def test_what_is_asked_for_and_not_there_is_named(tmp_path, lexicon, monkeypatch):
    for ask, named in (
        (lambda: Lexicon(path=str(tmp_path / "none.csv")), "none.csv"),
        (lambda: lexicon.column("warmht"), "did you mean 'warmth'"),
        (lambda: lexicon.of_class("prase"), "did you mean 'praise'"),
        (lambda: Lexicon(path=write(tmp_path, CSV), held_out=["superp"]), "did you mean 'superb'"),
    ):
        with pytest.raises(UserError, match=named):
            ask()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="vaderSentiment"):
        Lexicon(path="vader")
    assert len(Lexicon(path="reviews").words) > 50


def tokenizers() -> list:
    made = [WordTokenizer(eol=None), SpacyTokenizer(lower=True), TrainedBPETokenizer(size=300)]
    for tokenizer in made:
        tokenizer.train(TEXTS)
    return made


@pytest.mark.parametrize("index", [0, 1, 2], ids=["words", "spacy", "bpe"])
def test_words_are_found_where_their_last_token_stands(lexicon, index):
    tokenizer = tokenizers()[index]
    finder = WordFinder(lexicon, tokenizer)
    for text in TEXTS[:3]:
        ids = tokenizer.encode(text)
        numbers = finder(torch.tensor([ids]))[0].tolist()
        for end in range(1, len(ids) + 1):
            # the word the prefix ends with, as a reader would say; in a vocabulary of words, its last token
            prefix = (tokenizer.tokens[ids[end - 1]] if index == 0 else tokenizer.decode(ids[:end])).lower()
            last = re.search(r"^[a-z]+$" if index == 0 else r"[a-z0-9]+$", prefix)
            expected = last[0] if last and last[0] in lexicon.words else None
            assert (lexicon.words[numbers[end - 1]] if numbers[end - 1] >= 0 else None) == expected, prefix


def test_words_stand_alone_behind_line_ends_marks_and_padding_but_not_within_words(lexicon):
    """Of a byte-level tokenizer, whose stored tokens show a line end or a curly quote as letters."""
    tokenizer = tokenizers()[2]
    finder = WordFinder(lexicon, tokenizer)

    def found(ids: list[int]) -> list[str]:
        return [lexicon.words[number] for number in finder(torch.tensor([ids]))[0].tolist() if number >= 0]

    text = "so\nsuperb\tlousy \N{LEFT DOUBLE QUOTATION MARK}very\N{RIGHT DOUBLE QUOTATION MARK} (superb) unlousy 7very"
    assert found(tokenizer.encode(text)) == ["superb", "lousy", "very", "superb"]
    # a word that is the whole text; an id beyond the tokens (a model's head may have more rows); padding
    ids = tokenizer.encode("superb")
    assert found(ids) == ["superb"] and found([len(tokenizer) + 7, *tokenizer.encode(" superb")]) == ["superb"]
    finder.ends_open_V[0] = True  # that padding is not read as the token 0
    assert found([-1, *ids]) == ["superb"] and found([0, *ids]) == []
    word_BT, length_BT = finder.spans(torch.tensor([tokenizer.encode("the lousy food")]))
    ends = (word_BT[0] >= 0).nonzero().flatten().tolist()
    assert length_BT[0, ends].tolist() == [len(tokenizer.encode(" lousy"))] and int(length_BT.count_nonzero()) == 1
    assert table_of([0.5, 0.25])[torch.tensor([1, -1, 0])].tolist() == [0.25, 0.0, 0.5]


class Pieces:
    """Three tokens of SentencePiece, of which any text is the first."""

    tokens = ("\u2581good", "ness", ".")
    unknown_id = None

    def encode(self, text: str) -> list[int]:
        return [0]

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(texts), dtype=int), np.ones(len(texts), dtype=int)

    def decode(self, ids: Any) -> str:
        return "".join(self.tokens[number] for number in ids).replace("\u2581", " ").strip()


def test_spellings_are_read_from_the_text_of_tokens(lexicon):
    speller = Speller(Pieces())
    assert not speller.by_word and speller.spell("good") == ((0,),)
    assert speller.spell("superb") == ()  # what is encoded is not the word
    assert speller.begins_V.tolist() == [True, False, True] and speller.ends_open_V.tolist() == [True, True, False]
    words, _, pieces = tokenizers()
    assert Speller(words).spell("wonderful") == ()  # unknown
    assert Speller(pieces).spell("superb")[0] == tuple(pieces.encode(" superb"))
    assert Speller(pieces).spell("Alice")[0] == tuple(pieces.encode(" Alice"))  # names in grammars
    assert Speller(pieces).by_word is False and Speller(words).by_word is True


def test_a_long_list_against_a_dictionary(tmp_path):
    """Many spellings of many lengths at once: the hash finds each of them and nothing else."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcd", k=rng.randint(1, 7))) for _ in range(300)]
    listed = sorted(set(words))[::2]
    text = "word,polarity\n" + "".join(f"{word},0.5\n" for word in listed)
    lexicon = Lexicon(path=write(tmp_path, text))
    tokenizer = TrainedBPETokenizer(size=280)
    tokenizer.train([" ".join(words)] * 3)
    finder = WordFinder(lexicon, tokenizer)
    for _ in range(20):
        ids = tokenizer.encode(" ".join(rng.choices(words, k=30)))
        numbers = finder(torch.tensor([ids]))[0].tolist()
        for end in range(1, len(ids) + 1):
            last = re.search(r"\w+$", tokenizer.decode(ids[:end]))
            expected = last[0] if last and last[0] in listed else None
            assert (lexicon.words[numbers[end - 1]] if numbers[end - 1] >= 0 else None) == expected


def test_vader_s_lexicon_without_emoticons_and_a_fifth_of_it_held_out() -> None:
    made = Lexicon(path="vader")
    polarity, kinds = (
        dict(zip(made.words, made.column("polarity"), strict=True)),
        dict(zip(made.words, made.classes, strict=True)),
    )
    assert len(made.words) > 7000 and all(word.isalpha() for word in made.words) and not made.held_out
    assert (polarity["superb"], polarity["dreadful"]) == (3.1 / 4, -1.9 / 4), "its grades are from -4 to 4"
    assert (kinds["superb"], kinds["dreadful"]) == ("praise", "blame")
    held = [Lexicon(path="vader", held_out_share=0.2, held_out=["superb"]).held_out for _ in range(2)]
    assert held[0] == held[1] and "superb" in held[0]
    assert abs(len(held[0]) - 0.2 * len(made.words)) <= 2
