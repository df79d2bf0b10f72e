"""Decoding: the grammars against regular expressions, controls against slow restatements, generation and its errors."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from lit_ctg.config import compose
from lit_ctg.decoding.filters import Temperature, nucleus, repetition_penalty, sample, top_k
from lit_ctg.decoding.grammar import FiniteStateGrammar, GrammarMask
from lit_ctg.decoding.rule import RuleList
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.clause import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.decode import (
    ClauseDecoding,
    ClauseGenerator,
    ControlRows,
    GroupMixture,
    HardControl,
    MixtureNumbers,
    Steering,
    SteeringNumbers,
    build_grammar,
    group_mixture,
)
from lit_ctg.run.build import build_datamodule, build_model, instantiate

V = ClauseVocabulary()
LENGTHS = {"one_clause": 10, "two_clause": 18}


def one_clause(vocabulary: ClauseVocabulary) -> FiniteStateGrammar:
    return build_grammar("one_clause", vocabulary).machine


def two_clause(vocabulary: ClauseVocabulary) -> FiniteStateGrammar:
    return build_grammar("two_clause", vocabulary).machine


def walks(grammar: FiniteStateGrammar, rows: int, steps: int) -> torch.Tensor:
    """Uniform random sentences of a grammar."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.full((rows, 1), V.bos_id)
    for _ in range(steps):
        scores = GrammarMask(grammar)(ids, torch.zeros(rows, len(V)))
        new = sample(scores, torch.rand(rows, generator=generator))
        ids = torch.cat([ids, new.unsqueeze(1)], dim=1)
    return ids


@pytest.mark.parametrize("name", ["one_clause", "two_clause"])
def test_the_published_penalty_has_no_effect_under_the_grammar(name):
    """No slot allows a word that one of the three tokens before it can be, so the 2.5 and the 1.5 change nothing."""
    grammar = build_grammar(name, V).machine
    mask = GrammarMask(grammar)
    ids = walks(grammar, 200, LENGTHS[name] - 1)
    scores = torch.randn(200, len(V), generator=torch.Generator().manual_seed(1))
    for length in range(1, ids.shape[1]):
        prefix = ids[:, :length]
        live = prefix[:, -1] > V.eos_id
        penalised = repetition_penalty(prefix, scores, 2.5, window=3, last_ids=V.ids("punctuation"), last_penalty=1.8)
        assert torch.equal(mask(prefix, penalised)[live], mask(prefix, scores)[live])
        assert not torch.equal(penalised, scores)


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
    """The steering of sec. 2, token by token."""
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
        {"pos_high": 0.95, "str_med": 0.9},
    ]
    rule = HardControl(ControlRows.of(controls), one_clause(V), V, threshold=0.6)
    good, bad = ({V.tokens[i] for i in ids} for ids in (POSITIVE, NEGATIVE))
    assert possible(rule, "ADJ", 7) == [good, good, bad, good, good | bad, good | bad, good]
    every = {".", "!", "?"}
    assert possible(rule, "PUNCT", 7) == [{"!"}, every, {"?"}, {"?"}, every, every, every]
    assert possible(rule, "INTENS", 7) == [{V.tokens[i] for i in INTENSIFIERS}] * 7


@pytest.mark.parametrize(("control", "mark"), [({"is_question": 1.0}, "?"), ({"pos_high": 1.0, "str_high": 1.0}, "!")])
def test_a_hard_mark_does_not_forbid_a_second_clause(control, mark):
    grammar = two_clause(V)
    rule = HardControl(ControlRows.of([control]), grammar, V, threshold=0.6)
    masked = rule(prefix("PUNCT"), GrammarMask(grammar)(prefix("PUNCT"), random_scores(1)))
    assert {V.tokens[i] for i, s in enumerate(masked[0].tolist()) if s > -math.inf} == {mark, "and", "but"}


# ---- group mixture ----------------------------------------------------------------------------------------------


def class_of(*ids: int) -> torch.Tensor:
    return torch.isin(torch.arange(SIZE), torch.tensor(ids)).unsqueeze(0)


def mixture_rule(rows: ControlRows, otherwise, keep_crossing: bool = True, make_grammar=one_clause) -> GroupMixture:
    return GroupMixture(
        rows, make_grammar(V), V, threshold=0.6, positive=PAPER_POSITIVE, negative=PAPER_NEGATIVE,
        keep_crossing=keep_crossing, otherwise=otherwise,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "drawn"), [("good, pleasant, bad", {"good", "pleasant"}), ("bad, poor", {"bad", "poor"})]
)
def test_hard_control_stays_in_the_users_grammar(tmp_path: Path, words: str, drawn: set[str]) -> None:
    """Where none of the allowed words has the polarity that is asked for, the grammar alone decides."""
    (tmp_path / "few.yaml").write_text(
        "start: SUBJ\nslots:\n  SUBJ: {words: subject, next: INTENS}\n  INTENS: {words: intensifier, next: ADJ}\n"
        f"  ADJ: {{words: [{words}], next: PUNCT}}\n  PUNCT: {{words: punctuation, next: END}}\n"
    )
    rows, grammar = ControlRows.of([{"pos_high": 0.95}]), build_grammar(str(tmp_path / "few.yaml"), V).machine
    rules = RuleList([GrammarMask(grammar), HardControl(rows, grammar, V, threshold=0.6)])
    mixture = mixture_rule(rows, rules, make_grammar=lambda vocabulary: grammar)
    prefix = torch.tensor([[V.bos_id, V.id("Carol"), V.id("very")]])
    for rule in (rules, mixture):
        probs_V = rule(prefix, torch.zeros(1, SIZE, dtype=torch.float64)).softmax(-1)[0]
        assert {V.tokens[number] for number in probs_V.nonzero().flatten().tolist()} == drawn


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.97, 1.0])
def test_the_mixture_equals_its_slow_restatement(weight):
    scores = random_scores(3)
    log_q = group_mixture(scores, class_of(*POSITIVE).expand(3, -1), weight=weight, temperature=[0.5, 1.0, 1.5])
    expected = [slow_mixture(s, POSITIVE, weight, t) for s, t in zip(scores.tolist(), [0.5, 1.0, 1.5], strict=True)]
    np.testing.assert_allclose(log_q.exp(), expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(log_q.exp().sum(-1), 1.0, atol=1e-14)


def test_mixture_rows_act_on_the_raw_scores_and_only_at_the_adjective():
    scores, rows = random_scores(len(CONTROLS)), ControlRows.of(CONTROLS)
    grammar = one_clause(V)
    # the temperature changes the adjectives' shares, which neither mask nor steering does
    inner = RuleList([GrammarMask(grammar), Steering(rows, grammar, V, numbers=STEERING), Temperature(0.5)])
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


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(("fusion", "penalty"), [(True, 1.5), (False, 2.5)])
def test_the_rules_are_the_settings_in_order(fusion, penalty, soft, hard):
    """In a grammar that may repeat its words, so that the penalty acts."""
    grammar = FiniteStateGrammar(
        tokens=V.tokens, classes={"word": range(1, SIZE)}, transitions={"ADJ": {"word": "ADJ"}}, start="ADJ",
        end="END", pad_id=V.pad_id,
    )  # fmt: skip
    # the first words are outside the window, one within it stands twice
    ids = torch.tensor([[V.bos_id, *V.encode("bad bad good good .")]])
    scores, control = random_scores(1), {"pos_high": 0.5}  # below the hard threshold
    scores[0, ids[0]] += 4.0  # what is penalised stays likely enough to be kept
    decoding = ClauseDecoding(**settings(top_p=0.99, baseline_top_k=10))
    expected = GrammarMask(grammar)(ids, scores)
    if soft:
        expected = Steering(ControlRows.of([control]), grammar, V, numbers=STEERING)(ids, expected)
    expected = repetition_penalty(ids, expected, penalty, window=3, last_ids=MARKS, last_penalty=1.8) / 0.7
    expected = nucleus(expected if fusion else top_k(expected, 10), 0.99, keep_crossing=True)
    found = decoding.rules([control], grammar, V, fusion=fusion, hard=hard, soft=soft)(ids, scores)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# ---- Table 4 from the sampler alone ---------------------------------------------------------------------------------


def sampler_held_out_rate(numbers: MixtureNumbers, *, seen: int, held_out: int, keep_crossing: bool) -> float:
    """How often the mixture draws a held-out word if the model gives those no mass and the seen ones equal mass."""
    scores = torch.tensor([[0.0] * seen + [-math.inf] * held_out], dtype=torch.float64)
    everything = torch.ones_like(scores, dtype=torch.bool)
    log_q = group_mixture(scores, everything, weight=numbers.weight, temperature=numbers.temperature)
    mass = nucleus(log_q, numbers.top_p, keep_crossing=keep_crossing).softmax(dim=-1)
    return float(mass[0, seen:].sum())


@pytest.mark.parametrize(
    ("numbers", "keep_crossing", "exact", "rounded"),
    [
        (PAPER_POSITIVE, False, 3 * 0.97 / 5, 0.58),
        (PAPER_POSITIVE, True, 3 * 0.97 / 5, 0.58),
        # the published rule loses the least likely negative, one of the three held-out ones
        (PAPER_NEGATIVE, False, 2 * 0.17 / (2 * 0.245 + 2 * 0.17), 0.41),
        (PAPER_NEGATIVE, True, 3 * 0.85 / 5, 0.51),
    ],
)
def test_held_out_rates_follow_from_the_sampler_alone(numbers, keep_crossing, exact, rounded):
    rate = sampler_held_out_rate(numbers, seen=2, held_out=3, keep_crossing=keep_crossing)
    assert rate == pytest.approx(exact, abs=1e-12)
    assert round(rate, 2) == rounded


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


HELD_OUT = tuple(V.id(w) for w in ("wonderful", "excellent", "great", "terrible", "awful", "unpleasant"))
CORPUS = SimpleNamespace(vocabulary=V, held_out_ids=HELD_OUT)
PRAISE = {"pos_high": 0.95, "str_high": 0.9}
QUESTION = {"neg_high": 0.95, "is_question": 1.0, "str_med": 0.6}
HARD, SOFT, OFF, CHANNEL = ("hard", "soft"), ("soft",), (), ("channel",)


class Toy(nn.Module):
    """Scores from the last token and, when the channel is used, from the control; gives held-out words nothing."""

    def __init__(self, fusion: bool = True, held_out: float = -1e4):
        super().__init__()
        self.fusion = self.has_channel = fusion
        generator = torch.Generator().manual_seed(0)
        scores = torch.randn(len(V), len(V), generator=generator, dtype=torch.float64)
        scores[:, list(HELD_OUT)] = held_out
        self.scores = nn.Parameter(scores)
        self.dropout = nn.Dropout(0.5)
        self.channels = []

    @property
    def device(self) -> torch.device:
        return self.scores.device

    def start(self, batch_size, controls):
        self.channels.append(controls)
        return torch.tensor([[c.get("pos_high", 0.0)] for c in controls]) if controls else torch.zeros(batch_size, 1)

    def step(self, ids_B1, state):
        lift_V = torch.isin(torch.arange(len(V)), torch.tensor(V.ids("adjective_positive"))).double()
        return self.dropout(self.scores[ids_B1[:, 0]]) + 20 * state * lift_V, state


def settings(**changes) -> dict:
    """conf/decoding/semantic_fusion.yaml, with the regime's choice made."""
    folder = next(p for p in Path(__file__).resolve().parents if (p / "conf").is_dir())
    values = yaml.safe_load((folder / "conf/decoding/semantic_fusion.yaml").read_text())
    assert values.pop("_target_") == f"{ClauseDecoding.__module__}.{ClauseDecoding.__name__}"
    assert values["nucleus"] == "${by_regime:{as_published:drop_crossing,corrected:keep_crossing}}"
    return {**values, "nucleus": "keep_crossing", **changes}


def generator(model: nn.Module | None = None, **changes) -> ClauseGenerator:
    return ClauseDecoding(**settings(**changes)).generator(model or Toy(), CORPUS)


def test_controls_move_the_rates_by_their_routes():
    weak = {"pos_high": 0.25}
    counts = [sum(c.polarity == "positive" for c in generator(top_p=1.0).generate(
        300, control=weak, routes=routes, seed=0)) for routes in (OFF, SOFT)]  # fmt: skip
    assert counts[0] + 20 < counts[1] < 300
    model = Toy()
    g = generator(model)
    on = g.generate(40, control={"pos_high": 1.0, "str_low": 0.3}, routes=CHANNEL, seed=0)
    assert model.channels[-1] == [{"pos_high": 1.0, "str_low": 0.3}] * 40
    assert all(c.polarity == "positive" for c in on)
    g.generate(40, control={"pos_high": 1.0}, routes=HARD, seed=0)
    assert model.channels[-1] is None
    clauses = generator(Toy(held_out=0.0), grammar="two_clause", top_p=1.0, temperature=1.5).generate(
        200, control=QUESTION, routes=HARD, seed=0
    )
    assert all(c.polarity == "negative" and c.punctuation == "?" for c in clauses)
    long = [c for c in clauses if " she " in c.text or " he " in c.text]
    assert 10 < len(long) < 200
    assert all(c.ids[-1] == V.eos_id for c in clauses)
    decoding, model = ClauseDecoding(**settings(baseline_top_k=1)), Toy(fusion=False)
    g = decoding.generator(model, CORPUS)
    assert len({c.text for c in g.generate(20, routes=OFF, seed=0)}) == 1  # top-k 1 is greedy; the baseline's alone
    assert len({c.text for c in decoding.generator(Toy(), CORPUS).generate(20, routes=OFF, seed=0)}) > 1
    assert all(c.polarity == "positive" for c in g.generate(20, control=PRAISE, routes=HARD, seed=0))


def test_the_judge_counts_generated_words_only():
    g = generator()
    prompted = g.generate(20, "Carol starts the model, very wonderful", routes=OFF, seed=0)
    assert {(c.polarity, c.adjective, c.adjective_id, c.held_out) for c in prompted} == {("other", None, -1, False)}
    assert {c.punctuation for c in prompted} <= {".", "!", "?"}
    done = g.generate(1, "Carol starts the model, very wonderful!", routes=OFF, seed=0)[0]
    assert done.punctuation is None and done.text == "Carol starts the model, very wonderful!"
    for clause in g.generate(50, control=PRAISE, routes=HARD, seed=0):
        assert V.tokens[clause.adjective_id] == clause.adjective and clause.adjective in clause.text
        assert clause.held_out == (clause.adjective_id in HELD_OUT)
        assert clause.text == V.decode(clause.ids)
    g = generator(grammar="two_clause", max_tokens=30)
    assert g.max_new_tokens == 30, "a number that is given goes before the grammar's longest sentence"
    words = "Bob starts the model, very good! but he cooks the meal, very awful?"
    clause = g.text([V.bos_id, *V.encode(words)], 1, {})
    assert (clause.adjective, clause.polarity, clause.punctuation, clause.held_out) == ("good", "other", "?", True)
    with pytest.raises(UserError, match=r"'model'.*state VERB"):
        g.prompt_ids("Bob model")


@pytest.mark.parametrize("regime", ["corrected", "as_published"])
@pytest.mark.parametrize("fusion", ["true", "false"])
def test_the_real_models_generate_ragged_batches_as_single_rows(regime, fusion):
    groups = ["model=semantic_fusion", "backbone=transformer", "data=clause", "decoding=semantic_fusion"]
    settings = [f"regime={regime}", f"model.fusion={fusion}", "decoding.grammar=two_clause", "size=smoke"]
    cfg = compose(["paper=semantic_fusion", "name=generation", *groups, *settings])
    corpus = build_datamodule(cfg)
    model = build_model(cfg, corpus)
    g = instantiate(cfg.decoding, "decoding").generator(model, corpus)
    prompts = ["", "Carol starts the model,", "Bob", "Dave cooks the meal, very good and he", "Eve trains"]
    controls = [{}, PRAISE, QUESTION, {"pos_high": 0.4}, {"neg_high": 1.0}]
    assert g.has_channel == (fusion == "true" and regime == "corrected")
    for routes in (HARD, OFF, *([CHANNEL] if g.has_channel else [])):
        together = g.generate(5, prompts, controls, routes=routes, seed=7)
        assert together == [
            g.generate(1, prompts[i], controls[i], routes=routes, seed=7, rows=[i])[0] for i in range(5)
        ]
    if g.has_channel:
        bare = g.generate(40, routes=CHANNEL, seed=0)
        assert bare == g.generate(40, routes=OFF, seed=0)  # no control: the channel is the features' own
        assert bare != g.generate(40, control={"neg_high": 1.0}, routes=CHANNEL, seed=0)


@pytest.mark.parametrize(
    ("fusion", "call", "message"),
    [
        (True, {"control": {"str_low": 1.0}}, "needs the route channel"),
        (False, {"routes": CHANNEL}, "no feature channel"),
        (True, {"prompt": "Carol eats"}, "'eats'"),
        (True, {"prompt": "Carol model"}, "'model'.*state VERB: expected one of 'cooks'"),
    ],
)
def test_bad_input_is_one_clear_line(fusion, call, message):
    with pytest.raises(UserError, match=message) as error:
        generator(Toy(fusion)).generate(2, **{"routes": HARD, "seed": 0, **call})
    assert "\n" not in str(error.value)
