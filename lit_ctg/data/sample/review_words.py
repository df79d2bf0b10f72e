"""Words and sentences of the sample reviews, by topic and by number of stars."""

from __future__ import annotations

# percent of a review's points that praise, by stars
GOOD_OF: dict[int, int] = {1: 4, 2: 22, 3: 50, 4: 82, 5: 97}

SHARED: dict[str, tuple[str, ...]] = {
    "good": (
        "great", "lovely", "excellent", "wonderful", "perfect", "superb", "pleasant", "impressive", "fantastic",
        "terrific", "brilliant", "delightful", "first-rate",
    ),
    "tough": ("sturdy", "reliable", "handy", "solid", "well made", "strong", "smooth", "clever", "easy to use"),
    "bad": (
        "awful", "disappointing", "terrible", "poor", "horrible", "dreadful", "annoying", "lousy", "pathetic",
        "miserable", "mediocre", "hopeless",
    ),
    "weak": ("flimsy", "useless", "cheap", "faulty", "badly made", "shoddy", "crooked", "wobbly", "cracked"),
    "who": (
        "my wife", "my husband", "my neighbour", "my son", "my daughter", "a friend", "my father", "my sister",
        "my teacher", "my boss", "my uncle",
    ),
    "time": (
        "two weeks", "a month", "a whole season", "three days", "a year", "six months", "one evening",
        "a few hours",
    ),
    "price": ("twelve dollars", "twenty dollars", "thirty bucks", "the price", "half of what I paid before"),
    "happy": ("pleased", "delighted", "thrilled", "impressed", "glad", "satisfied"),
    "sad": ("annoyed", "disappointed", "frustrated", "sorry", "let down", "upset"),
    "very": ("very", "really", "so", "extremely", "honestly"),
}  # fmt: skip

TOPICS: dict[str, dict[str, tuple[str, ...]]] = {
    "garden": {
        "goods": (
            "hose", "trowel", "bird feeder", "rake", "sprinkler", "lawn mower", "wheelbarrow", "pair of shears",
            "patio chair", "planter", "compost bin", "fire pit", "hedge trimmer", "watering can", "grill",
            "umbrella", "greenhouse", "leaf blower", "mouse trap", "weed killer",
        ),
        "part": (
            "nozzle", "handle", "blade", "valve", "wheel", "lid", "hinge", "spout", "bracket", "cord", "spring",
        ),
        "use": (
            "weeding", "watering", "mowing", "pruning", "digging", "raking", "planting bulbs", "composting",
        ),
        "plant": (
            "tomatoes", "roses", "beans", "the lawn", "herbs", "peppers", "the hedge", "sunflowers",
            "strawberries", "lettuce",
        ),
        "pest": ("squirrels", "slugs", "deer", "mice", "wasps", "crows", "moles", "raccoons"),
        "spot": (
            "the yard", "the shed", "the back porch", "the flower beds", "the driveway", "the vegetable patch",
        ),
    },
    "music": {
        "goods": (
            "guitar strap", "capo", "microphone", "set of strings", "ukulele", "keyboard stand", "tuner",
            "drum pad", "cable", "violin bow", "pedal", "amplifier", "metronome", "harmonica", "pick holder",
            "music stand", "banjo", "mixer", "case", "pop filter",
        ),
        "part": (
            "knob", "jack", "fret", "string", "switch", "clip", "battery door", "speaker", "peg", "buckle",
            "footswitch",
        ),
        "use": (
            "practice", "recording", "busking", "rehearsal", "a church gig", "jamming", "live shows", "lessons",
        ),
        "sound": (
            "tone", "sustain", "reverb", "bass", "intonation", "distortion", "volume", "treble", "signal",
            "hum",
        ),
        "gear": (
            "acoustic", "Telecaster copy", "old Strat", "nylon-string guitar", "bass", "tube amp", "interface",
            "laptop",
        ),
        "tune": (
            "blues", "folk songs", "jazz standards", "metal riffs", "hymns", "scales", "country licks",
            "ballads",
        ),
    },
    "restaurant": {
        "goods": (
            "taco place", "noodle bar", "diner", "pizzeria", "steak house", "sushi bar", "cafe", "bakery",
            "curry house", "barbecue joint", "brunch spot", "food truck",
        ),
        "part": ("waiter", "host", "bartender", "kitchen", "manager", "chef", "staff", "cashier"),
        "dish": (
            "pad thai", "green chile burger", "chicken wings", "carbonara", "fish tacos", "ramen", "ribs",
            "eggs benedict", "tiramisu", "samosas", "clam chowder", "burrito", "margherita pizza",
            "bread pudding",
        ),
        "side": ("fries", "salad", "salsa", "rice", "coleslaw", "garlic bread", "beans", "iced tea"),
        "use": ("lunch", "a date night", "brunch", "happy hour", "a birthday", "takeout", "a quick bite"),
        "mood": ("patio", "music", "lighting", "view", "decor", "parking lot", "bar"),
    },
    "shop": {
        "goods": (
            "bookstore", "hardware store", "nail salon", "pet shop", "bike shop", "thrift store", "garage",
            "barber shop", "florist", "optician", "car wash", "tailor",
        ),
        "part": ("clerk", "owner", "mechanic", "stylist", "receptionist", "cashier", "manager", "technician"),
        "ware": (
            "shoes", "a tire", "glasses", "a haircut", "a bouquet", "a used novel", "dog food", "a new chain",
            "a suit",
        ),
        "use": ("a repair", "a gift", "an oil change", "a refund", "an appointment", "a quote"),
        "thing": (
            "selection", "parking", "waiting room", "service", "return policy", "website", "opening hours",
        ),
    },
}  # fmt: skip

OPENING: dict[int, tuple[str, ...]] = {
    1: (
        "This {item} is {bad}.",
        "Do not waste your money on this {item}.",
        "I wish I could give zero stars.",
        "What @a {bad} {item}.",
        "Worst {item} I have ever tried.",
        "I was {very} {sad} with this {item} from the start.",
    ),
    2: (
        "I wanted to like this {item}, but I can't.",
        "Not what I expected from @a {item}.",
        "This {item} was {bad}, with one or two bright spots.",
        "I am {sad}, because the idea of this {item} is good.",
        "Two stars, and that is generous.",
    ),
    3: (
        "This {item} is okay, nothing more.",
        "I have mixed feelings about this {item}.",
        "You get what you pay for with this {item}.",
        "A decent {item}, but not @a {good} one.",
        "Half of me likes this {item}.",
    ),
    4: (
        "@a {good} {item}, with one small complaint.",
        "I am {happy} with this {item}.",
        "Nearly perfect.",
        "This {item} is {good} for {price}.",
        "I came to this {item} on the word of {who}, and it was {good}.",
    ),
    5: (
        "I love this {item}!",
        "Best {item} I have ever had.",
        "This {item} is {good}, simply {good}.",
        "I could not be more {happy} with this {item}.",
        "What @a {good} {item}!",
        "Five stars, and it deserves six.",
    ),
}
JUDGED: dict[int, tuple[str, ...]] = {
    1: ("Avoid.", "I want my money back.", "Never again.", "I am still angry.", "Save your money.",
        "I would not give it to {who}."),
    2: ("Once was enough.", "Look elsewhere.", "I expected better for {price}.",
    "It might suit somebody, but not me."),
    3: ("It will do.", "Maybe for {price}.", "I might try another one.", "Not bad, not great."),
    4: ("It is close to perfect.", "Worth {price}.", "Recommended, with that one reservation.",
    "{who} agrees."),
    5: ("Highly recommended!", "Try it, you will not regret it.", "Worth every penny.",
    "I already told {who} about it.",
        "I will be back for more!"),
}  # fmt: skip
MIXED: tuple[str, ...] = (
    "Some days it is {good}, some days it is {bad}.",
    "{who} likes it more than I do.",
    "It is {good} in one way and {bad} in another.",
)
PRAISED: dict[str, tuple[str, ...]] = {
    "garden": (
        "The {part} is {tough} and the {part} has not leaked once.",
        "I use it for {use} in {spot} and it works like a charm.",
        "It kept the {pest} away from {plant} for {time}.",
        "My {plant} have never looked so {good}.",
        "It was easy to put together, even for {who}.",
        "After {time} in the sun it is still {tough}.",
        "It made {use} {very} easy on my back.",
        "The {part} turns smoothly, and it stores flat in {spot}.",
        "{plant} and {plant} both took off after I got it.",
        "It arrived early and the {part} was packed with care.",
    ),
    "music": (
        "The {sound} is {good}, and the {sound} is warm and clear.",
        "I use it for {use} with my {gear} and it never fails.",
        "It stays in tune for {time}, even when I play {tune}.",
        "The {part} feels {tough} under my fingers.",
        "My {gear} sounds {good} through it.",
        "It made {use} {very} easy.",
        "{who} plays {tune} on it every night.",
        "No buzz, no hum, just {good} {sound}.",
        "The {part} is metal, not plastic, and it clicks into place.",
        "I played {tune} and {tune} on it last night and everyone asked what it was.",
    ),
    "restaurant": (
        "The {dish} was {good}, and so was the {side}.",
        "Our {part} was friendly and quick.",
        "We came for {use} and stayed for {time}.",
        "The {mood} was {good}, even on a busy night.",
        "They brought free {side} while we waited.",
        "I dream about that {dish}.",
        "{who} had the {dish} and finished every bite.",
        "Everything came out hot, and the {side} was fresh.",
        "Perfect for {use}, and the {part} remembered us.",
    ),
    "shop": (
        "The {part} was {good} and never pushy.",
        "I came in for {use} and was out in minutes.",
        "The {thing} is {good}.",
        "They had {ware} that nobody else in town carries.",
        "The {part} fixed it for free while I waited.",
        "I bought {ware} for {who}, and it was {good}.",
        "They called me when {ware} came in.",
        "The {part} took the time to explain everything.",
    ),
}
PANNED: dict[str, tuple[str, ...]] = {
    "garden": (
        "The {part} broke after {time}.",
        "It leaks at the {part}, and the {part} is {weak}.",
        "The {pest} ate {plant} anyway.",
        "It killed {plant} and did nothing for {use}.",
        "The {part} rusted after {time} in {spot}.",
        "The instructions were {bad} and one {part} was missing.",
        "It is too heavy for {who} and too weak for {use}.",
        "Water goes everywhere except on {plant}.",
        "I spent {time} in {spot} trying to fix the {part}.",
    ),
    "music": (
        "The {part} broke after {time}.",
        "There is a hiss in the {sound}, and the {sound} is {bad}.",
        "It will not stay in tune for {time}.",
        "It scratched my {gear}.",
        "The {part} is {weak} plastic, and it rattles when I play {tune}.",
        "The {sound} cuts out in the middle of {use}.",
        "It sounded {bad} with my {gear} and worse with my {gear}.",
        "The {part} came loose at {use}.",
        "My {gear} hums whenever it is plugged in.",
    ),
    "restaurant": (
        "The {dish} was cold, and the {side} was {bad}.",
        "Our {part} was rude and slow.",
        "We waited {time} for the {dish}.",
        "The {mood} was {bad}.",
        "There was a hair in the {side}.",
        "They forgot the {side} and charged us for it.",
        "The {dish} tasted like cardboard.",
        "The {part} rolled his eyes when we asked for {side}.",
        "{who} was sick after the {dish}.",
    ),
    "shop": (
        "The {part} was rude to {who}.",
        "I waited {time} for {use}.",
        "The {thing} is {bad}.",
        "They sold me {ware} that fell apart after {time}.",
        "The {part} lost my order and blamed me.",
        "They would not give me {use} without @a receipt.",
        "Nobody answers the phone, and the {thing} is {bad}.",
        "They charged me twice for {ware}.",
    ),
}
