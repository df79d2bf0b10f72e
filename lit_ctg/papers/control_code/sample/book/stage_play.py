"""A comedy of mistaken persons, set out as a play: speakers in capitals, old-fashioned speech."""

from __future__ import annotations

from lit_ctg.papers.control_code.sample.book.epic_verse import roman
from lit_ctg.papers.control_code.sample.book.style import Book, Teller

_SPEECHES = (("greet",), ("oath", "plot"), ("plot",), ("wit",), ("wit", "oath"), ("woe",), ("plot", "ask"))


def _chapter(teller: Teller, number: int) -> list[str]:
    """A scene for three or four persons."""
    rng = teller.rng
    act, scene = divmod(number - 1, 5)
    company = rng.sample(teller.lexicon["person"], rng.randint(3, 4))
    place = rng.choice(teller.lexicon["scene_place"])
    lines = [f"ACT {roman(act % 399 + 1)}. SCENE {roman(scene + 1)}. {place}", ""]
    lines += [f"[Enter {', '.join(company)}]", ""]
    speaker = ""
    for _ in range(rng.randint(18, 28)):
        speaker = rng.choice([person for person in company if person != speaker])
        others = [person for person in company if person != speaker]
        teller.facts |= {"you": rng.choice(others)}
        lines += [f"{speaker.upper()}.", teller.deal(*rng.choice(_SPEECHES))]
        if rng.random() < 0.12:
            lines.append(f"[{teller.deal('stage')}]")
        lines.append("")
    lines += ["[Exeunt]", ""]
    return lines


BOOK = Book(
    name="stage_play",
    lexicon={
        "person": (
            "Lord Ferrand", "Isolde", "Gobbet", "Messenger", "Friar Bennet", "Marcella", "Second Gentleman",
            "Ursine", "Duke Orlo", "Fabiola", "Benvolo", "Sir Tristram Gull", "Nerina", "Puckering",
            "Dame Althea", "Rosmund", "Clown", "Captain Vasco", "First Gentleman", "Celandine",
        ),
        "scene_place": (
            "A room in the Duke's palace.", "Before the gates of Verrano.", "A wood near the coast.",
            "A tavern.", "The garden of Dame Althea.", "A street.", "Aboard a ship.", "A hall with a curtain.",
        ),
        "title": (
            "gracious madam", "old man", "noble Duke", "my sweet wit", "sirrah", "my lord", "good sir",
            "sweet lady", "cousin", "fair mistress", "honest friend", "gentle youth",
        ),
        "insult": (
            "varlet", "mountebank", "wretch", "milksop", "braggart", "baggage", "turnip", "knave", "rascal",
            "villain", "blockhead", "popinjay", "dog", "coxcomb", "thief", "whey-face", "idle drone",
        ),
        "beauty": (
            "nightingale", "moon", "swan", "diamond", "dew", "harvest", "silver stream", "rose", "star",
            "pearl", "lily", "lark", "summer", "morning", "dove", "sun", "fountain",
        ),
        "trouble": (
            "envy", "conscience", "constancy", "melancholy", "ambition", "beauty", "repentance", "love",
            "fortune", "jealousy", "honour", "madness", "sorrow", "slander", "grief", "time", "hope",
        ),
        "item": (
            "handkerchief", "sonnet", "bracelet", "lantern", "beard", "doublet", "seal", "feather", "ring",
            "letter", "glove", "purse", "picture", "dagger", "mask", "lute", "cloak", "garter",
        ),
        "body": (
            "ear", "head", "liver", "foot", "shoulder", "heart", "tongue", "eye", "hand", "breast", "cheek",
            "soul", "brow",
        ),
        "fool": (
            "donkey", "parrot", "toad", "pumpkin", "snail", "windmill", "jackdaw", "ass", "goose", "owl",
            "cuckoo", "herring", "capon", "weathercock", "bagpipe",
        ),
        "swear": (
            "in sooth", "by this light", "nay", "forsooth", "O heavens", "beshrew me", "marry", "by my troth",
            "alas", "faith", "by heaven", "prithee", "fie", "go to",
        ),
    },
    decks={
        "greet": (
            "Good morrow, {title}. What news of {you}?",
            "Well met, {title}! Thou hast been {trouble} to my {body}.",
            "Hail, {title}. I bring thee @a {item} from {you}.",
            "Who calls? Is it thou, {title}?",
            "Give me thy hand, {title}; thou art welcome.",
        ),
        "oath": (
            "{swear}, thou art @a {insult}!",
            "{swear}, I know thee not.",
            "{swear}, my {body} is sick of {trouble}.",
            "Out, {insult}! Dost thou mock me?",
            "{swear}, 'tis a most rare {fool}.",
            "I had rather be @a {fool} than such @a lover.",
        ),
        "plot": (
            "The {item} is changed, and none hath marked it but the {fool}.",
            "I'll to the {fool} and tell him {you} is dead.",
            "My {item} for thy {item}, and none shall know us.",
            "{you} doth swear the {item} was never mine.",
            "This {item} must never come to {you}.",
            "She dropped the {item}, and he, poor {fool}, did kiss it.",
            "Put on this {item}, and thou shalt pass for {you}.",
            "If {you} should see the {item}, all is lost.",
            "I have a twin, {title}, drowned these seven years, who had the same {body}.",
            "Tonight, when the moon is down, bring the {item} to the orchard wall.",
            "He swore by the {item} that he would wed {you}.",
        ),
        "ask": (
            "What sayest thou, {you}?",
            "How now, {you}, why so pale?",
            "Hath {you} @a {body} to feel it?",
            "And wilt thou swear it, {title}?",
        ),
        "wit": (
            "They say {trouble} is blind; then let it lead {you}.",
            "Thy {body} and thy purse are both empty, but the purse makes less noise.",
            "To marry is to exchange a whole {item} for half @a {fool}.",
            "{trouble} is @a {fool}, {title}, for it sings best in the dark.",
            "A man may lose his {item} and keep his wits; but he that loses his wits hath no use for @a "
            "{item}.",
            "What is {trouble}? Why, @a {item} with a hole in it.",
            "Better @a witty {fool} than @a foolish {insult}.",
            "The {body} is a bad clerk; it keeps no account of {trouble}.",
            "I never knew {trouble} pay a tavern bill.",
        ),
        "woe": (
            "My {body} is @a {item} that {you} hath broken.",
            "Then farewell, {beauty}; and welcome, {trouble}!",
            "There is no {beauty} in the world now, for {you} hath put it out.",
            "O {beauty}, O {trouble}, how shall I endure?",
            "Her {body} is the {beauty}, and I am but the night.",
            "Ay me, that {trouble} should be so fair to see, and in the {body} so cold!",
            "Weep, {body}; for {trouble} hath made a beggar of me.",
            "Speak not of {trouble}; my {body} is a ship without a helm.",
            "Shall I compare {you} to the {beauty}? The {beauty} would blush.",
        ),
        "stage": (
            "Hides the {item}",
            "Draws",
            "Aside",
            "Gives {you} the {item}",
            "A noise within",
            "Music",
            "{you} starts",
        ),
    },
    chapter=_chapter,
)  # fmt: skip
