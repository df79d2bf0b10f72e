"""Bedtime tales in short words: a small beast, a quest, three tries and a supper."""

from __future__ import annotations

from lit_ctg.papers.control_code.sample.book.style import Book, Teller


def _chapter(teller: Teller, number: int) -> list[str]:
    """One tale: the same small hero throughout, three meetings, a safe return."""
    rng = teller.rng
    hero, beast = rng.choice(teller.lexicon["small_name"]), rng.choice(teller.lexicon["small_beast"])
    it = rng.choice(("he", "she"))
    teller.facts |= {
        "hero": hero,
        "beast": beast,
        "thing": rng.choice(teller.lexicon["treasure"]),
        "it": it,
        "it_poss": "his" if it == "he" else "her",
    }
    lines = [f"{hero} and the {teller.facts['thing'].removeprefix('the ').title()}", "", teller.deal("once", "want")]
    for count in ("first", "second", "third"):
        teller.facts |= {"count": count, "other": rng.choice(teller.lexicon["creature"])}
        lines += ["", teller.deal("meet", "say", "reply", *rng.sample(("sound", "walk", "look"), 2))]
    lines += ["", teller.deal("find", "home", "sleep"), ""]
    return lines


BOOK = Book(
    name="nursery_tale",
    lexicon={
        "small_name": (
            "Hazel", "Tumble", "Snip", "Daisy", "Puff", "Crumb", "Toffee", "Pip", "Tilly", "Bun", "Mopsy",
            "Dot", "Wink", "Nib", "Fern", "Button", "Tuppence", "Bramble", "Moss", "Jilly",
        ),
        "small_beast": (
            "puppy", "piglet", "snail", "lamb", "owlet", "bat", "hamster", "goose", "rabbit", "mouse",
            "hedgehog", "duckling", "kitten", "frog", "mole", "squirrel", "sparrow", "bear cub", "otter",
        ),
        "creature": (
            "a caterpillar", "a donkey", "an elderly crab", "the postman", "a giant", "a cross little hen",
            "a magpie", "a sleepy cow", "a snail", "an old toad", "a grey goose", "a big brown bear",
            "a spider", "a fox with one ear", "an owl", "a fat pigeon", "a goat", "two ants",
            "a very tall heron", "a badger",
        ),
        "treasure": (
            "the green kite", "the last biscuit", "the rainbow", "the paper boat", "the magic bean",
            "the tin drum", "the whispering shell", "the silver spoon", "the lost mitten", "the moon",
            "the blue button", "the honey cake", "the last star", "the little bell", "the red balloon",
            "the north wind", "the golden acorn",
        ),
        "spot": (
            "behind the stove", "in the hollow log", "on the roof", "across the pond", "among the pumpkins",
            "down the well", "under the hill", "in the tall grass", "by the brook", "over the wall",
            "behind the moon", "in a teacup", "up the apple tree", "at the end of the lane", "beside the mill",
        ),
        "food": (
            "gingerbread", "pea soup", "honey", "boiled eggs", "apple dumplings", "rice pudding", "jam",
            "porridge", "warm milk", "blackberry pie", "buttered toast", "cheese", "plum cake", "soup",
        ),
        "noise": (
            "Buzz, buzz", "Crunch, crunch", "Ding-dong", "Squeak, squeak", "Rumble, rumble", "Flip, flap",
            "Hop, hop, hop", "Pit-a-pat", "Swish, swish", "Plop", "Tap, tap, tap", "Hoo-hoo", "Splash",
        ),
        "feel": (
            "silly", "small", "bold", "cosy", "surprised", "grumpy", "brave", "sleepy", "cross", "happy",
            "hungry", "lonely", "glad", "shy", "tired", "proud",
        ),
        "colour": (
            "pink", "spotty", "silver", "fluffy", "striped", "purple", "red", "blue", "yellow", "soft", "tiny",
            "round", "shiny", "green",
        ),
        "wear": (
            "mittens", "bonnet", "cloak", "belt", "bow tie", "hat", "boots", "scarf", "apron", "slippers",
            "coat", "umbrella",
        ),
    },
    decks={
        "once": (
            "Once upon a time there was @a {colour} little {beast} called {hero}.",
            "Far away, {spot}, there lived @a {beast}, and the name of the {beast} was {hero}.",
            "There was once @a {beast} named {hero}, who had @a {colour} {wear} and was always {feel}.",
        ),
        "want": (
            "\"Oh dear,\" said the little {beast}, \"whatever shall I do without {thing}?\"",
            "And all because somebody had taken {thing} away {spot}.",
            "One day {hero} woke up and found that {thing} was gone.",
            "{hero} wanted {thing} more than all the {food} in the world.",
            "\"I shall find {thing},\" said {hero}, \"and I shall be home in time for {food}.\"",
            "So {it} put on {it_poss} {wear} and went to look for {thing}.",
        ),
        "meet": (
            "The {count} day, {hero} met {other} {spot}.",
            "Now the {count} creature {hero} met was {other}.",
            "And who should be sitting {spot} but {other}!",
        ),
        "say": (
            "\"Have you seen {thing}?\" said {hero}.",
            "\"Please,\" said the little {beast}, \"do you know where {thing} is?\"",
            "\"Good day,\" said {hero}, \"I am looking for {thing}.\"",
        ),
        "reply": (
            "\"That depends,\" said the other. \"Can you dance in your {wear}?\"",
            "\"I ate it with some {food},\" said the other, but that was only a joke.",
            "\"Ask the {colour} one {spot},\" said the other, and pointed.",
            "\"Not I,\" said the other, \"but I have @a {colour} {wear}, and you may have that.\"",
            "\"Go {spot},\" was the answer, \"and do not stop for {food}.\"",
            "\"I saw it {spot},\" said the other, and went back to sleep.",
            "\"No, no, no! But come and eat some {food} with me.\"",
            "\"Give me some {food}, and I will tell you.\"",
        ),
        "sound": (
            "{noise}, went the feet of {hero}.",
            "{noise}, {noise}, went the rain.",
            "And {noise}! went something {spot}.",
        ),
        "walk": (
            "One step, two steps, three steps, and then a very big jump.",
            "{it} walked until the {colour} sun sank {spot}.",
            "So on {it} went, over the hill and over the hill and over the hill.",
            "{hero} ran, and the wind ran after.",
            "On went the little {beast}, feeling very {feel}.",
        ),
        "look": (
            "There was only @a {colour} leaf and a drop of rain.",
            "Somebody had left @a {wear} {spot}, and it was too big.",
            "{it} looked {spot}, and {it} looked {spot}, but there was nothing there.",
            "The sky was {colour} and the path was {colour}, and {hero} was {feel}.",
            "{it} looked into a puddle and saw @a {feel} little {beast}.",
        ),
        "find": (
            "And there, {spot}, was {thing}, all {colour} and cold.",
            "At last {hero} sat down to cry, and sat right on {thing}!",
            "Then out came {thing}, and {it} held it tight.",
        ),
        "home": (
            "Home went {hero}, hop and skip, with {thing} under {it_poss} {wear}.",
            "\"Where have you been?\" said the mother of {hero}. \"The {food} is cold.\"",
            "They had {food} for supper, and {food} after that.",
        ),
        "sleep": (
            "And {it} slept till morning. Good night!",
            "So that is the end, and now you must go to sleep too.",
            "And if {it} is not asleep, {it} is {feel} still.",
        ),
    },
    chapter=_chapter,
)  # fmt: skip
