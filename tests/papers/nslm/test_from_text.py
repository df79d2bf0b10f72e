"""Micro-models from classes and texts, on a tokenizer that splits numbers digit by digit."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lit_ctg.control import Control, Steered
from lit_ctg.errors import UserError
from lit_ctg.papers.nslm import Evidence, make_recogniser, micro_models
from lit_ctg.papers.nslm.control import LEAST, MicroModels

YEAR = {"pattern": "19[0-9]{2}", "metrics": ["difference"], "densities": ["gaussian"]}
TEXTS = [f"It began in {year} and ended in {year + 3 + year % 4}." for year in range(1900, 1960, 3)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    engine.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=["<e>"])
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<e>", pad_token="<e>")


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def years(**changes: Any) -> MicroModels:
    return micro_models({"year": make_recogniser("year", YEAR | changes)}, TEXTS[::2], TEXTS[1::2])


def test_members_of_several_tokens_against_an_enumeration(model: Any, tokenizer: Any) -> None:
    """Before each token of a member: the model's mass on the next tokens of members, shared as the micro-model does."""
    control = years()
    members = control.classes[0].texts
    assert set(members) == {str(year) for year in range(1900, 2000)}
    spelled = [tokenizer(f" {member}").input_ids for member in members]
    assert {len(ids) for ids in spelled} == {5}, "digits are split"
    prompt = tokenizer("It began in 1914 and ended in").input_ids
    control.bind(tokenizer)
    rule = control.rule({"strength": torch.ones(1, dtype=torch.float64)}, None)  # type: ignore[arg-type]
    log_K = control.classes[0].model.log_prob(Evidence.of_previous([members.index("1914")]))[0]
    assert log_K.min() < LEAST  # some are excluded
    chance_K = np.exp(log_K.clip(min=LEAST))
    for ids in spelled[::7]:
        for length, token in enumerate(ids):
            prefix = torch.tensor([[*prompt, *ids[:length]]])
            with torch.no_grad():
                plain_1V = model(prefix).logits[:, -1].double().log_softmax(-1)
            alive = [number for number, other in enumerate(spelled) if other[:length] == ids[:length]]
            whole = sum(float(plain_1V[0, each].exp()) for each in {spelled[number][length] for number in alive})
            share = sum(chance_K[number] for number in alive if spelled[number][length] == token)
            expected = np.log(whole) + np.log(share) - np.log(sum(chance_K[number] for number in alive))
            assert float(rule(prefix, plain_1V)[0, token]) == pytest.approx(expected, abs=1e-6)


def test_the_strength_is_fitted_and_0_where_it_does_not_help(model: Any, tokenizer: Any) -> None:
    control = years()
    found = control.fit_strength(model, tokenizer, TEXTS[1::2])
    assert found["strength"] > 0.5 and 0 < found["low"] <= found["nats"] <= found["high"]
    assert control.saving(model, tokenizer, TEXTS[1::2]) == found
    shuffled = [
        f"It began in {a} and ended in {b}." for a, b in zip(range(1900, 1999, 7), itertools.cycle((1999, 1901)))
    ]
    control = micro_models({"year": make_recogniser("year", YEAR)}, [TEXTS[0]] * 30, [TEXTS[0]] * 10, blend=False)
    found = control.fit_strength(model, tokenizer, shuffled)
    assert found["strength"] == control.weight == 0 and found["nats"] == 0
    steered = Steered(model, [control], tokenizer=tokenizer)
    prompt = tokenizer("It began in 1914", return_tensors="pt")
    bare = model.generate(**prompt, max_new_tokens=6, do_sample=False)
    assert torch.equal(steered.generate(prompt, {}, max_new_tokens=6, do_sample=False), bare)


def test_it_is_carried(tmp_path: Path, model: Any, tokenizer: Any) -> None:
    control = years()
    control.fit_strength(model, tokenizer, TEXTS[1::2])
    control.save_pretrained(str(tmp_path / "years"))
    loaded = Control.from_pretrained(str(tmp_path / "years"))
    assert loaded.saving(model, tokenizer, TEXTS) == control.saving(model, tokenizer, TEXTS)


def test_members_of_several_words_are_one_word() -> None:
    members = {"New York": 1.0, "Rome": 2.0}
    place = make_recogniser("place", {"members": members, "metrics": ["frequency"], "densities": ["unigram"]})
    texts = ["New York is not York, but Rome and New York.", "From Rome to New York."]
    control = micro_models({"place": place}, texts, texts)
    assert (control.classes[0].count == 5 and control.others.get("York") == 0) or "York" not in control.others


@pytest.mark.parametrize("pattern", ["xx", "17[0-9]{2}"])
def test_a_class_without_a_member_is_an_error(pattern: str) -> None:
    with pytest.raises(UserError, match="class year: "):
        years(pattern=pattern)
