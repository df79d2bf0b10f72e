"""Every method: its texts differ from the model's own, and what it learns."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.control.future import FutureClassifier
from lit_ctg.errors import UserError
from lit_ctg.field.bench import Arm, Bench
from lit_ctg.field.methods import METHODS, WORDINGS, complete, method_named, prefix_loss, steering
from lit_ctg.papers.idea_gate.control import IdeaGate

CONTROLS = [name for name in complete() if METHODS[name].tries is None]


@pytest.mark.parametrize("name", [*CONTROLS, "instruction+log_odds"])
def test_a_control_steers_to_both_classes_and_not_at_strength_0(name: str, bench: Bench) -> None:
    arms = method_named(name).arms(bench)
    assert list(arms) == list(bench.task.targets)
    contexts = ["We had the", "It was"]
    steered = {label: bench.next_token(arm, 3.0, contexts) for label, arm in arms.items()}
    assert not torch.equal(steered["positive"], steered["negative"])
    for label, arm in arms.items():
        bare_NV = bench.next_token(Arm(prompt=arm.prompt), 1.0, contexts)
        assert not torch.allclose(steered[label], bare_NV, atol=1e-4)
        torch.testing.assert_close(bench.next_token(arm, 0.0, contexts), bare_NV)


def test_prompts_are_of_the_class_and_its_wording(bench: Bench) -> None:
    read = bench.tokenizer.decode
    for label, what in (("positive", bench.task.asks["positive"]), ("negative", bench.task.asks["negative"])):
        arm = METHODS["instruction"].arms(bench)[label]
        for number, wording in enumerate(WORDINGS, start=1):
            text = read(bench.prompt(arm, number, 0, "We had"))
            assert text.endswith(f"user: {wording.format(what)}\nassistant: We had")
        one, two = (read(bench.prompt(METHODS["examples"].arms(bench)[label], count, 3, "We had")) for count in (1, 2))
        texts = [example for example in one.split(bench.tokenizer.eos_token) if example and example != "We had"]
        assert len(texts) == 1 and texts[0] in bench.task.texts("train", label)
        assert two.startswith(one.removesuffix("We had")) and two.endswith("We had")
    neutral = METHODS["neutral"].arms(bench)["positive"]
    assert bench.task.asks["neutral"] in read(bench.prompt(neutral, 1.0, 0, "We had"))


def test_the_best_of_four_is_what_its_own_classifier_likes_most(bench: Bench) -> None:
    arm = METHODS["best_of"].arms(bench)["positive"]
    texts, _, tokens = bench.write(arm, 1.0, "choice")
    every, _, _ = bench.write(Arm(copies=arm.copies), 1.0, "choice")
    liked = bench.classifier.log_odds(every, "positive")
    best = [every[max(range(start, start + 4), key=liked.__getitem__)] for start in range(0, len(every), 4)]
    assert texts == best and tokens == 2 * int(bench.decode["new_tokens"])
    assert bench.classifier.judge(["x"]) != [] and {each.text for each in bench.task.examples("train")}.isdisjoint(
        each.text for each in bench.task.examples("judge")
    )


def test_all_class_models_share_one_set_of_adapters(bench: Bench) -> None:
    before = bench.training_seconds
    _ = bench.adapters
    (control,) = METHODS["lora"].arms(bench)["positive"].controls
    (experts,) = METHODS["dexperts"].arms(bench)["positive"].controls
    context = ["We had the"]
    adapted_NV = bench.next_token(steering(control, "positive"), 1.0, context)
    ids = torch.tensor([bench.prompt(Arm(), 1.0, 0, context[0])])
    expert_NV = experts.models["positive"](input_ids=ids).logits[:, -1].float().log_softmax(-1)
    torch.testing.assert_close(adapted_NV, expert_NV, atol=1e-3, rtol=1e-3)
    assert bench.training_seconds == before or before == 0.0


def test_the_idea_gate_is_swept_as_a_whole(bench: Bench) -> None:
    arm = METHODS["idea_gate"].arms(bench)["positive"]
    assert isinstance(arm.controls[0], IdeaGate)
    assert arm.settings(3.0) == {"idea_gate.alpha": pytest.approx(1.5), "idea_gate.beta": pytest.approx(-6.0)}


def test_the_loss_of_prefixes_is_the_mean_over_their_tokens() -> None:
    torch.manual_seed(0)
    classifier = FutureClassifier(9, 2, 4)
    ids_BT, label_B = torch.tensor([[1, 2, 3], [4, -1, -1]]), torch.tensor([0, 1])
    log_p_BTC = classifier(ids_BT)
    slow = -(log_p_BTC[0, :, 0].sum() + log_p_BTC[1, 0, 1]) / 4
    torch.testing.assert_close(prefix_loss(classifier, ids_BT, label_B), slow)


@pytest.mark.parametrize("name", ["x", "instruction+x", "instruction+bare", "lora+fudge", "instruction+"])
def test_a_method_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="method"):
        method_named(name)
