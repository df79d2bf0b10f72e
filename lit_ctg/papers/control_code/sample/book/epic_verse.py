"""An epic in unrhymed five-beat lines: named heroes, long similes, gods who meddle."""

from __future__ import annotations

from lit_ctg.papers.control_code.sample.book.style import Book, Teller

_NUMERALS = ((100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))


def roman(number: int) -> str:
    """``14 -> "XIV"``, for numbers below 400."""
    text = ""
    for value, letters in _NUMERALS:
        count, number = divmod(number, value)
        text += letters * count
    return text


def _chapter(teller: Teller, number: int) -> list[str]:
    """A canto: stanzas about one hero, a simile in each second one."""
    rng = teller.rng
    lines = [f"CANTO {roman((number - 1) % 399 + 1)}", ""]
    for stanza in range(rng.randint(7, 10)):
        teller.facts["hero"] = rng.choice(teller.lexicon["champion"])
        lines.append(teller.deal("open"))
        lines += [teller.deal(kind) for kind in rng.choices(("deed", "fate", "army"), k=rng.randint(4, 7))]
        if stanza % 2:
            lines += [teller.deal("as"), teller.deal("as_more"), teller.deal("so")]
        lines += [teller.deal("close"), ""]
    return lines


BOOK = Book(
    name="epic_verse",
    lexicon={
        "champion": (
            "Nerabel", "Palandor", "Quirion", "Rhesimar", "Selvane", "Udoran", "Vesmira", "Zarethon",
            "Arvandor", "Belisene", "Corvanes", "Dolomar", "Erithea", "Feredoc", "Galdamor", "Hespera",
            "Ilvarion", "Maronthes", "Orsimar", "Thaleor",
        ),
        "god": (
            "the Archer", "the Lady of the Grain", "the Ferryman", "bright Solenne", "the Breaker of Gates",
            "the Thunderer", "pale Luthe", "the Lord of Tides", "the Weaver", "grey-eyed Amaune",
            "the Smith below",
        ),
        "epithet": (
            "lion-hearted", "grey-haired", "silver-tongued", "wide-ruling", "spear-famed", "sea-reared",
            "god-begotten", "swift-footed", "bronze-armed", "much-enduring", "far-seeing", "horse-taming",
            "proud-hearted", "white-armed", "storm-born", "oath-bound",
        ),
        "arm": (
            "axe", "mace", "greave", "banner", "bridle", "quiver", "trumpet", "spear", "shield", "helm",
            "ashen lance", "sword", "bow of horn", "chariot", "breastplate", "javelin",
        ),
        "metal": ("bronze", "gold", "silver", "iron", "black iron", "beaten gold"),
        "wild": (
            "leopard", "bear", "vulture", "mare", "hawk", "crane", "lion", "boar", "eagle", "wolf", "falcon",
            "bull", "serpent", "hound", "stag", "raven",
        ),
        "land": (
            "river", "camp", "altar", "causeway", "rampart", "orchard", "barrow", "strand", "plain", "shore",
            "wall", "gate", "ford", "tower", "hill", "ditch", "harbour", "temple stair",
        ),
        "host": (
            "archers", "heralds", "charioteers", "sons of Ilvar", "wild mountain men", "watchmen", "ranks",
            "captains", "spearmen", "ships", "horsemen", "shield-line", "sons of Kar", "men of Ilvar",
        ),
        "grief": (
            "envy", "madness", "vengeance", "hunger", "silence", "pride", "sleep", "wrath", "sorrow", "ruin",
            "doom", "shame", "longing", "dread", "glory", "weariness",
        ),
        "flow": (
            "hail", "ashes", "foam", "moonlight", "wine", "arrows", "tears", "blood", "dust", "fire",
            "darkness", "rain", "smoke", "dew", "thunder",
        ),
        "time": (
            "at dawn", "at noon", "ere night", "nine days", "that hour", "thrice", "once more", "ere long",
        ),
    },
    decks={
        "open": (
            "Then {hero}, {epithet}, rose and spoke:",
            "But {hero} stood upon the {land} and called",
            "Sing now of {hero}, whom the {grief} held,",
            "So spoke the king, and {hero} heard his words",
            "Now {time} {epithet} {hero} took the {arm}",
            "Beneath the {land} lay {epithet} {hero} down",
        ),
        "deed": (
            "and set his {arm} against the {metal} gate,",
            "and laid the {arm} beside the sleeping {wild},",
            "and three times round the {land} he drove the {host},",
            "with {metal} and with {flow} he filled the {land},",
            "and smote the {epithet} captain through the {arm},",
            "and cast the {arm} of {metal} on the {land},",
            "who drove his {arm} between the {host} and gate,",
            "and {time} he broke the {arm} and shook the {land},",
            "nor stayed his hand, but strewed the {land} with {flow},",
            "and dragged the {arm} of {metal} through the {flow};",
            "and from the {land} he cried to {god},",
            "\"Bring me my {arm}, the {metal} and the {wild}!\"",
            "and {time} the {arm} rang loud against the {arm},",
        ),
        "fate": (
            "and far off {god} laughed among the stars,",
            "but {god} sent @a {wild} for a sign,",
            "and {god} swore by {flow} and by {flow},",
            "nor knew he yet what {grief} {god} had stored;",
            "for {god} had poured the {grief} in his breast,",
            "since {god} wove the thread of {grief} there,",
            "and {god} wept, and turned away from {flow},",
            "such {grief} did {god} lay upon the {host};",
            "and {god} weighed the {grief} in the scales,",
            "for no man flies the {grief} the gods have spun,",
        ),
        "army": (
            "the {host} stood weeping, and the {wild} fled,",
            "and every {arm} was wet with {flow} that day,",
            "the {host} slept like stones beside the {land},",
            "and all the {host} fell back upon the {land},",
            "the {host} poured like {flow} across the {land},",
            "and round the {land} the {host} raised their cry,",
            "the {metal} of the {host} lit up the {land},",
            "and {flow} and {flow} were over all the {host};",
            "ten thousand {host} wept beside the {land},",
        ),
        "as": (
            "As when @a {wild} comes down upon the fold,",
            "As when the {flow} falls upon the corn,",
            "As some great {wild} the hunters ring with spears,",
            "As on a hill @a {wild} beholds the sea,",
        ),
        "as_more": (
            "and shepherds hear it, crying in the {flow},",
            "and nothing stays it, neither dog nor {arm},",
            "and all the valley fills with {flow} and noise,",
            "and mothers call their children from the {land},",
        ),
        "so": (
            "so came {hero} on among the {host},",
            "so leapt {hero}, {epithet}, from the {land},",
            "so {hero} burned, and all the {host} with him,",
        ),
        "close": (
            "and darkness came upon the eyes of men.",
            "and {flow} covered up the {land} with night.",
            "and so the {grief} of {hero} had its end.",
            "and on the {land} the fires were lit for sleep.",
            "nor did the {wild} leave off until the dawn.",
        ),
    },
    chapter=_chapter,
)  # fmt: skip
