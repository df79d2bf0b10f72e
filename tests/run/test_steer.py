"""`lit-ctg generate model=... controls=[...]`: one prompt, and files of prompts that can be taken up again."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.control import Steered
from lit_ctg.files import try_lock
from lit_ctg.papers.control_code.control import SoftPrompt
from lit_ctg.papers.graphmax.control import Graphmax
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.papers.idea_gate.control import IdeaGate
from lit_ctg.papers.idea_gate.gate import GateForm, IdeaHead

Run = Callable[..., tuple[int, str, str]]


def controls() -> list[Any]:
    """A gate and a graph."""
    torch.manual_seed(1)
    head = IdeaHead(16, 14)
    torch.nn.init.normal_(head.outer.weight, std=3.0)
    generator = torch.Generator().manual_seed(0)
    graph = CooccurrenceGraph.from_token_ids(torch.randint(0, 14, (20, 12), generator=generator).tolist(), 14)
    gate = IdeaGate(head, form=GateForm(clamp="after_scaling", epsilon=1e-8), alpha=1.0, beta=-6.0)
    return [gate, Graphmax(graph, variant="interpolation", lam=1.0)]


@pytest.fixture
def run(run_cli: Run, tmp_path: Path, word_model: Any, word_tokenizer: Any) -> Run:
    """The command line in a folder with the model ``lm`` and the bundles ``gate`` and ``graph``."""
    word_model.save_pretrained(tmp_path / "lm")
    word_tokenizer.save_pretrained(tmp_path / "lm")
    for control, name in zip(controls(), ("gate", "graph"), strict=True):
        control.save_pretrained(tmp_path / name)
    return run_cli


def test_texts_are_those_of_python_whatever_the_batch(run: Run, word_model: Any, word_tokenizer: Any) -> None:
    words = ["generate", "model=lm", "controls=[gate,graph]", "control.idea_gate.alpha=[0,1,2]", "prompt=the war",
             "n=3", "max_new_tokens=6", "control.graphmax.strength=0.5"]  # fmt: skip
    code, out, err = run(*words)
    assert code == 0, err
    steered = Steered(word_model, controls(), tokenizer=word_tokenizer)
    settings = {"idea_gate.alpha": [0, 1, 2], "graphmax.strength": 0.5}
    made = steered.write(["the war"] * 3, settings, max_new_tokens=6, do_sample=True, seed=0)
    assert out == "".join(f"the war{text}\n" for text in made)
    assert run(*words, "batch_size=2")[1] == out
    assert run(*words, "seed=1")[1] != out
    greedy = run(*words[:3], "prompt=the war", "do_sample=false", "generate.num_beams=2", "max_new_tokens=4")
    assert greedy[0] == 0, greedy[2]


def test_all_controls_at_strength_0_are_the_bare_model(run: Run, tmp_path: Path, carried_controls: Any) -> None:
    made = carried_controls()
    for name, control in made.items():
        control.save_pretrained(tmp_path / "all" / name)
    words = ["generate", "model=lm", "prompt=the war", "n=4", "max_new_tokens=8"]
    code, bare, err = run(*words)
    assert code == 0, err
    bundles = f"controls=[{','.join(f'all/{name}' for name in made)}]"
    on = ["control.lexicon.to_polarity=1", "control.neuron_codes.news=1", "control.feature_channel.pos=1"]
    off = [f"control.{name}.{control.strength}=0" for name, control in made.items()]
    code, out, err = run(*words, bundles, *on, *off)
    assert (code, out) == (0, bare), err
    # the same bundles do something when they are on
    assert run(*words, bundles, *on, "control.grammar.strength=0")[1] != bare


def test_a_file_of_prompts_with_settings_a_line_is_taken_up_again(run: Run, tmp_path: Path) -> None:
    lines = [{"prompt": "the war"}, {"prompt": "in", "settings": {"idea_gate.alpha": 0}}, {"prompt": "a good acid"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    words = ["generate", "model=lm", "controls=[gate]", "control.idea_gate.alpha=2", "prompts=in.jsonl", "n=2",
             "max_new_tokens=5"]  # fmt: skip
    code, out, err = run(*words, "out=out.jsonl")
    assert (code, out) == (0, "3 prompts, 6 texts: out.jsonl\n"), err
    whole = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    found = [json.loads(line) for line in whole.splitlines()]
    assert [(one["line"], one["copy"]) for one in found] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert found[2]["settings"] == {"idea_gate.alpha": 0} and found[0]["settings"] == {"idea_gate.alpha": 2}
    # killed in the midst of the fourth text: the second prompt is done anew
    (tmp_path / "out.jsonl").write_text(
        "".join(whole.splitlines(keepends=True)[:3]) + '{"line": 1, "co', encoding="utf-8"
    )
    code, out, err = run(*words, "out=out.jsonl", "batch_size=1")
    assert (code, out) == (0, "3 prompts, 6 texts: out.jsonl (1 prompts were there)\n"), err
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == whole
    code, _, err = run(*words, "out=out.jsonl", "seed=5")
    assert code == 2 and "out=out.jsonl holds texts of another command" in err
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == whole


def test_a_file_of_something_else_is_left_alone(run: Run, tmp_path: Path) -> None:
    """Also one without any whole line, and the prompts themselves."""
    prompts = '{"prompt": "the \N{LATIN SMALL LETTER E WITH ACUTE}"}'
    (tmp_path / "in.jsonl").write_text(prompts, encoding="utf-8")
    words = ["generate", "model=lm", "prompts=in.jsonl", "max_new_tokens=2"]
    for name, text, told in (
        ("note.txt", "my note", "holds texts of another"),
        ("in.jsonl", prompts, "the file of prompts"),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        code, _, err = run(*words, f"out={name}")
        assert code == 2 and f"out={name}" in err and told in err, err
        assert (tmp_path / name).read_text(encoding="utf-8") == text
    # killed within a letter of two bytes
    assert run(*words, "out=out.jsonl")[0] == 0
    whole = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl").write_bytes(whole[: whole.index("\N{LATIN SMALL LETTER E WITH ACUTE}".encode()) + 1])
    code, out, err = run(*words, "out=out.jsonl")
    assert (code, out) == (0, "1 prompts, 1 texts: out.jsonl\n"), err
    assert (tmp_path / "out.jsonl").read_bytes() == whole
    (tmp_path / "out.jsonl").write_bytes(whole + b'{"line": 0, "copy": 0, "prompt": "')
    code, _, err = run(*words, "out=out.jsonl")
    assert code == 2 and "holds texts of another command" in err, "more than the prompts give"


def test_one_process_writes_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "the war"}\n', encoding="utf-8")
    words = ["generate", "model=lm", "prompts=in.jsonl", "out=out.jsonl", "max_new_tokens=2"]
    lock = try_lock(tmp_path / ".out.jsonl.lock")
    assert lock is not None
    code, _, err = run(*words)
    lock.release()
    assert code == 2 and "out=out.jsonl: another process is writing it" in err and not (tmp_path / "out.jsonl").exists()
    assert run(*words)[0] == 0 and run(*words)[0] == 0, "free again each time"


def test_a_text_may_hold_any_character(run: Run, tmp_path: Path) -> None:
    """JSON leaves separators as they are at which Python splits lines."""
    odd = "the war\x85 in\u2028 1914"
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": odd}, ensure_ascii=False) + "\n", encoding="utf-8")
    words = ["generate", "model=lm", "prompts=in.jsonl", "out=out.jsonl", "max_new_tokens=2"]
    for said in ("1 prompts, 1 texts: out.jsonl\n", "1 prompts, 1 texts: out.jsonl (1 prompts were there)\n"):
        code, out, err = run(*words)
        assert (code, out) == (0, said), err
    assert json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))["prompt"] == odd


def test_several_sequences_of_each_text(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "the war"}\n{"prompt": "in"}\n', encoding="utf-8")
    words = ["generate", "model=lm", "controls=[gate]", "max_new_tokens=4", "generate.num_return_sequences=2"]
    for other in (["generate.num_beams=2", "generate.do_sample=false"], ["n=2"]):
        out = f"{len(other)}.jsonl"
        assert run(*words, *other, "prompts=in.jsonl", f"out={out}")[0] == 0
        whole = (tmp_path / out).read_text(encoding="utf-8")
        told = [json.loads(line) for line in whole.splitlines()]
        each = len(told) // 2
        assert [(one["line"], one["copy"]) for one in told] == [(line, copy) for line in (0, 1) for copy in range(each)]
        code, said, err = run(*words, *other, "prompt=the war")
        assert (code, said) == (0, "".join(f"the war{one['text']}\n" for one in told[:each])), err
        (tmp_path / out).write_text("".join(whole.splitlines(keepends=True)[: each + 1]), encoding="utf-8")
        assert run(*words, *other, "prompts=in.jsonl", f"out={out}", "batch_size=1")[0] == 0
        assert (tmp_path / out).read_text(encoding="utf-8") == whole


def test_a_control_that_is_off_says_how_it_is_set(run: Run, word_model: Any, tmp_path: Path) -> None:
    SoftPrompt(["war", "peace"], torch.zeros(2, 3, word_model.config.hidden_size)).save_pretrained(tmp_path / "soft")
    words = ["generate", "model=lm", "controls=[soft,gate]", "prompt=in", "max_new_tokens=2"]
    code, _, err = run(*words)
    assert code == 0 and err == "soft_prompt is off: set control.soft_prompt.war=1 or control.soft_prompt.peace=1\n"
    assert run(*words, "control.soft_prompt.war=1")[2] == ""


def test_beams_draw_nothing(run: Run) -> None:
    words = ["generate", "model=lm", "controls=[gate]", "prompt=in", "n=3", "max_new_tokens=6", "generate.num_beams=2"]
    code, out, err = run(*words)
    assert code == 0, err
    assert out == run(*words, "do_sample=false")[1] == run(*words, "seed=1", "batch_size=1")[1]
    for name in ("do_sample", "generate.do_sample"):
        code, _, err = run(*words, f"{name}=true")
        assert code == 2 and "do_sample=true: beams draw together" in err and err.count("\n") == 1


def test_two_bundles_of_one_kind_get_names(run: Run) -> None:
    words = ["generate", "model=lm", "prompt=in", "n=2", "max_new_tokens=5"]
    code, _, err = run(*words, "controls=[gate,gate]")
    assert code == 2 and "controls=[<name>=<folder>,...]" in err
    one = run(*words, "controls=[gate]", "control.idea_gate.alpha=2")[1]
    named = run(*words, "controls=[a=gate,b=gate]", "control.a.alpha=2", "control.b.alpha=0")
    assert named[0] == 0 and named[1] == one, named[2]
    code, _, err = run(*words, "controls=[a b=gate]")
    assert code == 2 and "controls=a b=gate: control name" in err


@pytest.mark.parametrize(
    "option", ["min_length=9", "encoder_repetition_penalty=0.05", "repetition_penalty=3.0", "no_repeat_ngram_size=1"]
)
def test_what_counts_padding_sees_none(run: Run, tmp_path: Path, option: str) -> None:
    """The token of the padding is a text's end here, so what looks at the prompt's ids would see it."""
    prompts = ["in", "the war began in 1914 .", "the acid", "a war", "good"]
    content = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
    (tmp_path / "in.jsonl").write_text(content, encoding="utf-8")
    words = ["generate", "model=lm", "controls=[gate]", "prompts=in.jsonl", "max_new_tokens=9", f"generate.{option}"]
    for size in (1, 5):
        code, _, err = run(*words, f"out={size}.jsonl", f"batch_size={size}", "n=3")
        assert code == 0, err
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "5.jsonl").read_bytes()


def test_a_changed_bundle_is_another_command(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "the war"}\n', encoding="utf-8")
    words = ["generate", "model=lm", "controls=[gate]", "prompts=in.jsonl", "out=out.jsonl", "max_new_tokens=2"]
    assert run(*words)[0] == 0
    other = controls()[0]
    other.alpha = 2.0
    other.save_pretrained(tmp_path / "gate")
    code, _, err = run(*words)
    assert code == 2 and "out=out.jsonl holds texts of another command" in err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"prompt": "in", "settings": {"idea_gate.alfa": 1}}, "'alfa'; did you mean 'alpha'"),
        ({"prompt": "in", "settings": {"gate.alpha": 1}}, "no control 'gate'"),
        ({"prompt": "in", "settings": {"idea_gate.alpha": [0, 1]}}, "idea_gate.alpha has 2 values for 1 prompts"),
        ({"prompt": " ".join(["war"] * 62)}, "the model has 64 positions"),
    ],
)
def test_every_line_is_checked_before_the_first_text(run: Run, tmp_path: Path, line: Any, told: str) -> None:
    (tmp_path / "in.jsonl").write_text(f'{{"prompt": "in"}}\n\n{json.dumps(line)}\n', encoding="utf-8")
    words = ["generate", "model=lm", "controls=[gate]", "prompts=in.jsonl", "out=out.jsonl", "batch_size=1"]
    code, _, err = run(*words, "max_new_tokens=5")
    assert code == 2 and "prompts=in.jsonl, line 3: " in err and told in err and err.count("\n") == 1, err
    assert not (tmp_path / "out.jsonl").exists()


def test_lines_with_and_without_a_soft_prompt_are_batches_of_their_own(run: Run, tmp_path: Path) -> None:
    torch.manual_seed(2)
    SoftPrompt(["news"], 5 * torch.randn(1, 3, 16)).save_pretrained(tmp_path / "soft")
    words = ["generate", "model=lm", "controls=[soft,gate]", "prompts=in.jsonl", "max_new_tokens=5"]
    lines = [{"soft_prompt.news": 1}, {"soft_prompt.news": 1}, {}, {"soft_prompt.news": 1, "idea_gate.alpha": [0.5]}]
    content = "".join(json.dumps({"prompt": "in", "settings": line}) + "\n" for line in lines)
    (tmp_path / "in.jsonl").write_text(content, encoding="utf-8")
    made = []
    for size in (8, 1):
        code, _, err = run(*words, f"out={size}.jsonl", f"batch_size={size}", "n=2")
        assert code == 0, err
        made.append((tmp_path / f"{size}.jsonl").read_text(encoding="utf-8"))
    assert made[0] == made[1] and len(made[0].splitlines()) == 8
    code, _, err = run(*words, "out=x.jsonl", "generate.repetition_penalty=1.5")
    assert code == 2 and "line 1: repetition_penalty: it would count" in err and not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["model=nowhere"], "model=nowhere"),
        (["model=lm", "controls=[nowhere]"], "no control at nowhere"),
        (["model=lm", "controls=[gate]", "control.gate.alpha=1"], "no control 'gate'; did you mean 'idea_gate'"),
        (["model=lm", "controls=[gate]", "control.idea_gate.alpha=-1"], "idea_gate.alpha=-1: give a number"),
        (["model=lm", "controls=[gate]", "control.idea_gate.alpha=[1,2]", "n=3"], "has 2 values for n=3 texts"),
        (["model=lm", "max_new_tokens=70"], "the model has 64 positions"),
        (["model=lm", "generate.num_return_sequences=0"], "num_return_sequences=0: pass a whole number from 1"),
        (["model=lm", "prompts=in.jsonl"], "go together"),
        (["model=lm", "prompts=no.jsonl", "out=x"], "prompts=no.jsonl: cannot be read"),
        (["model=lm", "generate.prompt_lookup_num_tokens=2"], "controls cannot follow prompt lookup"),
    ],
)
def test_bad_input_is_one_line(run: Run, words: list[str], line: str) -> None:
    code, _, err = run("generate", *words)
    assert code == 2 and line in err and err.count("\n") == 1, err


def test_a_pipe_is_no_file_of_prompts_or_texts(run: Run, tmp_path: Path) -> None:
    """Reading it would never end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "in.jsonl").write_text('{"prompt": "war"}', encoding="utf-8")
    for words in (["prompts=pipe", "out=out.jsonl"], ["prompts=in.jsonl", "out=pipe"]):
        code, _, err = run("generate", "model=lm", *words)
        assert code == 2 and "pipe is a pipe, a device or a socket, not a file" in err and err.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_what_a_text_holds_does_not_reach_the_terminal(run: Run) -> None:
    code, out, err = run("generate", "model=lm", "prompt=the \x1b]0;war\x07", "max_new_tokens=1")
    assert code == 0 and "\\x1b]0;war\\x07" in out and "\x1b" not in out, err


# chat, device and precision ------------------------------------------------------------------------------------------

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


@pytest.fixture
def talk(run: Run, tmp_path: Path) -> Run:
    """As ``run``, with a chat template of words."""
    (tmp_path / "lm" / "chat_template.jinja").write_text(TEMPLATE)
    return run


def test_a_file_of_messages_is_answered_and_goes_on(
    talk: Run, tmp_path: Path, word_model: Any, word_tokenizer: Any
) -> None:
    said = [{"role": "user", "content": "the war"}]
    longer = [*said, {"role": "assistant", "content": "began"}, {"role": "user", "content": "in 1914"}]
    lines = [{"messages": said}, {"messages": longer, "settings": {"idea_gate.alpha": 1}}, {"prompt": "the war"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["generate", "model=lm", "controls=[gate]", "control.idea_gate.alpha=0", "max_new_tokens=4", "system=good"]
    words += ["prompts=in.jsonl", "out=out.jsonl"]
    code, _, err = talk(*words)
    assert code == 0, err
    told = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each.get("messages", each.get("prompt")) for each in told] == [said, longer, "the war"]
    word_tokenizer = copy.deepcopy(word_tokenizer)
    word_tokenizer.chat_template = TEMPLATE
    steered = Steered(word_model, controls()[:1], tokenizer=word_tokenizer)
    settings = {"idea_gate.alpha": [0, 1, 0]}
    asked = [said, longer, "the war"]
    options = {"max_new_tokens": 4, "do_sample": True, "seed": 0}
    assert [each["text"] for each in told] == steered.chat(asked, settings, system="good", **options)
    whole = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl").write_bytes(whole[: whole.index(b"\n") + 40])
    assert talk(*words)[0] == 0 and (tmp_path / "out.jsonl").read_bytes() == whole
    assert talk(*words[:-3], "system=bad", *words[-2:])[0] == 2, "texts of another command"
    one = talk("generate", "model=lm", "prompt=the war", "chat=true", "system=good", "max_new_tokens=4")
    assert (
        one[0] == 0
        and one[1].rstrip("\n") == steered.chat("the war", {"idea_gate.alpha": 0}, system="good", **options)[0]
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["prompt=a", "system=b"], "system="),
        (["prompts=in.jsonl", "out=o.jsonl", "chat=false"], "chat=false"),
        (["prompt=a", "chat=perhaps"], "chat"),
        (["prompt=a", "device=tpu"], "device"),
        (["prompt=a", "load=2bit"], "load"),
    ],
)
def test_settings_of_chat_and_device_are_refused(talk: Run, tmp_path: Path, words: list[str], named: str) -> None:
    (tmp_path / "in.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    code, _, err = talk("generate", "model=lm", *words)
    assert code == 2 and named in err and not (tmp_path / "o.jsonl").exists()


def test_a_model_without_a_template_takes_no_messages(run: Run) -> None:
    code, _, err = run("generate", "model=lm", "prompt=a", "chat=true")
    assert code == 2 and "chat template" in err


def test_a_model_in_half_precision_writes_what_python_does(run: Run, word_model: Any, word_tokenizer: Any) -> None:
    words = ["generate", "model=lm", "controls=[gate]", "prompt=the war", "max_new_tokens=6", "device=cpu"]
    code, out, err = run(*words, "dtype=bfloat16")
    assert code == 0, err
    half = Steered(copy.deepcopy(word_model).to(torch.bfloat16), controls()[:1], tokenizer=word_tokenizer)
    assert out == f"the war{half.write('the war', max_new_tokens=6, do_sample=True, seed=0)[0]}\n"
