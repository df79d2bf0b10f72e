"""The feature bank against a slow restatement, token by token (sec. 2, Appendix A); no leak when corrected."""

from __future__ import annotations

import random

import pytest
import torch

from lit_ctg.papers.semantic_fusion.clause import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.model import NAMES, ClauseAnnotator, Memberships, assemble, membership

SUBJECTS = {"Alice", "Bob", "Carol", "Dave", "Eve"}
VERBS = {"finishes", "reviews", "trains", "starts", "cooks"}
OBJECTS = {"task", "paper", "model", "project", "meal"}
POSITIVE = {"good", "great", "excellent", "pleasant", "wonderful"}
NEGATIVE = {"bad", "poor", "terrible", "unpleasant", "awful"}
INTENSITY = {"slightly": 0.2, "moderately": 0.5, "very": 0.8, "extremely": 1.0}
PRONOUNS = {"she", "he", "they"}


def triple(x: float) -> list[float]:
    """Low, medium, high (Eq. 1, tau = 0.35)."""
    return [0.9 ** (abs(x - centre) / 0.35) for centre in (0.2, 0.6, 1.0)]


def slow_published(tokens: list[str]) -> list[list[float]]:
    """Features of a whole sentence with <bos> and <eos>, as the authors compute them."""
    length = len(tokens)
    exclaims = tokens[-2] == "!"
    rows = []
    for t, token in enumerate(tokens):
        is_adjective = token in POSITIVE | NEGATIVE
        noun = token.isalpha() and token not in VERBS | SUBJECTS | PRONOUNS and not is_adjective
        object_at = 4 if length > 4 else length - 2
        strength = INTENSITY.get(tokens[t - 1], 0.0) if t > 0 else 0.0
        strength = min(1.0, strength + 0.2) if exclaims else strength
        coref = token in PRONOUNS and any(before in SUBJECTS for before in tokens[:t])
        row = [noun, token in VERBS, is_adjective, t == 1, t == object_at, t == 2]
        row += [t == 0, t == length - 1, token == ",", token == "?"]
        row += triple(1.0 if token in POSITIVE else 0.0) + triple(1.0 if token in NEGATIVE else 0.0)
        row += [*triple(strength), coref, token[0].isupper(), token in PRONOUNS]
        rows.append([float(value) for value in row])
    return rows


def slow_corrected(tokens: list[str]) -> list[list[float]]:
    """Features of each position from the tokens up to it only."""
    rows = []
    for t in range(len(tokens)):
        prefix = tokens[: t + 1]
        token = prefix[-1]
        strength = INTENSITY.get(prefix[-2], 0.0) if t > 0 else 0.0
        strength = min(1.0, strength + 0.2) if "!" in prefix else strength
        coref = token in PRONOUNS and any(before in SUBJECTS for before in prefix[:-1])
        row = [token in OBJECTS | SUBJECTS, token in VERBS, token in POSITIVE | NEGATIVE]
        row += [token in SUBJECTS | PRONOUNS, token in OBJECTS, token in VERBS]
        row += [token == "<bos>", token == "<eos>", token == ",", token == "?"]
        row += triple(1.0 if token in POSITIVE else 0.0) + triple(1.0 if token in NEGATIVE else 0.0)
        row += [*triple(strength), coref, token[0].isupper(), token in PRONOUNS]
        rows.append([float(value) for value in row])
    return rows


def annotator(prefix_only: bool) -> ClauseAnnotator:
    return ClauseAnnotator(ClauseVocabulary(), prefix_only=prefix_only, exclamation_nudge=0.2)


def memberships(learnable: bool = False) -> Memberships:
    return Memberships(centres=(0.2, 0.6, 1.0), temperature=0.35, learnable=learnable)


def features(prefix_only: bool, rows: list[list[int]], aligned: list[int] | None = None) -> torch.Tensor:
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    lengths = torch.tensor(aligned or [len(row) for row in rows])
    predicates, scalars = annotator(prefix_only)(ids, lengths)
    assert not predicates[ids == 0].any() and not scalars[ids == 0].any()
    return assemble(predicates, memberships()(scalars)) * (ids != 0)[..., None]


def test_the_bank_has_the_papers_order():
    assert len(NAMES) == 22
    assert " ".join(NAMES) == (
        "is_noun is_verb is_adj is_subject is_object is_head is_bos is_eos is_comma is_question "
        "pos_low pos_med pos_high neg_low neg_med neg_high str_low str_med str_high "
        "coref_subject is_capitalized is_pronoun"
    )
    for x in (0.0, 0.2, 0.37, 1.0):
        for centre in (0.2, 0.6, 1.0):
            value = membership(*(torch.tensor(v, dtype=torch.float64) for v in (x, centre, 0.35)))
            assert float(value) == pytest.approx(0.9 ** (abs(x - centre) / 0.35), rel=1e-12)


@pytest.mark.parametrize(("prefix_only", "slow"), [(False, slow_published), (True, slow_corrected)])
def test_equals_the_slow_restatement_on_any_words_in_any_order(prefix_only, slow, vocabulary):
    draw = random.Random(4)
    soups = [[1, *(draw.randrange(3, 41) for _ in range(draw.randint(1, 20))), 2] for _ in range(200)]
    fast = features(prefix_only, soups).double()
    for row, ids in zip(fast, soups, strict=True):
        expected = torch.tensor(slow([vocabulary.tokens[i] for i in ids]), dtype=torch.float64)
        assert torch.allclose(row[: len(ids)], expected, atol=1e-6)


def test_published_prefixes_are_sentences_that_end_where_they_stop(sentences, vocabulary):
    """Generation features: <bos> + prefix + <eos>, of which the row of <eos> is dropped."""
    for ids in sentences[:60]:
        for stop in range(1, len(ids)):
            prefix = ids[:stop]
            fast = features(False, [prefix], aligned=[stop + 1])[0].double()
            expected = slow_published([*(vocabulary.tokens[i] for i in prefix), "<eos>"])[:stop]
            if stop > 1:  # of the empty prefix the authors' positions are the bare <bos>'s
                assert torch.allclose(fast, torch.tensor(expected, dtype=torch.float64), atol=1e-6), prefix


def test_the_published_nudge_leaks_from_the_last_word_and_the_corrected_does_not(vocabulary):
    words = "Bob trains the model, very good"
    said, exclaimed = ([1, *vocabulary.encode(words + mark), 2] for mark in (".", "!"))
    mark_at = len(said) - 2
    for prefix_only in (False, True):
        one, other = features(prefix_only, [said, exclaimed])
        rows = (one != other).any(-1)
        # very: strength 0.8 + 0.2; all rows before the mark move as published, none as corrected
        assert rows[:mark_at].all() if not prefix_only else not rows[:mark_at].any()
        assert rows[mark_at:].all()


def test_roles_in_the_second_clause_exist_only_as_corrected(vocabulary):
    text = "Eve starts the task, very good and she cooks the meal, very bad."
    ids = [1, *vocabulary.encode(text), 2]
    second = slice(9, len(ids))
    columns = [NAMES.index(name) for name in ("is_subject", "is_object", "is_head")]
    assert features(False, [ids])[0, second][:, columns].sum() == 0
    assert features(True, [ids])[0, second][:, columns].sum(0).tolist() == [1, 1, 1]


def test_a_neutral_token_has_high_polarity_membership():
    """Deviation 6: memberships lie in [.74, 1]."""
    neutral = memberships()(torch.zeros(1, 3))[0]
    assert neutral[2] == pytest.approx(0.74, abs=0.001)
    assert memberships()(torch.linspace(0, 1, 101)[:, None].expand(-1, 3)).min() > 0.73


def test_learnable_memberships_start_fixed_stay_ordered_and_learn():
    scalars = torch.rand(50, 3)
    assert torch.allclose(memberships(True)(scalars), memberships(False)(scalars), atol=1e-5)
    assert not list(memberships(False).parameters())
    assert sum(p.numel() for p in memberships(True).parameters()) == 3 * (1 + 2 + 1)
    torch.manual_seed(0)
    module = memberships(True)
    for _ in range(20):
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=5.0)
        assert (module.temperature_31 > 0).all()
        assert (module.centres_33.diff(dim=1) > 0).all()
    module = memberships(True)
    x = torch.linspace(0, 1, 201)[:, None].expand(-1, 3)
    medium = module(x)[:, 1]
    centre = int(((x[:, 0] - module.centres_33[0, 1]).abs()).argmin())
    assert (medium[: centre + 1].diff() > 0).all()
    assert (medium[centre:].diff() < 0).all()
    module = memberships(True)
    module(torch.rand(10, 3)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in module.parameters())
