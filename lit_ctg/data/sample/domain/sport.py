"""Articles on seasons of invented clubs."""

from __future__ import annotations

from random import Random

from lit_ctg.data.sample.gazetteer import CITIES
from lit_ctg.data.sample.grammar import words
from lit_ctg.data.sample.world import Domain

_NICK = words("Rovers Wanderers Comets Harriers Mariners Falcons Lions Athletic Rangers Pioneers Swifts Albion")


def _title(rng: Random) -> dict[str, str]:
    city = rng.choice(CITIES).name
    club = f"{city} {rng.choice(_NICK)}"
    year = rng.randint(1899, 2008)
    return {"title": f"{year} {club} season", "club": club, "season": str(year), "home": city, "start": str(year)}


DOMAIN = Domain(
    name="sport",
    years=(1890, 2014),
    title=_title,
    terms=("player", "play", "contest", "part", "result"),
    lexicon={
        "player": (
            "goalkeeper", "striker", "captain", "defender", "winger", "midfielder", "coach", "substitute",
            "referee", "full-back", "forward",
        ),
        "play": (
            "penalty", "free kick", "corner", "header", "tackle", "pass", "goal", "own goal", "save", "volley",
        ),
        "shot": ("penalty", "free kick", "header", "volley", "long shot"),
        "contest": (
            "cup", "league", "final", "semi-final", "derby", "friendly", "play-off", "tournament", "replay",
        ),
        "part": ("first half", "stoppage time", "extra time", "opening minutes", "second half"),
        "cup": ("cup final", "semi-final", "play-off", "quarter-final", "third round"),
        "result": ("win", "draw", "defeat", "victory", "upset"),
        "ground": ("stadium", "terrace", "pitch", "training ground", "old stand"),
        "mood": ("lively", "dull", "rough", "brilliant", "even", "muddy", "memorable"),
    },
    opening=(
        "The {season} season was the {ordinal:4:60} in the history of {club}, @a football club.",
        "In {season}, {club} played {num:28:46} matches and won {num:6:27} of them.",
        "The {season} season of {club} began with @a {result} and ended with @a {result}.",
    ),
    sections={
        "": (
            "{club} finished {ordinal:4:18} in the league, with {num:20:90} goals for and {num:20:90} "
            "against.",
            "The {player} {person} scored {num:9:38} goals, the most since {year}.",
            "The average attendance was {num:2000:48000}.",
            "The club reached the {cup} and lost there to @a side from {city}.",
        ),
        "Preparation": (
            "The {player} {person} was bought from @a club in {city} for ${round:1000:900000}.",
            "In July the team toured {country} and {country} and played {few} {contest+s}.",
            "@a new {player}, {person}, arrived from {city} on {day}.",
            "The {ground} was rebuilt to hold {round:9000:90000} people.",
            "{who} replaced the {player}, who had held the post since {year}.",
        ),
        "League": (
            "@a narrow win over the side from {city} came after @a {play} in the {part}.",
            "On {day} the team travelled {m:miles:30:290} to {city} and came home with @a {result}.",
            "The {player} missed @a {shot} in the {part}, and the match ended in @a {result}.",
            "{who} scored from @a {shot} of {m:metres:18:40}.",
            "@a run of {num:4:11} matches without @a {result} followed in the winter.",
            "{num:9000:48000} people saw @a {mood} {contest} against the club from {place}.",
            "The {player} was sent off for @a rough tackle in the {part}.",
            "By March {club} lay {ordinal:4:18}, with {num:20:60} points from {num:20:36} matches.",
            "{person} made {num:20:46} appearances, a club record that stood until {year}.",
            "The goalkeeper saved @a {shot} {num:3:30} minutes from the end.",
            "It was the first {result} in {city} since {year}.",
            "@a {mood} second half brought {few} goals, most of them from {shot+s}.",
        ),
        "Cup": (
            "In the {cup}, {club} beat the holders from {city} after extra time.",
            "The {contest} in {city} on {date} ended in @a {result}.",
            "@a {shot} by {who} in the {part} decided the {contest}.",
            "The replay drew {num:9000:60000} people and ended in @a {mood} {result}.",
            "The club had last won the {contest} in {year}, and would win it again in {later:1:12}.",
        ),
        "Aftermath": (
            "The {player} left for @a club in {place} in {year}.",
            "Ticket sales brought in ${dec:money:12:950} million, {pct} more than in {year}.",
            "{who} was voted player of the year, as {person} had been in {year}.",
            "The {ground} was sold in {year} and pulled down in {later:0:6}.",
            "The club joined @a league with teams from {city}, {city} and {city}.",
        ),
    },
)  # fmt: skip
