"""The feature channel as a control: what is replaced, what hindsight asks for, how often it is dropped."""

from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.papers.semantic_fusion.channel import GROUPS, ChannelSetting, drop_and_replace, hindsight
from lit_ctg.papers.semantic_fusion.features import COLUMN, NAMES

GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}


def test_the_groups_are_the_controllable_features():
    assert set(GROUP_OF) == {n for n in NAMES if n.startswith(("pos_", "neg_", "str_"))} | {"is_question"}


def test_a_named_group_is_replaced_whole_and_the_rest_stays():
    features = torch.rand(3, 22)
    controls = [{"pos_high": 0.95, "str_high": 0.9}, {}, {"is_question": 1.0, "neg_low": 0.2, "neg_high": 0.7}]
    changed = ChannelSetting.of(controls, features).apply(features)
    for row, control in enumerate(controls):
        touched = {GROUP_OF[name] for name in control}
        for name in NAMES:
            value = float(changed[row, COLUMN[name]])
            if GROUP_OF.get(name) in touched:
                assert value == pytest.approx(control.get(name, 0.0))
            else:
                assert value == float(features[row, COLUMN[name]])


def slow_hindsight(tokens: list[str], t: int) -> dict[str, float]:
    """Next adjective and intensifier strictly after t, else the last; "?" anywhere."""
    asked = {}
    positive, negative = {"good", "great", "excellent", "pleasant", "wonderful"}, {"bad", "poor", "awful"}
    negative |= {"terrible", "unpleasant"}
    level = {"slightly": "str_low", "moderately": "str_med", "very": "str_high", "extremely": "str_high"}
    adjectives = [(i, w) for i, w in enumerate(tokens) if w in positive | negative]
    intensifiers = [(i, w) for i, w in enumerate(tokens) if w in level]
    for found, name in ((adjectives, None), (intensifiers, level)):
        if found:
            word = next((w for i, w in found if i > t), found[-1][1])
            asked[name[word] if name else "pos_high" if word in positive else "neg_high"] = 1.0
    if "?" in tokens:
        asked["is_question"] = 1.0
    return asked


def test_hindsight_restated(sentences, vocabulary):
    width = max(map(len, sentences))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in sentences])
    table = hindsight(ids, vocabulary)
    seen = set()
    for row, tokens_ids in zip(table, sentences, strict=True):
        tokens = [vocabulary.tokens[i] for i in tokens_ids]
        for t in range(len(tokens)):
            expected = slow_hindsight(tokens, t)
            seen |= set(expected)
            assert {n: 1.0 for n in NAMES if row[t, COLUMN[n]] != 0} == expected, (tokens, t)
    assert seen == {"pos_high", "neg_high", "str_low", "str_med", "str_high", "is_question"}


def test_each_group_of_a_sentence_is_dropped_on_its_own_with_the_given_probability():
    torch.manual_seed(0)
    size, p = 4000, 0.3
    features, asked = torch.full((size, 2, 22), -1.0), torch.ones(size, 2, 22)
    out = drop_and_replace(features, asked, feature_dropout=p, generator=torch.Generator().manual_seed(1))
    kept = torch.stack([out[:, 0, COLUMN[names[0]]] >= 0 for names in GROUPS.values()], 1).double()
    error = math.sqrt(p * (1 - p) / size)
    assert (kept.mean(0) - (1 - p)).abs().max() < 5 * error
    correlation = torch.corrcoef(kept.T) - torch.eye(3)
    assert correlation.abs().max() < 5 / math.sqrt(size)
    for names in GROUPS.values():
        values = out[:, :, [COLUMN[n] for n in names]]
        assert (values == values[:, :1, :1]).all()  # one draw a sentence and group, at all positions
        strengths = values[values >= 0]
        assert 0.6 <= strengths.min() < 0.61 and 0.99 < strengths.max() <= 1.0
    others = [i for i, name in enumerate(NAMES) if name not in GROUP_OF]
    assert (out[..., others] == -1.0).all()


@pytest.mark.parametrize(("p", "moved"), [(1.0, False), (0.0, True)])
def test_always_dropped_and_never_dropped(p, moved):
    features, asked = torch.full((9, 4, 22), 0.5), torch.zeros(9, 4, 22)
    out = drop_and_replace(features, asked, feature_dropout=p, generator=torch.Generator())
    controlled = [COLUMN[name] for name in GROUP_OF]
    assert bool((out[..., controlled] == 0).all()) == moved
    assert bool(torch.equal(out, features)) != moved


def test_draws_come_from_the_own_generator_only():
    features, asked = torch.rand(9, 4, 22), torch.ones(9, 4, 22)

    def draw(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return drop_and_replace(features, asked, feature_dropout=0.5, generator=generator)

    before = torch.get_rng_state()
    first = draw(3)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, draw(3))
    assert not torch.equal(first, draw(4))
