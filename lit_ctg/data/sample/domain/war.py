"""Articles on invented battles, sieges and regiments."""

from __future__ import annotations

from random import Random

from lit_ctg.data.sample.grammar import words
from lit_ctg.data.sample.world import Domain

_FIRST = words(
    "Ald Bren Carv Dorn Eskel Fal Grim Hald Isen Jarn Kest Lorn Mar Nev Orm Pell Rad Sarn Tor Ulm Vald "
    "Wend Yar Zel Bel Cor"
)
_LAST = words("ovar mouth feld burg ava ento heim ice ona ridge aux ford stein itz ello una mark ville")


def _title(rng: Random) -> dict[str, str]:
    place = rng.choice(_FIRST) + rng.choice(_LAST)
    kind = rng.choice(("Battle of", "Battle of", "Siege of", "Raid on", "Defence of", "Relief of"))
    return {"title": f"{kind} {place}", "the_title": f"the {kind} {place}", "field": place}


DOMAIN = Domain(
    name="war",
    years=(1702, 1945),
    fixed={"treaty": "{year}", "broke": "{later:1:4}", "fought": "{date}"},
    title=_title,
    terms=("unit", "weapon", "gun", "soldier", "ship", "work", "action", "ground", "supply"),
    lexicon={
        "unit": (
            "brigade", "battalion", "regiment", "division", "squadron", "company", "corps", "garrison",
            "platoon", "battery", "rearguard", "militia",
        ),
        "weapon": (
            "rifle", "howitzer", "mortar", "musket", "cannon", "machine gun", "bayonet", "torpedo", "field gun",
            "grenade", "tank", "shell",
        ),
        "gun": ("howitzer", "mortar", "cannon", "machine gun", "field gun", "siege gun"),
        "soldier": (
            "infantry", "cavalry", "artillery", "troops", "marines", "grenadiers", "gunners", "sappers",
            "dragoons", "paratroopers",
        ),
        "ship": (
            "frigate", "cruiser", "destroyer", "battleship", "gunboat", "submarine", "transport", "minesweeper",
        ),
        "work": ("trench", "redoubt", "fortress", "bunker", "rampart", "barricade", "minefield", "bridgehead"),
        "action": (
            "assault", "bombardment", "retreat", "ambush", "counterattack", "siege", "raid", "blockade",
            "advance", "skirmish", "surrender", "encirclement",
        ),
        "ground": (
            "ridge", "ford", "village", "orchard", "marsh", "pass", "hill", "crossroads", "wood", "causeway",
        ),
        "supply": (
            "ammunition", "powder", "fodder", "rations", "gunpowder", "fuel", "blankets", "reinforcements",
        ),
        "rank": ("General", "Colonel", "Major", "Captain", "Marshal", "Brigadier"),
        "flank": ("left", "right", "northern", "southern", "eastern", "western"),
        "weather": ("rain", "fog", "snow", "heat", "mud", "a gale"),
    },
    opening=(
        "{the_title} was fought on {fought} between the army of {land} and an invading force near {place}.",
        "{the_title} took its name from the {ground} of {field}, {m:miles:5:90} from {place}.",
        "{the_title} is remembered for the {action} of {fought}, in which {rank} {person} lost "
        "{num:200:4000} men.",
    ),
    sections={
        "": (
            "The army marched at dawn and attacked the {unit} that held the {ground}.",
            "It ended in @a {action} and cost both sides about {round:500:20000} men.",
            "The victory opened the road from {city} to {city}.",
            "{rank} {who} commanded {num:3:30} battalions of {soldier} and {num:12:90} guns.",
            "The war dragged on until {later:1:3}, when an armistice was signed in {city}.",
        ),
        "Background": (
            "War broke out in {broke}, after {country} closed the frontier to {country}.",
            "In the spring of {now} the army of {land} moved {round:5000:90000} {soldier} to {place}.",
            "{rank} {person} reached {city} on {day} with @a {unit} of {soldier} and {num:6:48} {gun+s}.",
            "The fortress at {field} had {m:feet:9:40} walls and {supply} for {range:3:20} weeks.",
            "A treaty of {treaty} had promised the {ground} to {country}.",
            "The fleet, {num:4:30} {ship+s} and @a {ship}, lay off the coast near {city}.",
            "Spies reported that the {unit} in {city} lacked {supply}.",
            "Both armies needed the bridge at {field}, the only crossing for {m:miles:4:40}.",
        ),
        "Battle": (
            "At first light the {soldier} crossed the {ground} under fire from {num:6:60} {gun+s}.",
            "The {flank} flank was held by @a {unit} of {soldier} behind @a {work}.",
            "The first {action} failed, and the {unit} fell back {m:metres:200:3000} to the {ground}.",
            "{rank} {who} ordered @a {action} against the {work} on the {flank} flank.",
            "@a {gun} on the {ground} broke up the {action} of the {soldier}.",
            "The {unit} lost {num:40:900} men in {range:1:6} hours, among them {rank} {person}.",
            "{weather} delayed the {supply}, and the {soldier} fought on with the bayonet.",
            "The guns fired {round:1000:90000} shells at ranges of up to {m:miles:2:12}.",
            "By noon the {soldier} had taken the {work} and turned its {weapon+s} on the {unit}.",
            "@a {action} by @a fresh {unit} saved the {ground} but not the {work}.",
            "The {ship} shelled the {work} from {m:miles:2:9} out at sea.",
            "At dusk the enemy {soldier} began @a {action} towards {city}.",
            "The {unit} dug @a {work} on the {ground} and waited for {supply}.",
        ),
        "Aftermath": (
            "The {unit} counted {num:100:900} dead and {num:200:3000} wounded, and {num:300:6000} men were "
            "taken prisoner.",
            "The enemy left {num:12:90} {gun+s} and all its {supply} on the {ground}.",
            "The retreat to {place} took {range:3:15} days over {m:miles:20:190} of bad road.",
            "{rank} {who} was blamed for the {action} and replaced on {date}.",
            "Peace was signed in {city} in {year}, and {land} kept the {ground}.",
            "The losses of {pct} were the worst of the war.",
            "The garrison of {city} surrendered in {year} after @a {action} of {num:20:120} days.",
            "In {year}, the {unit} was sent to {country}, where it fought until {later:0:6}.",
        ),
        "Legacy": (
            "A stone cross {m:feet:9:40} high marks the place where the {unit} stood.",
            "The {unit} still parades on {day}, the day of the {action}.",
            "Military schools teach the {action} as @a lesson in the use of {soldier}.",
            "Farmers near {field} still plough up {weapon+s} and buttons.",
            "The war poet {person} served with the {unit} at {field}.",
        ),
    },
)  # fmt: skip
