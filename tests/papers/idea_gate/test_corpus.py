"""Domains, the corpus with more of them, the table in which their terms are single tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_ctg.errors import UserError
from lit_ctg.papers.idea_gate.corpus import known_domains, load_domain


@pytest.mark.parametrize("name", known_domains())
def test_lists_and_prompts_have_the_size_they_should(name: str) -> None:
    domain = load_domain(name)
    # 18 to 25 words are the authors' lists
    assert 18 <= len(domain.terms["short"]) <= 25
    assert len(domain.terms["long"]) >= 60 and domain.terms["long"] >= domain.terms["short"]
    assert len(domain.prompts) >= 5 and len(set(domain.prompts)) == len(domain.prompts)


def test_the_prompts_that_the_paper_prints_come_first() -> None:
    firsts = {name: load_domain(name).prompts[0] for name in known_domains()}
    assert firsts["medicine"] == "The patient was diagnosed with"
    assert firsts["chemistry"] == "The chemical reaction of the acid with the solution produced"
    assert firsts["hardware"] == "The central processing unit is connected to the"
    assert firsts["finance"] == "The stock market is"
    assert set(firsts) == {"medicine", "chemistry", "hardware", "finance", "war"}


def test_no_term_is_in_most_domains() -> None:
    """A word that says little of its domain would blur all scores."""
    lists = [load_domain(name).terms["long"] for name in known_domains()]
    counts = {term: sum(term in terms for terms in lists) for terms in lists for term in terms}
    assert max(counts.values()) <= 2


def test_a_domain_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "sailing.yaml"
    path.write_text("prompts: [The boat]\nshort: mast keel\nlong: [sail]\n")
    domain = load_domain(path)
    assert domain.name == "sailing" and domain.prompts == ("The boat",)
    assert domain.terms == {"short": {"mast", "keel"}, "long": {"mast", "keel", "sail"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompts: [a]\nshort: x\n", "expected a mapping with long, prompts, short"),
        ("prompts: [a]\nshort: [two words]\nlong: y\n", "'two words' must be one lower-case word"),
        ("prompts: []\nshort: x\nlong: y\n", "at least one prompt"),
        ("prompts: [a]\nshort: []\nlong: y\n", "no terms"),
        (": :\n  - [", "cannot be read"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_domain(path)


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(UserError, match=r"no domain 'chemisty'.*chemistry"):
        load_domain("chemisty")
