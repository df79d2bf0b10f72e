"""X-ray: factors against the equations in float64, files on disk, W&B after them."""

from __future__ import annotations

import csv
import math

import pytest
import torch
from lightning.pytorch.loggers import WandbLogger
from lit_ctg.papers.idea_gate.gate import GateForm
from lit_ctg.papers.idea_gate.xray import XRay, figure, first_token, look

from lit_ctg.core.model import LMOutput
from lit_ctg.data.byte_pair import TrainedBPETokenizer
from lit_ctg.errors import UserError

PROMPT = "the market is"
ALPHA, BETA = 0.5, -2.0


@pytest.fixture(scope="module")
def vocabulary():
    tokenizer = TrainedBPETokenizer(size=300)
    tokenizer.train([" the market is a king and a river of $ money" * 10])
    return tokenizer


@pytest.fixture
def gated(tiny):
    """Return (module, data) whose module has token and idea logits and the paper's gate."""

    def make(vocabulary, has_gate=True):
        module, data = tiny()
        size = len(vocabulary)
        generator = torch.Generator().manual_seed(1)
        token_V = torch.randn(size, generator=generator)
        idea_V = torch.randn(size, generator=generator) * 4 - 4
        module.form, module.alpha, module.beta = GateForm(clamp="after_scaling", epsilon=1e-8), ALPHA, BETA
        module.gate = lambda idea: module.form(idea, module.alpha, module.beta)

        def forward(batch):
            shape = (*batch["input_ids_BT"].shape, size)
            token, idea = token_V.expand(shape), idea_V.expand(shape)
            scores = token + module.gate(idea) if has_gate else token
            extras = {"token_logits": token, "idea_logits": idea if has_gate else None}
            return LMOutput(scores, scores, extras)

        module.forward = forward
        module.tables = (token_V.double(), idea_V.double())
        data.vocabulary = vocabulary
        return module, data

    return make


def xray(**options):
    prompts = {"stock_market": {"prompt": PROMPT, "words": ["market", "king"]}}
    return XRay(**{"prompts": prompts, "top": 5, "minimum": 1e-3, **options})


def test_factors_are_the_equations(gated, vocabulary) -> None:
    module, _ = gated(vocabulary)
    token_V, idea_V = module.tables
    gates = [max(ALPHA * math.log(1 / (1 + math.exp(-z)) + 1e-8), BETA) for z in idea_V.tolist()]
    before = [math.exp(z) for z in token_V.tolist()]
    after = [b * math.exp(g) for b, g in zip(before, gates, strict=True)]
    picture = look(module, vocabulary.encode(PROMPT))
    for number in range(len(gates)):
        factor = (after[number] / math.fsum(after)) / (before[number] / math.fsum(before))
        assert float(picture.factor_V[number]) == pytest.approx(factor, rel=1e-5)
    assert picture.clamped == pytest.approx(sum(g == BETA for g in gates) / len(gates))
    assert 0 < picture.clamped < 1
    assert float(picture.after_V.sum()) == pytest.approx(1.0) == float(picture.before_V.sum())


@pytest.mark.parametrize("clamp", ["after_scaling", "before_scaling"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.0, -2.0), (0.0, 0.0), (0.5, -1e3)])
def test_where_no_token_reaches_the_bound_none_is_clamped(gated, vocabulary, clamp, alpha, beta) -> None:
    module, _ = gated(vocabulary)
    module.form, module.alpha, module.beta = GateForm(clamp=clamp, epsilon=1e-8), alpha, beta
    picture = look(module, vocabulary.encode(PROMPT))
    assert picture.clamped == 0
    if alpha == 0:
        assert float((picture.factor_V - 1).abs().max()) < 1e-6


def test_clamped_counts_by_the_bound_of_the_form(gated, vocabulary) -> None:
    """The published clamp holds from log p = beta down, Eq. 4 and 5 from log p = beta / alpha: fewer tokens."""
    module, _ = gated(vocabulary)
    log_p = module.tables[1].sigmoid().log()
    for clamp, bound in (("after_scaling", BETA / ALPHA), ("before_scaling", BETA)):
        module.form = GateForm(clamp=clamp, epsilon=1e-8)
        clamped = look(module, vocabulary.encode(PROMPT)).clamped
        assert clamped == pytest.approx(float((log_p <= bound).double().mean()))


def test_the_gate_never_raises_a_score_and_boosts_all_the_same(gated, vocabulary) -> None:
    """Deviation 8: "boosted" is after renormalisation, by exp(-beta) at most."""
    module, _ = gated(vocabulary)
    picture = look(module, vocabulary.encode(PROMPT))
    assert float(module.gate(module.tables[1]).max()) <= 0
    assert 1 < float(picture.factor_V.max()) <= math.exp(-BETA)
    # probability moves, none is made
    assert float((picture.before_V * picture.factor_V).sum()) == pytest.approx(1.0)


def test_ranking_names_and_records(gated, vocabulary) -> None:
    module, _ = gated(vocabulary)
    callback = xray()
    callback.run(module, vocabulary)
    by_kind = {
        kind: [row for row in callback.rows if row["kind"] == kind] for kind in ("boosted", "suppressed", "named")
    }
    factors = [row["factor"] for row in by_kind["boosted"]]
    assert len(factors) == 5 and factors == sorted(factors, reverse=True)
    assert all(row["probability_before"] >= 1e-3 for row in by_kind["boosted"] + by_kind["suppressed"])
    assert max(row["factor"] for row in by_kind["suppressed"]) < min(factors)
    assert callback.results["xray/stock_market/market"]["value"] == by_kind["named"][0]["factor"]
    assert {"xray/stock_market/king", "xray/stock_market/clamped"} <= set(callback.results)
    (sample,) = callback.samples
    assert sample["prompt"] == PROMPT and "boosted" in sample["text"] and "suppressed" in sample["text"]


def test_a_word_is_looked_up_as_inside_a_sentence(vocabulary) -> None:
    assert vocabulary.decode([first_token(vocabulary, "market")]) == " market"


def test_without_a_gate_there_is_nothing(gated, vocabulary, trainer_of, tmp_path) -> None:
    module, data = gated(vocabulary, has_gate=False)
    callback = xray()
    trainer_of(callback).validate(module, data, verbose=False)
    assert not callback.results and not callback.rows and not list(tmp_path.glob("xray*"))


def test_files_are_written_and_logged(gated, vocabulary, trainer_of, tmp_path) -> None:
    import wandb

    module, data = gated(vocabulary)
    callback = xray()
    logger = WandbLogger(project="test", save_dir=str(tmp_path), offline=True)
    try:
        trainer_of(callback, logger=logger).validate(module, data, verbose=False)
    finally:
        wandb.finish()
    with open(tmp_path / "xray.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["factor"]) for row in rows] == [row["factor"] for row in callback.rows]
    page = (tmp_path / "xray.html").read_text(encoding="utf-8")
    assert page.count("<svg") == len(callback.prompts) and "stock_market" in page and "<script" not in page
    (log,) = tmp_path.rglob("*.wandb")
    assert b"xray/table" in log.read_bytes() and b"xray/stock_market" in log.read_bytes()


def test_html_of_a_token_is_escaped(vocabulary) -> None:
    row = {"token": "<b>", "kind": "boosted", "factor": 2.0, "probability_before": 0.1, "probability_after": 0.2}
    svg = figure([row, {**row, "token": "\x00", "kind": "suppressed", "factor": 0.1}], "<p>")
    assert "&lt;b&gt;" in svg and "<b>" not in svg and "<p>" not in svg and "\\x00" in svg
    assert svg.count('height="13"') == 2, "one bar a token"


def test_an_empty_prompt_is_an_error() -> None:
    with pytest.raises(UserError, match=r"callback\.xray\.prompts\.p: give a prompt"):
        XRay(prompts={"p": {"prompt": " "}})
