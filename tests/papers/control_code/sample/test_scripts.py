"""News and blogs: two styles over partly shared words."""

from __future__ import annotations

import re

import pytest

from lit_ctg.papers.control_code.sample.scripts import documents


def test_the_two_styles_alternate_and_differ() -> None:
    found = list(documents("train", 0, 30_000))
    assert [document.source for document in found[:4]] == ["news", "blog", "news", "blog"]
    text = {style: " ".join(d.text for d in found if d.source == style) for style in ("news", "blog")}
    per_thousand = {
        style: [1000 * len(re.findall(pattern, text[style])) / len(text[style].split()) for pattern in (r"\bI\b", r"%")]
        for style in text
    }
    assert per_thousand["blog"][0] > 20 > 1 > per_thousand["news"][0]
    assert per_thousand["news"][1] > 2 > 0.1 > per_thousand["blog"][1]
    shared = set(text["news"].split()) & set(text["blog"].split())
    assert len(shared) > 30


def test_one_style_can_be_asked_for() -> None:
    assert {document.source for document in documents("test", 2, 2000, styles=["blog"])} == {"blog"}
    with pytest.raises(KeyError, match="sermon"):
        list(documents("train", 0, 100, styles=["sermon"]))
