"""Channels as controls on exported models: what they say is what the modules say under the same control."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lit_ctg.config import compose
from lit_ctg.control import Control, Steered
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.clause import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.control import ClauseChannel, Grammar, of_run
from lit_ctg.papers.semantic_fusion.portable import clause_tokenizer, portable
from lit_ctg.run.build import instantiate

ASKED: list[dict[str, float]] = [{}, {"pos_high": 1.0}, {"is_question": 1.0, "str_low": 0.5}, {"neg_low": 0.3}]


def loud(module: Any) -> Any:
    """Make every weight matter."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.4)
    return module.eval()


def settings(asked: list[dict[str, float]], **more: Any) -> dict[str, Any]:
    """Return controls, one a row, as settings of the channel, a list each."""
    names = sorted({name for row in asked for name in row})
    return {f"clause_channel.{name}": [row.get(name) for row in asked] for name in names} | more


@pytest.fixture
def clauses(make_module: Any) -> Any:
    """A module over the clauses with all that carries it: model, tokenizer, prompts [N, T]."""
    module = loud(make_module())
    words = module.vocabulary
    ids_NT = torch.tensor([[words.bos_id, *words.encode("Alice reviews the paper , very")]] * len(ASKED))
    model = portable(module, None).model
    model.generation_config.use_cache = False  # as the exported folder says
    return SimpleNamespace(module=module, model=model, tokenizer=clause_tokenizer(words), ids_NT=ids_NT)


@torch.no_grad()
def test_a_channel_of_clauses_says_what_the_route_says(clauses: Any) -> None:
    state, ours = clauses.module.start(len(ASKED), ASKED), []
    for ids_B1 in clauses.ids_NT.split(1, dim=1):
        scores_BV, state = clauses.module.step(ids_B1, state)
        ours.append(scores_BV)
    control = ClauseChannel(len(clauses.module.vocabulary))
    bare_NTV = clauses.model(clauses.ids_NT).logits
    with Steered(clauses.model, [control]).attached(settings(ASKED), len(ASKED)):
        theirs_NTV = clauses.model(clauses.ids_NT).logits
    torch.testing.assert_close(theirs_NTV, torch.stack(ours, dim=1), rtol=0, atol=1e-4)
    changed_N = (theirs_NTV - bare_NTV).abs().amax((1, 2))
    assert changed_N[0] == 0 and bool((changed_N[1:] > 0.05).all())
    half = settings(ASKED, **{"clause_channel.strength": [1, 0, 0.5, 1]})
    with Steered(clauses.model, [control]).attached(half, len(ASKED)):
        some_NTV = clauses.model(clauses.ids_NT).logits
    assert torch.equal(some_NTV[1], bare_NTV[1]) and torch.equal(some_NTV[3], theirs_NTV[3])
    assert not torch.allclose(some_NTV[2], theirs_NTV[2]) and not torch.allclose(some_NTV[2], bare_NTV[2])
    assert torch.equal(clauses.model(clauses.ids_NT).logits, bare_NTV)  # it is gone again


def test_rows_beams_and_padding_keep_their_own_features(clauses: Any) -> None:
    steered = Steered(clauses.model, [ClauseChannel(len(clauses.module.vocabulary))], tokenizer=clauses.tokenizer)
    prompts = ["Alice", "Alice reviews the paper", "the", "Alice reviews the paper , very"]
    for options in ({"num_beams": 2}, {"do_sample": False}):
        asked: dict[str, Any] = {"max_new_tokens": 5, "eos_token_id": None, "do_sample": False, **options}
        together = steered.write(prompts, settings(ASKED), **asked)
        alone = [
            steered.write([prompt], settings([own]), **asked)[0] for prompt, own in zip(prompts, ASKED, strict=True)
        ]
        assert together == alone


def test_a_bundle_of_a_channel_wants_the_model_of_its_run(clauses: Any, make_module: Any, tmp_path: Any) -> None:
    ClauseChannel(len(clauses.module.vocabulary), name="mood").save_pretrained(tmp_path / "mood")
    control = Control.from_pretrained(tmp_path / "mood")
    assert isinstance(control, ClauseChannel) and control.name == "mood"
    baseline = portable(make_module(fusion=False), None).model
    with pytest.raises(UserError, match="a SemanticFusionForCausalLM has none: use the model of its run"):
        Steered(baseline, [control])


def test_a_run_has_its_channel_and_its_grammar(make_module: Any) -> None:
    decoding = instantiate(compose(["experiment=semantic_fusion/main", "size=smoke"]).decoding, "decoding")
    corpus = SimpleNamespace(vocabulary=ClauseVocabulary())
    assert [type(control) for control in of_run(make_module(), corpus, decoding)] == [ClauseChannel, Grammar]
    for changes in ({"fusion": False}, {"published": True}):  # no channel, or none that a control reaches
        assert [type(control) for control in of_run(make_module(**changes), corpus, decoding)] == [Grammar]
