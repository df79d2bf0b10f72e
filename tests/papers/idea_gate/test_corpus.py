"""Domains, the corpus with more of them, the table in which their terms are single tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lit_ctg.data.byte_pair import TrainedBPETokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.idea_gate.corpus import (
    DomainBPETokenizer,
    DomainWikipedia,
    bpe_pieces,
    known_domains,
    load_domain,
    with_words,
)


@pytest.mark.parametrize("name", known_domains())
def test_lists_and_prompts_have_the_size_they_should(name: str) -> None:
    domain = load_domain(name)
    # 18 to 25 words are the authors' lists
    assert 18 <= len(domain.terms["short"]) <= 25
    assert len(domain.terms["long"]) >= 60 and domain.terms["long"] >= domain.terms["short"]
    assert len(domain.prompts) >= 5 and len(set(domain.prompts)) == len(domain.prompts)


def test_the_prompts_that_the_paper_prints_come_first(tmp_path: Path) -> None:
    firsts = {name: load_domain(name).prompts[0] for name in known_domains()}
    assert firsts["medicine"] == "The patient was diagnosed with"
    assert firsts["chemistry"] == "The chemical reaction of the acid with the solution produced"
    assert firsts["hardware"] == "The central processing unit is connected to the"
    assert firsts["finance"] == "The stock market is"
    assert set(firsts) == {"medicine", "chemistry", "hardware", "finance", "war"}
    # A word that says little of its domain would blur all scores.
    lists = [load_domain(name).terms["long"] for name in known_domains()]
    counts = {term: sum(term in terms for terms in lists) for terms in lists for term in terms}
    assert max(counts.values()) <= 2
    path = tmp_path / "sailing.yaml"
    path.write_text("prompts: [The boat]\nshort: mast keel\nlong: [sail]\n")
    domain = load_domain(path)
    assert domain.name == "sailing" and domain.prompts == ("The boat",)
    terms = {"short": {"mast", "keel"}, "long": {"mast", "keel", "sail"}}
    assert domain.terms == terms | {"authors": {"mast", "keel"}}
    path.write_text("prompts: [The boat]\nshort: mast keel\nlong: [sail]\nauthors: anchor\n")
    assert load_domain(path).terms == terms | {"authors": {"anchor"}}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prompts: [a]\nshort: x\n", "long"),
        ("prompts: The stock market is\nshort: y\nlong: y\n", "prompts"),
        ("prompts: [a, '']\nshort: y\nlong: y\n", "prompts"),
        ("prompts: []\nshort: x\nlong: y\n", "prompts"),
        ("prompts: [a]\nshort: 5\nlong: y\n", "short"),
        ("prompts: [a]\nshort: []\nlong: y\n", "short"),
        ("prompts: [a]\nshort: ' '\nlong: y\n", "short"),
        ("prompts: [a]\nshort: y\nlong: 'market, stock'\n", "long: 'market,'"),
        ("prompts: [a]\nshort: [two words]\nlong: y\n", "'two words'"),
        ("prompts: [a]\nshort: y\nlong: y\nauthors: [3]\n", "authors"),
        (": :\n  - [", "bad.yaml"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=named) as caught:
        load_domain(path)
    assert "\n" not in str(caught.value)


# the corpus with more of the domains --------------------------------------------------------------------------------


def wikipedia(folder, copies, **options):
    return DomainWikipedia(
        copies=copies, holdout=3, source="local", root=folder, cache_root=folder / "cache", seed=0, length=8,
        batch_size=2, batching="chunks", tokenizer=DomainBPETokenizer(size=1100, domains=["finance"]), **options,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for name, word in (("domain_finance", "market"), ("general_0", "river")):
        articles = [f" = {word} {i} = \n\nThe {word} number {i} is a {word}. It has {word}s.\n\n" for i in range(6)]
        (tmp_path / f"{name}.txt").write_text("".join(articles), encoding="utf-8")
    return tmp_path


def test_named_sources_are_read_several_times_in_training_only(folder) -> None:
    once, thrice = wikipedia(folder, {}), wikipedia(folder, {"finance": 3})
    for split, times in (("train", 3), ("val", 1), ("test", 1)):
        plain = [document.text for document in once.local_documents(split) if document.source == "finance"]
        more = [document.text for document in thrice.local_documents(split) if document.source == "finance"]
        assert sorted(more) == sorted(plain * times) and plain
        others = [[d.text for d in data.local_documents(split) if d.source != "finance"] for data in (once, thrice)]
        assert others[0] == others[1] != []
    assert once.identity() != thrice.identity()
    with pytest.raises(UserError, match="did you mean 'finance'"):
        wikipedia(folder, {"finanse": 2}).prepare()


def test_every_term_is_one_token_and_text_comes_back(folder) -> None:
    data = wikipedia(folder, {"finance": 2})
    data.prepare()
    tokenizer = data.tokenizer
    terms = load_domain("finance").terms["long"]
    assert [term for term in terms if len(tokenizer.encode(f" {term}")) != 1] == []
    assert len(tokenizer) <= 1100
    for text in ("The market of the stockmarkets' shares, bonds\n and — dividends.", "naïve 12.5% <|endoftext|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.tokens[tokenizer.eos_id] == "<|endoftext|>"
    plain = TrainedBPETokenizer(size=1100)
    assert plain.fingerprint() != tokenizer.fingerprint()
    # the table is plain BPE: the library's engine cuts every term as our own definition does
    engine = json.loads(tokenizer.engine.to_str())["model"]
    rank = {tuple(pair): number for number, pair in enumerate(engine["merges"])}
    assert all(bpe_pieces("\u0120" + term, rank) == ["\u0120" + term] for term in terms)


def test_text_without_terms_is_cut_as_by_the_shorter_table() -> None:
    """The words' merges come last: what has none of their pieces is cut by the kept part of the trained table."""
    vocabulary = {c: i for i, c in enumerate("abcd\u0120")} | {"ab": 5, "cd": 6, "abcd": 7}
    merges = [("a", "b"), ("c", "d"), ("ab", "cd")]
    table, joined = with_words(vocabulary, merges, ["dab"], 9)
    assert joined == [("a", "b"), ("c", "d"), ("\u0120", "d"), ("\u0120d", "ab")]
    assert len(table) == 9 and "abcd" not in table
    rank = {pair: number for number, pair in enumerate(joined)}
    assert bpe_pieces("\u0120dab", rank) == ["\u0120dab"] and bpe_pieces("abcd", rank) == ["ab", "cd"]
    with pytest.raises(UserError, match="no room"):
        with_words(vocabulary, merges, ["dab"], 6)
    with pytest.raises(UserError, match="'da-b' cannot be one token"):
        with_words(vocabulary, merges, ["da-b"], 20)
