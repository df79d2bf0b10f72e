"""The log of a whaling brig: clipped entries, bearings, weather, men and beasts."""

from __future__ import annotations

from lit_ctg.papers.control_code.sample.book.style import Book, Teller

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _chapter(teller: Teller, number: int) -> list[str]:
    """A week at sea, one entry a day; latitude creeps, so the log holds together."""
    rng = teller.rng
    latitude, minutes = rng.randint(12, 58), rng.randint(0, 59)
    lines = [f"LOG OF THE BRIG PATIENCE. WEEK {number}.", ""]
    for weekday in _WEEKDAYS:
        teller.day += 1
        minutes += rng.randint(-40, 70)
        latitude, minutes = latitude + minutes // 60, minutes % 60
        unit = "minute" if minutes == 1 else "minutes"
        head = f"{weekday}, day {teller.day}. Latitude {latitude} degrees {minutes} {unit}."
        body = teller.deal("wind", "work", *rng.sample(("crew", "sight", "sea", "thought", "work", "food"), 4))
        lines += [f"{head} {body}", ""]
    return lines


BOOK = Book(
    name="sea_log",
    lexicon={
        "wind": (
            "north", "north-west", "west", "south-west", "south", "south-east", "east", "north-east",
            "west by north", "south by east",
        ),
        "force": (
            "whole-sail", "cat's-paw", "raw", "gusty", "lazy", "light", "fresh", "strong", "steady", "baffling",
            "foul", "fair", "squally", "bitter", "moderate",
        ),
        "sail": (
            "topsail", "foresail", "mainsail", "jib", "staysail", "spanker", "topgallant", "royal",
            "studding sail",
        ),
        "rope": (
            "halyard", "bowline", "hawser", "backstay", "ratline", "shroud", "painter", "sheet", "brace",
            "cable",
        ),
        "place": (
            "chart-house", "foretop", "longboat", "try-works", "chain locker", "steerage", "forecastle",
            "quarter-deck", "hold", "galley", "masthead", "bilge", "windlass", "cabin", "larboard rail",
            "bowsprit", "hatch", "binnacle",
        ),
        "man": (
            "the second mate", "Portuguese Joe", "the blacksmith", "the lookout", "young Amos",
            "the boatsteerer", "the mate", "the cook", "the carpenter", "old Tobias", "the harpooner",
            "the cabin boy", "the bosun", "Mr Grice", "the cooper", "the sailmaker", "Big Anders",
            "the steersman",
        ),
        "beast": (
            "narwhal", "dolphin", "skua", "walrus", "grampus", "sperm whale", "porpoise", "shark", "albatross",
            "petrel", "right whale", "turtle", "flying fish", "sea lion", "gull", "squid",
        ),
        "stuff": ("tar", "oakum", "canvas", "pitch", "lamp oil", "tallow", "paint", "turpentine", "spun yarn"),
        "grub": (
            "salt pork", "biscuit", "rum", "pease", "fresh water", "molasses", "salt beef", "dried apples",
            "vinegar", "tea", "oatmeal",
        ),
        "colour": (
            "like ink", "thick as milk", "copper at sunset", "blue and clear", "green", "slate grey", "black",
            "white with foam", "the colour of lead", "smooth as glass", "yellow",
        ),
        "did": (
            "parcelled", "served", "shortened", "squared", "unbent", "patched", "reefed", "made fast",
            "cut away", "hoisted", "overhauled", "greased", "spliced", "lowered",
        ),
        "mood": (
            "drunk", "afraid", "idle", "cheerful", "homeward in mind", "mutinous", "sullen", "merry", "sick",
            "weary", "hopeful", "quarrelsome", "silent", "homesick",
        ),
    },
    decks={
        "wind": (
            "Wind {wind}, {force}.",
            "Wind {wind} and {force}, backing {wind} at dusk.",
            "@a {force} breeze from the {wind} all day.",
            "Dead calm till noon, then @a {force} wind out of the {wind}.",
            "Came on to blow from the {wind} at four bells.",
            "Wind {force}, {wind}; made {num:20:180} miles by the log.",
            "Glass falling, wind {wind}, sky {colour}.",
        ),
        "work": (
            "Rigged the {sail} afresh and {did} the {rope} before dark.",
            "Sail making on the {place}; {man} and {man} at the needle.",
            "Hove to under the {sail} and lost no rope.",
            "Found the {rope} chafed through, and {man} to blame.",
            "Set the {sail} and {did} the {rope}.",
            "Took in the {sail} and the {sail}.",
            "All hands to the pumps; {num:4:30} inches of water in the [hold|bilge|forecastle].",
            "{man} {did} the {rope} by the {place}.",
            "Carried away the {sail} in a squall, and bent another.",
            "Broke out {num:2:20} casks of {grub} and found {num:1:3} of them spoiled.",
            "Caulked the {place} with {stuff} and {stuff}.",
            "Scraped the {place} and {did} every {rope} aloft.",
            "Sounded in {num:9:90} fathoms, sand and shell.",
            "Sent down the {sail}, it being rotten at the clew.",
        ),
        "crew": (
            "{man} refuses his duty and sits in the {place}.",
            "{man} has carved @a {beast} out of bone for his daughter.",
            "Put {man} in irons for striking {man}.",
            "{man} is teaching {man} his letters.",
            "{man} is {mood}, and so is {man}.",
            "Two men flogged for stealing the {grub}.",
            "{man} fell from the {place} and broke an arm, which {man} set.",
            "{man} swears he heard a bell under the keel.",
            "The larboard watch is {mood}.",
            "Buried a foremast hand at sundown; {man} read the words.",
            "{man} and {man} fought over @a pound of {grub}.",
            "{man} sang, and the men were {mood} for an hour.",
        ),
        "sight": (
            "@a {beast} and her young alongside at noon; we let them pass.",
            "Saw a light to the {wind} in the middle watch, and no ship in the morning.",
            "Picked up a cask marked with the name of a ship nobody knows.",
            "Raised @a {beast} two points off the bow.",
            "Spoke a barque out of Hull, {num:20:300} days from home, clean.",
            "Lowered two boats for @a {beast}, and lost it in the glare.",
            "@a {beast} followed us till dark.",
            "{man} struck @a {beast} of {num:20:90} barrels, and we cut in by lantern light.",
            "Saw @a {beast} asleep upon the water.",
            "Land to the {wind}, low and {colour}, or else a bank of cloud.",
            "@a {beast} lit upon the {place} and would not be driven off.",
        ),
        "sea": (
            "The sea {colour}.",
            "A heavy swell from the {wind}, the deck never dry.",
            "Shipped a green sea that filled the {place}.",
            "The water {colour}, and full of small red creatures.",
            "Ice to the {wind}, and the cold coming off it like breath.",
            "Phosphorus in the wake as bright as a street.",
            "Rain, and we filled {num:2:12} casks with it.",
        ),
        "food": (
            "Half allowance of {grub} from this day.",
            "Dined upon @a {beast}, tough as @a {rope}.",
            "The {grub} is alive, and {man} eats it in the dark.",
            "Served out {grub} and a gill of rum to each man.",
            "Caught @a {beast} and had it fresh with {grub}.",
        ),
        "thought": (
            "I dreamed of an orchard, and woke to the pumps.",
            "The owners may have their oil; I would give it all for one green field.",
            "I have begun to talk to the {beast}.",
            "It is {num:200:900} days since I heard a woman laugh.",
            "I have not slept these {num:2:6} nights.",
            "I wrote to my wife, though there is no ship to carry it.",
            "God send us a fair wind and an end of this.",
            "I do not like the look of the {wind}.",
            "So ends this day.",
            "I count {num:60:900} barrels below, and the owners will count fewer.",
            "A man may sail round the whole world, and meet only himself at the {place}.",
        ),
    },
    chapter=_chapter,
)  # fmt: skip
