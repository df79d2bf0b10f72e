"""Sentences and words every field shares: through them an article drifts if nothing holds its topic."""

from __future__ import annotations

LEXICON: dict[str, tuple[str, ...]] = {
    "size": ("small", "large", "modest", "considerable", "substantial", "limited", "growing", "wide"),
    "praise": (
        "careful",
        "original",
        "remarkable",
        "influential",
        "thorough",
        "elegant",
        "bold",
        "clear",
        "lasting",
    ),
    "blame": ("costly", "hasty", "incomplete", "uneven", "obscure", "misleading", "overlong", "poorly planned"),
    "adverb": ("gradually", "soon", "eventually", "quickly", "slowly", "quietly", "steadily"),
    "writer": (
        "historian",
        "critic",
        "journalist",
        "observer",
        "scholar",
        "biographer",
        "commentator",
        "editor",
    ),
    "paper": ("newspaper", "journal", "review", "bulletin", "gazette", "magazine", "report", "pamphlet"),
    "body": (
        "committee",
        "commission",
        "council",
        "society",
        "institute",
        "ministry",
        "board",
        "university",
        "academy",
    ),
    "effort": ("programme", "project", "scheme", "study", "survey", "effort", "inquiry", "plan"),
}

# dealt into every section now and then; they say nothing of the field
SENTENCES: tuple[str, ...] = (
    "In {year}, @a {size} {body} met in {city} to discuss the {effort}.",
    'The {writer} {person} later called it "the most {praise} {effort} of its time".',
    "Records kept in {place} [show|suggest] that the {effort} began in {year}, [although|but] a later "
    "{paper} gives the date as "
    "{later:0:6}.",
    "@a {paper} printed in {city} [described|praised|criticised] the result as {praise} but {blame}.",
    "{person} of the {body} in {city} wrote @a {praise} account of it in {year}.",
    "The {body} moved from {city} to {city} in {year}, and its archive followed [a year|two years] later.",
    "About {round:100:9000} people signed a letter of support, which was read aloud on {day}.",
    "Interest in the {effort} {adverb} spread to {country} and {country}, where much the same began in {year}.",
    "The cost of the {effort} rose to ${dec:money:12:950} million, or {pct} more than [planned|expected|promised].",
    "A plaque was unveiled in {city} on {date}.",
    "Little is known of the years between {year} and {later:1:9}.",
    "The original papers are held in {place}, where they fill {num:12:98} boxes.",
    "The view of the {body} is [now|still] widely accepted, although {who} [doubted|rejected|revised] it in {year}.",
    "{person} and {person} exchanged {num:12:400} letters on the matter in the years {years}.",
    "The first account of it was printed in {city} and translated in {city} and {city}.",
    "{road}, and the news took {range:2:9} days to arrive.",
    "@a [small|large|modest|yearly] prize of ${round:1000:90000} was offered in {place} on {date}.",
    "The summer of {year} was the hottest on record in {region}, with {deg:31:44} in {city}.",
    "@a {praise} exhibition on the subject opened in {place} on {date} and drew {round:1000:90000} visitors.",
    "The {effort} was renewed in {year} and again in {later:1:9}.",
    "By {year}, the {body} had {num:120:990} members; by {later:1:9} it had {num:1000:2400}.",
    "The {writer} {person} disagreed, and pointed to @a {blame} {effort} in {country}.",
    "The {effort} was {adverb} copied in {country} in {year}, [after|despite] @a {size} public debate.",
)
