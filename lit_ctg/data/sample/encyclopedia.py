"""Encyclopaedia articles in eight fields, laid out and (if asked) tokenised as WikiText is.

What the papers can see in it: years, ranges, conversions and places that depend on the last one of their kind
(micro-models), and articles that stay on a small set of their field's terms through neutral sentences (idea gate).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from lit_ctg.data.document import Document
from lit_ctg.data.sample.domain import biography, chemistry, common, finance, hardware, medicine, sport, town, war
from lit_ctg.data.sample.grammar import drawn_in_split, random_for, take
from lit_ctg.data.sample.number import wikitext_tokens
from lit_ctg.data.sample.world import Domain, World

DOMAINS: dict[str, Domain] = {
    module.DOMAIN.name: module.DOMAIN
    for module in (chemistry, hardware, finance, medicine, war, biography, town, sport)
}
# share of sentences that any field could hold, in tenths
_NEUTRAL_TENTHS = 2


def documents(
    split: str, seed: int, size: int, *, tokenised: bool = True, domains: Sequence[str] | None = None
) -> Iterator[Document]:
    """Articles of about ``size`` white-space tokens together; ``source`` is the field.

    Args:
        split: train, validation or test. No title occurs in two splits.
        seed: other seeds give other articles.
        size: white-space tokens over all documents.
        tokenised: WikiText token style (``1 @,@ 234``); otherwise plain English text.
        domains: names of :data:`DOMAINS` to write about, all by default; they take turns.

    Raises:
        ValueError: unknown split, or ``size`` below 1.
        KeyError: unknown field.
    """
    chosen = [DOMAINS[name] for name in domains or DOMAINS]
    return take(_articles(split, seed, chosen, tokenised), size)


def _articles(split: str, seed: int, domains: list[Domain], tokenised: bool) -> Iterator[Document]:
    rng = random_for("encyclopedia", seed, split)
    while True:
        for domain in rng.sample(domains, len(domains)):
            yield article(rng, domain, split, tokenised=tokenised)


def article(rng: Random, domain: Domain, split: str, *, tokenised: bool = True) -> Document:
    """One article: title, lead, three to five sections of one to three paragraphs."""
    drawn: dict[str, dict[str, str]] = {}

    def draw_title() -> str:
        facts = domain.title(rng)
        drawn["facts"] = facts
        return facts["title"]

    title = drawn_in_split(draw_title, split)
    world = World(rng, domain, common.LEXICON, common.SENTENCES, drawn["facts"])
    lead = [rng.choice(domain.opening), *_mixed(world, domain.sections[""], rng.randint(2, 4))]
    lines = ["", f"= {title} =", "", world.paragraph(lead)]
    headings = [heading for heading in domain.sections if heading]
    dropped = rng.choice(headings) if len(headings) > 3 else None
    for heading in headings:
        if heading != dropped:
            lines += ["", f"= = {heading} = =", "", *_section(world, domain, heading)]
    if tokenised:
        lines = [f" {wikitext_tokens(line)} " if line else " " for line in lines]
    meta = {"title": title, "domain": domain.name, "home": world.home.name, "country": world.home.country}
    return Document("".join(f"{line}\n" for line in lines), domain.name, meta)


def _section(world: World, domain: Domain, heading: str) -> list[str]:
    """One to three paragraphs that use no template of the pool twice."""
    rng = world.rng
    pool = domain.sections[heading]
    count = rng.randint(min(4, len(pool)), len(pool))
    sentences = _mixed(world, pool, count, ordered=heading in domain.ordered)
    paragraphs = []
    while sentences:
        length = rng.randint(3, 6)
        if len(sentences) - length < 2:  # no paragraph of a single sentence
            length = len(sentences)
        paragraphs.append(world.paragraph(sentences[:length]))
        sentences = sentences[length:]
    return paragraphs


def _mixed(world: World, pool: Sequence[str], count: int, *, ordered: bool = False) -> list[str]:
    """Templates of the pool with neutral ones strewn in, never first."""
    sentences: list[str] = []
    picked = world.pick(pool, count)
    for template in sorted(picked, key=pool.index) if ordered else picked:
        sentences.append(template)
        if world.rng.randrange(10) < _NEUTRAL_TENTHS:
            sentences.append(world.neutral())
    return sentences
