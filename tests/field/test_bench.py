"""The bench: who is trained on which texts, what a part hangs on, and what is written of each prompt."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.control import Steered
from lit_ctg.errors import UserError
from lit_ctg.field import bench as field_bench
from lit_ctg.field.bench import WORDS, Bench, Parts, facts
from lit_ctg.field.judge import snippets
from lit_ctg.field.method import Arm
from lit_ctg.field.task import class_counts, log_odds_words
from lit_ctg.files import try_lock
from tests.field.conftest import MakeBench


def test_each_model_is_trained_on_the_texts_of_its_split(bench: Bench) -> None:
    """The independent model on texts that neither the base model nor a method has seen."""
    assert bench.base_folder is not None
    bench.cost(["a"], ["b"])
    own = facts(bench.base_folder)["key"]
    fluency = [facts(path)["key"] for path in bench.parts.root.glob("fluency-*")]
    assert own == {"texts": bench.task.checksum("train"), "options": bench.base_options}
    assert bench.task.checksum("fluency") in [key["texts"] for key in fluency]
    assert all(key["options"]["steps"] == bench.fluency_options["steps"] for key in fluency)


def test_what_is_learned_hangs_on_seed_model_texts_and_training(bench: Bench) -> None:
    """Training seeds must not share what they learned."""

    def of(**changed: Any) -> Bench:
        made = copy.copy(bench)
        made.__dict__ |= {"training_seconds": 1.0, **changed}
        return made

    def learned(made: Bench, x: int = 1) -> Path:
        return made.learned("note", {"x": x}, lambda folder, checkpoint: {"seconds": 2.5})

    tune = {**bench.tune_options, "steps": 99}
    benches = [of(), of(seed=1), of(tune_options=tune), of(base_folder=Path("base-other")),
               of(base_folder=None, model_name="a/b"), of(_identity={"texts": "others"})]  # fmt: skip
    folders = [learned(made) for made in benches]
    assert len({*folders, learned(of(), 2)}) == len(benches) + 1
    assert [made.training_seconds for made in benches] == [3.5] * len(benches)
    again = of(judge_options={**bench.judge_options, "seed": 1}, decode_options={})
    assert learned(again) == folders[0] and again.training_seconds == 3.5, "seconds of a training done before count"


def test_tuning_reads_its_class_with_the_benchs_seed(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, seen = make_bench("seed=1"), []
    assert bench.base_folder is not None, "trained before training is noted"

    def train(model: Any, stream: Any, **options: Any) -> dict[str, float]:
        seen.append((stream.ids.tolist(), options))
        with torch.no_grad():
            next(value for value in model.parameters() if value.requires_grad).fill_(0.25)
        return {"seconds": 0.0, "loss": 0.0}

    def first_alone(model: Any) -> Any:
        for place, value in enumerate(model.parameters()):
            value.requires_grad_(place == 0)
        return model

    monkeypatch.setattr(field_bench, "train_model", train)
    found = bench.tuned("positive", prepare=first_alone, name="first_alone")
    ((ids, options),) = seen
    texts = [example.text for example in bench.task.examples("train", "positive")]
    assert ids == bench.stream("positive").ids.tolist() != bench.stream().ids.tolist()
    assert len(ids) == 1 + sum(len(bench.tokenizer(text).input_ids) + 1 for text in texts)
    assert options["seed"] == 1 and {key: options[key] for key in bench.tune_options} == bench.tune_options
    one, *rest = zip(found.parameters(), bench.model.parameters(), strict=True)
    assert (one[0] == 0.25).all() and all(torch.equal(own, base) for own, base in rest)
    assert not found.training and not any(value.requires_grad for value in found.parameters())
    (weights,) = bench.parts.root.glob("first_alone-*/weights.pt")
    assert len(torch.load(weights, weights_only=True)) == 1, "what was not trained is not kept"


def test_words_of_a_class_are_those_of_the_training_texts(make_bench: MakeBench) -> None:
    bench = make_bench()
    counts = class_counts(bench.task.examples("train"))
    assert bench.word_lists == {label: log_odds_words(counts, label, WORDS) for label in bench.task.targets}
    keywords = make_bench("task=keywords")
    assert keywords.word_lists == keywords.task.labels, "of a task of words the words themselves"


def test_judges_learn_from_their_split_pieces_as_long_as_continuations(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, asked = make_bench("judges.seed=3", "decode.new_tokens=10"), []
    monkeypatch.setattr(field_bench, "judging_texts", lambda *given: asked.append(given) or _learned(*given))
    bench.__dict__.pop("judges", None)
    judges, proofs = bench.judges
    assert asked == [(bench.task, 5, 10, bench.judge_options["each"], 3)]
    assert [judge.name for judge in judges] == ["bag", "neural"]
    assert all(proof.of == len(bench.task.examples("held_out")) for proof in proofs)
    (key,) = (facts(path)["key"] for path in bench.parts.root.glob("judge-*")
              if facts(path)["key"]["options"]["seed"] == 3)  # fmt: skip
    assert key["longest"] == 10 and key["options"]["least_accuracy"] is None, "what decides is not what is trained"


def _learned(task: Any, shortest: int, longest: int, each: int, seed: int) -> Any:
    return snippets(task.examples("judge"), shortest, longest, each, seed)


def test_every_text_is_of_its_prompt_and_row_whatever_the_batch(make_bench: MakeBench) -> None:
    """Two texts of each of three prompts, in batches of four: text ``place * 2 + copy`` draws as that row alone."""
    bench = make_bench("decode.prompts=3", "decode.samples=2", "decode.batch=4", "seed=5")
    asked: list[tuple[float, int]] = []

    def prefix(strength: float, place: int) -> str:
        asked.append((strength, place))
        return f"{place} "

    arm = Arm(bench.model, prefix=prefix)
    texts, _, tokens = bench.write(arm, 2.0)
    assert asked == [(2.0, place) for place in (0, 0, 1, 1, 2, 2)]
    steered = Steered(bench.model, [], tokenizer=bench.tokenizer)
    options = {"max_new_tokens": bench.decode_options["new_tokens"], "do_sample": True, "top_p": 0.9, "top_k": 0}
    alone = [
        steered.write(f"{row // 2} {bench.prompts[row // 2][0]}", seed=5, rows=[row], **options)[0] for row in range(6)
    ]
    assert texts == alone and len(set(texts)) == 6
    assert 6 <= tokens <= 6 * bench.decode_options["new_tokens"]


def test_a_text_counts_to_its_end_token_and_a_long_prompt_loses_its_beginning(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, new, given = bench.tokenizer.eos_token_id, int(bench.decode_options["new_tokens"]), []

    class Written(Steered):
        def generate(self, ids: Any, *args: Any, **options: Any) -> torch.Tensor:
            given.extend(ids)
            width = max(map(len, ids))
            made = torch.full((len(ids), width + new), 5)
            made[0, width + 1] = end  # one token, and the end; what follows it are padding's
            made[0, width + 2 :] = end
            return made

    monkeypatch.setattr(field_bench, "Steered", Written)
    long = Arm(bench.model, prefix=lambda strength, place: "word " * 200)
    texts, _, tokens = bench.write(long, 1.0)
    assert tokens == 2 + (len(texts) - 1) * new
    room = int(bench.base_options["length"]) - new
    whole = [bench.tokenizer("word " * 200 + prompt).input_ids for prompt, _ in bench.prompts]
    assert given == [ids[-room:] for ids in whole], "as many positions as the base model was trained on"
    assert texts[0] == bench.tokenizer.decode([5]) and texts[1] == bench.tokenizer.decode([5] * new)


def test_a_part_that_another_process_makes_is_waited_for(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    made = parts.get("model", {"steps": 3}, lambda folder, checkpoint: {"seconds": 7})
    assert facts(made)["seconds"] == 7, "its maker's own time"
    (made / "part.json").unlink()
    lock = try_lock(made.with_name(f".{made.name}.lock"), remedy="")
    assert lock is not None
    with pytest.raises(UserError, match="is being made by another process: wait for it"):
        parts.get("model", {"steps": 3}, lambda folder, checkpoint: {})
    lock.release()
    with pytest.raises(ZeroDivisionError):
        parts.get("other", {}, lambda folder, checkpoint: {"x": 1 / 0})
    assert facts(parts.get("other", {}, lambda folder, checkpoint: {}))["seconds"] >= 0, "the lock was given back"
