"""Words and spaCy words: vocabulary, order, unknown words, round trips, and equality with plain definitions."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pytest

from lit_ctg.data.byte_pair import TrainedBPETokenizer
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.data.tokenizer import SpacyTokenizer, Tokenizer, WordTokenizer, blocks, ids_behind, texts_behind
from lit_ctg.errors import UserError
from tests.llama import llama_tokenizer

TEXTS = ["the cat sat\non the mat\n", "the Cat , 1 @,@ 234 cats\n", "\n", "a <unk> in U.S. don't (we) 3.5%\n"]


def words(text: str) -> list[str]:
    return [word for line in text.splitlines() for word in [*line.split(), "<eos>"]]


def test_vocabulary_is_commonest_first_and_ids_are_those_of_a_loop() -> None:
    tokenizer = WordTokenizer()
    tokenizer.train(iter(TEXTS))
    counts = Counter(word for text in TEXTS for word in words(text))
    assert set(tokenizer.tokens) == {*counts, "<unk>"}
    assert tokenizer.tokens[:3] == ("<unk>", "<eos>", "the")
    body = tokenizer.tokens[2:]
    assert list(body) == sorted(body, key=lambda word: (-counts[word], word))
    for text in TEXTS:
        assert tokenizer.encode(text) == [tokenizer.id(word) for word in words(text)]
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.unknown_id == 0 and tokenizer.eos_id == 1 and tokenizer.pad_id is None


def test_words_outside_the_training_split_are_unknown() -> None:
    tokenizer = WordTokenizer(lower=True, specials=("<pad>", "<unk>"), eol=None)
    tokenizer.train(["The the dog"])
    assert tokenizer.tokens == ("<pad>", "<unk>", "the", "dog")
    assert tokenizer.encode("THE wolf\n") == [2, 1]
    with pytest.raises(UserError, match=r"'dgo' is not in the vocabulary.*did you mean 'dog'"):
        tokenizer.id("dgo")


def test_rare_words_and_size() -> None:
    tokenizer = WordTokenizer(minimum=2, eol=None)
    tokenizer.train(["a a b b b c"])
    assert tokenizer.tokens == ("<unk>", "b", "a")
    tokenizer = WordTokenizer(size=2, eol=None)
    tokenizer.train(["a a b b b c"])
    assert tokenizer.tokens == ("<unk>", "b")
    with pytest.raises(UserError, match="<unk>"):
        WordTokenizer(specials=("<pad>",))
    with pytest.raises(UserError, match=r"size=1 .*room for <unk>, <eos>"):
        WordTokenizer(size=1)


@pytest.mark.parametrize("make", [WordTokenizer, lambda: WordTokenizer(eol=None, lower=True), SpacyTokenizer,
                                  lambda: SpacyTokenizer(eol="<eos>", lower=False)])  # fmt: skip
def test_many_texts_give_the_ids_of_each(make) -> None:
    tokenizer: Tokenizer = make()
    tokenizer.train(TEXTS)
    rng = random.Random(3)
    letters = ["the", "cat", "U.S.", "don't", "(we)", " ", "  ", "\n", "\t", "Ä", "\u00a0", "unseen", "3.5%", "<eos>"]
    texts = ["".join(rng.choices(letters, k=rng.randint(0, 12))) for _ in range(300)]
    ids_T, counts_N = tokenizer.encode_many(texts)
    assert ids_T.dtype == np.dtype("<u2")
    assert [part.tolist() for part in np.split(ids_T, np.cumsum(counts_N)[:-1])] == list(map(tokenizer.encode, texts))


HARD = "Mr. O'Neill doesn't pay $3.50 (or 2,000 km/h) in the U.S.A., e.g. at 5p.m. :-) isn't it? " + " ".join(TEXTS[:3])
WIDE = "  two  blanks \n\n   and\ta tab , \u00a0 wide   \nend \n"


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(("text", "whitespace"), [(HARD, False), (WIDE, True)])
def test_spacy_words_are_those_of_the_blank_english_pipeline(text: str, whitespace: bool, lower: bool) -> None:
    import spacy

    tokenizer, english = SpacyTokenizer(lower=lower, whitespace=whitespace, eol="<eos>"), spacy.blank("en")
    tokenizer.train([text])
    lines = (text.lower() if lower else text).split("\n")
    words = [[token.text for token in english(line) if whitespace or not token.is_space] for line in lines]
    expected = [word for line in words for word in [*line, "<eos>"]][:-1]
    assert [tokenizer.tokens[i] for i in tokenizer.encode(text)] == expected
    assert tokenizer.encode_many([text])[0].tolist() == tokenizer.encode(text)


@pytest.mark.parametrize("make", [WordTokenizer, SpacyTokenizer])
def test_a_text_makes_no_special_token(make) -> None:
    """But ``<unk>``, which WikiText writes for rare words."""
    tokenizer = make(lower=True, eol="<eos>", specials=("<unk>", "<pad>", "<bos>"))
    tokenizer.train(["the <unk> war\n", "the <eos> <BOS> end\n<pad>\n", "<eos>"])
    plain = make(lower=True, eol=None)
    plain.train(["the <eos> <pad> war"])
    assert (plain.pad_id, plain.bos_id, plain.eos_id) == (None, None, None)
    for text in ("the <eos> war <pad>\n<BOS>", "<eos>", "the x<eos> war\n<eos>\n"):
        ids, (packed_T, _) = tokenizer.encode(text), tokenizer.encode_many([text])
        assert ids == packed_T.tolist()
        assert ids.count(tokenizer.eos_id) == text.count("\n") and not {tokenizer.pad_id, tokenizer.bos_id} & set(ids)
    if make is WordTokenizer:
        assert tokenizer.encode("<unk> war <pad>\n") == [0, tokenizer.id("war"), 0, tokenizer.eos_id]
    assert tokenizer.encode("<unk>") == [0]


def test_state_is_plain_and_complete() -> None:
    tokenizer = WordTokenizer()
    tokenizer.train(TEXTS)
    other = WordTokenizer()
    assert not other.trained
    other.restore(json.loads(json.dumps(tokenizer.state())))
    assert other.tokens == tokenizer.tokens and other.encode(TEXTS[1]) == tokenizer.encode(TEXTS[1])


def test_blocks_keep_all_texts_in_order() -> None:
    texts = ["ab", "c", "", "defg", "h"]
    parts = list(blocks(texts, characters=3))
    assert parts == [["ab", "c"], ["", "defg"], ["h"]]
    assert list(blocks([])) == []


def test_more_than_65536_tokens_need_four_bytes() -> None:
    tokenizer = WordTokenizer(eol=None)
    text = " ".join(f"w{number}" for number in range(70_000))
    tokenizer.train([text])
    ids_T, _ = tokenizer.encode_many([text])
    assert ids_T.dtype == np.dtype("<u4") and ids_T.tolist() == tokenizer.encode(text)


def of_kind(kind: str, text: str) -> Tokenizer:
    if kind in ("normalised", "metaspace"):
        return HuggingFaceTokenizer.of(llama_tokenizer([text], kind == "normalised"))
    tokenizer: Tokenizer = TrainedBPETokenizer(size=300) if kind == "bytes" else WordTokenizer(eol=None)
    tokenizer.train([text])
    return tokenizer


INSIDE = "it was in 1914 ( 1914 ) and ( it ) in (1914) and in 1914 " * 20


@pytest.mark.parametrize("kind", ["normalised", "metaspace", "bytes", "words"])
def test_tokens_inside_a_text_are_those_of_the_text(kind: str) -> None:
    """Read alone, the family of Llama puts a space before 1914, or a second one."""
    tokenizer = of_kind(kind, INSIDE)
    (after_space, bare) = ids_behind(tokenizer, "(", [" 1914", "1914"])
    assert [*tokenizer.encode("("), *after_space] == tokenizer.encode("( 1914")
    if kind != "words":
        assert [*tokenizer.encode("("), *bare] == tokenizer.encode("(1914") and bare != after_space
    ids, texts = tokenizer.encode("it was in 1914"), texts_behind(tokenizer)
    assert "".join(texts[number] for number in ids) == " it was in 1914"[len("" if texts[ids[0]][0] == " " else " ") :]
    assert ids_behind(tokenizer, "(", []) == []


def test_a_text_that_shares_a_token_with_the_text_before_is_read_alone() -> None:
    tokenizer = WordTokenizer(eol=None)
    tokenizer.train(["in (1914 1914"])
    assert ids_behind(tokenizer, "(", ["1914", "1914 in"]) == [[tokenizer.id("1914")], tokenizer.encode("1914 in")]
    assert ids_behind(tokenizer, "", ["in 1914"]) == [tokenizer.encode("in 1914")]


def test_without_a_whole_token_texts_are_decoded_alone() -> None:
    class Halves:
        def __len__(self) -> int:
            return 2

        def decode(self, ids: list[int]) -> str:
            return "\ufffd" * len(ids)

    assert texts_behind(Halves()) == ["\ufffd", "\ufffd"]
