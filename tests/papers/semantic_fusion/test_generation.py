from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from torch import nn

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.clause_vocabulary import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.generation import ClauseDecoding, ClauseGenerator
from lit_ctg.run.build import build_datamodule, build_model, instantiate

V = ClauseVocabulary()
HELD_OUT = tuple(V.id(w) for w in ("wonderful", "excellent", "great", "terrible", "awful", "unpleasant"))
CORPUS = SimpleNamespace(vocabulary=V, held_out_ids=HELD_OUT)
POSITIVE = {"pos_high": 0.95, "str_high": 0.9}
QUESTION = {"neg_high": 0.95, "is_question": 1.0, "str_med": 0.6}
HARD, SOFT, OFF, CHANNEL = {"hard": True, "soft": True}, {"soft": True}, {}, {"channel": True}


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


def test_hard_control_succeeds_always_and_off_does_not():
    g = generator()
    for control, polarity, mark in ((POSITIVE, "positive", "!"), (QUESTION, "negative", "?")):
        hard = g.generate(100, control=control, paths=HARD, seed=0)
        assert all(c.polarity == polarity and c.punctuation == mark for c in hard)
        off = g.generate(100, control=control, paths=OFF, seed=0)
        assert 5 < sum(c.polarity == polarity for c in off) < 95
        assert sum(c.punctuation == mark for c in off) < 95


def test_soft_control_moves_rates_without_forcing_them():
    weak = {"pos_high": 0.25}
    counts = [sum(c.polarity == "positive" for c in generator(top_p=1.0).generate(
        300, control=weak, paths=paths, seed=0)) for paths in (OFF, SOFT)]  # fmt: skip
    assert counts[0] + 20 < counts[1] < 300


def test_channel_control_reaches_the_model_and_the_scores_are_left_alone():
    model = Toy()
    g = generator(model)
    on = g.generate(40, control={"pos_high": 1.0, "str_low": 0.3}, paths=CHANNEL, seed=0)
    assert model.channels[-1] == [{"pos_high": 1.0, "str_low": 0.3}] * 40
    assert all(c.polarity == "positive" for c in on)
    g.generate(40, control={"pos_high": 1.0}, paths=HARD, seed=0)
    assert model.channels[-1] is None


def test_no_control_is_the_same_on_every_path():
    g = generator()
    texts = [[c.text for c in g.generate(30, paths=p, seed=2)] for p in (OFF, SOFT, HARD)]
    assert texts[0] == texts[1] == texts[2]
    assert len(set(texts[0])) > 20


def test_a_batch_of_different_controls_and_prompts_equals_single_calls():
    g = generator(grammar="two_clause")
    controls = [{}, POSITIVE, QUESTION, {"pos_high": 0.4}, {"neg_high": 1.0}]
    prompts = ["", "Carol starts the model,", "Bob", "dave cooks the meal, very good and he", "Eve trains"]
    together = g.generate(5, prompts, controls, paths=HARD, seed=7)
    alone = [g.generate(1, prompts[i], controls[i], paths=HARD, seed=7, rows=[i])[0] for i in range(5)]
    assert together == alone
    assert [c.text.startswith(p) for c, p in zip(together, prompts, strict=True) if p[:1].isupper()] == [True] * 3
    assert together[3].text.startswith("Dave cooks the meal, very good and he ")


def test_two_clauses_obey_a_control_in_both_clauses():
    clauses = generator(Toy(held_out=0.0), grammar="two_clause", top_p=1.0, temperature=1.5).generate(
        200, control=QUESTION, paths=HARD, seed=0
    )
    assert all(c.polarity == "negative" and c.punctuation == "?" for c in clauses)
    long = [c for c in clauses if " she " in c.text or " he " in c.text]
    assert 10 < len(long) < 200
    assert all(c.ids[-1] == V.eos_id for c in clauses)


def test_held_out_words_appear_as_often_as_the_sampler_says():
    """Table 4 from a model that gives them nothing: .58, .41 (published nucleus), .51 (usual nucleus)."""
    for nucleus, control, expected in (
        ("drop_crossing", POSITIVE, 0.582),
        ("drop_crossing", QUESTION, 0.34 / 0.83),
        ("keep_crossing", QUESTION, 0.51),
    ):
        clauses = generator(Alike(), nucleus=nucleus).generate(4000, control=control, paths=HARD, seed=0)
        rate = sum(c.held_out for c in clauses) / 4000
        assert abs(rate - expected) < 4 * math.sqrt(expected * (1 - expected) / 4000)


class Alike(Toy):
    """All trained words alike."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.scores.copy_((self.scores < -100) * -1e4)


def test_the_judge_counts_generated_words_only():
    g = generator()
    prompted = g.generate(20, "Carol starts the model, very wonderful", paths=OFF, seed=0)
    assert {(c.polarity, c.adjective, c.adjective_id, c.held_out) for c in prompted} == {("other", None, -1, False)}
    assert {c.punctuation for c in prompted} <= {".", "!", "?"}
    done = g.generate(1, "Carol starts the model, very wonderful!", paths=OFF, seed=0)[0]
    assert done.punctuation is None and done.text == "Carol starts the model, very wonderful!"
    for clause in g.generate(50, control=POSITIVE, paths=HARD, seed=0):
        assert V.tokens[clause.adjective_id] == clause.adjective and clause.adjective in clause.text
        assert clause.held_out == (clause.adjective_id in HELD_OUT)
        assert clause.text == V.decode(clause.ids)


def test_mixed_polarity_is_other():
    clauses = generator(Toy(held_out=0.0), grammar="two_clause", top_p=1.0).generate(100, paths=OFF, seed=0)
    polarities = Counter(c.polarity for c in clauses)
    assert polarities["other"] > 0 and polarities["positive"] > 0 and polarities["negative"] > 0


def test_generation_uses_evaluation_mode_and_puts_every_part_back():
    model = Toy()
    model.train()
    model.dropout.eval()
    g = generator(model)
    assert g.generate(10, paths=OFF, seed=0) == g.generate(10, paths=OFF, seed=0)
    assert model.training and not model.dropout.training


def test_the_likeliest_sentence_needs_no_seed():
    g = generator()
    assert len({c.text for c in g.generate(5, paths=OFF, seed=None)}) == 1


def test_the_baseline_is_decoded_fairly():
    decoding, model = ClauseDecoding(**settings(baseline_top_k=1)), Toy(fusion=False)
    g = decoding.generator(model, CORPUS)
    assert len({c.text for c in g.generate(20, paths=OFF, seed=0)}) == 1  # top-k 1 is greedy; the baseline's alone
    assert len({c.text for c in decoding.generator(Toy(), CORPUS).generate(20, paths=OFF, seed=0)}) > 1
    assert all(c.polarity == "positive" for c in g.generate(20, control=POSITIVE, paths=HARD, seed=0))


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
    controls = [{}, POSITIVE, QUESTION, {"pos_high": 0.4}, {"neg_high": 1.0}]
    assert g.has_channel == (fusion == "true" and regime == "corrected")
    for paths in (HARD, OFF, *([CHANNEL] if g.has_channel else [])):
        together = g.generate(5, prompts, controls, paths=paths, seed=7)
        assert together == [g.generate(1, prompts[i], controls[i], paths=paths, seed=7, rows=[i])[0] for i in range(5)]
    if g.has_channel:
        bare = g.generate(40, paths=CHANNEL, seed=0)
        assert bare == g.generate(40, paths=OFF, seed=0)  # no control: the channel is the features' own
        assert bare != g.generate(40, control={"neg_high": 1.0}, paths=CHANNEL, seed=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"control": {"pos_hihg": 1.0}}, "unknown control 'pos_hihg'; did you mean 'pos_high'"),
        ({"control": {"pos_high": 2.0}}, "outside"),
        ({"control": {"str_low": 1.0}}, "needs the channel path"),
        ({"paths": {"hrad": True}}, "unknown control path 'hrad'; did you mean 'hard'"),
        ({"prompt": "Carol eats"}, "'eats'"),
        ({"prompt": "Carol model"}, "'model'.*state VERB: expected one of 'cooks'"),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(UserError, match=message) as error:
        generator().generate(2, **{"paths": HARD, "seed": 0, **call})
    assert "\n" not in str(error.value)


def test_a_baseline_has_no_channel():
    with pytest.raises(UserError, match="no feature channel"):
        generator(Toy(fusion=False)).generate(1, paths=CHANNEL, seed=0)


def test_wrong_settings_are_refused():
    with pytest.raises(UserError, match="did you mean 'keep_crossing'"):
        ClauseDecoding(**settings(nucleus="keep_crosing"))
    with pytest.raises(UserError, match="did you mean 'two_clause'"):
        ClauseDecoding(**settings(grammar="two_clauses"))
    with pytest.raises(TypeError, match="top_p"):
        ClauseDecoding(**settings(mixture={"positive": {"weight": 1.0, "temperature": 1.0}, "negative": {}}))
    with pytest.raises(ValueError, match="2 values of prompt for 3"):
        generator().generate(3, ["", ""], paths=OFF, seed=0)


def test_generated_clauses_are_plain_values():
    clause = generator().generate(1, paths=OFF, seed=0)[0]
    assert all(isinstance(v, str | int | bool | tuple | None) for v in dataclasses.asdict(clause).values())
