"""Words and sentences of the sample news and blogs."""

from __future__ import annotations

LEXICON: dict[str, tuple[str, ...]] = {
    "firm": (
        "Northgate Foods", "Calder Steel", "Bluefin Airlines", "Harrow Motors", "Lyntel", "Orchard Bank",
        "Penrith Gas", "Sorrel Mobile", "Tamar Rail", "Vesper Media", "Wexley Stores", "Quayside Shipping",
        "Ember Power",
    ),
    "goods": (
        "steel", "air travel", "groceries", "broadband", "new cars", "crude oil", "mobile phones", "wheat",
        "gas", "clothing", "house prices", "coffee",
    ),
    "town": (
        "London", "Brussels", "New York", "Frankfurt", "Tokyo", "Dublin", "Paris", "Madrid", "Toronto",
        "Sydney", "Mumbai",
    ),
    "friend": (
        "Jess", "Mikey", "Anna", "my roommate", "Dave", "Kat", "my sister", "Sam", "this guy at work", "Priya",
    ),
    "elsewhere": ("Milan", "Seoul", "Zurich", "Chicago", "Leeds", "Hong Kong", "Oslo", "Lyon"),
    "post": (
        "chief executive", "finance director", "chairman", "spokesman", "deputy chairman", "sales director",
    ),
    "name": (
        "Martin Ellery", "Susan Craddock", "Paolo Vitale", "Helen Marsh", "Gordon Pike", "Anita Desai-Cole",
        "Klaus Reiter", "Denise Okoro", "Peter Lindqvist", "Maria Santos",
    ),
    "figure": ("profits", "sales", "exports", "orders", "costs", "losses", "debts", "margins", "revenues"),
    "rise": ("rose", "climbed", "jumped", "edged up", "fell", "slipped", "tumbled", "dropped"),
    "cause": (
        "weak demand", "a strong dollar", "higher fuel costs", "cold weather", "a strike at the docks",
        "tough competition", "the new tax", "cheap imports", "a slowdown in Europe",
    ),
    "quarter": (
        "the first quarter", "the second quarter", "the year to March", "the past six months", "December",
    ),
    "move": (
        "takeover", "merger", "rights issue", "price cut", "restructuring", "share sale", "bid", "court case",
    ),
    "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"),
    "body": (
        "the European Commission", "the central bank", "the regulator", "the Treasury", "the trade union",
        "the court",
    ),
    "mood": (
        "tired", "bored", "happy", "hungover", "stressed", "in love", "weird", "cold", "excited", "blah",
        "okay",
    ),
    "thing": (
        "my phone", "my hair", "the bus", "this song", "my math test", "the weather", "my cat",
        "the new apartment", "my job", "that movie", "the internet", "my back", "pizza",
    ),
    "hangout": (
        "the mall", "the beach", "starbucks", "the movies", "work", "class", "the gym", "grandma's", "the park",
    ),
    "laugh": ("lol", "haha", "hehe", "lmao", "heh"),
    "wow": ("omg", "ugh", "anyways", "so yeah", "um", "well", "okay so", "argh", "yay"),
    "food": (
        "cereal", "noodles", "leftover pizza", "a burrito", "pancakes", "way too much coffee", "ice cream",
    ),
    "adj": (
        "so cool", "so annoying", "pretty good", "totally lame", "kinda sad", "awesome", "the worst",
        "sooo funny",
    ),
}  # fmt: skip

STYLES: dict[str, dict[str, tuple[str, ...]]] = {
    "news": {
        "title": (
            "{firm} {figure} hit by {cause}",
            "{firm} [rejects|agrees to|delays] {move}",
            "Fears grow over {goods}",
            "{figure} up at {firm}",
            "{body} to look at {firm} {move}",
            "{town} markets wary of {goods}",
        ),
        "first": (
            "{firm} has said that its {figure} {rise} by {dec:11:390}% in {quarter} because of {cause}.",
            "Shares in {firm} {rise} {dec:11:190}% in {town} on {weekday} after it announced @a {move}.",
            "The price of {goods} could soon be affected by {cause}, {body} has warned.",
            "{firm} is to cut {num:120:990} jobs in {town}, blaming {cause}.",
        ),
        "body": (
            "{figure} at the {town}-based group {rise} to ${dec:11:980}m in {quarter}.",
            '{post} {name} said the result was "in line with what we told the market".',
            '"We do not see {cause} lasting for ever," said {name}, {post} of {firm}.',
            "Analysts had expected {figure} of about ${dec:11:980}m.",
            "The firm blamed {cause} and {cause} for the figures.",
            "{body} is due to rule on the {move} by the end of the month.",
            "The {move} would create the second largest group in {goods}.",
            "A rival in {elsewhere} said its own {figure} {rise} in {quarter}.",
            "In {town}, the shares {rise} by {num:2:60} cents to ${dec:11:390} on {weekday}.",
            '"Demand for {goods} remains fragile," {name} told reporters in {town}.',
            "Last year the company paid ${dec:11:390}bn for @a rival in {goods}.",
            "{body} said on {weekday} that it would not block the {move}.",
            "The dollar {rise} against the euro, which has made {goods} dearer.",
            "A survey of {num:200:990} managers found that {num:21:79}% feared {cause}.",
            "Some {num:300:990} workers at its plant near {town} have been told to stay at home.",
            "Economists said {goods} had been hurt by {cause}.",
        ),
        "last": (
            "{firm} declined to comment.",
            "A decision is expected on {weekday}.",
            "The shares closed {num:2:60} cents lower at ${dec:11:390}.",
            "The company will publish its full results next month.",
        ),
    },
    "blog": {
        "title": (
            "{mood}!!!",
            "{wow} what a day",
            "Why {thing} is {adj}",
            "me and {friend}",
            "random stuff about {thing}",
            "{weekday} again...",
        ),
        "first": (
            "{wow}, I haven't posted in like forever.",
            "So today was {adj}.",
            "I am {mood} and {mood} and it's only {weekday}.",
            "{wow}, guess who I saw at {hangout}?",
            "I woke up at {num:5:12} and had {food}.",
        ),
        "body": (
            "{friend} and I went to {hangout} and it was {adj}.",
            "{thing} is {adj}, {laugh}.",
            "Then we got {food} and talked about {thing} until {num:1:4} in the morning.",
            "I still have to do my homework but I'm too {mood}.",
            "{friend} says I worry too much about {thing}.",
            "{wow}, my mom called and asked about {thing}.",
            "I don't know why I feel so {mood} lately.",
            "{laugh}, {friend} fell asleep on the bus.",
            "Does anybody else think {thing} is {adj}?",
            "I can't wait for {weekday}!!",
            "I'm listening to that song again, you know the one.",
            "If one more person asks me about {thing} I will scream.",
            "Work was {adj} and my boss was {adj}.",
            "I spent ${num:4:90} on {food} and {thing}, don't tell {friend}.",
            "{friend} didn't even say hi at {hangout}, whatever.",
            "I think I'm gonna go to {hangout} tomorrow if I'm not {mood}.",
            "We watched tv and ate {food} and it was {adj}.",
        ),
        "last": (
            "{wow}, I gotta go, dinner is ready.",
            "Anyway, that's it for today, leave me a comment!",
            "Okay I'm going to bed now, goodnight.",
            "More later, {laugh}.",
            "Peace out.",
        ),
    },
}
