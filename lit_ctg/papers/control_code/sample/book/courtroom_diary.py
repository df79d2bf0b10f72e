"""A clerk's diary of a long trial: dates, questions and answers, dry remarks."""

from __future__ import annotations

from lit_ctg.papers.control_code.sample.book.style import Book, Teller


def _chapter(teller: Teller, number: int) -> list[str]:
    """One day in court: how it began, a witness questioned, how it ended."""
    rng = teller.rng
    lines = [f"The {_ordinal(number)} day of the trial.", ""]
    lines.append(teller.deal("morning", "room", "law"))
    for _ in range(rng.randint(2, 3)):
        teller.facts["witness"] = rng.choice(teller.lexicon["witness_name"])
        lines += ["", teller.deal("sworn", "room"), ""]
        for _ in range(rng.randint(3, 6)):
            lines += [f"Q. {teller.deal('question')}", f"A. {teller.deal('answer')}"]
        lines += ["", teller.deal("law", "aside")]
    lines += ["", teller.deal("evening", "aside"), ""]
    return lines


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


BOOK = Book(
    name="courtroom_diary",
    lexicon={
        "witness_name": (
            "the pot-boy", "Mr Lascelles of the bank", "the midwife", "Nurse Abbot", "a chemist named Rudge",
            "the gardener", "Mrs Pruett", "Dr Hallam", "Constable Reeve", "Miss Ottoline Vane",
            "Mr Josiah Crewe", "the lodger Simms", "the apothecary", "Sir Piers Wendover", "the coachman",
            "the widow Tansley", "Inspector Quill",
        ),
        "lawyer": (
            "Mr Serjeant Blount", "Mr Farraday", "the Attorney", "young Mr Penrose", "the defence", "the Crown",
        ),
        "exhibit": (
            "the cashbox", "the pocket watch", "the muddy spade", "the marriage certificate",
            "the laudanum bottle", "the map", "the will", "the brass key", "the torn letter", "the ledger",
            "the green bottle", "the left boot", "the candlestick", "the pawn ticket", "the second codicil",
            "the bloodstained cuff", "the railway ticket",
        ),
        "room_part": (
            "public benches", "corridor", "clerk's table", "judge's chair", "gallery", "dock", "jury box",
            "bench", "witness box", "bar", "side door", "well of the court",
        ),
        "term": (
            "malice", "an error of law", "corroboration", "an opinion and not a fact", "mistaken identity",
            "character", "hearsay", "a leading question", "motive", "the burden of proof", "intent",
            "privilege", "an alibi", "reasonable doubt", "the rule in the Hythe case", "provocation",
            "the chain of custody",
        ),
        "spot": (
            "the scullery", "the churchyard", "the towpath", "the dining room", "the bank",
            "the linen cupboard", "the pantry", "the back stair", "the coach house", "the parlour", "Mill Lane",
            "the orchard", "the attic",
        ),
        "hour": (
            "five past three", "the striking of one", "dusk", "a quarter to eight", "the second post",
            "a quarter past nine", "ten o'clock", "midnight", "half past six", "noon", "eleven or thereabouts",
            "the time the milk came",
        ),
        "manner": (
            "with a bow", "sulkily", "to the ceiling", "one word at a time", "as a soldier would", "calmly",
            "in a whisper", "with great dignity", "rather too quickly", "without looking up", "in tears",
            "as if by rote", "after a long silence",
        ),
        "juror": ("the foreman", "the fourth juror", "the deaf juror", "the grocer", "the tall juror"),
    },
    decks={
        "morning": (
            "Court sat at {hour}.",
            "Fog in the Strand, and the prisoner's van was late; we sat at {hour}.",
            "His lordship took his seat at {hour} with a cold in the head.",
            "We began at {hour}, the {room_part} already full.",
            "A crowd at the doors since {hour}.",
        ),
        "room": (
            "Somebody dropped an umbrella in the {room_part}.",
            "The prisoner looked at {exhibit} and then at the floor.",
            "{juror} asked for a glass of water.",
            "The {room_part} was silent.",
            "There was laughter from the {room_part}, which his lordship put down.",
            "{juror} yawned, and {juror} wrote something on his cuff.",
            "The prisoner gripped the {room_part} with both hands.",
            "A lady in the {room_part} had to be carried out.",
            "{lawyer} whispered to {lawyer} and was seen to smile.",
            "The gas was lit, and the {room_part} smelled of wet wool.",
        ),
        "law": (
            "{lawyer} said that {exhibit} spoke for itself; his lordship said that he had not heard it.",
            "Two hours went by on whether {exhibit} was {term}.",
            "{lawyer} and {lawyer} rose together, and both sat down again.",
            "{lawyer} objected that this was {term}; overruled.",
            "{lawyer} objected that this was {term}; sustained.",
            "His lordship asked whether {lawyer} meant to prove {term}, and {lawyer} said that he did.",
            "There followed an hour upon {term}.",
            "{exhibit} was handed up and marked, and passed along the {room_part}.",
            "{lawyer} read {exhibit} aloud twice, the second time with gestures.",
            "The jury was told to disregard {exhibit}.",
            "{lawyer} submitted that there was no evidence of {term}, and cited nine cases.",
        ),
        "sworn": (
            "{witness} was sworn, and answered {manner}.",
            "Next came {witness}, examined by {lawyer}.",
            "{witness} was recalled to explain {exhibit}.",
            "{lawyer} then called {witness}, who took the oath {manner}.",
        ),
        "question": (
            "What became of {exhibit}?",
            "How far is it, would you say, from {spot} to {spot}?",
            "Had you been drinking?",
            "Were you ever alone with {exhibit}?",
            "What did the deceased say to you at {hour}?",
            "Where were you at {hour}?",
            "Did you see the prisoner near {spot}?",
            "Do you recognise {exhibit}?",
            "Who had charge of {exhibit} on that night?",
            "I put it to you that you were never in {spot} at all.",
            "How do you know that it was {hour}?",
            "Was there a light in {spot}?",
            "Did anyone speak of {exhibit} before the funeral?",
            "Is it not the case that you were paid?",
            "Then how do you account for {exhibit}?",
            "Would you tell the jury what you heard from {spot}?",
        ),
        "answer": (
            "About as far as from here to the {room_part}.",
            "Only what any man would drink by {hour}.",
            "She kept {exhibit} locked up in {spot}.",
            "I was told to say nothing of {exhibit}.",
            "The deceased said a great deal, and none of it kind.",
            "I beg the court's pardon; I meant {spot}.",
            "I was in {spot}, sir, with the door shut.",
            "I could not swear to it.",
            "It was {hour}, for I heard the clock.",
            "I saw {exhibit} on the table and thought no more of it.",
            "No, sir, never.",
            "He came out of {spot} with something under his coat.",
            "I have told you all I know.",
            "She said that {exhibit} would be the ruin of them.",
            "It was dark, but I knew his step.",
            "Not until the police found {exhibit} in {spot}.",
            "I decline to answer that.",
        ),
        "aside": (
            "I have drawn {exhibit} in the margin, rather well.",
            "If {term} were rain, we should all be drowned.",
            "The lamp smokes, and so does {lawyer}.",
            "I have clerked for {num:11:29} years and never heard a worse lie.",
            "I note that {exhibit} has a second crease in it.",
            "My pen failed at this point.",
            "I do not believe a word of it, but I am not paid to believe.",
            "{juror}, I think, is for acquittal.",
            "{term} is a fine thing, if a man can afford it.",
            "I ate a chop and made a fair copy.",
        ),
        "evening": (
            "Adjourned at {hour}.",
            "His lordship rose at {hour}, and the prisoner was taken down.",
            "We adjourned till the morning, {lawyer} protesting.",
            "The court rose; {lawyer} left by the {room_part}.",
        ),
    },
    chapter=_chapter,
)  # fmt: skip
