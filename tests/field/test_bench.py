"""The bench: who is trained on which texts, what a part hangs on, and what is written of each prompt."""

from __future__ import annotations

import contextlib
import copy
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from tokenizers import decoders
from tokenizers.processors import TemplateProcessing

from lit_ctg.control import Steered
from lit_ctg.errors import UserError
from lit_ctg.field import bench as field_bench
from lit_ctg.field.bench import Arm, Bench, Parts, facts
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

    def other(**changed: Any) -> Bench:
        model = copy.deepcopy(bench.model)
        for value in model.parameters():
            value.data.mul_(1.5)
        made = of(base_folder=None, model_name="a/folder", model=model, **changed)
        made.__dict__.pop("weights", None)
        return made

    tune, base = {**bench.tune_options, "steps": 99}, {**bench.base_options, "length": 5}
    benches = [of(), of(seed=1), of(tune_options=tune), of(base_options=base), other(), of(_identity={"texts": "x"})]
    folders = [learned(made) for made in benches]
    assert len({*folders, learned(of(), 2)}) == len(benches) + 1
    assert [made.training_seconds for made in benches] == [3.5] * len(benches)
    again = of(judge_options={**bench.judge_options, "seed": 1}, decode_options={})
    assert learned(other()) == folders[4]
    assert learned(again) == folders[0] and again.training_seconds == 3.5, "seconds of a training done before count"


@pytest.mark.parametrize("kind", ["Bloom", "Mamba"])
def test_a_model_without_a_number_of_positions_counts_as_having_ours(bench: Bench, kind: str) -> None:
    sizes = {"vocab_size": len(bench.tokenizer), "hidden_size": 8, "n_layer": 1, "n_head": 1, "num_hidden_layers": 1}
    config = getattr(transformers, f"{kind}Config")(**sizes, state_size=2, pad_token_id=bench.tokenizer.eos_token_id)
    assert not hasattr(config, "max_position_embeddings")
    other = copy.copy(bench)
    other.model_name = f"a/{kind}"
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    other.__dict__ |= {"_loaded": (model, bench.tokenizer)}
    assert other.stream().length == other.context == bench.base_options["length"] == 32
    texts, _, _ = other.write(Arm(model), 1.0)
    assert len(texts) == len(bench.prompts) * bench.decode_options["samples"]


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
    new = bench.decode_options["new_tokens"]
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": True, "top_p": 0.9, "top_k": 200}
    alone = [
        steered.write(f"{row // 2} {bench.prompts[row // 2][0]}", seed=5, rows=[row], **options)[0] for row in range(6)
    ]
    assert texts == alone and len(set(texts)) == 6
    assert tokens == 6 * new, "no text ends before"


@pytest.mark.parametrize("taken", [0, 3])
def test_a_text_counts_to_its_end_token_and_a_long_prompt_loses_its_beginning(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """More of it where a soft prompt takes positions."""
    end, new, given = bench.tokenizer.eos_token_id, int(bench.decode_options["new_tokens"]), []
    strengths: list[float] = []

    class Written(Steered):
        def __init__(self, model: Any, controls: Any, *, tokenizer: Any) -> None:
            super().__init__(model, [], tokenizer=tokenizer)
            self.controls = tuple(controls)

        def generate(self, ids: Any, settings: Any, **options: Any) -> torch.Tensor:
            assert settings == {"soft.size": taken}
            given.extend(ids)
            width = max(map(len, ids))
            made = torch.full((len(ids), width + new), 5)
            made[0, width + 1] = end  # one token, and the end; what follows it are padding's
            made[0, width + 2 :] = end
            return made

    @contextlib.contextmanager
    def at(strength: float) -> Iterator[None]:
        strengths.append(strength)
        yield

    monkeypatch.setattr(field_bench, "Steered", Written)
    monkeypatch.setattr(field_bench, "time", SimpleNamespace(process_time=iter((3.0, 5.5)).__next__))
    soft: Any = SimpleNamespace(name="soft", columns=lambda settings, rows: settings["size"])
    long = Arm(bench.model, [soft], settings=lambda strength: {"soft.size": round(taken * strength / 2)}, at=at,
               prefix=lambda strength, place: "word " * 200)  # fmt: skip
    texts, seconds, tokens = bench.write(long, 2.0)
    assert strengths == [2.0] and tokens == 2 + (len(texts) - 1) * new and seconds == 2.5
    room = int(bench.base_options["length"]) - taken - new
    whole = [bench.tokenizer("word " * 200 + prompt).input_ids for prompt, _ in bench.prompts]
    assert given == [ids[-room:] for ids in whole], "as many positions as the base model was trained on"
    assert texts[0] == bench.tokenizer.decode([5]) and texts[1] == bench.tokenizer.decode([5] * new)


@pytest.mark.parametrize("begins", [False, True])
def test_what_the_tokenizer_begins_a_text_with_stands_before_a_prompt_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    """As in what methods train on; nothing does where the tokenizer adds nothing."""
    end, given = bench.tokenizer.eos_token_id, []

    def generate(steered: Steered, ids: Any, *args: Any, **options: Any) -> torch.Tensor:
        given.extend(ids)
        return torch.full((len(ids), max(map(len, ids)) + 1), end)

    tokenizer = copy.deepcopy(bench.tokenizer)
    if begins:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{tokenizer.eos_token} $A", special_tokens=[(tokenizer.eos_token, end)]
        )
    assert (tokenizer("word").input_ids[0] == end) == begins
    made = copy.copy(bench)
    made.__dict__.pop("start", None)  # of the other tokenizer
    made.__dict__["_loaded"] = bench.model, tokenizer
    monkeypatch.setattr(Steered, "generate", generate)
    texts, _, tokens = made.write(Arm(bench.model), 1.0)
    start = [end] * begins
    assert given == [start + bench.tokenizer(prompt, add_special_tokens=False).input_ids for prompt, _ in bench.prompts]
    assert texts == [""] * tokens


def test_the_space_before_the_first_word_is_part_of_the_text(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders of the Llama family drop it at the start; the word would be read as the end of the prompt's last."""
    tokenizer = copy.deepcopy(bench.tokenizer)
    tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    said = tokenizer(" the", add_special_tokens=False).input_ids
    assert tokenizer.decode(said) == "the"

    def generate(steered: Steered, ids: Any, *args: Any, **options: Any) -> torch.Tensor:
        width = max(map(len, ids))
        return torch.tensor([[0] * (width - len(row)) + row + said for row in ids])

    made = copy.copy(bench)
    made.__dict__["_loaded"] = bench.model, tokenizer
    monkeypatch.setattr(Steered, "generate", generate)
    assert set(made.write(Arm(bench.model), 1.0)[0]) == {" the"}


def test_a_part_that_another_process_makes_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts(tmp_path)
    made = parts.get("model", {"steps": 3}, lambda folder, checkpoint: {"seconds": 7})
    assert facts(made)["seconds"] == 7, "its maker's own time"
    (made / "part.json").unlink()
    held = threading.Event()

    def make() -> None:
        lock = try_lock(made.with_name(f".{made.name}.lock"), remedy="")
        assert lock is not None
        held.set()
        time.sleep(0.3)
        (made / "part.json").write_text('{"seconds": 8}')
        lock.release()

    other = threading.Thread(target=make)
    other.start()
    assert held.wait(60)
    with caplog.at_level("WARNING"):
        taken = parts.get("model", {"steps": 3}, lambda folder, checkpoint: {"x": 1 / 0})
    other.join()
    assert facts(taken)["seconds"] == 8, "the other's"
    assert f"waiting: another process is making {made}" in caplog.text
    with pytest.raises(ZeroDivisionError) as kept:  # its traceback holds the lock, which nothing else would give back
        parts.get("other", {}, lambda folder, checkpoint: {"x": 1 / 0})
    assert facts(parts.get("other", {}, lambda folder, checkpoint: {}))["seconds"] >= 0, "the lock was given back"
    assert kept.type is ZeroDivisionError


def test_a_part_goes_on_from_its_checkpoint_and_has_a_time_and_no_order_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(tmp_path)

    def make(folder: Path, checkpoint: Path) -> dict[str, Any]:
        known = checkpoint.is_file()
        checkpoint.write_text("half of it")
        if not known:
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        parts.get("model", {"steps": 3, "dim": 2}, make)
    monkeypatch.setattr(field_bench, "time", SimpleNamespace(monotonic=iter((10.0, 12.5)).__next__))
    made = parts.get("model", {"steps": 3, "dim": 2}, make)
    assert facts(made)["seconds"] == 2.5
    assert parts.get("model", {"dim": 2, "steps": 3}, make) == made


def _as_code(path: Path) -> None:
    torch.save({"weight": Path("x")}, path)


DAMAGES: dict[str, Any] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-200]),
    "missing": lambda path: path.unlink(),
    "code": _as_code,
    "list": lambda path: torch.save([1], path),
    "name": lambda path: torch.save({"other": torch.zeros(3)}, path),
    "shape": lambda path: torch.save({"weight": torch.zeros(1)}, path),
    "whole numbers": lambda path: torch.save({"weight": torch.zeros(3, dtype=torch.long)}, path),
    "not finite": lambda path: torch.save({"weight": torch.tensor([0.0, torch.nan, 1.0])}, path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_learned_weights_that_are_damaged_are_named_and_made_again(damage: str, bench: Bench, tmp_path: Path) -> None:
    made, weight = copy.copy(bench), torch.zeros(3)
    made.parts = Parts(tmp_path)

    def train(checkpoint: Path) -> dict[str, float]:
        weight.fill_(2.0)
        return {"loss": 1.0}

    made.learn("toy", {}, {"weight": weight}, train)
    (path,) = tmp_path.glob("toy-*/weights.pt")
    DAMAGES[damage](path)
    weight.zero_()
    with pytest.raises(UserError, match=re.escape(str(path))) as error:
        made.learn("toy", {}, {"weight": weight}, train)
    assert str(error.value).count("\n") == 0 and "weights_only" not in str(error.value) and not weight.any()
    shutil.rmtree(path.parent)
    made.learn("toy", {}, {"weight": weight}, train)
    assert weight.tolist() == [2.0] * 3


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "part.json"])
@pytest.mark.parametrize("damage", ["empty", "cut", "missing"])
def test_a_kept_model_that_is_damaged_is_named(name: str, damage: str, bench: Bench, tmp_path: Path) -> None:
    assert bench.base_folder is not None
    folder = tmp_path / bench.base_folder.name
    shutil.copytree(bench.base_folder, folder)
    DAMAGES[damage](folder / name)
    with pytest.raises(UserError, match=re.escape(str(folder))):
        facts(folder), field_bench._weights_checksum(folder), field_bench._load_part(folder)


def test_decode_alone_decides_how_a_given_model_writes(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert bench.base_folder is not None
    shutil.copytree(bench.base_folder, tmp_path / "same")
    model = copy.deepcopy(bench.model)
    settings = model.generation_config
    settings.temperature, settings.repetition_penalty, settings.num_beams, settings.top_k = 0.3, 1.7, 2, 3
    settings.do_sample, settings.suppress_tokens, settings.pad_token_id = True, list(range(5, 90)), 0
    model.save_pretrained(tmp_path / "other")
    bench.tokenizer.save_pretrained(tmp_path / "other")
    texts = []
    for name in ("same", "other"):
        made = copy.copy(bench)
        for part in ("base_folder", "_loaded", "weights"):
            made.__dict__.pop(part, None)
        made.model_name = str(tmp_path / name)
        texts.append(made.write(Arm(made.model), 1.0)[0])
    assert texts[0] == texts[1] == bench.write(Arm(bench.model), 1.0)[0]
    ends = made.model.generation_config
    assert (ends.eos_token_id, ends.pad_token_id) == (bench.tokenizer.eos_token_id, 0), "where texts end stays"
    (line,) = [each for each in caplog.messages if "decode alone" in each]
    assert "temperature=0.3" in line and "repetition_penalty=1.7" in line and "pad_token_id" not in line


def test_prompts_are_messages_in_a_chat(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = bench.write(Arm(bench.model), 1.0)[0]
    monkeypatch.setattr(bench, "chat", {"system": "go on"})
    monkeypatch.setattr(bench.tokenizer, "chat_template", "{% for m in messages %}{{ m['content'] }} {% endfor %}")
    told = bench.write(Arm(bench.model), 1.0)[0]
    assert len(told) == len(plain) and told != plain
