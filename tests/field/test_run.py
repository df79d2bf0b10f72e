"""Runs leave records, are skipped and go on where they were stopped; every task runs; the report reads records."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lit_ctg.cli import main
from lit_ctg.config import plain as resolved
from lit_ctg.errors import UserError
from lit_ctg.field import run as field_run
from lit_ctg.field.bench import Arm, Bench
from lit_ctg.field.command import combinations, complete, compose
from lit_ctg.field.measure import Overlap, word_share
from lit_ctg.field.rank import deciding_judges, longest
from lit_ctg.field.skeleton import add
from lit_ctg.results.record import config_hash, load_records
from tests.field.conftest import MakeBench
from tests.llama import llama_tokenizer

RunCli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def swept(field_root: Path) -> Path:
    """Records of two methods on one task."""
    return sweep("sentiment", field_root)


def sweep(tasks: str, root: Path) -> Path:
    words = [f"task={tasks}", "method=bare,log_odds", "size=smoke", f"output_root={root}"]
    assert main(["field", "run", *words]) == 0
    return root / "field"


@pytest.mark.parametrize("tasks", ["sentiment", pytest.param(",".join(complete("task")), marks=pytest.mark.long)])
def test_every_task_leaves_whole_records(tasks: str, field_root: Path) -> None:
    swept = sweep(tasks, field_root)
    for task in tasks.split(","):
        for method in ("bare", "log_odds"):
            (record,) = load_records([swept / f"{task}-{method}"])
            assert record.status == "DONE" and record.paper == "field" and record.corpus["text"]
            assert record.metrics["cost/seconds_ratio"]["value"] > 0
            strengths = record.config["method"]["strengths"]
            assert all(f"perplexity@{float(strength):g}" in record.metrics for strength in strengths)
            own = [row for row in record.samples if row.get("kind") != "human"]
            decode, classes = record.config["decode"], len(record.config["task"]["labels"])
            assert len(own) == len(strengths) * classes * decode["prompts"] * decode["samples"]
            assert not list(record.source.parent.glob("strength-*.json"))


def test_a_record_says_what_its_judges_know_and_which_texts_are_human(swept: Path, make_bench: MakeBench) -> None:
    bare, other = load_records([swept / "sentiment-bare", swept / "sentiment-log_odds"])
    bench = make_bench()
    for judge, proof in zip(*bench.judges, strict=True):
        accuracy = bare.metrics[f"judge/{judge.name}/accuracy"]
        assert (accuracy["value"], accuracy["n"]) == (proof.right / proof.of, proof.of)
        assert accuracy["ci95"] == pytest.approx(proof.interval)
        assert bare.metrics[f"judge/{judge.name}/balanced_accuracy"]["value"] == proof.balanced
    human = [row for row in bare.samples if row.get("kind") == "human"]
    assert not [row for row in other.samples if row.get("kind") == "human"], "they stand beside the bare model once"
    for place, (row, (prompt, example)) in enumerate(zip(human, bench.prompts, strict=True)):
        assert (row["place"], row["prompt"], row["target"], row["strength"]) == (place, prompt, example.label, 0)
        assert example.text.startswith(prompt + row["text"]) and row["text"].startswith(" ")
        ids = bench.tokenizer(example.text[len(prompt) :]).input_ids
        assert row["text"] == bench.tokenizer.decode(ids[: bench.decode_options["new_tokens"]])
    weights = hashlib.sha256((bench.base_folder / "model.safetensors").read_bytes()).hexdigest()
    assert bare.corpus == bench.identity
    assert (bare.corpus["text"], bare.corpus["model"]) == (bench.task.data.checksum(), bench.base_folder.name)
    assert bare.corpus["weights"] == weights != bare.corpus["fluency"]
    assert bare.metrics["cost/parameters"]["value"] == bare.parameters == 0


class Fixed:
    """A bench that writes given texts and takes given times: two texts of each of two prompts."""

    decode_options = {"samples": 2, "prompts": 2, "new_tokens": 3}
    prompts = [("the", SimpleNamespace(text="the end", label="x")), ("a", SimpleNamespace(text="a b", label="y"))]
    word_lists = {"x": ["good"], "y": ["bad"]}
    overlap = Overlap(["one two three four five"])
    model = None
    task = SimpleNamespace(lexicon=None)
    judges = ([SimpleNamespace(name="last", judge=lambda texts: [text[-1] for text in texts]),
               SimpleNamespace(name="always", judge=lambda texts: ["y" for _ in texts])], [])  # fmt: skip

    def __init__(self) -> None:
        self.asked: list[tuple[Any, float]] = []

    def write(self, arm: Arm, strength: float) -> tuple[list[str], float, int]:
        self.asked.append((arm, strength))
        seconds, tokens = (6.0, 2) if arm.model == "own" else (2.0, 4)
        return [f"good {copy} x" for copy in "abc"] + ["one two three four five y"], seconds * len(self.asked), tokens

    def cost(self, prompts: list[str], texts: list[str]) -> list[tuple[float, int]]:
        return [(len(prompt) + len(text) / 3, len(text.split())) for prompt, text in zip(prompts, texts, strict=True)]


def test_every_text_is_measured_beside_its_prompt_and_class() -> None:
    bench, arms = Fixed(), {"x": Arm("one"), "y": Arm("two")}
    rows = field_run.texts_of(bench, arms, 0.5)  # type: ignore[arg-type]
    assert bench.asked == [(arms["x"], 0.5), (arms["y"], 0.5)]
    assert [(row["target"], row["place"], row["copy"], row["prompt"]) for row in rows] == [
        (target, place, copy, prompt) for target in "xy" for place, prompt in ((0, "the"), (1, "a")) for copy in (0, 1)
    ]
    for row in rows:
        text, words = row["text"], {"x": ["good"], "y": ["bad"]}[row["target"]]
        assert row["last"] == int(text[-1] == row["target"]) and row["strength"] == 0.5
        assert row["always"] == int(row["target"] == "y")
        assert row["nats"] == round(len(row["prompt"]) + len(text) / 3, 4) and row["tokens"] == len(text.split())
        assert row["attribute_words"] == round(word_share(text, words), 4)
        assert row["overlap"] == (0.5 if text.startswith("one") else 0.0), "one of its two 5-grams"


def test_a_summary_is_counted_by_hand() -> None:
    made = (("a b", "x", 1, 2.0, 1), ("a c", "x", 0, 4.0, 3), ("a b", "y", 1, 6.0, 2), ("", "y", 1, 0.0, 0))
    rows = [{"text": text, "target": target, "bag": bag, "nats": nats, "tokens": tokens, "repetition": 0.5 * bag,
             "overlap": 0.25, "attribute_words": 0.1} for text, target, bag, nats, tokens in made]  # fmt: skip
    found = field_run.summary(rows, ["bag"])
    values = {name: result.value for name, result in found.items()}
    assert values == pytest.approx({
        "success/bag": 0.75, "repetition": 0.375, "overlap": 0.25, "attribute_words": 0.1,
        "perplexity": math.exp(2), "distinct_1": (3 / 4 + 1) / 2, "distinct_2": 1.0, "distinct_3": 0.0,
    })  # fmt: skip
    assert {name for name, result in found.items() if result.direction == "lower"} == {
        "perplexity", "repetition", "overlap",
    }  # fmt: skip
    assert found["attribute_words"].direction == "none" and all(result.n == 4 for result in found.values())
    dear = [{**row, "nats": 20.0 * row["tokens"]} for row in rows]
    assert field_run.summary(dear, ["bag"])["perplexity"].value == pytest.approx(math.exp(20))
    silent = [{**row, "tokens": 0} for row in rows]
    assert math.isnan(field_run.summary(silent, ["bag"])["perplexity"].value)


def test_a_run_is_named_after_its_task_however_that_was_named() -> None:
    assert compose(["task=topic", "++task.name=mine", "method=log_odds"]).name == "mine-log_odds"
    assert compose(["task=topic", "+task.name='mine'"]).name == "mine-bare"
    assert compose(["task=topic", "++name=topic-own"]).name == "topic-own"


@pytest.mark.parametrize(
    "words",
    ["method=bare method.strengths=[nan]", "method=fudge method.dim=0", "method=lora method.rank=x",
     "method=lora method.alpha=nan", "method=lora_and_fudge method.parts.fudge.batch=0",
     "method=log_odds method.prior=0",
     "method=lora_and_fudge method.units.lora=x", "method=feature_channel method.guided=7",
     "method=dexperts method.filter_p=2", "method=memory method.order=2.5"],
)  # fmt: skip
def test_options_of_a_method_are_checked_before_anything_is_trained(words: str) -> None:
    cfg = compose(["task=topic", "size=smoke", *words.split()])
    with pytest.raises(UserError, match=re.escape(words.split()[1].partition("=")[0])):
        field_run.build_method(cfg)


def test_texts_of_an_interrupted_run_that_are_damaged_are_written_again(
    swept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for text in ("", "[1]", '{"corpus": ', "\x00"):
        (part := swept / "strength-1.json").write_text(text)
        assert field_run._texts_kept(part) == {}
    assert caplog.text.count(str(part)) == 3
    part.unlink()


def test_a_finished_run_is_skipped_and_a_stopped_one_goes_on(
    swept: Path, field_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["task=sentiment", "method=log_odds", "size=smoke", f"output_root={field_root}"]
    (record,) = load_records([swept / "sentiment-log_odds"])
    assert field_run.run(compose(words)).status == "SKIPPED"
    assert "done already, skipped" in capsys.readouterr().out
    texts = [(row["strength"], row["target"], row["text"]) for row in record.samples]
    written, whole = [], field_run.texts_of

    def stopped(bench: Any, arms: Any, strength: float) -> Any:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(strength)
        return whole(bench, arms, strength)

    monkeypatch.setattr(field_run, "texts_of", stopped)
    with pytest.raises(KeyboardInterrupt):
        field_run.run(compose([*words, "name=sentiment-stopped"]))
    written.clear()
    (part,) = (swept / "sentiment-stopped").rglob("strength-0.5.json")
    told = json.loads(part.read_text(encoding="utf-8"))
    part.write_text(json.dumps({**told, "corpus": {**told["corpus"], "weights": "of another training"}}))
    monkeypatch.setattr(field_run, "texts_of", lambda *given: (written.append(given[2]), whole(*given))[1])
    assert field_run.run(compose([*words, "name=sentiment-stopped"])).status == "DONE"
    assert written == [0.5, 1.0, 2.0, 4.0], "the first strength was there, the second of another model"
    (again,) = load_records([swept / "sentiment-stopped"])
    assert [(row["strength"], row["target"], row["text"]) for row in again.samples] == texts


def test_a_run_on_rewritten_texts_is_not_done_already(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "texts"
    root.mkdir()

    def write(noun: str) -> None:
        for label, word in (("cats", "purr"), ("dogs", "bark")):
            texts = [f"The {label} {word} at {noun} {number} and rest.\n\n" for number in range(60)]
            (root / f"{label}.txt").write_text("".join(texts))

    words = ["task=folder", "size=smoke", f"data.root={root}", f"output_root={tmp_path}"]
    outcomes = []
    for noun in ("house", "house", "tree", "house"):
        write(noun)
        outcomes.append(field_run.run(compose(words)))
    first, again, other, back = outcomes
    assert [each.status for each in outcomes] == ["DONE", "SKIPPED", "DONE", "SKIPPED"]
    assert first.folder == again.folder == back.folder != other.folder
    texts = [load_records([each.folder])[0].corpus["text"] for each in (first, other)]
    assert texts[0] != texts[1]
    record = first.folder / "run.json"
    told = json.loads(record.read_text(encoding="utf-8"))
    record.write_text(json.dumps({key: value for key, value in told.items() if key != "corpus"}), encoding="utf-8")
    write("lake")
    assert field_run.run(compose(words)).folder == first.folder, "a record that does not tell counts as of these texts"
    for path in root.iterdir():
        path.unlink()
    assert field_run.run(compose(words)).status == "SKIPPED", "what cannot be read cannot be run again"


def test_a_failure_of_any_kind_does_not_end_a_sweep(monkeypatch: pytest.MonkeyPatch, run_cli: RunCli) -> None:
    ran: list[tuple[str, int]] = []

    def fake(cfg: Any, benches: dict[str, Any]) -> Any:
        ran.append((cfg.name, len(benches)))
        benches["of the sweep"] = None
        if cfg.name.endswith("prefix"):
            raise RuntimeError("the model\nbroke")
        return SimpleNamespace(status="DONE")

    monkeypatch.setattr(field_run, "run", fake)
    code, _, err = run_cli("field", "run", "size=smoke")
    assert code == 2 and "give task= and method=" in err and "tasks: folder, keywords," in err, (
        "not minutes of training"
    )
    code, out, _ = run_cli("field", "run", "method=bare,prefix,log_odds", "size=smoke")
    assert code == 1 and "[2/3] sentiment-prefix seed 0: failed: runtimeerror: the model broke" in out.lower()
    assert "[3/3] sentiment-log_odds seed 0: done" in out
    assert ran == [("sentiment-bare", 0), ("sentiment-prefix", 1), ("sentiment-log_odds", 0)], "a fresh bench after it"
    ran.clear()
    with pytest.raises(RuntimeError, match="the model"):
        main(["field", "run", "method=prefix,bare", "size=smoke", "debug=true"])
    assert len(ran) == 1
    code, _, err = run_cli("field", "run", "method=prefix", "size=smoke")
    assert code == 2 and "RuntimeError: the model broke" in err and len(err.strip().splitlines()) == 1


def test_commas_are_a_sweep_and_lists_are_not() -> None:
    found = combinations(["method=bare,prefix", "method.strengths=[1,2]", "seed=0,1"])
    assert found == [[f"method={m}", "method.strengths=[1,2]", f"seed={s}"] for m in ("bare", "prefix") for s in (0, 1)]


def test_the_report_ranks_and_shows_texts(swept: Path, tmp_path: Path, run_cli: RunCli) -> None:
    places = f"{swept / 'sentiment-bare'},{swept / 'sentiment-log_odds'}"
    code, out, _ = run_cli("field", "report", f"records={places}", f"out={tmp_path / 'page'}")
    assert code == 0, out
    text = (tmp_path / "page" / "tables.md").read_text(encoding="utf-8")
    assert "## sentiment" in text
    records = load_records(places.split(","))
    deciding, failed = deciding_judges(records[0])
    for name in failed:
        assert f"Judge {name}: " in text
    assert ("decides nothing" in text) == bool(failed)
    if deciding:
        assert "| log_odds |" in text and "human text" in text
        assert (tmp_path / "page" / "figures" / "sentiment.svg").read_text().startswith("<svg")


def test_a_new_method_s_files_run(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    with pytest.raises(UserError, match=r"name=class: give a word .* not a keyword of Python"):
        add("class", tmp_path)
    module, option, test = add("quiet_words", tmp_path)
    names: dict[str, Any] = {}
    exec(compile(module.read_text(), str(module), "exec"), names)
    assert names["QuietWords"](strengths=[1]).parameters() == 0
    assert "lit_ctg.field.methods.quiet_words.QuietWords" in option.read_text()
    compile(test.read_text(), str(test), "exec")


def test_a_longer_sweep_takes_over_what_a_shorter_one_has_written(
    field_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "field").mkdir()
    parts = field_root / "field" / "parts"  # shared with the other tests
    parts.mkdir(parents=True, exist_ok=True)
    (tmp_path / "field" / "parts").symlink_to(parts)
    shared = ["task=sentiment", "size=smoke", "judges.least_accuracy=0", f"output_root={tmp_path}"]
    words = ["field", "run", "method=log_odds", *shared]
    assert main(["field", "run", "method=bare", *shared]) == 0
    written: list[float] = []
    texts_of = field_run.texts_of

    def watched(bench: Any, arms: Any, strength: float) -> list[dict[str, Any]]:
        written.append(strength)
        return texts_of(bench, arms, strength)

    monkeypatch.setattr(field_run, "texts_of", watched)
    assert main([*words, "method.strengths=[1,2]"]) == 0
    assert main([*words, "method.strengths=[1,2,4]"]) == 0
    assert written == [1, 2, 4]
    capsys.readouterr()
    assert main(["field", "report", f"records={tmp_path / 'field'}"]) == 0
    assert "| log_odds | 0." in capsys.readouterr().out, "ranked, by the longer one"
    assert main([*words, "method.strengths=[0.5,4]", "seed=1"]) == 0
    assert written == [1, 2, 4, 0.5, 4], "of another seed"
    assert main([*words, "method.strengths=[0.5,2,4]"]) == 0
    assert written == [1, 2, 4, 0.5, 4, 0.5]
    assert main([*words, "method.strengths=[0.5]", "skip_completed=false"]) == 0
    assert main([*words, "method.strengths=[0.5]", "skip_completed=false"]) == 0
    assert written == [1, 2, 4, 0.5, 4, 0.5, 0.5, 0.5], "asked for anew"
    records = {tuple(each.config["method"]["strengths"]): each for each in load_records([tmp_path / "field"])
               if each.seed == 0 and each.name == "sentiment-log_odds"}  # fmt: skip
    assert sorted(records) == [(0.5,), (0.5, 2, 4), (1, 2), (1, 2, 4)]
    first, whole = records[1, 2], records[1, 2, 4]
    assert [row for row in whole.samples if row["strength"] < 4] == first.samples
    assert all(whole.metrics[key] == value for key, value in first.metrics.items() if "@" in key)
    assert len(records[0.5, 2, 4].samples) == len(whole.samples), "each text once"
    assert longest([first, whole]) == [whole] and len(longest([*records.values()])) == 2


def test_of_a_combination_the_parts_own_strengths_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"method": {"strengths": [1, 2], "parts": {"words": {"strengths": [1], "gain": 3}}}}
    rows = [{"strength": 2.0, "text": "a"}, {"strength": 0.0, "text": "b", "kind": "human"}]
    record = SimpleNamespace(status="DONE", corpus={"text": "t", "weights": "w"}, config=config, samples=rows)
    monkeypatch.setattr(field_run, "load_records", lambda folders: [record])

    def found(corpus: dict[str, str] = record.corpus, **words: Any) -> Any:
        method = {"strengths": [2, 4], "parts": {"words": {"strengths": [1, 2], "gain": 3, **words}}}
        return field_run.written_before(Path("runs/two"), {"method": method}, corpus)

    assert found() == {2.0: rows[:1]}
    assert found(gain=4) == {}, "another method"
    assert found({"text": "u", "weights": "w"}) == {}, "another text"
    assert found({"text": "t", "weights": "v"}) == {}, "a base with the same settings, trained elsewhere"
    record.status = "FAILED"
    assert found() == {}


@pytest.mark.parametrize("normalised", [True, False])
def test_human_texts_begin_as_the_passages_go_on(normalised: bool, bench: Bench) -> None:
    """Read alone, a text cost a token for a second space, or lost the one that it begins with."""
    tokenizer = llama_tokenizer([example.text for _, example in bench.prompts], normalised)
    made, longest = copy.copy(bench), int(bench.decode_options["new_tokens"])
    made.__dict__["_loaded"] = bench.model, tokenizer

    def ids_of(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    for row, (prompt, example) in zip(field_run.human_texts(made), bench.prompts, strict=True):
        assert row["text"].startswith(" ") and example.text.startswith(prompt + row["text"])
        before, own, whole = (len(ids_of(text)) for text in (prompt, prompt + row["text"], example.text))
        assert own - before == min(longest, whole - before)
        assert row["text"] != tokenizer.decode(ids_of(example.text[len(prompt) :])[:longest])


def test_device_and_chat_of_a_model_are_in_the_configuration_where_they_are_not_the_default() -> None:
    plain = compose(["task=topic", "size=smoke", "model=gpt2"])
    assert "loading" not in plain and "chat" not in plain
    same = compose(["task=topic", "size=smoke", "model=gpt2", "device=cpu", "dtype=float32"])
    assert config_hash(resolved(same)) == config_hash(resolved(plain))
    other = compose(["task=topic", "size=smoke", "model=gpt2", "dtype=bfloat16", "chat=true", "system='go on'"])
    assert other.loading.dtype == "bfloat16" and other.chat == {"system": "go on"}
    for words in (["dtype=bfloat16"], ["model=gpt2", "dtype=float64"], ["model=gpt2", "system=a"]):
        with pytest.raises(UserError):
            compose(["task=topic", "size=smoke", *words])


OUT_OF_RANGE = [
    *("name=../topic-x", "name=sentiment-bare", f"name=topic-{'x' * 300}", f"task.name={'x' * 300}", "seed=-1"),
    *(
        "decode.prompts=0",
        "decode.top_p=1.5",
        "decode.top_k=-1",
        "decode.min_new_tokens=7",
        "judges.least_accuracy=abc",
    ),
    *("base.layers=x", "base.dim=15", "base.heads=0", "base.positions=true", "base.learning_rate=nan"),
    *("base.length=200", "fluency.steps=2.5", "judges.steps=x", "tune.batch=-1"),
    *(f"{part}={value}" for part in ("base", "fluency", "judges", "tune", "decode") for value in ("3", "null")),
]


@pytest.mark.parametrize("word", OUT_OF_RANGE)
def test_a_setting_out_of_range_is_named(word: str) -> None:
    with pytest.raises(UserError, match="name" if "name=" in word else word.partition("=")[0]):
        compose(["task=topic", "size=smoke", word])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run"], "task="),
        (["run", "method=dexpert"], "did you mean 'dexperts'"),
        (["run", "task=weather"], "'weather'"),
        (["run", "method=bare", "decode.promts=3"], "decode.promts"),
        (["report", "records=nowhere"], "nowhere"),
        (["rejudge"], "seed="),
        (["rejudge", "seed=1", "root=x"], "task="),
        (["rejudge", "seed=1", "records=a,b"], "records"),
        (["add", "name=Bad Name"], "name="),
        (["add", "name=dexperts"], "name=dexperts"),
    ],
)
def test_bad_input_is_one_line(run_cli: RunCli, words: list[str], named: str) -> None:
    code, _, err = run_cli("field", *words)
    assert code == 2 and named in err and len(err.strip().splitlines()) == 1
