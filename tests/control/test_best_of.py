"""Best of several texts: which is kept, whose draws they are, in a batch and alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_ctg.control import Control, Steered
from lit_ctg.control.best_of import BestOf
from lit_ctg.control.future import Future, FutureClassifier, StateProbe
from lit_ctg.decoding.filters import sample
from lit_ctg.errors import UserError
from tests.controls import D, V, classifier

DRAWN: dict[str, Any] = {"max_new_tokens": 5, "do_sample": True, "seed": 3}


def many(texts: list[str]) -> Any:
    """Log-probabilities that grow with the number of different words."""
    return torch.tensor([[-1.0 / (1 + len(set(text.split()))), -0.5] for text in texts])


def test_the_best_draw_is_kept_per_row_in_a_batch_and_alone(model: Any, tokenizer: Any) -> None:
    steered = Steered(model, [BestOf(many, ["many", "other"])], tokenizer=tokenizer)
    settings: dict[str, Any] = {"best_of.to_many": 1, "best_of.strength": [0, 1, 3, 8]}
    prompts = ["the war", "a", "a metal", "the war began"]
    made = steered.write(prompts, settings, **DRAWN)
    bare = Steered(model, [], tokenizer=tokenizer).write(prompts, **DRAWN)
    assert made[:2] == bare[:2], "one draw is the bare model's"
    for row, strength in enumerate(settings["best_of.strength"]):
        own = {"best_of.to_many": 1, "best_of.strength": strength}
        assert steered.write([prompts[row]], own, rows=[row], **DRAWN) == [made[row]]
    assert len(set(made[3].split())) > len(set(bare[3].split()))
    several = steered.write(prompts[2:3], {"best_of.to_many": 1}, num_return_sequences=2, rows=[2, 9], **DRAWN)
    assert len(several) == 2
    greedy: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False}
    assert steered.write("a", {"best_of.to_many": 1}, **greedy) == steered.write("a", **greedy)


@pytest.mark.parametrize("kind", [FutureClassifier, StateProbe])
def test_a_classifier_of_tokens_or_states_chooses_and_is_kept(
    model: Any, tokenizer: Any, kind: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    made = classifier() if kind is FutureClassifier else StateProbe(D, 2)
    BestOf(made, ["good", "bad"]).save_pretrained(tmp_path / "best")
    control = Control.from_pretrained(tmp_path / "best")
    steered = Steered(model, [control], tokenizer=tokenizer)
    prompts = ["the war", "a good metal ."]
    settings = {"best_of.to_bad": 1, "best_of.strength": 6}
    kept = steered.generate(prompts, settings, **DRAWN)
    for row, prompt in enumerate(prompts):
        ids = tokenizer(prompt).input_ids
        scores = []
        texts = []
        for copy in range(6):
            # the draws of one text alone, as the rule of draws states it
            seeds = [row] if copy == 0 else [row, copy]
            texts.append(drawn(model, ids, seeds))
            end = texts[-1].index(0, len(ids)) if 0 in texts[-1][len(ids) :] else len(texts[-1])
            whole = torch.tensor([texts[-1][:end]])
            if kind is FutureClassifier:
                scores.append(float(made(whole)[0, -1, 1]))
            else:
                state = model.base_model(input_ids=whole).last_hidden_state[0, -1]
                scores.append(float(made.head(state).log_softmax(-1)[1].detach()))
        new = kept[row, 4:].tolist()
        expected = texts[max(range(6), key=scores.__getitem__)][len(ids) :]
        assert new[: len(expected)] == expected


def drawn(model: Any, ids: list[int], row: list[int]) -> list[int]:
    generator, text = np.random.default_rng([3, *row]), list(ids)
    for _ in range(5):
        scores = model(input_ids=torch.tensor([text])).logits[:, -1].float().detach()
        text.append(int(sample(scores, torch.tensor([generator.random()], dtype=torch.float64))[0]))
        if text[-1] == 0:
            break
    return text


def test_a_probe_is_future_s_classifier_without_a_second_network(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    probe = StateProbe(D, 2)
    torch.nn.init.normal_(probe.head.weight, std=3.0)
    Future(probe, ["good", "bad"], candidates=4).save_pretrained(tmp_path / "future")
    steered = Steered(model, [Control.from_pretrained(tmp_path / "future")], tokenizer=tokenizer)
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "output_scores": True,
                               "return_dict_in_generate": True, "min_new_tokens": 4}  # fmt: skip
    settings = {"future.to_good": 1, "future.strength": [2, 0]}
    prompts = ["the war began", "a"]
    found = steered.generate(prompts, settings, **options)
    for row, (prompt, strength) in enumerate(zip(prompts, (2, 0), strict=True)):
        text = list(tokenizer(prompt).input_ids)
        for step in range(4):
            scores = model(input_ids=torch.tensor([text])).logits[0, -1].detach()
            log_p = scores.index_fill(0, torch.tensor([0]), -torch.inf).log_softmax(-1)  # no text ends here
            if strength:
                # Eq. 2 of FUDGE, a candidate at a time, each read by the model
                best = log_p.topk(4).indices.tolist()
                expected = torch.full((V,), -torch.inf)
                for token in best:
                    state = model.base_model(input_ids=torch.tensor([[*text, token]]))
                    log_class = probe.head(state.last_hidden_state[0, -1]).log_softmax(-1).detach()
                    expected[token] = log_p[token] + strength * log_class[0]
            else:
                expected = log_p
            scores = found.scores[step][row]
            scores = scores if strength else scores.log_softmax(-1)
            torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)
            text.append(int(found.sequences[row, found.sequences.shape[1] - 4 + step]))
        alone = steered.generate([prompt], {"future.to_good": 1, "future.strength": strength}, **options)
        assert alone.sequences[0, -4:].tolist() == found.sequences[row, -4:].tolist()


def test_a_fitted_probe_tells_texts_apart(model: Any, tokenizer: Any) -> None:
    texts = [["the war good", "a good acid good", "in good"], ["the war bad", "a bad acid bad", "in bad"]]
    ids = [[tokenizer(text).input_ids for text in own] for own in texts]
    probe = StateProbe.fitted(model, ids, decay=1e-6)
    for label, own in enumerate(ids):
        for row in own:
            padded = torch.tensor([[-1, -1, *row]])
            assert int(probe.of_texts(model, padded).argmax()) == label


def test_what_does_not_go_together(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    control = BestOf(many, ["many", "other"])
    steered = Steered(model, [control], tokenizer=tokenizer)
    on = {"best_of.to_many": 1}
    alone: list[dict[str, Any]] = [{"num_beams": 2}, {"return_dict_in_generate": True}]
    for options in alone:
        with pytest.raises(UserError, match=next(iter(options))):
            steered.generate("a", on, max_new_tokens=2, do_sample=True, **options)
    with pytest.raises(UserError, match="whole"):
        steered.generate("a", {**on, "best_of.strength": 2.5}, max_new_tokens=2, do_sample=True)
    with pytest.raises(UserError, match="function"):
        control.save_pretrained(tmp_path / "best")
    with pytest.raises(UserError, match="classes"):
        BestOf(StateProbe(D, 3), ["good", "bad"])
