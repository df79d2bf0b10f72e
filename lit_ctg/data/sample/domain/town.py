"""Articles on invented towns that lie near real cities."""

from __future__ import annotations

from random import Random

from lit_ctg.data.sample.grammar import words
from lit_ctg.data.sample.world import Domain

_FIRST = words(
    "Ash Brook Carn Dell Elm Fern Glen Hart Iver King Lang Mill North Oak Pen Quarry Raven Stan Thorn "
    "Under Vale West Wool "
    "Yar Amber Birch Clay Drift Frost Gold"
)
_LAST = words("bridge combe dale field gate ham haven hurst leigh mere minster port stead stow ton water wick worth")


def _title(rng: Random) -> dict[str, str]:
    kind = rng.choice(("town", "port", "market town", "suburb", "village", "spa town"))
    river = rng.choice(_FIRST) + rng.choice(("el", "er", "ow"))
    return {"title": rng.choice(_FIRST) + rng.choice(_LAST), "kind": kind, "river": river}


DOMAIN = Domain(
    name="town",
    years=(1610, 2015),
    title=_title,
    terms=("building", "land_term", "trade_term", "transport"),
    lexicon={
        "building": (
            "town hall", "library", "cathedral", "mill", "lighthouse", "market hall", "theatre",
            "railway station", "castle", "brewery", "museum", "chapel", "grain store", "bath house",
            "clock tower",
        ),
        "land_term": (
            "valley", "estuary", "plateau", "harbour", "peninsula", "meadow", "canal", "gorge", "lake", "moor",
            "bay",
        ),
        "trade_term": (
            "wool", "fishing", "tourism", "shipbuilding", "pottery", "brewing", "timber", "tanning", "glass",
            "orchards", "lace", "cheese",
        ),
        "transport": ("railway", "tramway", "ferry", "motorway", "bridge", "airport", "bus line", "towpath"),
        "stone": ("granite", "sandstone", "red brick", "limestone", "timber", "slate"),
        "feast": (
            "lantern fair", "harvest fair", "boat race", "kite festival", "candle market", "folk festival",
            "cheese fair",
        ),
        "way": ("north", "south", "east", "west"),
    },
    opening=(
        "{title} is @a {kind} {m:miles:5:60} {way} of {place}, on the river {river}.",
        "{title} is @a {kind} in {land}, on @a {land_term} {m:km:8:90} from {city}.",
        "{title} is @a {kind} near {place}, known for its {trade_term} and its {building}.",
    ),
    sections={
        "": (
            "Its population was {num:2100:9900} in {year} and {num:10000:88000} in {later:0:6}.",
            "It covers {m:acres:900:9900} and lies {m:metres:20:900} above sea level.",
            "The nearest cities are {city}, {city} and {city}.",
            "It grew rich on {trade_term} and later on {trade_term}.",
            "It has been twinned with towns near {city} and {city} since {year}.",
        ),
        "History": (
            "A charter of {year} gave the {kind} the right to hold @a market.",
            "The {building}, built of {stone} [in the years {years}|from {year} to {later:1:9}], burned "
            "down in {later:0:6}.",
            "In {year}, @a flood of the {river} carried away the {building} and {num:12:90} houses.",
            "Families from {country} and {country} settled by the {land_term} in {year}.",
            "The {transport} from {city} arrived in {year}, and the price of {trade_term} fell by {pct}.",
            "{person}, mayor from {year} to {later:1:9}, paid for the {building}.",
            "The last {trade_term} works closed in {year}.",
            "Travellers from {city} wrote in {year} that {title} was \"all {stone} and rain\".",
            "By {year} it had {num:3:40} inns and @a {building}.",
        ),
        "Geography": (
            "The {land_term} is {m:miles:2:30} long and {m:miles:1:9} wide.",
            "The average temperature is {deg:-4:8} in January and {deg:14:31} in July.",
            "The {river} rises {m:miles:8:60} to the {way} and falls {m:feet:90:900} before it reaches the "
            "{land_term}.",
            "To the {way} lies {region}, and to the {way} {region}.",
            "About {dec:rain:11:98} cm of rain falls in @a wet month, and {dec:rain:11:98} cm in @a dry one.",
            "Hills of {stone} shelter the {land_term} from the {way} wind.",
            "The soil of the {land_term} is thin, and only {pct} of it is farmed.",
        ),
        "Economy": (
            "In {year}, {trade_term} employed {num:200:3900} people and {trade_term} {num:100:1900}.",
            "The harbour handled {round:1000:90000} tonnes of {trade_term} in {year}.",
            "Unemployment fell from {pct} to {pct} in the years {years}.",
            "The {feast} draws {round:1000:90000} visitors from {city} and {city} every year.",
            "@a firm from {place} bought the {building} in {year} and made it @a hotel.",
            "Most of the {trade_term} is sold in {country} and {country}.",
        ),
        "Transport": (
            "The {transport} to {city} is {m:km:6:90} long and was opened on {date}.",
            "Trains reach {city} in {range:20:90} minutes.",
            "@a {transport} across the {land_term} was begun in {year} and finished in {later:0:6}.",
            "The {transport} carried {round:10000:900000} passengers in {year}.",
            "Speeds on the road to {city} are limited to {m:mph:20:70}.",
        ),
        "Culture": (
            "The {feast} has been held in front of the {building} since {year}.",
            "The {building} houses @a collection of {trade_term} tools and {round:100:9000} photographs.",
            "The painter {person} lived beside the {building} in the {decade}.",
            "Its choir sang in {city} in {year} and in {city} in {later:0:6}.",
            "@a film of {year} shows the {building} and the {land_term} at dawn.",
        ),
    },
)  # fmt: skip
