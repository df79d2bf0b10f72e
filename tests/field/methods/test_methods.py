"""Every method learns, writes from every prompt, and at strength 0 (of a control) is the bare model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate

from lit_ctg.control import Steered
from lit_ctg.control.future import FutureClassifier
from lit_ctg.control.token_bias import TokenBias
from lit_ctg.errors import UserError
from lit_ctg.field.bench import Bench
from lit_ctg.field.command import complete, compose
from lit_ctg.field.methods import fudge
from lit_ctg.field.methods.combined import Combined
from lit_ctg.field.methods.fudge import _batch, _loss_of_class, _split, prefix_loss
from lit_ctg.field.methods.plain import Bare, Prefix
from lit_ctg.field.methods.tuned import FineTuned, LoRA, move_towards
from lit_ctg.field.methods.words import LogOdds
from lit_ctg.field.run import build_method
from tests.field.conftest import MakeBench


@pytest.mark.parametrize("name", complete("method"))
def test_a_method_learns_writes_and_leaves_the_model_as_it_was(bench: Bench, name: str) -> None:
    before = {key: value.clone() for key, value in bench.model.state_dict().items()}
    method = build_method(compose(["size=smoke", f"method={name}"]))
    method.fit(bench)
    plain, _, _ = bench.write(Bare(strengths=[1]).arm(bench, "negative"), 1.0)
    for target in bench.task.targets:
        arm = method.arm(bench, target)
        texts, seconds, tokens = bench.write(arm, method.strengths[0])
        assert len(texts) == len(bench.prompts) == len(plain)
        assert seconds > 0 and tokens == len(texts) * bench.decode_options["new_tokens"]
        if arm.controls and arm.model is bench.model:
            off = {
                key: 0 if key.endswith((".strength", ".alpha")) else value for key, value in arm.settings(1.0).items()
            }
            arm.settings = lambda strength, off=off: off
            assert bench.write(arm, 1.0)[0] == plain
    assert method.parameters() >= 0
    assert all(torch.equal(value, before[key]) for key, value in bench.model.state_dict().items())


@pytest.mark.long
def test_every_option_is_a_method_with_ascending_strengths() -> None:
    for name in complete("method"):
        assert instantiate(compose([f"method={name}"]).method).strengths, name


def test_weights_move_along_a_line_and_back(bench: Bench) -> None:
    model = bench.copy()
    base = {key: value.clone() for key, value in model.state_dict().items()}
    tuned = {key: value + 1 for key, value in base.items()}
    with move_towards(model, base, tuned)(0.5):
        assert all(torch.allclose(value, base[key] + 0.5) for key, value in model.state_dict().items())
    assert all(torch.equal(value, base[key]) for key, value in model.state_dict().items())


def test_adapters_at_strength_0_are_the_base_model_and_twice_as_strong_at_2(bench: Bench) -> None:
    method = LoRA(strengths=[1], rank=2, alpha=4, learning_rate=1e-3)
    method.fit(bench)
    control, ids = method.arm(bench, "positive").controls[0], torch.tensor([[3, 4, 5]])
    layer = next(module for name, module in bench.model.named_modules() if name.endswith("h.0.attn.c_attn"))
    given = torch.randn(1, 3, bench.model.config.n_embd, generator=torch.Generator().manual_seed(0))
    added = {}
    with torch.no_grad():
        bare = bench.model(input_ids=ids).logits
        for strength in (0.0, 1.0, 2.0):
            with control.attach(bench.model, {"strength": strength}):
                added[strength] = layer(given)
                assert torch.equal(bench.model(input_ids=ids).logits, bare) == (strength == 0)
    assert not torch.equal(added[1.0], added[0.0]), "they were trained"
    assert torch.allclose(added[2.0] - added[0.0], 2 * (added[1.0] - added[0.0]), atol=1e-6)


def test_a_prefix_is_training_text_of_the_class_and_grows_with_the_strength(bench: Bench) -> None:
    arm = Prefix(strengths=[1, 2], words=5).arm(bench, "positive")
    one, two = arm.prefix(1, 0), arm.prefix(2, 0)
    end = bench.tokenizer.eos_token
    assert two.startswith(one) and one.count(end) == 1 and two.count(end) == 2
    known = [example.text for example in bench.task.examples("train", "positive")]
    assert any(text.startswith(one.removesuffix(end)) for text in known)
    assert arm.prefix(2, 1) != two, "every prompt has its own"


def test_the_classifier_s_loss_is_the_mean_over_real_prefixes() -> None:
    torch.manual_seed(0)
    classifier = FutureClassifier(9, 2, 4)
    ids, labels = torch.tensor([[1, 2, 3], [4, -1, -1]]), torch.tensor([0, 1])
    slow = [-classifier(torch.tensor([[1, 2, 3][: end + 1]]))[0, -1, 0] for end in range(3)]
    slow.append(-classifier(torch.tensor([[4]]))[0, -1, 1])
    assert torch.allclose(prefix_loss(classifier, ids, labels), torch.stack(slow).mean(), atol=1e-6)


def test_the_classifier_holds_out_the_last_tenth_and_draws_classes_alike() -> None:
    rows = [[number] * (1 + number % 3) for number in range(25)]
    learned, tried = _split(rows, 2)
    assert [row[0] for row in learned.tolist()] == list(range(23)) and tried[:, 0].tolist() == [23, 24]
    assert learned[:3].tolist() == [[0, -1], [1, 1], [2, 2]], "a text is cut, and -1 follows its end"
    one = _split([[7]], 2)
    assert one[0].tolist() == one[1].tolist() == [[7, -1]], "a single text is both"
    few = torch.full((2, 2), 50)
    ids, labels = _batch([learned, few], np.random.default_rng(0), 400)
    assert ((ids[:, 0] == 50) == (labels == 1)).all() and 160 < int(labels.sum()) < 240
    assert set(ids[labels == 0][:, 0].tolist()) == set(range(23))


def test_the_loss_of_many_passages_is_that_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of different lengths, one empty; a part of none is left out."""
    torch.manual_seed(0)
    classifier = FutureClassifier(9, 2, 4)
    ids = torch.tensor([[1, 2, 3], [4, -1, -1], [5, 6, -1], [7, 8, 1], [-1, -1, -1]])
    monkeypatch.setattr(fudge, "AT_ONCE", 2)
    with torch.no_grad():
        whole = float(prefix_loss(classifier, ids, torch.ones(5, dtype=torch.long)))
        assert _loss_of_class(classifier, ids, 1) == pytest.approx(whole, rel=1e-6)
        assert _loss_of_class(classifier, ids, 0) != pytest.approx(whole, rel=1e-3)


def test_the_same_random_numbers_for_every_method(bench: Bench) -> None:
    arm = Bare(strengths=[1]).arm(bench, "negative")
    assert bench.write(arm, 1.0)[0] == bench.write(arm, 1.0)[0]
    steered = Steered(bench.model, [], tokenizer=bench.tokenizer)
    new = bench.decode_options["new_tokens"]
    options_ = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": True, "top_p": 0.9, "top_k": 200}
    alone = steered.write(bench.prompts[1][0], seed=0, rows=[1], **options_)
    assert alone == bench.write(arm, 1.0)[0][1:2], "a row's draws do not hang on the batch"


def test_what_is_learned_is_learned_once(make_bench: MakeBench, field_root: Path) -> None:
    bench = make_bench()
    bench.tuned("positive")
    before, seconds = bench.training_seconds, sorted((field_root / "field" / "parts").iterdir())
    bench.tuned("positive")
    assert sorted((field_root / "field" / "parts").iterdir()) == seconds
    assert bench.training_seconds > before, "its seconds count for each method that uses it"


def test_any_bundle_is_a_method(bundle_of_bias: Path, make_bench: MakeBench) -> None:
    bench = make_bench()
    words = ["size=smoke", "method=carried", f"method.bundle={bundle_of_bias}", "method.strengths=[1,50]"]
    method = build_method(compose([*words, "++method.fixed.to_TARGET=1"]))
    method.fit(bench)
    arm = method.arm(bench, "positive")
    assert arm.settings(2) == {"token_bias.strength": 2, "token_bias.to_positive": 1}
    (token,) = set(bench.tokenizer(" ".join(bench.write(arm, 50)[0])).input_ids) & {9}
    assert token == 9 and method.parameters() == 2 * len(bench.tokenizer)
    # what was read is told: another bundle in the same folder has other texts
    read = method.read()
    weights = torch.eye(len(bench.tokenizer))
    TokenBias({"positive": weights[11], "negative": weights[10]}).save_pretrained(bundle_of_bias)
    again = build_method(compose([*words, "++method.fixed.to_TARGET=1"]))
    again.fit(bench)
    assert read and again.read() and again.read() != read and LogOdds(strengths=[1], prior=0.5).read() == ""


@pytest.fixture
def bundle_of_bias(tmp_path: Path, make_bench: MakeBench) -> Path:
    """A bundle that raises token 9 for one class and 10 for the other."""
    weights = torch.eye(len(make_bench().tokenizer))
    TokenBias({"positive": weights[9], "negative": weights[10]}).save_pretrained(tmp_path / "bias")
    return tmp_path / "bias"


def test_a_combination_gives_each_part_its_unit(bench: Bench) -> None:
    words, prefix = LogOdds(strengths=[1], prior=0.5), Prefix(strengths=[1], words=5)
    both = Combined(strengths=[1, 2], parts={"words": words, "prefix": prefix}, units={"words": 0.5, "prefix": 1})
    both.fit(bench)
    arm = both.arm(bench, "positive")
    assert arm.settings(2) == {"token_bias.strength": 1.0, "token_bias.to_positive": 1}
    assert arm.prefix(2, 0) == prefix.arm(bench, "positive").prefix(2, 0)
    with pytest.raises(UserError, match="give the same two names or more"):
        Combined(strengths=[1], parts={"words": words}, units={"word": 1})
    tuned = {name: FineTuned(strengths=[1]) for name in ("one", "two")}
    two = Combined(strengths=[1], parts=tuned, units={"one": 1, "two": 1})
    two.fit(bench)
    with pytest.raises(UserError, match="one and two both change the model"):
        two.arm(bench, "positive")


@pytest.mark.parametrize("kind", ["neuron_codes", "soft_prompt"])
def test_codes_decode_as_they_were_trained(bench: Bench, kind: str) -> None:
    """The carried control gives the scores that training saw: the network with the code put in by hand."""
    method = build_method(compose(["size=smoke", f"method={kind}", "method.learning_rate=0.5"]))
    method.fit(bench)
    control, ids = method.controls["positive"], torch.tensor([[3, 4, 5]])
    settings = {f"{kind}.strength": 1, f"{kind}.positive": 1}
    made = Steered(bench.model, [control], tokenizer=bench.tokenizer).generate(
        ids, settings, max_new_tokens=1, output_scores=True, return_dict_in_generate=True
    )
    tensors, place = control.tensors(), bench.task.targets.index("positive")
    with torch.no_grad():
        if kind == "soft_prompt":
            embedded = bench.model.get_input_embeddings()(ids)
            whole = torch.cat([tensors["prompts"][place : place + 1], embedded], dim=1)
            slow = bench.model(inputs_embeds=whole).logits[:, -1]
        else:
            model = bench.copy()
            layer = model.transformer.h[0].mlp.c_fc
            layer.bias += tensors["weight.transformer.h.0.mlp.c_fc"] @ tensors["codes"][place]
            slow = model(input_ids=ids).logits[:, -1]
    assert torch.allclose(made.scores[0], slow, atol=1e-4)
    assert not torch.allclose(slow, bench.model(input_ids=ids).logits[:, -1], atol=1e-3)
