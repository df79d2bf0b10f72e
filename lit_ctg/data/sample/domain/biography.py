"""Articles on the lives of invented people."""

from __future__ import annotations

from random import Random

from lit_ctg.data.sample.gazetteer import CITIES
from lit_ctg.data.sample.people import person
from lit_ctg.data.sample.world import Domain

_CALLINGS = (
    "painter",
    "composer",
    "poet",
    "novelist",
    "botanist",
    "architect",
    "explorer",
    "actor",
    "astronomer",
    "singer",
)


def _title(rng: Random) -> dict[str, str]:
    home = rng.choice(CITIES)
    who = person(rng, home.country)
    she = who.female
    return {
        "title": who.name, "home": home.name, "last": who.surname, "calling": rng.choice(_CALLINGS),
        "they": "she" if she else "he",
        "them": "her" if she else "him", "their": "her" if she else "his",
        "child": "daughter" if she else "son",
    }  # fmt: skip


DOMAIN = Domain(
    name="biography",
    years=(1780, 2005),
    ordered=frozenset({"Early life", "Later years"}),
    fixed={"born": "{date}", "birthplace": "{place}"},
    title=_title,
    terms=("work", "art", "school_term", "family"),
    lexicon={
        "work": (
            "novel", "symphony", "portrait", "opera", "poem", "sonata", "play", "landscape", "memoir", "ballet",
            "herbarium", "play", "sketch", "song cycle", "travel book", "lecture",
        ),
        "art": (
            "verse", "harmony", "colour", "dialogue", "rhythm", "perspective", "melody", "prose", "brushwork",
            "metre",
        ),
        "school_term": (
            "conservatory", "grammar school", "academy", "university", "studio", "workshop", "seminary",
        ),
        "family": ("mother", "father", "brother", "sister", "uncle", "aunt", "cousin", "grandmother"),
        "trade": (
            "clockmaker", "schoolteacher", "tailor", "doctor", "farmer", "merchant", "printer", "sailor",
            "baker", "clerk",
        ),
        "mood": ("tender", "severe", "playful", "sombre", "radiant", "restless", "simple", "learned"),
        "topic": (
            "the sea", "childhood", "exile", "the harvest", "a lost letter", "winter", "the railway", "old age",
            "birds",
        ),
    },
    opening=(
        "{title} (born {born}) was @a {calling} from {birthplace}.",
        "{title} was @a {mood} and much travelled {calling} born in {birthplace} who worked in {city} and "
        "{city}.",
        "{title} was @a {calling} best known for the {work} about {topic}, which made {them} famous in "
        "{country}.",
    ),
    sections={
        "": (
            "{they} wrote or made {num:14:90} works, of which {few} are lost.",
            "{their} best-known work is @a {mood} {work} about {topic}.",
            "A museum in {place} keeps {their} letters and {round:100:2000} drawings.",
            "{last} taught in {city} for {num:4:30} years.",
        ),
        "Early life": (
            "{last} was born in {birthplace} on {born}, the {child} of @a {trade} and @a {trade}.",
            "{their} {family} taught {them} to read, and {their} {family} to draw.",
            "In {later:1:5} the family moved to {city}, {m:miles:10:190} away, where {their} father became "
            "@a {trade}.",
            "{their} {family} died in {later:1:5}, and {last} was sent to live with @a {family} in {city}.",
            "@a teacher, {person}, lent {them} books on {topic}.",
            "At the age of {num:9:13}, {they} sold {their} first {work} for ${num:2:30}.",
            "{they} entered the {school_term} in {city} in {later:7:12} and left without a degree in "
            "{later:1:4}.",
        ),
        "Career": (
            "{their} first {work} appeared in {year} and was praised for its {mood} {art}.",
            "In {year} {they} married the {calling} {person}, and the couple settled in {place}.",
            "{they} travelled to {city} in {year} and to {city} in {later:0:6}.",
            "The {work} of {year} is @a {mood} study of {topic}.",
            "{last} worked on the {work} [in the years {years}|from {year} to {later:1:9}], often for "
            "{range:10:16} hours a day.",
            "A prize of ${round:1000:90000} let {them} rent @a studio in {city}.",
            "The {work} was first shown in {place} on {date}, before @a crowd of {num:200:2900}.",
            "{they} quarrelled with {person} over {art}, and the two did not speak again until {later:2:9}.",
            "{their} {art} became {mood} after @a journey through {country} and {country}.",
            "Critics in {city} found the {work} too {mood}; the public bought {round:1000:90000} copies.",
            "From {year} {they} led the {school_term} in {city}.",
            "At {m:feet:9:40} long, the {work} was {their} largest.",
        ),
        "Later years": (
            "In {year} {they} retired to {place} and wrote @a {work} on {topic}.",
            "In old age {they} kept bees, and walked {m:miles:2:9} each morning.",
            "@a stroke in {later:0:4} ended {their} work on the {work}.",
            "{last} died in {city} in {later:0:5}, after @a short illness.",
            "{their} last {work} was finished by {person} in {later:1:4}.",
        ),
        "Legacy": (
            "{their} {art} influenced {person} and {person}, and through them @a generation in {country}.",
            "@a street in {city} has borne {their} name since {year}.",
            "The {work} was sold in {year} for ${dec:money:12:950} million.",
            "@a complete edition in {num:4:24} volumes appeared [in the years {years}|from {year} to "
            "{later:1:9}].",
            "@a ship of {round:1000:9000} tonnes was named after {them} in {year}.",
        ),
    },
)  # fmt: skip
