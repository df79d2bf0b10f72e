"""The feature bank on text against slow restatements; hindsight; features that look ahead or do not fit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.bank import Feature, FeatureBank, Graded, Mark, Reading, Recent, WordClass
from lit_ctg.papers.semantic_fusion.channel import at_next
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon

POLARITY = {"superb": 1.0, "nice": 0.5, "lousy": -0.8}
STRENGTH = {"very": 0.8, "quite": 0.3}
TEXT = "the very superb food was nice but the music quite lousy ? yes"


@pytest.fixture
def lexicon(tmp_path) -> Lexicon:
    path = tmp_path / "words.csv"
    rows = [f"{word},{value},,adjective" for word, value in POLARITY.items()]
    rows += [f"{word},0,{value},intensifier" for word, value in STRENGTH.items()]
    path.write_text("word,polarity,strength,class\n" + "\n".join(rows) + "\n")
    return Lexicon(path=str(path))


@pytest.fixture
def vocabulary() -> WordTokenizer:
    tokenizer = WordTokenizer(eol=None)
    tokenizer.train([TEXT])
    return tokenizer


def bank_of(lexicon, vocabulary, **features) -> FeatureBank:
    bank = FeatureBank(lexicon=lexicon, features=features, centres=[0.2, 0.6, 1.0], temperature=0.35)
    bank.bind(vocabulary)
    return bank


def usual() -> dict[str, Feature]:
    return {
        "pos": Graded(column="polarity", group="polarity", membership="low_med_high"),
        "neg": Graded(column="polarity", sign=-1, group="polarity", membership="low_med_high"),
        "str": Graded(column="strength", group="strength"),
        "asks": Mark(marks=["?"], group="question", hindsight="any"),
        "share": WordClass(word_class="adjective", group="share", hindsight="rest"),
        "mood": Recent(column="polarity", half_life=3.0),
        "is_adjective": WordClass(word_class="adjective"),
    }


def test_without_an_event_nothing_was_asked_for_and_before_is_one_position_earlier(lexicon, vocabulary):
    value_BT, event_BT = torch.tensor([[0.5, 0.25, 1.0]] * 2), torch.tensor([[False] * 3, [False, True, False]])
    assert at_next(value_BT, event_BT).tolist() == [[0.0] * 3, [0.25] * 3]
    reading = Reading(torch.zeros(2, 3, dtype=torch.long), None, vocabulary)
    assert reading.before(value_BT).tolist() == [[0.0, 0.5, 0.25]] * 2
    settings = bank_of(lexicon, vocabulary, **usual()).settings
    assert len(settings) == 9 and {(setting.low, setting.high) for setting in settings} == {(0.0, 1.0)}


def test_columns_groups_and_values(lexicon, vocabulary):
    bank = bank_of(lexicon, vocabulary, **usual())
    assert bank.names[:4] == ("pos_low", "pos_med", "pos_high", "neg_low") and len(bank.names) == 11
    assert bank.groups["polarity"] == ("pos_low", "pos_med", "pos_high", "neg_low", "neg_med", "neg_high")
    assert bank.groups["question"] == ("asks",) and "mood" not in {n for ns in bank.groups.values() for n in ns}
    words = TEXT.split()
    values = bank.values(torch.tensor([vocabulary.encode(TEXT)]))
    polarity = [POLARITY.get(word, 0.0) for word in words]
    assert values["pos"][0].tolist() == pytest.approx([max(p, 0) for p in polarity])
    assert values["neg"][0].tolist() == pytest.approx([max(-p, 0) for p in polarity])
    assert values["str"][0].tolist() == pytest.approx([STRENGTH.get(word, 0.0) for word in words])
    assert values["is_adjective"][0].tolist() == [float(word in POLARITY) for word in words]
    kept = 0.5 ** (1 / 3)
    for t in range(len(words)):
        weights = [(kept ** (t - s), words[s]) for s in range(t + 1) if words[s] in POLARITY or words[s] in STRENGTH]
        total = sum(w for w, _ in weights)
        mood = sum(w * max(POLARITY.get(word, 0), 0) for w, word in weights) / total if total else 0.0
        assert values["mood"][0, t].item() == pytest.approx(mood, abs=1e-6)
    # Eq. 1 for the memberships
    features = bank(torch.tensor([vocabulary.encode(TEXT)]))[0]
    for t, p in enumerate(polarity):
        expected = [0.9 ** (abs(max(p, 0) - c) / 0.35) for c in (0.2, 0.6, 1.0)]
        assert features[t, :3].tolist() == pytest.approx(expected, abs=1e-6)


def test_hindsight_is_the_rows_own_future(lexicon, vocabulary):
    bank = bank_of(lexicon, vocabulary, **usual())
    words = TEXT.split()
    asked = bank.hindsight(torch.tensor([vocabulary.encode(TEXT)]))[0]
    column = {name: index for index, name in enumerate(bank.names)}
    nearest = {"superb": "pos_high", "nice": "pos_med", "lousy": "neg_high"}
    for t in range(len(words)):
        coming = [word for word in words[t + 1 :] if word in POLARITY]
        word = coming[0] if coming else "lousy"  # after the last one: that one
        group = {name for name in bank.groups["polarity"] if asked[t, column[name]] > 0}
        assert group == {nearest[word]}, (t, word)
        strengths = [STRENGTH[w] for w in words[t + 1 :] if w in STRENGTH] or [STRENGTH["quite"]]
        assert asked[t, column["str"]].item() == pytest.approx(strengths[0])
        assert asked[t, column["asks"]] == 1.0
        rest = words[t + 1 :]
        share = sum(w in POLARITY for w in rest) / len(rest) if rest else 0.0
        assert asked[t, column["share"]].item() == pytest.approx(share, abs=1e-6)
        assert asked[t, column["mood"]] == 0 and asked[t, column["is_adjective"]] == 0
    no_event = bank.hindsight(torch.tensor([vocabulary.encode("the food was the food")]))[0]
    assert no_event.abs().sum() == 0


class NextToken(Feature):
    """Sees what it must not see: the token behind its own."""

    def values(self, reading):
        return torch.nn.functional.pad((reading.ids_BT[:, 1:] % 2).float(), (0, 1))


class Length(Feature):
    """Depends on how long the row is."""

    def values(self, reading):
        return torch.full(reading.ids_BT.shape, 1 / reading.ids_BT.shape[1])


class Asks(Feature):
    """Looks for a question mark in the whole row."""

    def bind(self, lexicon, vocabulary):
        self.ids = [vocabulary.id("?")]

    def values(self, reading):
        return (reading.ids_BT == self.ids[0]).any(1, keepdim=True).float().expand(reading.ids_BT.shape)


class Far(Feature):
    """Looks ahead behind the eighth token only."""

    def values(self, reading):
        following = torch.nn.functional.pad(reading.ids_BT[:, 1:], (0, 1))
        return torch.where(torch.arange(reading.ids_BT.shape[1]) >= 8, following % 2, 0).float()


@pytest.mark.parametrize("feature", [NextToken(), Length(), Asks(), Far()], ids=["next", "length", "rare mark", "far"])
def test_a_feature_that_looks_ahead_is_named(lexicon, vocabulary, feature):
    with pytest.raises(UserError, match="feature 'bad' looks ahead") as caught:
        bank_of(lexicon, vocabulary, **usual(), bad=feature)
    assert "\n" not in str(caught.value)


class Given(Feature):
    """Returns what it is given."""

    def __init__(self, of):
        super().__init__()
        self.of = of

    def values(self, reading):
        return self.of(reading.ids_BT)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: {"big": Given(lambda ids_BT: ids_BT.float())}, "'big'"),
        (lambda: {"negative": Given(lambda ids_BT: torch.full(ids_BT.shape, -0.5))}, "'negative'"),
        (lambda: {"flat": Given(lambda ids_BT: torch.ones(len(ids_BT)))}, "'flat'"),
        (lambda: {"marks": Mark(marks=["? ?"])}, "'[?] [?]'"),
        (lambda: {}, "features is empty"),
        (lambda: {"gone": None}, "features is empty"),
        (lambda: {"x": SimpleNamespace()}, "features.x"),
        (lambda: {"strength": Graded(column="polarity", group="g")}, "features.strength"),
        (lambda: {"pos": usual()["pos"], "pos_low": usual()["str"]}, "same name"),
        (lambda: {"x": Graded(column="warmth")}, "warmth"),
        (lambda: {"x": WordClass(word_class="verb")}, "verb"),
        (lambda: {"x": Mark(marks="!")}, "'!'"),
    ],
)
def test_what_does_not_fit_is_one_line(lexicon, vocabulary, make, message):
    with pytest.raises(UserError, match=message) as caught:
        bank_of(lexicon, vocabulary, **make())
    assert "\n" not in str(caught.value)
