"""Reviews of garden and music goods, restaurants and shops: the words follow the stars, the topic is the source.

What the papers can see in it: a topic to control, stars to score, and a bigram graph with hubs and rare words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from lit_ctg.data.document import Document
from lit_ctg.data.sample.grammar import Scene, in_split, random_for, take
from lit_ctg.data.sample.review_words import GOOD_OF, JUDGED, MIXED, OPENING, PANNED, PRAISED, SHARED, TOPICS

# how often each number of stars is given, in percent: most reviewers are pleased
_STARS = {1: 14, 2: 10, 3: 16, 4: 25, 5: 35}
GOODS: tuple[str, ...] = ("garden", "music")
SCENES: tuple[str, ...] = ("restaurant", "shop")


def documents(split: str, seed: int, size: int, *, topics: Sequence[str] | None = None) -> Iterator[Document]:
    """One-paragraph reviews of about ``size`` white-space tokens together; topics take turns.

    Args:
        split: train, validation or test; a checksum of the text decides, so no review is in two splits.
        seed: other seeds give other reviews.
        size: white-space tokens over all reviews.
        topics: some of :data:`GOODS` and :data:`SCENES`; all four by default.

    Yields:
        documents with ``source`` = topic and ``meta`` = ``{"stars": 1..5, "topic": ...}``.

    Raises:
        ValueError: unknown split, or ``size`` below 1.
        KeyError: unknown topic.
    """
    chosen = list(topics or (*GOODS, *SCENES))
    for topic in chosen:
        TOPICS[topic]  # an unknown topic is an error before anything is written
    return take(_reviews(split, seed, chosen), size, cut=False)


def _reviews(split: str, seed: int, topics: list[str]) -> Iterator[Document]:
    rng = random_for("reviews", seed, split)
    while True:
        for topic in topics:
            document = review(rng, topic)
            while not in_split(document.text, split):
                document = review(rng, topic)
            yield document


def review(rng: Random, topic: str) -> Document:
    """One review: an opening that fits the stars, points for and against, a verdict."""
    stars = rng.choices(list(_STARS), list(_STARS.values()))[0]
    scene = Scene(rng, {**SHARED, **TOPICS[topic]}, keep=6, stray=0.2)
    scene.facts["item"] = rng.choice(TOPICS[topic]["goods"])
    count = rng.randint(2, 5)
    # of the points made, the share that praises grows with the stars
    praise = sum(rng.randrange(100) < GOOD_OF[stars] for _ in range(count))
    points = [*scene.pick(PRAISED[topic], praise), *scene.pick(PANNED[topic], count - praise)]
    if stars == 3:
        points.append(rng.choice(MIXED))
    rng.shuffle(points)
    sentences = [rng.choice(OPENING[stars]), *points]
    if rng.randrange(10) < 8:
        sentences.append(rng.choice(JUDGED[stars]))
    return Document(scene.paragraph(sentences) + "\n", topic, {"stars": stars, "topic": topic})
