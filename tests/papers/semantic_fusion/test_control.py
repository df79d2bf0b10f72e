from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lit_ctg.decoding.filters import nucleus
from lit_ctg.decoding.grammar import GrammarMask
from lit_ctg.decoding.rule import RuleList
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.clause_vocabulary import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.control import (
    ControlRows,
    GroupMixture,
    HardControl,
    MixtureNumbers,
    Steering,
    SteeringNumbers,
    check_control,
    group_mixture,
    sampler_held_out_rate,
    steer_adjective,
    steer_intensifier,
    steer_punctuation,
)
from lit_ctg.papers.semantic_fusion.grammar import one_clause, two_clause

V = ClauseVocabulary()
SIZE = len(V)
POSITIVE, NEGATIVE = V.ids("adjective_positive"), V.ids("adjective_negative")
INTENSIFIERS, MARKS = V.ids("intensifier"), V.ids("punctuation")
STEERING = SteeringNumbers(
    intensifier_gain=1.2, intensifier_offset=0.5, adjective_boost=6.0, adjective_damp=3.0, punctuation_gain=2.8
)
PAPER_POSITIVE = MixtureNumbers(weight=0.97, temperature=1.5, top_p=1.0)
PAPER_NEGATIVE = MixtureNumbers(weight=0.85, temperature=1.3, top_p=0.95)
PREFIX = {
    "SUBJ": "",
    "OBJ": "Carol starts the",
    "INTENS": "Carol starts the model,",
    "ADJ": "Carol starts the model, very",
    "PUNCT": "Carol starts the model, very good",
}
CONTROLS = [
    {},
    {"pos_high": 0.95, "str_high": 0.9},
    {"neg_high": 0.95, "is_question": 1.0, "str_med": 0.6},
    {"neg_high": 0.3, "pos_high": 0.5, "str_med": 0.7},
    {"is_question": 0.4},
    {"pos_high": 0.9, "neg_high": 0.9},
]


def prefix(slot: str, rows: int = 1) -> torch.Tensor:
    return torch.tensor([[V.bos_id, *V.encode(PREFIX[slot])]]).expand(rows, -1)


def random_scores(rows: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return 2 * torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def slow_steering(scores: list[float], slot: str, control: dict[str, float]) -> list[float]:
    """FACTS' paragraph, token by token."""
    changed = list(scores)
    if not any(control.values()):
        return changed
    pos = control.get("pos_high", 0.0) - control.get("neg_high", 0.0)
    neg = -pos
    strength = max(control.get("str_high", 0.0), control.get("str_med", 0.0))
    for token in range(SIZE):
        if slot == "INTENS" and token in INTENSIFIERS:
            changed[token] += 1.2 * (0.5 + strength)
        if slot == "ADJ" and pos > 0:
            changed[token] += 6 * pos * (token in POSITIVE) - 3 * pos * (token in NEGATIVE)
        if slot == "ADJ" and neg > 0:
            changed[token] += 6 * neg * (token in NEGATIVE) - 3 * neg * (token in POSITIVE)
        if slot == "PUNCT" and V.tokens[token] == "!":
            changed[token] += 2.8 * strength * max(0.0, pos)
        if slot == "PUNCT" and V.tokens[token] == "?":
            changed[token] += 2.8 * control.get("is_question", 0.0)
    return changed


def slow_mixture(scores: list[float], ids: tuple[int, ...], a: float, t: float) -> list[float]:
    """Eq. 9, token by token."""
    total = sum(math.exp(scores[i] / t) for i in ids)
    return [(1 - a) * math.exp(scores[i] / t) / total + a / len(ids) if i in ids else 0.0 for i in range(len(scores))]


# ---- controls ---------------------------------------------------------------------------------------------------


def test_controls_become_plain_floats():
    assert check_control({"pos_high": 1, "is_question": np.float64(0.5)}) == {"pos_high": 1.0, "is_question": 0.5}
    assert check_control(None) == {} == check_control({})
    assert check_control({"pos_low": 0.2}, channel=True) == {"pos_low": 0.2}


@pytest.mark.parametrize(
    ("control", "channel", "message"),
    [
        ({"pos_hihg": 0.5}, False, "unknown control 'pos_hihg'; did you mean 'pos_high'"),
        ({"colour": 0.5}, True, "unknown control 'colour'; there are pos_low, "),
        ({"is_noun": 1.0}, True, "unknown control 'is_noun'"),
        ({"pos_low": 0.5}, False, "'pos_low'; this one needs the channel path; there are pos_high, neg_high"),
        ({"pos_high": 1.01}, False, r"control.pos_high=1.01 is outside \[0, 1\]"),
        ({"pos_high": -0.1}, False, r"outside \[0, 1\]"),
        ({"pos_high": float("nan")}, False, r"outside \[0, 1\]"),
        ({"pos_high": "high"}, False, "control.pos_high='high' is not a number"),
        ({"is_question": True}, False, "control.is_question=True is not a number"),
        ({"is_question": None}, False, "control.is_question=None is not a number"),
    ],
)
def test_bad_controls_are_one_clear_line(control, channel, message):
    with pytest.raises(UserError, match=message) as error:
        check_control(control, channel=channel)
    assert "\n" not in str(error.value)


def test_rows_derive_polarity_and_strength():
    rows = ControlRows.of(CONTROLS)
    np.testing.assert_allclose(rows.polarity_B, [0, 0.95, -0.95, 0.2, 0, 0])
    np.testing.assert_allclose(rows.strength_B, [0, 0.9, 0.6, 0.7, 0, 0])
    assert rows.given_B.tolist() == [False, True, True, True, True, True]


# ---- steering ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_grammar", [one_clause, two_clause])
@pytest.mark.parametrize("slot", list(PREFIX))
def test_steering_equals_its_slow_restatement(slot, make_grammar):
    scores = random_scores(len(CONTROLS))
    rule = Steering(ControlRows.of(CONTROLS), make_grammar(V), V, numbers=STEERING)
    expected = [slow_steering(s, slot, c) for s, c in zip(scores.tolist(), CONTROLS, strict=True)]
    np.testing.assert_allclose(rule(prefix(slot, len(CONTROLS)), scores), expected, rtol=0, atol=1e-12)
    if slot in ("SUBJ", "OBJ"):
        assert torch.equal(rule(prefix(slot, len(CONTROLS)), scores), scores)


@pytest.mark.parametrize("slot", list(PREFIX))
def test_no_control_leaves_the_bare_scores_exactly(slot):
    scores = random_scores(2, dtype=torch.float32)
    rows, grammar = ControlRows.of([{}, {"pos_high": 0.0, "str_med": 0.0}]), one_clause(V)
    for rule in (
        Steering(rows, grammar, V, numbers=STEERING),
        HardControl(rows, grammar, V, threshold=0.6),
        mixture_rule(rows, otherwise=RuleList()),
    ):
        assert torch.equal(rule(prefix(slot, 2), scores), scores)


def test_steering_functions_at_strength_zero_are_the_bare_scores_exactly():
    scores, zero = random_scores(2, dtype=torch.float32), torch.zeros(2)
    settings = {"positive_ids": POSITIVE, "negative_ids": NEGATIVE}
    assert torch.equal(steer_adjective(scores, zero, boost=6.0, damp=3.0, **settings), scores)
    assert torch.equal(steer_adjective(scores, zero + 0.5, boost=0.0, damp=0.0, **settings), scores)
    marks = {"exclamation_id": V.id("!"), "question_id": V.id("?")}
    assert torch.equal(steer_punctuation(scores, zero, zero + 1, zero, gain=2.8, **marks), scores)
    assert torch.equal(steer_punctuation(scores, zero - 1, zero + 1, zero, gain=2.8, **marks), scores)
    assert torch.equal(steer_intensifier(scores, zero, intensifier_ids=INTENSIFIERS, gain=1.2, offset=0.0), scores)


def test_steering_intensifiers_has_no_effect_after_the_mask():
    grammar, scores = one_clause(V), random_scores(1)
    steering = Steering(ControlRows.of([{"str_high": 1.0}]), grammar, V, numbers=STEERING)
    bare = GrammarMask(grammar)(prefix("INTENS"), scores)
    steered = RuleList([GrammarMask(grammar), steering])(prefix("INTENS"), scores)
    assert not torch.equal(steered, bare)
    np.testing.assert_allclose(steered.softmax(-1), bare.softmax(-1), rtol=0, atol=1e-15)


# ---- hard control -----------------------------------------------------------------------------------------------


def possible(rule, slot: str, rows: int) -> list[set[str]]:
    masked = RuleList([GrammarMask(one_clause(V)), rule])(prefix(slot, rows), random_scores(rows))
    return [{V.tokens[i] for i, s in enumerate(row) if s > -math.inf} for row in masked.tolist()]


def test_hard_control_leaves_what_was_asked():
    controls = [
        {"pos_high": 0.95, "str_high": 0.9},
        {"pos_high": 0.95, "str_high": 0.6},
        {"neg_high": 0.95, "is_question": 1.0, "str_high": 1.0},
        {"pos_high": 0.95, "str_high": 0.9, "is_question": 0.7},
        {"pos_high": 0.6, "is_question": 0.6, "str_high": 1.0},
        {"pos_high": 1.0, "neg_high": 0.5},
    ]
    rule = HardControl(ControlRows.of(controls), one_clause(V), V, threshold=0.6)
    good, bad = ({V.tokens[i] for i in ids} for ids in (POSITIVE, NEGATIVE))
    assert possible(rule, "ADJ", 6) == [good, good, bad, good, good | bad, good | bad]
    assert possible(rule, "PUNCT", 6) == [{"!"}, {".", "!", "?"}, {"?"}, {"?"}, {".", "!", "?"}, {".", "!", "?"}]
    assert possible(rule, "INTENS", 6) == [{V.tokens[i] for i in INTENSIFIERS}] * 6


def test_a_hard_mark_does_not_forbid_a_second_clause():
    grammar = two_clause(V)
    rule = HardControl(ControlRows.of([{"is_question": 1.0}]), grammar, V, threshold=0.6)
    masked = rule(prefix("PUNCT"), GrammarMask(grammar)(prefix("PUNCT"), random_scores(1)))
    assert {V.tokens[i] for i, s in enumerate(masked[0].tolist()) if s > -math.inf} == {"?", "and", "but"}


# ---- group mixture ----------------------------------------------------------------------------------------------


def class_of(*ids: int) -> torch.Tensor:
    return torch.isin(torch.arange(SIZE), torch.tensor(ids)).unsqueeze(0)


def mixture_rule(rows: ControlRows, otherwise, keep_crossing: bool = True, make_grammar=one_clause) -> GroupMixture:
    return GroupMixture(
        rows, make_grammar(V), V, threshold=0.6, positive=PAPER_POSITIVE, negative=PAPER_NEGATIVE,
        keep_crossing=keep_crossing, otherwise=otherwise,
    )  # fmt: skip


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.97, 1.0])
def test_the_mixture_equals_its_slow_restatement(weight):
    scores = random_scores(3)
    log_q = group_mixture(scores, class_of(*POSITIVE).expand(3, -1), weight=weight, temperature=[0.5, 1.0, 1.5])
    expected = [slow_mixture(s, POSITIVE, weight, t) for s, t in zip(scores.tolist(), [0.5, 1.0, 1.5], strict=True)]
    np.testing.assert_allclose(log_q.exp(), expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(log_q.exp().sum(-1), 1.0, atol=1e-14)


def test_the_mixture_at_weight_zero_and_one_is_the_softmax_and_the_uniform():
    scores, inside = random_scores(1), class_of(*NEGATIVE)
    bare = scores.masked_fill(~inside, -math.inf).softmax(-1)
    np.testing.assert_array_equal(group_mixture(scores, inside, weight=0.0, temperature=1.0).exp(), bare.log().exp())
    np.testing.assert_allclose(
        group_mixture(scores, inside, weight=1.0, temperature=1.0).exp()[inside], 0.2, rtol=1e-15
    )


def test_mixture_rows_act_on_the_raw_scores_and_only_at_the_adjective():
    scores, rows = random_scores(len(CONTROLS)), ControlRows.of(CONTROLS)
    grammar = one_clause(V)
    inner = RuleList([GrammarMask(grammar), Steering(rows, grammar, V, numbers=STEERING)])
    rule = mixture_rule(rows, otherwise=inner, keep_crossing=False)
    at_adjective, ids = rule(prefix("ADJ", len(CONTROLS)), scores), prefix("ADJ", len(CONTROLS))
    expected = inner(ids, scores)
    for row, numbers, group in ((1, PAPER_POSITIVE, POSITIVE), (2, PAPER_NEGATIVE, NEGATIVE)):
        q = torch.tensor([slow_mixture(scores[row].tolist(), group, numbers.weight, numbers.temperature)])
        kept = nucleus(q.double().log(), numbers.top_p, keep_crossing=False).softmax(-1)
        np.testing.assert_allclose(at_adjective[row].softmax(-1), kept[0], rtol=0, atol=1e-7)
    others = [0, 3, 4, 5]  # no control, below the threshold, or no net polarity
    assert torch.equal(at_adjective[others], expected[others])
    for slot in ("INTENS", "PUNCT"):
        ids = prefix(slot, len(CONTROLS))
        assert torch.equal(rule(ids, scores), inner(ids, scores))


def test_the_mixture_holds_in_both_clauses():
    ids = torch.tensor([[V.bos_id, *V.encode("Bob starts the model, very good but he cooks the meal, very")]])
    rule = mixture_rule(ControlRows.of([{"pos_high": 1.0}]), otherwise=RuleList(), make_grammar=two_clause)
    mass = rule(ids, random_scores(1)).softmax(-1)
    np.testing.assert_allclose(mass[0, list(POSITIVE)].sum(), 1.0, atol=1e-12)
    assert mass[0, list(POSITIVE)].min() > 0.97 / 5 - 1e-9


@pytest.mark.parametrize("slot", ["INTENS", "ADJ", "PUNCT"])
def test_a_batch_of_controls_equals_its_rows(slot):
    scores = random_scores(len(CONTROLS), dtype=torch.float32)

    def rules(controls):
        rows, grammar = ControlRows.of(controls), one_clause(V)
        hard = HardControl(rows, grammar, V, threshold=0.6)
        steer = Steering(rows, grammar, V, numbers=STEERING)
        return mixture_rule(rows, otherwise=RuleList([GrammarMask(grammar), steer, hard]))

    together = rules(CONTROLS)(prefix(slot, len(CONTROLS)), scores)
    alone = [rules([c])(prefix(slot), scores[i : i + 1]) for i, c in enumerate(CONTROLS)]
    assert torch.equal(together, torch.cat(alone))
    for_all = rules([CONTROLS[1]])(prefix(slot, 3), scores[:3])
    assert torch.equal(for_all, rules([CONTROLS[1]] * 3)(prefix(slot, 3), scores[:3]))
    with pytest.raises(ValueError, match="6 settings for 3 rows"):
        rules(CONTROLS)(prefix("ADJ", 3), scores[:3])


# ---- Table 4 from the sampler alone ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "keep_crossing", "exact", "facts"),
    [
        (PAPER_POSITIVE, False, 3 * 0.97 / 5, 0.58),
        (PAPER_POSITIVE, True, 3 * 0.97 / 5, 0.58),
        # the published rule loses the least likely negative, one of the three held-out ones
        (PAPER_NEGATIVE, False, 2 * 0.17 / (2 * 0.245 + 2 * 0.17), 0.41),
        (PAPER_NEGATIVE, True, 3 * 0.85 / 5, 0.51),
    ],
)
def test_held_out_rates_follow_from_the_sampler_alone(numbers, keep_crossing, exact, facts):
    rate = sampler_held_out_rate(numbers, seen=2, held_out=3, keep_crossing=keep_crossing)
    assert rate == pytest.approx(exact, abs=1e-12)
    assert round(rate, 2) == facts


@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0])
def test_the_published_nucleus_always_loses_the_least_likely_negative(scale):
    """Whatever the model's logits, so the rate hangs on the sampler, not on str_med."""
    for seed in range(20):
        scores = scale * random_scores(1, seed)
        log_q = group_mixture(scores, class_of(*NEGATIVE), weight=0.85, temperature=1.3)
        order = sorted(NEGATIVE, key=lambda i: (-log_q[0, i].item(), i))
        kept = nucleus(log_q, 0.95, keep_crossing=False)[0]
        assert [i for i in order if kept[i] > -math.inf] == order[:4]
        assert (nucleus(log_q, 0.95, keep_crossing=True) > -math.inf).sum() == 5
