"""A romance told by a guest at other people's parties: long nostalgic sentences and quick talk."""

from __future__ import annotations

from lit_ctg.papers.control_code.sample.book.style import Book, Teller


def _chapter(teller: Teller, number: int) -> list[str]:
    """An evening: arrival, talk between two of the company, a turn, the way home."""
    rng = teller.rng
    her, him = rng.choice(teller.lexicon["lady"]), rng.choice(teller.lexicon["gentleman"])
    everybody = (*teller.lexicon["lady"], *teller.lexicon["gentleman"])
    other = rng.choice([name for name in everybody if name not in (her, him)])
    teller.facts |= {"her": her, "him": him, "other": other, "street": rng.choice(teller.lexicon["avenue"])}
    lines = [f"Chapter {number}", "", teller.deal("evening", "people", "memory")]
    for _ in range(rng.randint(3, 5)):
        lines += ["", teller.deal("people", "light", "memory")]
        for _ in range(rng.randint(2, 4)):
            lines.append(teller.deal("talk"))
    lines += ["", teller.deal("turn", "light", "leave"), ""]
    return lines


BOOK = Book(
    name="city_romance",
    lexicon={
        "lady": (
            "Vivian", "Lorraine", "Daphne", "Estelle", "Marguerite", "Cora", "Mrs Lavery", "Imogen", "Sylvie",
        ),
        "gentleman": (
            "Mr Pelletier", "Gordon", "Teddy", "Captain Rusk", "Julian", "Wallace", "Dr Marsh", "Lionel",
        ),
        "avenue": (
            "Marlborough Place", "the old canal", "Vine Street", "Park Row", "the boulevard", "Linden Street",
            "the esplanade", "Fountain Square", "the embankment",
        ),
        "drink": (
            "sherry", "gin fizz", "cold coffee", "punch", "whisky", "champagne", "gin", "iced coffee",
            "brandy", "lemonade", "vermouth", "absinthe", "tea",
        ),
        "dress": (
            "a green velvet coat", "a straw hat", "dancing slippers", "a paper crown", "somebody else's furs",
            "a white gardenia", "a yellow dress", "white flannels", "a silk scarf", "grey gloves", "pearls",
            "a borrowed dinner jacket", "a hat with a feather", "evening shoes",
        ),
        "place": (
            "the library", "the boathouse", "the lift", "the winter garden", "the station buffet", "the lawn",
            "the corridor", "the terrace", "the roof garden", "the hotel lobby", "the taxi", "the ballroom",
            "the fire escape", "the balcony", "the music room", "the ferry", "the empty theatre",
        ),
        "tune": (
            "a violin", "the gramophone", "an accordion", "a rag", "somebody humming", "a waltz", "a saxophone",
            "a slow foxtrot", "a piano", "the last record", "an old song", "a tango",
        ),
        "shine": (
            "violet", "lemon-coloured", "pale", "feverish", "tender", "theatrical", "blue", "amber", "silver",
            "rose", "electric", "faint", "golden", "careless", "unsteady",
        ),
        "thing": (
            "bracelet", "umbrella", "telegram", "cheque", "diary", "champagne bucket", "key", "yellow car",
            "telephone", "cigarette", "letter", "mirror", "ticket", "photograph", "window", "ring", "motor car",
        ),
        "feeling": (
            "pity", "gratitude", "envy", "shame", "enchantment", "nostalgia", "vanity", "regret", "tenderness",
            "boredom", "hope", "jealousy", "laughter", "loneliness", "curiosity", "desire", "relief",
        ),
        "season": (
            "that June", "the end of summer", "the first snow", "a wet April", "that whole autumn", "spring",
        ),
        "adverb": (
            "bitterly", "in a small voice", "to the ceiling", "politely", "after a while", "like a child",
            "softly", "gaily", "absently", "without conviction", "at last", "suddenly", "wearily",
            "with a smile",
        ),
    },
    decks={
        "evening": (
            "It was in {season} that I first went to the house on {street}, and I went, I think, because "
            "nobody had asked "
            "me not to.",
            "The windows along {street} were {shine} when I came up the steps, and somebody was playing "
            "{tune}.",
            "All through {season} there was music from {place}, and people drifted in and out of it with "
            "{drink} in their "
            "hands.",
            "{her} had telephoned at noon to say that I must come, and that I must bring {dress}.",
        ),
        "people": (
            "{him} stood at the edge of {place} with his hands in his pockets, as though he were waiting for a train.",
            "{other} was telling the story of the {thing} again, and it had grown since Tuesday.",
            "I saw {her} across {place}, and she raised her glass of {drink} and did not smile.",
            "Nobody could say who had invited {other}, or who had paid for the {drink}.",
            "{her} was leaning on the rail of {place} in {dress}, looking at nothing.",
            "{him} had come from {place} with two glasses of {drink} and the air of a man who has lost @a "
            "{thing}.",
            "{other} laughed too loudly, and then looked round to see who had heard.",
            "There was {other}, who never arrived and never left, and who always smelled of {drink}.",
            "{her} turned the {thing} over and over in her fingers, as if there were an answer on the "
            "other side.",
            "Not far from {place} a girl in {dress} was asleep with her head on a stranger's shoulder.",
        ),
        "memory": (
            "It is a strange thing to be happy near {place} and to know it only by the light of {season}.",
            "If I had gone home then, I should have kept my {feeling}, and I should never have known {her}.",
            "We were all of us pretending, that year, that {feeling} could be ordered like {drink}.",
            "My father used to say that {feeling} is a bill that comes after the guests have gone.",
            "I had the feeling, which comes only in cities and only at night, that {feeling} was just "
            "another word for "
            "{feeling}.",
            "Years afterwards I would see @a {thing} in some shop and remember {season}, and the {shine} "
            "light on {place}.",
            "I was twenty-nine that year, and I believed in {feeling} the way other men believe in railways.",
            "Somewhere between {place} and {place} I had begun to care what became of {him}.",
            "There are evenings that go on being {shine} long after the lamps are out.",
        ),
        "light": (
            "From {place} came {tune}, and under it the long breath of the river.",
            "The lamps of {street} went out one by one, as if somebody were counting.",
            "Rain had begun to fall on {place}, and the air smelled of {drink} and wet leaves.",
            "The light on {street} was {shine}, and then it was gone.",
            "@a {shine} moon came up over {street} like something hired for the occasion.",
            "Across the water the city stood {shine} and unfinished.",
            "The telephone rang near {place}, and nobody moved.",
            "Down in the street a car went by with its lamps {shine} in the rain.",
        ),
        "talk": (
            "\"What do people do at {place}?\" asked {her}. \"I mean, what do they really do?\"",
            "\"Somebody has taken my {thing},\" said {other} {adverb}.",
            "\"Dance with me,\" said {him}, \"or I shall have to talk.\"",
            "\"You look tired,\" I said. \"It is only {feeling},\" said {her} {adverb}.",
            "\"You never wrote,\" said {her} {adverb}.",
            "\"I meant to,\" said {him}. \"I even bought the {thing}.\"",
            "\"Isn't it too {shine} for words?\" cried {other}, and took my arm.",
            "\"Let's go to {place},\" said {her}. \"Nobody ever goes to {place}.\"",
            "\"I can't stand {tune},\" said {him} {adverb}. \"It makes me think of {season}.\"",
            "\"Do you suppose they are happy?\" asked {other}.",
            "\"Darling, more {drink},\" said {her}, to nobody.",
            "\"He used to love her,\" whispered {other}, \"before the {thing}.\"",
            "\"I don't want {feeling},\" she said {adverb}. \"I want a cab.\"",
            "\"Old man,\" said {him} {adverb}, \"you wouldn't understand {feeling}.\"",
        ),
        "turn": (
            "Then {her} put down the glass, and said quite {adverb} that she was going away with {other}.",
            "It was then that {him} struck {other}, once, and straightened {dress}, and begged everyone's "
            "pardon.",
            "When I came back from {place} the {thing} was broken, and {her} was gone.",
            "{him} kissed her hand, and I saw that there was no {feeling} in it at all.",
        ),
        "leave": (
            "I walked home along {street}, with {tune} still going round in my head.",
            "By morning the {drink} was flat and the {shine} paper lanterns lay in the grass.",
            "So we went on, each of us, toward whatever it was we had mistaken for {feeling}.",
            "I never saw {her} again, though I have often seen that {thing}.",
        ),
    },
    chapter=_chapter,
)  # fmt: skip
