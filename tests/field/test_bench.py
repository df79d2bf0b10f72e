"""The bench: parts that are made once, budgets in nats, side effects, prompts that are continued."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.control.token_bias import TokenBias
from lit_ctg.errors import UserError
from lit_ctg.field import tune
from lit_ctg.field.bench import CLOSE, PART, Arm, Bench, Parts, alike, facts, next_strength
from lit_ctg.field.command import compose
from lit_ctg.field.judge import EncoderJudge
from lit_ctg.field.methods import BUDGETS, METHODS
from lit_ctg.field.run import build_bench
from lit_ctg.field.task import SPLITS


def test_a_part_is_made_once_and_of_its_key(tmp_path: Path) -> None:
    parts, made = Parts(tmp_path), list[Path]()

    def make(folder: Path, checkpoint: Path) -> dict[str, Any]:
        made.append(folder)
        return {"rows": 3, "seconds_before": 5.0}

    folder = parts.get("name", {"a": 1}, make)
    assert parts.get("name", {"a": 1}, make) == folder != parts.get("name", {"a": 2}, make) and len(made) == 2
    assert facts(folder)["rows"] == 3 and facts(folder)["seconds"] >= 5
    (folder / PART).write_text("[")
    with pytest.raises(UserError, match=f"{PART} is damaged"):
        facts(folder)


def test_a_strength_moves_the_next_token_by_its_budget(bench: Bench) -> None:
    arm = METHODS["log_odds"].arms(bench)["positive"]
    for nats, strength in zip((0.25, 1.0), bench.strengths(arm, (0.25, 1.0)), strict=True):
        examples = [example.text for example in bench.task.examples("choice")]
        steered_NV, bare_NV = (bench.next_token(each, strength, examples[:40]) for each in (arm, Arm()))
        # on other contexts
        assert float((steered_NV.exp() * (steered_NV - bare_NV)).sum(1).mean()) == pytest.approx(nats, rel=0.5)
    # what moves nothing is not searched for ever
    idle = TokenBias(dict.fromkeys(bench.task.targets, torch.zeros(bench.head_size)))
    assert bench.strengths(Arm([idle], lambda strength: {"token_bias.strength": strength}), [1.0, 4.0]) == [4096.0] * 2


@pytest.mark.parametrize(
    "moves",
    [lambda value: 0.3 * value**2, lambda value: 0.001 * value, lambda value: 8 * (1 - math.exp(-0.02 * value**2))],
)
def test_a_strength_is_found_in_few_looks(moves: Callable[[float], float]) -> None:
    known = {1.0: moves(1.0)}
    for nats in BUDGETS:
        for _ in range(4):
            value = next_strength(known, nats)
            known[value] = moves(value)
        assert min(abs(each / nats - 1) for each in known.values()) < CLOSE, "also from the looks for other budgets"


def test_an_arm_without_an_effect_has_no_side_effects(bench: Bench) -> None:
    assert bench.side_effects(Arm(), 1.0, Arm()) == {"nats": 0.0, "changed": 0.0}
    weights = {label: torch.zeros(bench.head_size) for label in bench.task.targets}
    weights["positive"][5] = 1000.0
    one = Arm([TokenBias(weights)], lambda strength: {"token_bias.strength": strength, "token_bias.to_positive": 1})
    found = bench.side_effects(one, 1.0, Arm())
    assert found["changed"] == 1.0 and found["nats"] > 5


def test_texts_follow_their_openings_whatever_is_in_the_batch(bench: Bench) -> None:
    texts, seconds, tokens = bench.write(Arm(), 1.0, "report")
    assert len(texts) == 2 and tokens == 2 * bench.decode["new_tokens"] and seconds > 0
    (one, _), _, _ = bench.write(Arm(prompt=lambda strength, place, opening: bench.ids([opening])[0]), 1.0, "report")
    assert one == texts[0]
    whole = dict(bench.decode)
    bench.decode["batch"] = 1
    assert bench.write(Arm(), 1.0, "report")[0] == texts
    bench.decode = whole


def test_arms_with_the_same_controls_write_in_one_batch_as_alone(bench: Bench) -> None:
    arms = METHODS["log_odds"].arms(bench)
    ways = [(arms[label], strength) for strength in (0.5, 6.0) for label in bench.task.targets]
    together, _, tokens = bench.write_all(ways, "choice")
    alone = [bench.write(arm, strength, "choice")[0] for arm, strength in ways]
    assert together == alone and alone[2] != alone[3] and tokens == 8 * bench.decode["new_tokens"]
    (one, other), chosen = METHODS["best_of"].arms(bench).values(), METHODS["lexicon"].arms(bench)
    assert alike(*arms.values()) and alike(one, other) and not alike(one, Arm()) and not alike(*chosen.values())
    assert bench.write_all([(one, 1.0), (other, 1.0)], "choice")[0] == [
        bench.write(each, 1.0, "choice")[0] for each in (one, other)
    ]


def test_a_task_whose_judges_do_not_know_it_is_not_run(field_words: list[str]) -> None:
    strict = build_bench(compose([*(word for word in field_words if "least" not in word), "task.least_accuracy=1"]))
    with pytest.raises(UserError, match=r"sentiment: judges are right too rarely .*encoder 0\.\d\d"):
        _ = strict.proofs


def test_judges_and_methods_share_no_text(bench: Bench) -> None:
    own = {split: {each.text for each in bench.task.examples(split)} for split in SPLITS}
    assert sum(map(len, own.values())) == len(set.union(*own.values()))
    assert {name: sorted(found) for name, found in bench.proofs.items()} == {"tfidf": [30, 60], "encoder": [30, 60]}


def test_judges_that_were_stopped_go_on(
    field_words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*(word for word in field_words if "output_root" not in word), f"output_root={tmp_path}", "judges.steps=3"]
    steps, inner = list[int](), EncoderJudge.forward

    def stopped(self: EncoderJudge, texts: list[str]) -> Any:
        steps.append(len(texts))
        if len(steps) == 3:
            raise KeyboardInterrupt
        return inner(self, texts)

    monkeypatch.setattr(tune, "EVERY", 1)
    monkeypatch.setattr(EncoderJudge, "forward", stopped)
    with pytest.raises(KeyboardInterrupt):
        _ = build_bench(compose(words)).judges
    _ = build_bench(compose(words)).judges
    assert len(steps) == 4, "the third step again, no other"
